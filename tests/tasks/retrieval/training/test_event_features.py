"""Context of examples, and attributes of the events of their histories, in batches."""

import dataclasses

import numpy as np
import pytest
from batch_sources import N_USERS, PLAIN, make_log

from recsys.config import TrainConfig, TwoTowerConfig
from recsys.data.catalogue import Catalogue
from recsys.data.hold_out import KeptEvents
from recsys.data.shuffle import BatchPart
from recsys.models.config import SasRecConfig
from recsys.tasks.retrieval.training.batches import BatchSource
from recsys.tasks.retrieval.training.sequences import SequenceSource

N = 103
DRAW = np.random.default_rng(1)
# Event `n` has item `n + 1`, so an item names its event.
DEVICE = DRAW.integers(0, 9, (N, 1)).astype(np.uint8)
TAGS = DRAW.integers(0, 900, (N, 2)).astype(np.uint16)
DWELL = DRAW.normal(size=(N, 3)).astype(np.float32)
FEATURES = {"device": DEVICE, "tags": TAGS, "dwell": DWELL}
MODELS = {
    "past": {},
    "others": {"history_of": "others"},
    "packed": {"pooling": SasRecConfig()},
}


def source_of(kind, held=(), **changes):
    settings = {**PLAIN, "attribute_dropout": 0.0, "history": 6, **MODELS[kind], **changes}
    of_model = {key: settings.pop(key) for key in [*settings] if key in TwoTowerConfig.model_fields}
    draw = np.random.default_rng(2)
    user, time = draw.integers(1, N_USERS, N), draw.integers(0, 60, N)
    log = make_log(user, np.arange(1, N + 1), time, features=FEATURES)
    kept = KeptEvents(log, np.array(sorted(held), np.int64))
    ids = ["", *(f"i{n}" for n in range(1, N + 1))]
    cls = SequenceSource if kind == "packed" else BatchSource
    model, train = TwoTowerConfig(**of_model), TrainConfig(**settings)
    names = {"context": ("device", "dwell"), "attributes": ("device", "tags", "dwell")}
    return cls(kept, Catalogue(ids, ids, ()), model, train, **names)


@pytest.mark.parametrize("held", [(), (3, 50, 51, 52, 90)], ids=["all", "held"])
@pytest.mark.parametrize("kind", MODELS)
def test_an_example_has_its_context_and_the_attributes_of_its_history(kind, held):
    source = source_of(kind, held, history_dropout=0.2, new_user_share=0.2)
    n_seen = 0
    for step in range(len(source)):
        batch = source[step]
        for name in source.context:
            own = batch["item_row"][: source.batch_size] - 1
            np.testing.assert_array_equal(batch[name], FEATURES[name][own])
            assert batch[name].dtype == (np.float32 if name == "dwell" else np.int32)
        is_there = batch["history"] > 0
        n_seen += is_there.sum()
        for name in source.attributes:
            found, events = batch[f"history.{name}"], batch["history"][is_there] - 1
            np.testing.assert_array_equal(found[is_there], FEATURES[name][events])
            assert not found[~is_there].any()
    assert n_seen > 100


@pytest.mark.parametrize("kind", MODELS)
def test_a_share_of_contexts_and_of_histories_is_hidden_as_a_whole(kind):
    shown, hidden = (source_of(kind, epochs=20, attribute_dropout=share) for share in (0.0, 0.4))
    n, counts = 0, np.zeros(2)
    for step in range(len(shown)):
        whole, some = shown[step], hidden[step]
        for place, names in enumerate(
            (("device", "dwell"), tuple(f"history.{x}" for x in FEATURES))
        ):
            is_same = np.array(
                [
                    [np.array_equal(*pair) for pair in zip(whole[name], some[name], strict=True)]
                    for name in names
                ]
            )
            is_zero = np.array([[not x.any() for x in some[name]] for name in names])
            assert (is_same | is_zero).all()
            is_hidden = is_zero.all(axis=0) & ~is_same.all(axis=0)
            assert (is_hidden | is_same.all(axis=0)).all()
            counts[place] += is_hidden.mean()
        n += 1
    assert counts / n == pytest.approx([0.4, 0.4], abs=0.1)


@pytest.mark.parametrize("kind", MODELS)
def test_the_features_of_a_part_are_those_of_the_whole_batch(kind):
    options = {"attribute_dropout": 0.4, "history_dropout": 0.2, "batch_size": 20}
    source = source_of(kind, **options)
    source = dataclasses.replace(source, multiple=2)
    parts = [dataclasses.replace(source, part=BatchPart((index,), 2)) for index in range(2)]
    for step in range(len(source)):
        whole = source[step]
        names = [*source.context, *(f"history.{name}" for name in source.attributes)]
        for name in names:
            joined = np.concatenate([part[step][name] for part in parts])
            np.testing.assert_array_equal(joined, whole[name])
