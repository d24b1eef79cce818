"""A bundle that reads context and attributes of every kind, against features encoded by Arrow."""

import json

import numpy as np
import pytest
from event_worlds import (
    CUT,
    DEVICES,
    HISTORY,
    KINDS,
    TIME,
    Events,
    typed,
    values_of,
    write_model,
    write_world,
)
from on_tensorflow import run_on_tensorflow
from places import SUPPORT

from recsys.bundles.bundle import read_manifest
from recsys.data.event_features import encode_features
from recsys.data.store import InteractionStore
from recsys.models.inference import Inference
from recsys.tasks.retrieval.judging.queries import make_queries
from recsys.tasks.retrieval.judging.systems import System, open_bundle, open_folder

pytestmark = pytest.mark.slow

NOW = CUT + 3_000_000
CONTEXT = {
    TIME: "2023-12-18T21:30:00+01:00",
    "device": "phone",
    "a.place": "work",
    "s": 7.25,
    "price": "12.5",
    "v": [0.5, -1, 2],
    "sent": 1_650_000_000,
}
GIVEN = [
    {"item": "i3", "device": "tv", "s": 3, TIME: CUT + 2_500_000, "v": [1, 2, 3]},
    {"item": "i5", "device": DEVICES[2], TIME: CUT + 2_500_000, "price": 2.5},
    {"item": "i7", TIME: str(CUT), "sent": 1_640_000_000},
    {"item": "i9"},
    {"item": "i1", "device": "phone", TIME: CUT - 40},
    {"item": "i2", "device": "phone", TIME: CUT - 80},
]
ASKED = [
    {"user": "u1", "history": [], "context": CONTEXT},
    {"user": "u1", "history": [], "context": {}},
    {"user": "u2", "history": GIVEN, "context": CONTEXT},
    {"user": "nobody", "history": GIVEN, "context": {"device": "never seen"}},
    {"user": "u3", "history": [{"item": "i4"}], "context": {TIME: CUT}},
]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("events")
    events, features = write_world(folder / "data")
    model, inputs = write_model(folder / "model", folder / "data")
    (folder / "asked.json").write_text(json.dumps(ASKED))
    run_on_tensorflow(SUPPORT / "event_bundle.py", folder)
    return folder, events, features, Inference(model), inputs


def seconds(value):
    if value in (None, ""):
        return None
    text = str(value)
    if text.lstrip("-").isdigit():
        return int(text)
    assert text.endswith("+01:00")
    return int(np.datetime64(text[:-6], "s").astype(int)) - 3600


def encoded(features, rows, gaps):
    """Returns the features of rows of raw values, encoded as in the ingest."""
    values = {}
    for one in features:
        kind, column = one.feature.value, one.feature.column
        raw = gaps if kind == "gap" else [row.get(column) for row in rows]
        if kind == "time":
            raw = [seconds(x) for x in raw]
        if kind == "number":
            raw = [np.nan if x is None else float(x) for x in raw]
        if kind != "tokens":
            values[one.name] = typed(kind, raw)
    return encode_features(features, values)


def expected(world, query):
    """Returns the embedding of a query by the trained model, with inputs made in NumPy."""
    _, events, features, inference, inputs = world
    rows, now = query["history"], seconds(query["context"].get(TIME))
    if not rows:
        own = np.flatnonzero(events.who == query["user"])[::-1][: HISTORY + 1]
        names = {c: x for c, x in events.raw.items() if c != "v"}
        rows = [
            {c: x[i] for c, x in names.items()}
            | {"v": events.raw["v"][i], TIME: events.time[i], "item": events.what[i]}
            for i in own
        ]
    times = [seconds(row.get(TIME)) for row in rows]

    def gap(time, before):
        earlier = [t for t in before if t is not None and time is not None and t < time]
        return time - max(earlier) if earlier else None

    gaps = [gap(time, times[n + 1 : HISTORY + 1]) for n, time in enumerate(times)]
    rows, gaps = rows[:HISTORY], gaps[:HISTORY]
    if not query["history"]:  # A stored event knows all events before it.
        gaps = [g for _, g in zip(rows, gaps_of_store(events, query["user"]), strict=False)]
    context = encoded(features, [query["context"]], [gap(now, times[: HISTORY + 1])])
    attributes = encoded(features, rows, gaps)
    pad = HISTORY - len(rows)
    given = dict(context)
    for name, x in attributes.items():
        given[f"history.{name}"] = np.pad(x, ((0, pad), (0, 0)))[None]
    items = [str(row["item"]) for row in rows] + [""] * pad
    rows = inputs.users.rows([query["user"]]), inputs.items.rows(items)[None]
    return inference.queries(*rows, inputs, given)[0]


def gaps_of_store(events: Events, user):
    values = values_of(events)["gap"].to_pylist()
    return [values[i] for i in np.flatnonzero(events.who == user)[::-1][:HISTORY]]


@pytest.mark.parametrize("number", range(len(ASKED)))
def test_a_bundle_embeds_raw_context_and_attributes_as_the_trainer_does(world, number):
    found = np.load(world[0] / "embedded.npy")
    np.testing.assert_allclose(found[number], expected(world, ASKED[number]), atol=2e-5)
    assert np.abs(found[0] - found[1]).max() > 1e-3


def test_all_forms_of_a_request_have_the_same_answer(world):
    answers = json.loads((world[0] / "answers.json").read_text())["answers"]
    for query, scores in zip(ASKED, answers, strict=True):
        assert ("file" in scores) == (not query["history"])
        for found in scores.values():
            np.testing.assert_allclose(found, scores["python"], atol=1e-5)
    assert np.abs(np.subtract(answers[0]["python"], answers[1]["python"])).max() > 1e-3


def test_stored_histories_hold_all_events_of_which_positives_are_masked(world):
    events, answers = world[1], json.loads((world[0] / "answers.json").read_text())
    for user, stored in answers["stored"].items():
        own = events.who == user
        assert sorted(stored) == sorted(events.what[own].tolist())
        taken, new = set(events.what[own & events.positive]), set(answers["new"][user])
        assert not taken & new
        assert len(new) == min(10, 20 - len(taken))
        assert user == "nobody" or set(events.what[own & ~events.positive]) & new


def test_the_manifest_lists_the_raw_columns(world):
    manifest = read_manifest(world[0] / "bundle")
    assert manifest["context"]["a.place"] == {
        "input": "context_a_place",
        "type": "text",
        "features": ["place"],
    }
    types = {name: column["type"] for name, column in manifest["history"].items()}
    numbers = dict.fromkeys(("s", "price"), "number")
    times = dict.fromkeys(("sent", TIME), "time")
    assert types == {"device": "text", "v": "vector", **numbers, **times}
    assert manifest["context"][TIME]["features"] == ["hour", "weekday", "gap"]
    assert "context_device" in (world[0] / "bundle" / "MODEL_CARD.md").read_text()
    assert (world[0] / "bundle" / "event_features" / "features.json").is_file()


@pytest.mark.parametrize(
    "kind", ["each_moment", pytest.param("at_cut", marks=pytest.mark.thorough)]
)
def test_a_folder_and_its_bundle_are_judged_alike(world, kind):
    folder, _, features, inference, inputs = world
    store = InteractionStore.open(folder / "data" / "store")
    names = [x.name for x in inputs.event_inputs(inference.model.spec.config)]
    assert len(names) == sum(
        (not one.get("outcome", False)) + (not one.get("context", False)) for one in KINDS
    )
    queries = make_queries(store, kind, inputs=names, features=features)
    data = type("Data", (), {"items": inputs.items, "store": store, "event_features": features})
    opened = (
        open_folder(folder / "model", "the model"),
        open_bundle(folder / "bundle", read_manifest(folder / "bundle"), "the bundle"),
    )
    found = [System("it", one, data).scorer_of(queries).query for one in opened]
    np.testing.assert_allclose(found[0], found[1], atol=1e-5)
