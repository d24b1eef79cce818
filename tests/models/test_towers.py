"""Every option of the towers equals NumPy in float64, computed from the weights."""

import math
from functools import partial

import keras
import numpy as np
import pytest
from tower_models import (
    BARE,
    DIM,
    HISTORY,
    ITEMS,
    POOLINGS,
    USERS,
    batch,
    build,
    histories,
    queries,
    run,
    weights,
)

import recsys
from recsys.config import TwoTowerConfig
from recsys.data.catalogue import Catalogue, FeatureBags
from recsys.embedding import Adagrad, activate, table_layout, verify_placement
from recsys.errors import UsageError
from recsys.models import ModelSpec, TwoTower
from recsys.models.encoders import PositionWeights
from recsys.models.inference import Inference
from recsys.models.inputs import FeatureSpec
from recsys.strict import Strict

GENRES = FeatureSpec(name="genres", rows=4, width=2, dim=3)
PLAN = FeatureSpec(name="plan", side="user", rows=3, width=1, dim=3)
PRICE = FeatureSpec(name="price", rows=0, width=1, dim=2, floats=2)
AGE = FeatureSpec(name="age", side="user", rows=0, width=1, dim=4, floats=4)


# --- references


def softmax(scores):
    powers = np.exp(scores - scores.max())
    return powers / powers.sum()


def attention(w, history):
    real = [(place, row) for place, row in enumerate(history) if row]
    items = np.stack([w["items"][row] for _, row in real])
    places = np.stack([w["history/place"][place] for place, _ in real])
    inner = np.tanh(items @ w["history/inner/kernel"] + places)
    return softmax(inner @ w["history/score/kernel"][:, 0]) @ items


def norm(w, name, x):
    off = x - x.mean(axis=-1, keepdims=True)
    variance = (off**2).mean(axis=-1, keepdims=True)
    return off / np.sqrt(variance + 1e-6) * w[f"{name}/gamma"] + w[f"{name}/beta"]


def linear(w, name, x):
    return x @ w[f"{name}/kernel"] + w[f"{name}/bias"]


def block(w, name, x, heads=2):
    """One block over a sequence `[n, dim]`, the oldest first, entry by entry, head by head."""
    normed = norm(w, f"{name}/norm", x)
    query, key, value = (linear(w, f"{name}/{part}", normed) for part in ("query", "key", "value"))
    found = np.zeros_like(x)
    size = DIM // heads
    for head in range(heads):
        of = slice(head * size, (head + 1) * size)
        for i in range(len(x)):
            scores = key[: i + 1, of] @ query[i, of] / math.sqrt(size)
            found[i, of] = softmax(scores) @ value[: i + 1, of]
    x = x + linear(w, f"{name}/out", found)
    inner = np.maximum(linear(w, f"{name}/widen", norm(w, f"{name}/feed_norm", x)), 0)
    return x + linear(w, f"{name}/narrow", inner)


def sequence(w, history, blocks=1):
    real = [row for row in history if row][::-1]
    x = np.stack(
        [w["items"][row] * math.sqrt(DIM) + w["history/place"][p] for p, row in enumerate(real)]
    )
    for number in range(blocks):
        x = block(w, f"history/block_{number}", x)
    return norm(w, "history/norm", x)[-1]


def mean(w, history):
    place = np.log1p(np.exp(w["history/place"]))
    real = [(place[p], w["items"][row]) for p, row in enumerate(history) if row]
    return sum(p * x for p, x in real) / sum(p for p, _ in real)


REFERENCES = {
    "mean": mean,
    "attention": attention,
    "two blocks": partial(sequence, blocks=2),
}
HISTORIES = histories([3], [5, 2], [1, 2, 3, 4, 5], [0, 6, 0, 7], [9, 9, 9])


@pytest.mark.parametrize("kind", POOLINGS)
def test_a_history_is_pooled_as_the_reference_does(kind):
    """A query without information has the default vector, and padding has no effect."""
    model = build(**BARE, **POOLINGS[kind])
    w = weights(model)
    asked = np.concatenate([HISTORIES, histories([])])
    found = queries(model, asked)
    expected = [REFERENCES[kind](w, history) for history in HISTORIES]
    np.testing.assert_allclose(found[:-1], expected, atol=2e-5)
    np.testing.assert_allclose(found[-1], w["nobody"], atol=1e-7)
    if kind != "mean":
        table = model.embedding.tables[0].embeddings
        rows = np.array(table.value)
        rows[0] = 1e3
        table.assign(rows)
        np.testing.assert_array_equal(queries(model, asked), found)


@pytest.mark.parametrize("kind", POOLINGS)
def test_with_the_users_ids_a_history_of_nothing_adds_nothing(kind):
    model = build(**{**BARE, "user_id": True}, **POOLINGS[kind])
    w = weights(model)
    assert "nobody" not in w
    found = queries(model, histories([], [4]), [3, 3])
    np.testing.assert_allclose(found[0], w["users"][3], atol=1e-7)
    pooled = REFERENCES[kind](w, [4])
    np.testing.assert_allclose(found[1], pooled + w["users"][3], atol=2e-5)


def test_a_sequence_knows_its_order_and_attention_the_places_alone():
    shuffled = histories([1, 2, 3, 4], [1, 4, 3, 2], [4, 2, 3, 1])
    ordered = queries(build(**BARE, **POOLINGS["two blocks"]), shuffled)
    assert np.abs(ordered[0] - ordered[1]).max() > 1e-3  # Older items changed places.
    assert np.abs(ordered[0] - ordered[2]).max() > 1e-3  # The newest one did.
    model = build(**BARE, pooling="attention")
    assert np.abs(np.diff(queries(model, shuffled), axis=0)).max() > 1e-3
    model.encoder.place.assign(np.zeros((HISTORY, DIM)))
    np.testing.assert_allclose(np.diff(queries(model, shuffled), axis=0), 0, atol=1e-6)


# --- layers


ACTIVATIONS = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "tanh": np.tanh,
}


def layers(w, name, anchor, inputs, n, activation="silu"):
    for i in range(n):
        inputs = ACTIVATIONS[activation](linear(w, f"{name}/hidden_{i}", inputs))
    return anchor + inputs @ w[f"{name}/out/kernel"]


@pytest.mark.parametrize(
    ("widths", "similarity", "activation"),
    [
        ((), "cosine", "silu"),
        ((6,), "cosine", "relu"),
        ((6,), "dot", "gelu"),
        ((6, 4), "dot", "tanh"),
    ],
)
def test_layers_add_to_the_anchor(widths, similarity, activation):
    model = build(
        (GENRES, PRICE, PLAN, AGE),
        widths=widths,
        similarity=similarity,
        activation=activation,
        dropout=0.4,
    )
    w = weights(model)
    assert not {"price", "age"} & set(w)
    price, age = np.array([0.3, 1.0], np.float32), np.array([-2, 0.5, 7, 1], np.float32)
    pooled, user = mean(w, [2, 3]), w["users"][4]
    inputs = np.concatenate([pooled, user, w["plan"][1], age])
    query = layers(w, "query_tower", pooled + user, inputs, len(widths), activation)
    own, genres = w["items"][5], w["genres"][[1, 3]].mean(axis=0)
    inputs = np.concatenate([own, genres, price])
    candidate = layers(w, "candidate_tower", own, inputs, len(widths), activation)
    if similarity == "cosine":
        query, candidate = (x / np.linalg.norm(x) for x in (query, candidate))
    rows = {"user_row": np.array([4]), "history": histories([2, 3]), "plan": np.array([[1]])}
    rows["age"] = age[None]
    np.testing.assert_allclose(run(model, "embed_query", rows)[0], query, atol=1e-5)
    rows = {"id_row": np.array([5]), "genres": np.array([[1, 3]]), "price": price[None]}
    np.testing.assert_allclose(run(model, "embed_candidate", rows)[0], candidate, atol=1e-5)


def test_embeddings_are_products_of_float32_on_any_device():
    """GPUs would use TF32, which the program shows: the test needs no GPU."""
    model = build(widths=(6,))
    towers = Inference(model)
    rows = {"user_row": np.array([4]), "history": histories([2, 3])}
    text = towers._query.lower([variable.value for variable in model.variables], rows).as_text()
    products = [line for line in text.splitlines() if "dot_general" in line]
    assert products
    assert all("[HIGHEST, HIGHEST]" in line for line in products)


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_without_layers_the_vectors_are_the_embeddings(similarity):
    model = build(widths=None, similarity=similarity)
    w = weights(model)
    assert set(w) == {"users", "items", "history/place"}
    query, candidate = mean(w, [2, 3]) + w["users"][4], w["items"][5]
    if similarity == "cosine":
        query, candidate = (x / np.linalg.norm(x) for x in (query, candidate))
    np.testing.assert_allclose(queries(model, histories([2, 3]), [4])[0], query, atol=1e-6)
    found = run(model, "embed_candidate", {"id_row": np.array([5])})
    np.testing.assert_allclose(found[0], candidate, atol=1e-6)


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_a_bias_is_added_to_the_similarity_of_an_item_with_anybody(similarity):
    plain = build(widths=None, similarity=similarity)
    model = build(widths=None, similarity=similarity, item_bias=True)
    values = {variable.path: variable.value for variable in plain.weights}
    for variable in model.weights:
        variable.assign(values.get(variable.path, variable.value))
    bias = weights(model)["item_bias"]
    assert bias.shape == (ITEMS, 1)
    history, rows = histories([2, 3], [4]), {"id_row": np.array([5, 0, 1])}
    scores = queries(model, history, [4, 1]) @ run(model, "embed_candidate", rows).T
    expected = queries(plain, history, [4, 1]) @ run(plain, "embed_candidate", rows).T
    np.testing.assert_allclose(scores, expected + bias[[5, 0, 1], 0], atol=1e-6)


@pytest.mark.parametrize("item_bias", [False, True])
def test_without_pooling_a_user_is_the_own_row_whatever_the_history(item_bias):
    model = build(widths=None, similarity="dot", pooling="none", item_bias=item_bias)
    w = weights(model)
    tables = {"users", "items", "item_bias"} if item_bias else {"users", "items"}
    assert set(w) == tables
    rows = queries(model, histories([2, 3], [], [4]), [4, 4, 0])
    np.testing.assert_array_equal(rows[:, :DIM], w["users"][[4, 4, 0]])


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"user_id": False}, "requires user_id: true"),
        ({"history_tower": True}, "reads single items"),
    ],
)
def test_without_pooling_there_must_be_rows_of_users_and_no_tower_of_histories(options, rule):
    with pytest.raises(ValueError, match=rule):
        TwoTowerConfig(pooling="none", widths=(), **options)


def test_a_table_of_one_column_is_not_split_by_columns():
    model = build(item_bias=True, table_placement="column")
    assert model.table_configs["item_bias"].placement == "row"
    assert model.table_configs["items"].placement == "column"


def test_a_model_without_the_users_ids_has_no_table_of_them():
    model = build(user_id=False)
    assert [table.name for table in model.embedding.tables] == ["items"]
    history = histories([2, 3], [2, 3])
    first, second = queries(model, history, [1, 9])
    np.testing.assert_array_equal(first, second)
    found = run(model, "embed_query", {"history": history})
    np.testing.assert_array_equal(found[0], first)


def test_features_that_nothing_would_read_are_refused():
    bags = np.zeros((ITEMS, 1), np.int32)
    names = [f"i{n}" for n in range(ITEMS)]
    catalogue = Catalogue(names, names, (FeatureBags("genres", 4, bags),))
    with pytest.raises(UsageError, match=r"R345.*widths.*'genres'"):
        ModelSpec.for_data(TwoTowerConfig(widths=None), USERS, catalogue)
    with pytest.raises(UsageError, match="R345"):
        build((GENRES,), widths=None)
    ModelSpec.for_data(TwoTowerConfig(widths=()), USERS, catalogue)


def test_a_history_that_passes_the_candidate_tower_brings_its_features():
    options = {"user_id": False, "widths": (), "similarity": "dot", "pooling": "attention"}
    model = build((GENRES, PRICE), history_tower=True, **options)
    w = weights(model)
    bags = np.random.default_rng(3).integers(0, 4, (ITEMS, 2)).astype(np.int32)
    prices = np.random.default_rng(4).normal(size=(ITEMS, 2)).astype(np.float32)
    rows = {"user_row": np.zeros(len(HISTORIES), np.int32), "history": HISTORIES}
    rows |= {"history.genres": bags[HISTORIES], "history.price": prices[HISTORIES]}
    vectors = run(model, "embed_query", rows)
    items = []
    for row in range(ITEMS):
        tokens = [w["genres"][token] for token in bags[row] if token]
        genres = np.mean(tokens, axis=0) if tokens else np.zeros(3)
        read = np.concatenate([w["items"][row], genres, prices[row]])
        items.append(w["items"][row] + read @ w["candidate_tower/out/kernel"])
    pooled = np.stack([attention({**w, "items": np.stack(items)}, h) for h in HISTORIES])
    expected = pooled + pooled @ w["query_tower/out/kernel"]
    np.testing.assert_allclose(vectors, expected, atol=2e-5)


@pytest.mark.parametrize("options", [{"widths": None, "pooling": "attention"}, {"widths": ()}])
def test_a_history_needs_layers_and_an_encoder_of_items_to_pass_a_tower(options):
    with pytest.raises(ValueError, match="history_tower needs layers"):
        TwoTowerConfig(history_tower=True, **options)


def test_an_encoder_of_a_plugin_that_only_weighs_passes_no_tower():
    @recsys.register_encoder("weighs_alone")
    class WeighsAlone(PositionWeights):
        class Config(Strict):
            pass

    with pytest.raises(UsageError, match="R348"):
        build(history_tower=True, widths=(), pooling=WeighsAlone.Config())


# --- on several devices


MANY_USERS, MANY_ITEMS = 5000, 6000


def after_steps(options, devices):
    """Returns the losses of two steps, the weights after them and what these give."""
    config = TwoTowerConfig(dim=8, history=5, table_placement="row", **options)
    spec = ModelSpec(config=config, user_rows=MANY_USERS, item_rows=MANY_ITEMS, features=())
    tables = TwoTower.make_tables(spec, Adagrad(0.1))
    layout = None
    if devices > 1:
        layout = table_layout(list(tables.values()))
        activate(layout)
    model = TwoTower(spec, tables, seed=3)
    model.build()
    model.compile(optimizer=keras.optimizers.SGD(0.5), jit_compile=True)
    if layout is not None:
        placements = verify_placement(model, layout)
        assert {placement.shards for placement in placements} == {8}
    batches = [batch(n=16, m=24, seed=seed) for seed in range(2)]
    losses = [model.train_on_batch(x, return_dict=True)["loss"] for x in batches]
    # Tables are larger than what a step reads of them, so the proof is of something.
    assert set(model.step_proof.tables) == set(tables)
    weights = {v.path: np.asarray(v.value) for v in model.trainable_variables}
    tables_now = model.embedding.get_embedding_tables()
    return losses, {**weights, **tables_now, "served": run(model, "embed_query", batches[0])}


@pytest.mark.slow
def test_one_and_eight_devices_train_alike():
    options = {**BARE, **POOLINGS["two blocks"], "item_bias": True}
    losses, expected = after_steps(options, 1)
    on_eight, found = after_steps(options, 8)
    np.testing.assert_allclose(on_eight, losses, atol=1e-5)
    assert found.keys() == expected.keys()
    for path, values in expected.items():
        np.testing.assert_allclose(found[path], values, atol=1e-5, err_msg=path)
