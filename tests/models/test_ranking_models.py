"""Rankers read every feature, learn labels given others, and score a candidate by itself."""

import functools

import jax
import keras
import numpy as np
import pytest
from ranking_models import DEVICE, GENRES, LABELS, MODELS, build, rows, spec_of, with_labels
from scipy.special import expit
from tower_models import run
from training_runs import on_devices

from recsys.config import LabelConfig, TrainConfig
from recsys.embedding import SGD, activate, device_mesh, table_layout
from recsys.errors import UsageError
from recsys.models.inputs import ModelSpec
from recsys.models.lookups import model_class
from recsys.models.ranking_config import DcnV2Config
from recsys.training.row_sources import sources_of_labels

VARIANTS = {"stacked", "target", "final_mlp of experts"}
EACH = pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=[pytest.mark.thorough] * (k in VARIANTS)) for k in MODELS]
)
YES = LabelConfig(column="rating", at_least=4)


@functools.cache
def model_of(kind):
    """Returns the model of a kind, which the tests share: to build one costs a second."""
    return build(spec_of(**MODELS[kind]), SGD(0.1), loss="listwise" if kind == "din" else "binary")


@functools.cache
def weighted():
    """Returns a model with a position, whose third label weighs more."""
    of_labels = {"label_weights": {"buy": 3.0}}
    return build(spec_of(type="dcn_v2", position_feature="device", **of_labels))


def weights(model):
    dense = {
        v.path.partition("/")[2]: np.asarray(v.value, np.float64) for v in model.trainable_variables
    }
    tables = model.embedding.get_embedding_tables()
    return {**dense, **{name: np.asarray(values, np.float64) for name, values in tables.items()}}


# --- scores


def mean_of(table, tokens):
    there = [table[token] for token in tokens if token]
    return np.mean(there, axis=0) if there else np.zeros(table.shape[1])


def pooled_history(w, x, row):
    """The mean of the events: items with features, scaled and shifted by their attributes."""
    events = []
    for place in np.flatnonzero(x["history"][row]):
        at = row, place
        item = np.concatenate(
            [
                w["items"][x["history"][at]],
                mean_of(w["genres"], x["history.genres"][at]),
                x["history.year"][at],
            ]
        )
        own = [mean_of(w[name], x[f"history.{name}"][at]) for name in ("device", "rated")]
        own = np.concatenate(own)
        scale = 1 + own @ w["events/gate/kernel"]
        events.append(item * scale + own @ w["events/shift/kernel"])
    return np.mean(events, axis=0) if events else np.zeros(len(w["events/gate/kernel"].T))


def dcn_v2(w, x, row):
    """Scores `[labels]` of a row by DCN-v2's equations, in float64."""
    bags = {name: mean_of(w[name], x[name][row]) for name in ("age", "device", "genres", "rate")}
    first = np.concatenate(
        [
            w["users"][x["user_row"][row]],
            bags["age"],
            bags["device"],
            w["items"][x["id_row"][row]],
            bags["genres"],
            x["year"][row],
            bags["rate"],
            x["count"][row],
            pooled_history(w, x, row),
        ]
    )
    crossed, deep = first, first
    for i in range(2):
        inner = crossed @ w[f"cross/cross_{i}/kernel"] + w[f"cross/cross_{i}/bias"]
        crossed = first * inner + crossed
        deep = deep @ w[f"deep/hidden_{i}/kernel"] + w[f"deep/hidden_{i}/bias"]
        deep = np.maximum(deep, 0)
    state = np.concatenate([crossed, deep])
    kernel, bias = (w[f"heads/towers/logit/{name}"] for name in ("kernel", "bias"))
    return kernel[:, :, 0] @ state + bias[:, 0, 0]


def test_dcn_v2_equals_numpy_up_to_the_joint_probability():
    model = model_of("dcn_v2")
    x = rows(model)
    model.set_amounts({"watch": np.array([10.0, np.nan, 30.0])})
    found = run(model, "predict_labels", x)
    scores = np.array([dcn_v2(weights(model), x, row) for row in range(len(x["id_row"]))])
    assert model.label_names == ("click", "watch", "buy")
    click, buy = expit(scores[:, 0]), expit(scores[:, 2])
    np.testing.assert_allclose(found["click"], click, atol=1e-5)
    np.testing.assert_allclose(found["buy"], click * buy, atol=1e-5)
    np.testing.assert_allclose(found["watch"], 20 + 10 * scores[:, 1], rtol=1e-3, atol=1e-3)


@EACH
def test_a_score_depends_on_each_of_its_inputs_and_on_no_other_candidate(kind):
    model = model_of(kind)
    x = rows(model)
    names = {side: model.names_of_side(side) for side in ("user", "item", "row")}
    together = run(model, "call", x)
    for name in [name for side in names.values() for name in side]:
        other = {**x, name: x[name].copy()}
        other[name][1:] = np.where(x[name][1:] == 1, 2, 1)
        changed = run(model, "call", other)
        for label, scores in changed.items():
            assert scores[0] == together[label][0], name
            assert (scores[1:] != together[label][1:]).any(), name
    if kind == "dlrm":
        unknown = run(model, "call", {name: x[name] for name in x if name != "retriever"})
        zeros = run(model, "call", {**x, "retriever": 0 * x["retriever"]})
        assert all((unknown[label] == scores).all() for label, scores in zeros.items())
    if model.config.stage_one:
        model.set_prior(np.zeros(4, np.float32))
        without = run(model, "call", x)
        model.set_prior(np.float32([1, -2, 0.5, 3]))
        prior = {model.label_names[0]: x["retriever"] @ [1, -2, 0.5] + 3}
        for label, scores in run(model, "call", x).items():
            expected = without[label] + prior.get(label, 0)
            np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-4)
    # Four candidates for the last query, then for the first; context is one of a row.
    place = np.repeat(np.int32([1, 0]), 4)
    queries = {name: x[name][[0, -1]] for name in names["user"] if name != "device"}
    pairs = {n: np.tile(x[n][:4].T, 2).T for n in (*names["item"], *names["row"], "device")}
    found = run(model, "score_pairs", queries, pairs, place)
    expected = run(model, "call", {**pairs, **{n: v[place] for n, v in queries.items()}})
    for label, scores in expected.items():
        np.testing.assert_allclose(found[label], scores, rtol=1e-5, atol=1e-5)


def test_the_position_is_the_first_when_pairs_are_scored():
    model = weighted()
    model.set_position(np.int32([2]))
    x = rows(model)
    expected = run(model, "call", {**x, "device": np.full_like(x["device"], 2)})
    context = {"device": np.full_like(x["device"], 3)}
    of_item = {name: x[name] for side in ("item", "row") for name in model.names_of_side(side)}
    queries = {name: x[name] for name in model.names_of_side("user") if name != "device"}
    place = np.arange(len(x["id_row"]), dtype=np.int32)
    for given in (({**queries, **context}, of_item), (queries, {**of_item, **context})):
        for label, scores in run(model, "score_pairs", *given, place).items():
            np.testing.assert_allclose(scores, expected[label], rtol=1e-5, atol=1e-5)


def test_padding_of_a_history_has_no_effect():
    for kind in ("dcn_v2", "din", "candidate_transformer"):
        model = model_of(kind)
        x = rows(model)
        other = {name: value.copy() for name, value in x.items()}
        for name in ("history.genres", "history.rated", "history.device"):
            other[name][x["history"] == 0] = 1
        found, expected = run(model, "call", other), run(model, "call", x)
        for label, scores in expected.items():
            np.testing.assert_array_equal(found[label], scores)


# --- the loss


def test_a_row_without_a_label_has_no_gradient_and_thinned_rows_are_corrected():
    model = weighted()
    labels = {
        "click": np.float32([1, 0, 0, np.nan, 1, 0]),
        "buy": np.float32([1, np.nan, np.nan, np.nan, 0, np.nan]),
        "watch": np.float32([5, np.nan, 9, np.nan, np.nan, np.nan]),
    }
    weight = np.float32([1, 2, 1, 3, 1, 0])
    rate = np.float32([0.5, 0.5, 0.25, 0.5, 1, 0.1])
    x = {f"label.{name}": y for name, y in labels.items()}
    x |= {"weight": weight, "log_rate": np.log(rate)}
    draw = np.random.default_rng(0)
    scores = {name: draw.normal(size=6).astype(np.float32) for name in labels}
    loss, gradients = jax.value_and_grad(lambda s: model.compute_loss(x, y_pred=s))(scores)

    def mean(values, weight):
        return np.sum(values * weight) / np.sum(weight)

    click = expit(scores["click"] - np.log(rate))
    buy = click * expit(scores["buy"])
    known = np.array([0, 1, 2, 4])  # The last row has no weight.
    of_click = np.where(labels["click"] == 1, -np.log(click), -np.log(1 - click))[known]
    of_buy = np.where(labels["buy"] == 1, -np.log(buy), -np.log(1 - buy))[known]
    # Rows whose amount is known weigh 1 / rate, if they are negatives of the first label.
    seen, inverse = np.array([0, 2]), np.array([1, 4])
    of_watch = (scores["watch"][seen] - labels["watch"][seen]) ** 2
    expected = mean(of_click, weight[known]) + 3 * mean(of_buy, weight[known])
    expected += mean(of_watch, weight[seen] * inverse)
    assert float(loss) == pytest.approx(expected, rel=1e-5)
    for name, rows_used in {"click": known, "buy": known, "watch": seen}.items():
        unused = np.setdiff1d(np.arange(6), rows_used)
        assert not np.asarray(gradients[name])[unused].any()
        assert np.asarray(gradients[name])[rows_used].all()


@pytest.mark.slow
@EACH
def test_a_step_changes_every_weight_by_a_finite_gradient(kind):
    tables = ["items", "genres", "rate"]
    model = model_of(kind)
    model.train_by(TrainConfig(loss="binary", table_regularisation=dict.fromkeys(tables, 0.1)))
    before = weights(model)
    model.compile(optimizer=keras.optimizers.SGD(0.1), jit_compile=True)
    x = {**with_labels(model, rows(model, 64)), "group": np.arange(64, dtype=np.int32) // 8}
    logs = model.train_on_batch(x, return_dict=True)
    assert np.isfinite(logs["loss"])
    for path, weight in weights(model).items():
        assert np.isfinite(weight).all(), path
        # A key's bias moves all scores of a query alike: the softmax doesn't see it.
        assert "key/bias" in path or (weight != before[path]).any(), path


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["din", pytest.param("dcn_v2", marks=pytest.mark.thorough)])
def test_eight_devices_learn_what_one_does_in_a_proven_step(kind):
    found = []
    for n in (1, 8):
        large = {"users": 50_000, "items": 60_000, "table_placement": "row"}
        spec = spec_of((GENRES, DEVICE), **MODELS[kind], **large)  # Each table costs seconds.
        with on_devices(n):
            tables = model_class(spec.config).make_tables(spec, SGD(0.5))
            activate(table_layout([*tables.values()], mesh=device_mesh(devices=n)))
            model = model_class(spec.config)(spec, tables=tables, seed=7)
            model.build()
            model.compile(optimizer=keras.optimizers.SGD(0.1), jit_compile=True)
            logs = [
                model.train_on_batch(with_labels(model, rows(model, 64, seed)), return_dict=True)
                for seed in range(3)
            ]
            assert {"users", "items"} <= set(model.step_proof.tables)
            found.append([[log["loss"] for log in logs], weights(model)])
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-5)
    for path, weight in found[0][1].items():
        np.testing.assert_allclose(found[1][1][path], weight, atol=1e-5, err_msg=path)


def test_a_warm_start_carries_the_heads_of_labels_by_name():
    """Each weight whose shape depends on the labels says on which axis it has them."""
    small = {"type": "dcn_v2", "features": (), "user_id": False, "history": 0}
    for options in ({}, {"heads": "mmoe", "tower_widths": (3,)}):
        few, more = (
            build(spec_of(labels={n: LABELS[n] for n in names}, **small, **options))
            for names in (("click",), ("click", "watch", "buy"))
        )
        shapes = {v.path.partition("/")[2]: v.shape for v in few.weights}
        differ = {
            v.path.partition("/")[2]: v.shape
            for v in more.weights
            if shapes.get(v.path.partition("/")[2]) != v.shape
        }
        assert differ.pop("amounts") == (2, 3)
        assert differ
        for path, shape in differ.items():
            assert more.weights_by_row[path] == ("labels", 0)
            assert (shape[0], shapes[path][0]) == (3, 1)
            assert shape[1:] == shapes[path][1:]
    sources = sources_of_labels(("click", "like"), ("buy", "like", "click"))
    assert sources.source.tolist() == [-1, 1, 0]


# --- what doesn't fit


@pytest.mark.parametrize(
    ("labels", "options", "words"),
    [
        ({}, {}, "data.interactions.labels has none"),
        (LABELS, {"labels": ("like",)}, "must name labels of the data.*'like'"),
        (LABELS, {"label_weights": {"like": 2.0}}, "label_weights must name.*'like'"),
        (LABELS, {"labels": ("buy", "watch")}, "must have click too, which buy is given"),
        (LABELS, {"labels": ("click", "click")}, "must not repeat"),
        ({"known": YES}, {}, "must have another name"),
        (LABELS, {"labels": ("click",), "label_weights": {"buy": 2.0}}, "labels of model.labels"),
        ({"like": YES}, {"label_weights": {"like": 0.0}}, "a weight above 0"),
    ],
)
def test_labels_that_the_data_lack_are_refused(labels, options, words):
    config = DcnV2Config(**options)
    with pytest.raises(UsageError, match=f"R378.*{words}"):
        ModelSpec.of(config, 3, 3, labels=labels)


def test_a_loss_that_fits_no_label_is_refused():
    spec = spec_of(labels={"watch": LABELS["watch"]}, type="dcn_v2")
    model = model_class(spec.config)(spec)
    model.train_by(TrainConfig())
    with pytest.raises(UsageError, match=r"R378.*all labels of the model are amounts"):
        model.train_by(TrainConfig(loss="binary"))


def test_labels_are_in_the_order_of_the_config_each_after_its_given():
    config = DcnV2Config(labels=("buy", "watch", "click"))
    assert config.learned(LABELS) == ("watch", "click", "buy")
