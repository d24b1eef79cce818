"""Every kind of towers, saved on JAX: loaded and exported on TensorFlow it computes the same."""

import json

import numpy as np
import pyarrow as pa
import pytest
from data_folders import counted, write_data, write_embeddings
from on_tensorflow import run_on_tensorflow
from places import SUPPORT
from tower_models import BARE, DROPPED, POOLINGS, random_values

from recsys.config import TrainConfig, TrainStage, TwoTowerConfig
from recsys.data.catalogue import FeatureBags
from recsys.models import ModelInputs, ModelSpec, TwoTower
from recsys.models.config import (
    EaseConfig,
    LigrConfig,
    SasRecConfig,
)
from recsys.models.inference import embed_catalogue, embed_queries
from recsys.tasks.model_folder import load_model, save_model
from recsys.tasks.raw_events import RawEvents

pytestmark = pytest.mark.slow

_SCRIPT = SUPPORT / "towers.py"
_HISTORY, _USERS, _ITEMS = 5, 20, 15
# Without layers there are no features: such models have a data folder of their own.
_KINDS = {
    "attention": {"pooling": "attention", "widths": (6,), "activation": "gelu"},
    "sequence": {
        **DROPPED,
        "widths": (6, 4),
        "dropout": 0.3,
        "activation": "tanh",
        "item_bias": True,
        "item_neighbours": 3,
        "learn_temperature": True,
    },
    "dot": {"similarity": "dot", "widths": (6,)},
    "no-user-id": {"user_id": False, **POOLINGS["two blocks"], "activation": "relu"},
    "linear": {"widths": (), "user_id": False, "similarity": "dot"},
    "ligr": {
        "pooling": LigrConfig(layers=2, heads=2, filter_share=0.7, filter_frequencies=2),
        "widths": (6,),
        "history_tower": True,
        "bag_weights": "idf",
    },
    "fold-in": {
        "pooling": "fold_in",
        "similarity": "dot",
        "temperature": 1.0,
        "widths": (),
        "history_tower": True,
        "bag_weights": "idf",
    },
    # Where a history is one item, its length and a batch of one have the same shape.
    "one": {
        "pooling": LigrConfig(layers=2, heads=2, filter_share=0.5),
        "history": 1,
        "widths": (6,),
        "item_bias": True,
    },
}
_WITHOUT_FEATURES = {
    "no-layers": {"widths": None},
    "no-history": {"widths": None, "similarity": "dot", "pooling": "none"},
    # Dots as large as these differ in float32 by more than cosines do.
    "large": {"widths": None, "similarity": "dot"},
    "sasrec": {**BARE, "pooling": SasRecConfig(layers=2, heads=2)},
    "ease": {"widths": None, "terms": (EaseConfig(rank=5),)},
}

_EXPORTED = ("sequence", "one")


def of_kinds(*first):
    """Returns every kind as a parameter; all but the `first` ones are `thorough`."""
    kinds = (*_KINDS, *_WITHOUT_FEATURES)
    return [pytest.param(k, marks=() if k in first else pytest.mark.thorough) for k in kinds]


def write_world_data(folder, with_features):
    rng = np.random.default_rng(5)
    user, item = rng.integers(0, _USERS, 300), rng.integers(0, _ITEMS, 300)
    events = pa.table(
        {
            "user_id": [f"u{n}" for n in user],
            "user_row": (user + 1).astype(np.int32),
            "item_row": (item + 1).astype(np.int32),
            "timestamp": rng.integers(0, 1000, 300),
            "weight": np.random.default_rng(6).uniform(0, 9, 300).astype(np.float32),
        }
    )
    np.save(folder.parent / "positives.npy", item + 1)
    users = counted([f"u{n}" for n in range(_USERS)], events["user_id"][:280])
    items = counted([f"i{n}" for n in range(_ITEMS)], [f"i{n}" for n in item[:280]])
    genres = FeatureBags("genres", 4, rng.integers(0, 4, (_ITEMS + 1, 2)).astype(np.int32))
    plan = FeatureBags("plan", 3, rng.integers(0, 3, (_USERS + 1, 1)).astype(np.int32))
    features = ([genres], [plan]) if with_features else ()
    write_data(folder, 900, events[:280], events[280:], users, items, *features)


def write_model(folder, options, data):
    """Writes a model of random weights, as a training would."""
    inputs = ModelInputs.open(data)
    config = TwoTowerConfig(**{"dim": 8, "feature_dim": 3, "history": _HISTORY, **options})
    spec = ModelSpec.for_data(config, inputs.users.n_rows, inputs.catalogue, inputs.user_features)
    model = TwoTower(spec, seed=3, compute_dtype="bfloat16")
    model.build()
    for number, variable in enumerate(model.weights):
        if "steps" not in variable.path:
            scale = 30.0 if folder.name == "model-large" else 0.5
            variable.assign(random_values(variable, number, scale))
    if "bag_weights" in model.terms:
        model.terms["bag_weights"].adapt(None, inputs)
    if "ease" in model.terms:
        vectors = 0.3 * np.asarray(model.terms["ease"].vectors)
        vectors[0] = 0
        model.terms["ease"].vectors.assign(vectors)  # Shorter than 1.
    model.settle([embed_catalogue(model, inputs)])
    loss = "sampled_softmax" if config.trains_on_history else "least_squares"
    save_model(folder, model, TrainStage(model=config, train=TrainConfig(loss=loss)), data)
    rng = np.random.default_rng(1)
    user_row = rng.integers(0, _USERS + 1, 30).astype(np.int32)
    history = rng.integers(0, _ITEMS + 1, (30, config.history)).astype(np.int32)
    history[:5], history[5:10, 2:] = 0, 0
    now, times = np.full(30, 2_000_000_000), np.full((30, config.history + 1), 1_999_999_000)
    write_embeddings(folder, model, inputs, user_row, history, RawEvents(now, times, {}, {}))
    training = {"steps": 1, "examples": 1, "devices": 1, "platform": "cpu", "seconds": 1.0}
    (folder / "training.json").write_text(json.dumps(training))


def kinds_of(test, session):
    """Returns the kinds of models that a test of this file needs."""
    items = [item for item in session.items if getattr(item, "originalname", "") == test.__name__]
    return {item.callspec.params["kind"] for item in items}


@pytest.fixture(scope="module")
def worlds(request, tmp_path_factory):
    """Returns the folder of each kind of model that is computed with; exported where asked."""
    exported = {*_EXPORTED, *kinds_of(test_its_bundle_answers_by_its_own_scores, request.session)}
    computed = exported | kinds_of(test_a_model_computes_the_same_on_tensorflow, request.session)
    found = {}
    for kinds, with_features in ((_KINDS, True), (_WITHOUT_FEATURES, False)):
        folder = tmp_path_factory.mktemp("towers")
        write_world_data(folder / "data", with_features)
        for kind, options in kinds.items():
            if kind in computed:
                write_model(folder / f"model-{kind}", options, folder / "data")
                found[kind] = folder
        if here := computed & kinds.keys():
            run_on_tensorflow(_SCRIPT, folder, " ".join(here), " ".join(exported))
    return found


@pytest.mark.parametrize("kind", of_kinds(*_EXPORTED, "ligr", "ease"))
def test_a_model_computes_the_same_on_tensorflow(worlds, kind):
    folder = worlds[kind]
    found = np.load(folder / f"found-model-{kind}.npz")
    expected = np.load(folder / f"model-{kind}" / "probe.npz")["query"]
    np.testing.assert_allclose(found["query"], expected, rtol=1e-5, atol=1e-5)
    candidates = np.load(folder / f"model-{kind}" / "candidates.npy")
    np.testing.assert_allclose(found["candidate"], candidates, atol=1e-5)
    # Some of 30 users drawn from 20 are equal, and so are their queries without histories.
    assert len(np.unique(np.round(expected, 3), axis=0)) > (12 if kind == "no-history" else 20)


def popularity(folder):
    """Returns the share of each item in what all users did."""
    rows = np.load(folder / "positives.npy")
    return np.bincount(rows, minlength=_ITEMS + 1)[1:] / len(rows)


@pytest.mark.parametrize("kind", of_kinds(*_EXPORTED))
def test_its_bundle_answers_by_its_own_scores(worlds, kind):
    folder = worlds[kind]
    saved = load_model(folder / f"model-{kind}")
    found = np.load(folder / f"found-model-{kind}.npz")
    rows = saved.users.rows(["u3", "nobody"])
    history = np.zeros((2, _HISTORY), np.int32)
    history[0, :2] = saved.items.rows(["i4", "i5"])
    length = saved.model.spec.config.history
    query = embed_queries(saved.model, rows, history[:, :length], saved.inputs)
    candidates = np.load(folder / f"model-{kind}" / "candidates.npy")
    scores = query @ candidates[1:].T
    if kind in _WITHOUT_FEATURES:  # Of a stranger nothing is known then.
        scores[1] = popularity(folder)
    assert found["checked"] == 30
    assert (found["source"][1] == "popularity") == (kind in _WITHOUT_FEATURES)
    best = np.argsort(-scores, axis=1, kind="stable")
    expected = np.take_along_axis(scores, best, axis=1)
    atol = 1e-5 * max(1.0, np.abs(scores).max())
    np.testing.assert_allclose(found["scores"], expected, atol=atol)
    assert found["ids"].tolist() == [[f"i{row}" for row in ranked] for ranked in best]
    lengths = np.linalg.norm(np.concatenate([query, candidates])[:, :8], axis=1)
    is_unit = saved.model.spec.config.similarity == "cosine"
    assert np.allclose(lengths, 1.0, atol=1e-5) == is_unit


def test_a_bias_is_in_every_answer_and_in_no_likeness(worlds):
    folder = worlds["sequence"]
    found = np.load(folder / "found-model-sequence.npz")
    assert found["served_ids"].tolist() == found["ids"].tolist()
    np.testing.assert_allclose(found["served_scores"], found["scores"], atol=1e-5)
    assert found["file_ids"].tolist() == found["ids"].tolist()
    candidates = np.load(folder / "model-sequence" / "candidates.npy")
    assert candidates.shape[1] == 9
    assert np.abs(candidates[1:, 8]).min() > 0
    directions = candidates[1:, :8]
    alike = directions @ directions[3]
    alike[3] = -np.inf
    best = np.argsort(-alike)[:5]
    assert found["similar"].tolist() == [f"i{row}" for row in best]


def test_a_bundle_without_times_refuses_them(worlds):
    assert np.load(worlds["sequence"] / "found-model-sequence.npz")["refused"] == 1
    plain = worlds["sequence"] / "bundle-model-sequence"
    assert (
        "history_"
        not in (plain / "MODEL_CARD.md").read_text().split("## Use")[1].split("## Config")[0]
    )


def test_a_learned_temperature_is_kept(worlds):
    saved = load_model(worlds["sequence"] / "model-sequence")
    [log] = [v for v in saved.model.weights if "temperature" in v.path]
    number = [variable.path for variable in saved.model.weights].index(log.path)
    rng = np.random.default_rng(number)
    assert float(log.value) == pytest.approx(rng.normal(0, 0.5), rel=1e-6)
