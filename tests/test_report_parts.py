"""Figures, ticks and neighbours, each beside literal numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from recsys import formats
from recsys.report import run_figures
from recsys.report.charts import thin_out, ticks
from recsys.report.evaluated import repeats_in_words
from recsys.report.whiskers import Estimate, shared_range


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (formats.count, 12345, "12,345"),
        (formats.count, 8464.2, "8,464"),
        (formats.count, None, "–"),
        (formats.count, True, "–"),
        (formats.figure, 0.11804, "0.118"),
        (formats.figure, 0.05391, "0.0539"),
        (formats.figure, 0.004213, "0.00421"),
        (formats.figure, 1.0, "1.00"),
        (formats.figure, 5.437, "5.44"),
        (formats.figure, -0.27, "-0.270"),
        (formats.figure, 0, "0"),
        (formats.figure, 123.4, "123"),
        (formats.figure, 12345.6, "12,346"),
        (formats.figure, float("nan"), "–"),
        (formats.figure, "0.1", "–"),
        (formats.figure, float("inf"), "–"),
        (formats.figure, 10**400, "–"),
        (formats.score, 0.4, "0.40"),
        (formats.score, None, "–"),
        (formats.share, 0.0871, "8.7 %"),
        (formats.share, 0.0001, "< 0.1 %"),
        (formats.share, 0, "0.0 %"),
        (formats.size, 0, "0 B"),
        (formats.size, 999, "999 B"),
        (formats.size, 3_412_881, "3.4 MB"),
        (formats.size, 2.5e9, "2.5 GB"),
        (formats.duration, 0.42, "0.4 s"),
        (formats.duration, 48.2, "48 s"),
        (formats.duration, 59.6, "1 min 0 s"),
        (formats.duration, 200, "3 min 20 s"),
        (formats.duration, 7500, "2 h 5 min"),
        (formats.moment, 1_463_616_000, "2016-05-19"),
        (formats.moment, 1_463_616_000 + 3_660, "2016-05-19 01:01 UTC"),
        (formats.moment, 1e20, "1e+20 s since 1970"),
        (formats.moment, None, "–"),
        (formats.change, 0.0312, "+3.1 %"),
        (formats.change, -0.004, "−0.4 %"),
        (formats.change, 0.0004, "±0 %"),
        (formats.change, 2.4, "+240 %"),
        (formats.change, 12.345, "+1,234 %"),
        (formats.change, None, "–"),
        (formats.change_span, [0.019, 0.044], "+1.9 … +4.4 %"),
        (formats.change_span, [-0.019, None], "–"),
        (formats.change_span, 3, "–"),
        (formats.change_span, [0.0, 1e-9], "±0 %"),
        (formats.span, (0.1076, 0.1293), "0.108 … 0.129"),
        (formats.span, (0.0964, 0.158), "0.0964 … 0.1580"),
        (formats.span, (0.00012, 0.3), "0.0001 … 0.3000"),
        (formats.span, (12.0, 4321.0), "12.0 … 4,321"),
    ],
)
def test_numbers_read_well(write: Any, value: Any, text: str) -> None:
    # Figure and unit stay on one line.
    assert write(value).replace("\N{NO-BREAK SPACE}", " ") == text


@pytest.mark.parametrize(
    ("low", "high", "about", "expected"),
    [
        (0, 2036, 6, [0, 500, 1000, 1500, 2000, 2500]),
        (2.55, 5.52, 4, [2, 3, 4, 5, 6]),
        (0, 1, 4, [0, 0.25, 0.5, 0.75, 1]),
        (7, 7, 2, [6, 7, 8]),
        (-3e-5, 2e-5, 5, [-3e-5, -2e-5, -1e-5, 0, 1e-5, 2e-5]),
    ],
)
def test_ticks_are_round_and_enclose(
    low: float, high: float, about: int, expected: list[float]
) -> None:
    assert ticks(low, high, about) == pytest.approx(expected)


def test_thinning_keeps_the_ends_and_means_the_rest() -> None:
    points = [(float(i), float(i % 2)) for i in range(1002)]
    thinned = thin_out(points, 12)
    assert len(thinned) == 12
    assert (thinned[0], thinned[-1]) == (points[0], points[-1])
    assert thinned[1] == (50.5, 0.5)
    assert thin_out(points, 2000) == points


def test_one_scale_holds_all_figures_and_zero_but_no_interval_without_bounds() -> None:
    calm = [Estimate(0.1, 0.05, 0.15), Estimate(0.2, 0.15, 0.25), Estimate(0.3, 0.2, 0.4)]
    scale = shared_range(calm)
    assert (scale.low, scale.high) == (0.0, 0.4)
    wild = shared_range([*calm, Estimate(0.1, -50.0, 50.0)])
    assert wild.low == pytest.approx(-0.9)
    assert wild.high == pytest.approx(1.2)
    assert shared_range([]).low < shared_range([]).high


@pytest.mark.parametrize("block_rows", [3, 7, 1000])
def test_nearest_equals_the_whole_matrix(block_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_figures, "_BLOCK_ITEMS", block_rows)
    embeddings = np.random.default_rng(1).normal(size=(40, 8)).astype(np.float32)
    embeddings[17] = np.nan
    queries = np.array([5, 39, 1])
    is_item = ~np.isin(np.arange(40), [0, 2, 20])  # Shared rows, and a free one.
    rows, cosines = run_figures.nearest_items(embeddings, queries, is_item)
    for query, found, scores in zip(queries, rows, cosines, strict=True):
        expected = {}
        for row in range(1, 40):
            if row != query and is_item[row]:
                a, b = embeddings[query].astype(float), embeddings[row].astype(float)
                expected[row] = 0.0 if row == 17 else a @ b / np.sqrt((a @ a) * (b @ b))
        best = sorted(expected, key=lambda row: -expected[row])[:5]
        assert found.tolist() == best
        assert scores == pytest.approx([expected[row] for row in best], abs=1e-5)


def test_nearest_of_two_items_is_the_other_one() -> None:
    is_item = np.array([False, True, True])
    rows, cosines = run_figures.nearest_items(np.eye(3, dtype=np.float32), np.array([1]), is_item)
    assert rows.tolist() == [[2]]
    assert cosines.tolist() == [[0.0]]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, "1,234 held-out events (5.0 %) repeat an item that its user had seen: excluded from"
             " all figures, with 17 queries that have no other answer (repeats: exclude)."),
        ({"repeats": "include"}, "1,234 held-out events (5.0 %) repeat an item that its user had"
                                 " seen: evaluated like others"),
    ],
    ids=["exclude", "include"],
)  # fmt: skip
def test_repeats_are_counted_in_a_sentence(changed, said):
    counts = {"repeated_positives": 1234, "repeated_share": 0.05, "repeat_only_queries": 17}
    text = repeats_in_words({"repeats": "exclude", **counts, **changed})
    assert said in text.replace("\N{NO-BREAK SPACE}", " ")
    assert repeats_in_words({"repeats": "exclude", **counts, "repeated_positives": 0}) == ""
    assert "set repeats" not in text
    many = repeats_in_words({"repeats": "exclude", **counts, **changed, "repeated_share": 0.9})
    assert ("set repeats to include" in many) == (not changed)
