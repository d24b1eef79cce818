"""Context and attributes of events in the towers equal NumPy in float64."""

from pathlib import Path

import jax
import numpy as np
import pytest
from pydantic import ValidationError
from tower_models import BARE, HISTORY, ITEMS, SEQUENCE, USERS, build, run, weights

from recsys.config import TrainStage, TwoTowerConfig
from recsys.data.event_log import ITEM, PLACE
from recsys.models import TwoTower
from recsys.models.config import SasRecConfig
from recsys.models.inputs import FeatureSpec
from recsys.registry.file_option import read_in_folder
from recsys.tasks.retrieval.training.batches import unique_items

GENRES = FeatureSpec(name="genres", rows=4, width=2, dim=3)
DEVICE = FeatureSpec(
    name="device", side="event", rows=4, width=1, dim=3, is_context=True, is_attribute=True
)
TAGS = FeatureSpec(name="tags", side="event", rows=5, width=2, dim=3, is_attribute=True)
DWELL = FeatureSpec(name="dwell", side="event", rows=0, width=1, dim=2, floats=2, is_attribute=True)
SCALE = FeatureSpec(name="scale", side="event", rows=0, width=1, dim=1, floats=1, is_context=True)
EVENTS = (DEVICE, TAGS, DWELL, SCALE)
N = 6


def asked(seed=0, n=N):
    """Inputs of queries; some items and some attributes are missing."""
    rng = np.random.default_rng(seed)
    shape = (n, HISTORY)
    history = rng.integers(1, ITEMS, shape) * (rng.random(shape) < 0.7)
    history[0] = 0
    of_rows = {
        "user_row": rng.integers(0, USERS, n),
        "history": history,
        "device": rng.integers(0, 4, (n, 1)),
        "history.device": rng.integers(0, 4, (*shape, 1)),
        "history.tags": rng.integers(0, 5, (*shape, 2)),
    }
    numbers = {"history.dwell": rng.normal(size=(*shape, 2)), "scale": rng.normal(size=(n, 1))}
    return {name: x.astype(np.int32) for name, x in of_rows.items()} | {
        name: x.astype(np.float32) for name, x in numbers.items()
    }


def mean_of(table, tokens):
    there = [table[token] for token in tokens if token]
    return np.mean(there, axis=0) if there else np.zeros(table.shape[1])


def with_attributes(w, x, query):
    """The items of a history with what their events add, by place, of items that are known."""
    events = []
    for place, row in enumerate(x["history"][query]):
        own = [
            mean_of(w["device"], x["history.device"][query, place]),
            mean_of(w["tags"], x["history.tags"][query, place]),
            x["history.dwell"][query, place],
        ]
        if row:
            events.append((place, w["items"][row] + np.concatenate(own) @ w["attributes/kernel"]))
    return events


def mean(w, events):
    total = np.log1p(np.exp(w["history/place"]))
    share = np.array([total[place] for place, _ in events])
    return share @ np.stack([vector for _, vector in events]) / share.sum()


def attention(w, events):
    vectors = np.stack([vector for _, vector in events])
    places = w["history/place"][[place for place, _ in events]]
    scores = np.tanh(vectors @ w["history/inner/kernel"] + places) @ w["history/score/kernel"][:, 0]
    powers = np.exp(scores - scores.max())
    return powers @ vectors / powers.sum()


@pytest.mark.parametrize("pooling", [mean, attention])
def test_towers_read_context_and_attributes(pooling):
    options = {"pooling": pooling.__name__, "similarity": "dot", "widths": ()}
    model, x = build(EVENTS, **options), asked()
    w, found = weights(model), run(model, "embed_query", x)
    for query in range(N):
        events = with_attributes(w, x, query)
        pooled = pooling(w, events) if events else np.zeros(model.config.dim)
        user = w["users"][x["user_row"][query]]
        context = [mean_of(w["device"], x["device"][query]), x["scale"][query]]
        inputs = np.concatenate([pooled, user, *context])
        expected = pooled + user + inputs @ w["query_tower/out/kernel"]
        np.testing.assert_allclose(found[query], expected, rtol=1e-4, atol=1e-4)


PACKED = SasRecConfig(layers=2, heads=2, dropout=0.0)
ALIKE = {
    "mean": {"pooling": "mean"},
    "attention": {"pooling": "attention"},
    "sasrec": {"pooling": PACKED},
    "without a mean": {"pooling": SEQUENCE},
}


@pytest.mark.parametrize("kind", ALIKE)
def test_an_attribute_of_padding_has_no_effect_and_no_gradient(kind):
    model, x = build(EVENTS, similarity="dot", **ALIKE[kind]), asked()
    is_padding = x["history"] == 0
    other = {**x, **{name: x[name].copy() for name in ("history.device", "history.tags")}}
    for name in ("history.device", "history.tags"):
        other[name][is_padding] = 1
    found = run(model, "embed_query", x)
    np.testing.assert_array_equal(run(model, "embed_query", other), found)

    def total(dwell):
        return (model.embed_query({**x, "history.dwell": dwell}) ** 2).sum()

    gradient = np.asarray(jax.jit(jax.grad(total))(x["history.dwell"]))
    assert not gradient[is_padding].any()
    assert (np.abs(gradient[~is_padding]).max(axis=-1) > 0).any()


def test_an_example_of_a_packed_row_reads_what_it_reads_alone():
    attributes = (DEVICE, TAGS, DWELL)
    model = build((*attributes, SCALE), similarity="dot", pooling=PACKED)
    x = asked(seed=3, n=2)
    x["history"][0] = [3, 0, 5, 7, 2]
    segment = np.int32([[2, 2, 2, 1, 1], [4, 4, 3, 3, 3]])
    at = np.tile(np.arange(HISTORY, dtype=np.int32), (2, 1))
    examples = asked(seed=4, n=2 * HISTORY)
    own = {name: examples[name] for name in ("user_row", "device", "scale")}
    id_row = np.int32([1, 2])
    batch = {**x, **own, "segment": segment, "at": at, "id_row": id_row}
    together = run(model, "call", batch)["query"]
    for number in range(2 * HISTORY):
        row, column = divmod(number, HISTORY)
        mine = np.flatnonzero((segment[row] == segment[row, column]) & (at[row] >= column))
        alone = {name: value[number : number + 1] for name, value in own.items()}
        for name in ("history", *(f"history.{feature.name}" for feature in attributes)):
            alone[name] = np.zeros_like(x[name][:1])
            alone[name][0, : len(mine)] = x[name][row, mine]
        if x["history"][row, column]:
            expected = run(model, "embed_query", alone)
            np.testing.assert_allclose(together[number], expected[0], rtol=1e-4, atol=1e-4)


def test_unique_items_of_histories_keep_the_attributes_of_each_event():
    options = {"pooling": "attention", "history_tower": True, "widths": (6,)}
    model, x = build((GENRES, *EVENTS), **options), asked()
    bags = np.random.default_rng(5).integers(0, 4, (ITEMS, 2)).astype(np.int32)
    once = unique_items(x["history"], 16)
    expected = run(model, "embed_query", {**x, "history.genres": bags[x["history"]]})
    found = run(model, "embed_query", {**x, **once, "history.genres": bags[once[ITEM]]})
    assert PLACE in once
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_training_starts_from_the_items_alone():
    model = TwoTower(build((TAGS, DWELL), **BARE).spec)
    model.build()
    assert not np.asarray(model.attribute_map.kernel.value).any()


def test_models_of_an_earlier_version_are_read_unless_they_read_kinds():
    unused = {"fact_dropout": 0.1, "event_weight": False, "event_kind": False}
    pooling = {"type": "sasrec", "layers": 3, **unused}
    model = {"type": "two_tower", "item_age": None, "user_gate": None, "pooling": pooling}
    train = {"loss": {"type": "sampled_softmax", "decoupled": False}}
    found = read_in_folder(TrainStage, {"model": model, "train": train}, Path())
    assert found.model == TwoTowerConfig(pooling=SasRecConfig(layers=3))
    of_kinds = {**pooling, "event_kind": True}
    for part in (model | {"item_age": {"bins": 4}}, model | {"pooling": of_kinds}):
        with pytest.raises(ValidationError, match=r"item_age|event_kind"):
            read_in_folder(TrainStage, {"model": part}, Path())
