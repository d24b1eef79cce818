"""What was served beside the training data: distances, unknown values, and joined labels."""

import json

import numpy as np
import pytest
from row_worlds import START, Shown, data_config, ingested, shown
from scipy.spatial.distance import jensenshannon
from sklearn.metrics import log_loss, roc_auc_score

from recsys.cli import main
from recsys.data.served_log import Served, ServedRows
from recsys.evaluation.served import compare_served, jensen_shannon

FEATURES = [
    {"name": "device", "column": "device", "kind": "category"},
    {"name": "slot", "column": "position", "kind": "number", "as": "dense"},
]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return ingested(tmp_path_factory.mktemp("data"), shown(), features=FEATURES)


@pytest.fixture(scope="module")
def log(tmp_path_factory, data):
    """A log of 200 answers of 3 items: 60 % of the devices are phones, 20 % TVs, 20 % unknown."""
    folder, rng = tmp_path_factory.mktemp("served"), np.random.default_rng(1)
    config = data_config("x.csv", features=FEATURES).interactions
    rows, labels, lines = ServedRows(config), [], []
    for number in range(200):
        device = ["phone", "phone", "phone", "tv", "vr"][number % 5]
        click = rng.random(3).round(6)
        items = [f"i{(number + at) % 20}" for at in range(3)]
        scores = {"click": click.tolist(), "buy": (click / 2).tolist()}
        context = {"device": device if number % 10 else None}
        impression, user = f"served-{number}", f"u{number % 30}"
        lines.append(rows.lines(
            Served(START + number, user, impression, 1 + number % 2, items, context, {}, scores)
        ))  # fmt: skip
        for at, item in enumerate(items[:2]):  # Nobody sent labels of the third.
            clicked = int(rng.random() < click[at])
            bought = clicked * int(rng.random() < 0.5)
            labels.append(
                Shown(user, item, START + number, clicked, bought, impression, at, "", 1.0)
            )
    (folder / "2026-11-27-000001.jsonl").write_text("".join(lines))
    text = [",".join(map(str, row)) for row in [Shown._fields, *labels]]
    (folder / "labels.csv").write_text("\n".join(text) + "\n")
    return folder, labels, [json.loads(line) for line in "".join(lines).splitlines()]


def test_served_context_is_compared_as_the_model_reads_it(data, log):
    folder, _, lines = log
    config = data_config("x.csv", features=FEATURES).interactions
    result = compare_served(folder, config, data, limit=0.2)
    assert (result["rows"], result["requests"], result["users"]) == (600, 200, 30)
    assert result["versions"] == {"1": 300, "2": 300}
    device, slot = result["drift"]
    read = data.store.train_rows.features["device"][:][:, 0]
    then = np.bincount(read[read > 0], minlength=3)[1:] / (read > 0).sum()
    devices = [line["device"] for line in lines]
    now = np.array([devices.count(x) for x in ("phone", "tv")], float)
    tokens = data.event_features[0].learned["token"].to_pylist()
    now = now[[("phone", "tv").index(token) for token in tokens]]
    assert device["value"] == pytest.approx(np.abs(now / now.sum() - then).max())
    assert device["exceeds"] == (device["value"] > 0.2)
    assert device["missing"] == devices.count(None) / 600
    assert device["unknown"] == devices.count("vr") / 600
    # Positions 0 … 2 of the log beside 0 … 3 of the training data.
    assert slot["measure"] == "Jensen-Shannon"
    places = data.store.train_rows.position[:]
    shares = np.bincount(places, minlength=4) / len(places)
    right = jensenshannon(shares, [1 / 3, 1 / 3, 1 / 3, 0], base=2) ** 2
    assert slot["value"] == pytest.approx(right, abs=1e-9)
    assert result["metrics"] == {}


def test_a_label_that_was_not_served_has_no_metrics(data, log, tmp_path):
    folder, _, lines = log
    clicks = [
        {**line, "served_scores": {"click": line["served_scores"]["click"]}} for line in lines
    ]
    (tmp_path / "1.jsonl").write_text("".join(json.dumps(line) + "\n" for line in clicks))
    config = data_config("x.csv", features=FEATURES).interactions
    result = compare_served(tmp_path, config, data, labels=[str(folder / "labels.csv")])
    assert {*result["metrics"]} == {"click"}


def test_the_divergence_is_that_of_scipy():
    a, b = np.random.default_rng(0).dirichlet(np.ones(9), 2)
    b[3] = 0.0
    b /= b.sum()
    assert jensen_shannon(a, b) == pytest.approx(jensenshannon(a, b, base=2) ** 2)


def test_later_labels_are_joined_by_the_impression(data, log, tmp_path, capsys):
    folder, labels, lines = log
    file = tmp_path / "config.yaml"
    config = {"name": "served", "root": "root", "data": json.loads(
        data_config("x.csv", features=FEATURES).model_dump_json(exclude_unset=True)
    )}  # fmt: skip
    file.write_text(json.dumps(config))
    words = ["--data", data.folder, "--out", tmp_path / "out", "--config", file]
    labelled = ["--labels", folder / "labels.csv"]
    with pytest.raises(SystemExit) as ended:
        main(["evaluate", *map(str, ["--served", folder, *words, *labelled])])
    assert not ended.value.code
    shown_to_people = capsys.readouterr()
    result = json.loads((tmp_path / "out" / "served.json").read_text())
    assert json.loads(shown_to_people.out) == result
    assert str(tmp_path / "out" / "served.json") in shown_to_people.err.replace("\n", "")
    of_row = {(line["impression"], line["item"]): line["served_scores"] for line in lines}
    scores = [of_row[row.impression, row.item] for row in labels]
    assert result["labelled"] == {"click": 400, "buy": 400}
    for name in ("click", "buy"):
        label = [getattr(row, name) for row in labels]
        score = [one[name] for one in scores]
        found = result["metrics"][name]
        assert found["roc_auc"] == pytest.approx(roc_auc_score(label, score), abs=1e-9)
        assert found["log_loss"] == pytest.approx(log_loss(label, score), abs=1e-6)
    for wrong, code in ((["--served", tmp_path], "R906"), (["--served", folder, "m"], "R905")):
        with pytest.raises(SystemExit):
            main(["evaluate", *map(str, [*wrong, *words])])
        assert code in capsys.readouterr().err
