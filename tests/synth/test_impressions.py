"""Labels follow the probabilities that are written beside them, which no additive model reaches."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pyarrow.csv
import pytest
import scipy.sparse
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.preprocessing import OneHotEncoder

from recsys.config.load import load_config
from recsys.errors import UsageError
from recsys.synth import ImpressionsSummary, synthesize_impressions

USERS, ITEMS, IMPRESSIONS = 300, 100, 6_000


@pytest.fixture(scope="module")
def summary(tmp_path_factory: pytest.TempPathFactory) -> ImpressionsSummary:
    folder = tmp_path_factory.mktemp("impressions") / "data"
    return synthesize_impressions(folder, USERS, ITEMS, IMPRESSIONS, seed=8)


def _columns(path: Path) -> dict[str, np.ndarray]:
    table = pyarrow.csv.read_csv(path)
    return {name: table[name].to_numpy() for name in table.column_names}


def test_an_impression_is_ten_items_shown_to_a_user_at_once(summary: ImpressionsSummary) -> None:
    shown = _columns(summary.impressions)
    assert len(shown["item_id"]) == summary.n_rows == 10 * IMPRESSIONS
    impressions, first = np.unique(shown["impression_id"], return_index=True)
    assert len(impressions) == IMPRESSIONS
    of_first = np.repeat(np.sort(first), 10)
    for name in ("impression_id", "user_id", "timestamp", "device"):
        assert (shown[name] == shown[name][of_first]).all()
    assert (shown["position"] == np.tile(np.arange(10), IMPRESSIONS)).all()
    pairs = set(zip(shown["impression_id"], shown["item_id"], strict=True))
    assert len(pairs) == summary.n_rows
    assert not shown["bought"][shown["clicked"] == 0].any()


def test_labels_follow_the_probabilities(summary: ImpressionsSummary) -> None:
    shown, truth = _columns(summary.impressions), _columns(summary.probabilities)
    for name in ("impression_id", "item_id"):
        assert (shown[name] == truth[name]).all()
    clicked = shown["clicked"] == 1
    for label, p in ((shown["clicked"], truth["click"]), (shown["bought"], truth["buy"])):
        which = clicked if p is truth["buy"] else np.ones(len(p), bool)
        label, p = label[which], p[which]
        # Sums of independent draws: each within 4 standard deviations of what is expected.
        for part in np.array_split(np.argsort(p), 20):
            spread = np.sqrt((p[part] * (1 - p[part])).sum())
            assert abs(label[part].sum() - p[part].sum()) < 4 * spread
    # The log odds fall by .35 with the logarithm of the position.
    odds, first = (np.log(p / (1 - p)) for p in (truth["click"], truth["click_first"]))
    expected = -0.35 * np.log2(1.0 + shown["position"])
    exact = truth["click"] > 0.01  # Six digits are written.
    np.testing.assert_allclose((odds - first)[exact], expected[exact], atol=1e-3)


def test_the_optimum_is_above_every_sum_of_effects(summary: ImpressionsSummary) -> None:
    shown, truth = _columns(summary.impressions), _columns(summary.probabilities)
    names = ("user_id", "item_id", "device", "position")
    hour = shown["timestamp"] % 86_400 // 3_600
    columns = np.stack([*(shown[name].astype(str) for name in names), hour.astype(str)], axis=1)
    one_hots = scipy.sparse.csr_matrix(OneHotEncoder().fit_transform(columns))
    additive = LogisticRegression(solver="liblinear").fit(one_hots, shown["clicked"])
    best = roc_auc_score(shown["clicked"], truth["click"])
    # Even on the rows that it was fitted to.
    assert best > roc_auc_score(shown["clicked"], additive.predict_proba(one_hots)[:, 1]) + 0.02
    assert best < 0.9


def test_its_config_is_valid(summary: ImpressionsSummary) -> None:
    assert load_config(summary.config).model.task == "ranking"


def test_equal_arguments_give_equal_files(tmp_path: Path) -> None:
    folders = [tmp_path / "a" / "same", tmp_path / "b" / "same", tmp_path / "c" / "same"]
    first, same, other = (
        dataclasses.asdict(synthesize_impressions(folder, 30, 40, 50, seed))
        for folder, seed in zip(folders, (3, 3, 4), strict=True)
    )
    for name, path in first.items():
        if isinstance(path, Path):
            assert path.read_bytes() == same[name].read_bytes()
            assert name == "config" or path.read_bytes() != other[name].read_bytes()


def test_impressions_need_more_items_than_they_show(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="R703"):
        synthesize_impressions(tmp_path / "out", users=10, items=19, impressions=10)
    assert not (tmp_path / "out").exists()
