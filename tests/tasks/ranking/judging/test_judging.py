"""Rankers judged on held-out rows: figures, states, slices and systems, against scikit-learn."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest
from row_worlds import DAY, START, ingested, shown
from scipy.sparse import hstack
from sklearn import metrics as sklearn
from sklearn.linear_model import LogisticRegression as Regression
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from training_runs import train_here

import recsys
from recsys.config import BlessConfig, EvaluateConfig, EvaluateStage
from recsys.data.statistics import StatisticsState
from recsys.errors import RecsysError
from recsys.evaluation.evaluator import Evaluator
from recsys.evaluation.result import EvaluationResult
from recsys.models import ModelInputs
from recsys.models.ranking_config import DcnV2Config
from recsys.report.run_report import write_report
from recsys.tasks.model_folder import load_model
from recsys.tasks.ranking.calibration_file import load_calibration
from recsys.tasks.ranking.judging.labelled_rows import NEGATIVES
from recsys.tasks.ranking.judging.side import RankingJudging
from recsys.tasks.ranking.judging.systems import Predictor, System
from recsys.tasks.ranking.probe import PROBE
from recsys.tasks.ranking.rows import read_rows

CONFIG = DcnV2Config(history=50)
FEATURES = [
    {"name": "device", "column": "device", "kind": "category"},
    {"name": "item_rate", "kind": "mean", "label": "click", "by": "item", "as": "dense"},
    {"name": "user_rows", "kind": "count", "by": "user"},
]
NEW_USERS, COLD = ("u0", "u1", "u2"), "i7"
RESAMPLES = 100


def is_early(row):
    return row.time < START + 31 * DAY


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Rows of which some users and an item appear only after the cut; and their data folder."""
    rows = shown(n_users=60, n=8)
    rows = [r for r in rows if not (is_early(r) and (r.user in NEW_USERS or r.item == COLD))]
    data = ingested(tmp_path_factory.mktemp("rows"), rows, features=FEATURES)
    held_out = [r for r in rows if r.time >= data.store.cut]
    assert {*NEW_USERS, COLD} & {x for r in held_out for x in (r.user, r.item)}
    train = [r for r in rows if r.time < data.store.cut]
    known = {*data.items.own_ids.to_pylist()}
    return SimpleNamespace(data=data, train=train, held_out=held_out, known=known)


def stage(bless=None, **evaluate):
    config = EvaluateConfig(**{"resamples": RESAMPLES, "baselines": (), **evaluate})
    return EvaluateStage(evaluate=config, bless=BlessConfig(**(bless or {"over": {}}))).of_task(
        "ranking"
    )


def number_of(name):
    return int(name[1:])


def pair_of(world, row):
    """What `probability` reads of a row; an item that training doesn't know has number 0."""
    return number_of(row.item) if row.item in world.known else 0, row.device == "tv"


def probability(item, device, n_history):
    """A made-up prediction, whose figures are known from the raw rows."""
    return 1 / (1 + np.exp(1.0 - 0.1 * (item * 7 % 13) - 0.5 * device + 0.2 * n_history))


def system_of(data, predict=probability, inputs=None, power=1.0, name="the model"):
    """A system that reads what a model would, and predicts `click` and `buy`."""
    inputs = inputs or ModelInputs.of_data(data)
    ids = np.array([number_of(x) if x else 0 for x in inputs.items.names_of_rows()])
    device = next(one for one in inputs.event_features if one.name == "device")
    tv = device.feature.token_names(device.learned).index("tv")

    def blocks(read, n):
        for rows in np.array_split(np.arange(n), 3):
            x = read(rows)
            n_history = (x["history"] > 0).sum(axis=1)
            click = predict(ids[x["item_row"]], x["device"][:, 0] == tv, n_history) ** power
            yield np.stack([click, click / 3], axis=1)

    return System(name, Predictor(inputs, CONFIG, ("click", "buy"), blocks), data)


def judged(world, systems, config):
    return Evaluator(config, RankingJudging(config, world.data)).run(systems)


def expected(world, state, rows=None):
    """Labels, predictions and weights of held-out rows, from the raw rows."""
    clicks = [r for r in (*world.train, *world.held_out) if r.click and r.item in world.known]
    label, predicted = [], []
    for row in world.held_out if rows is None else rows:
        until = row.time if state == "live" else min(row.time, world.data.store.cut)
        n_history = sum(r.user == row.user and r.time < until for r in clicks)
        label.append(row.click)
        predicted.append(probability(*pair_of(world, row), n_history))
    return np.array(label), np.array(predicted), np.where(np.array(label) == 0, 2.0, 1.0)


def figures(label, predicted, weight):
    return {
        "roc_auc": sklearn.roc_auc_score(label, predicted, sample_weight=weight),
        "log_loss": sklearn.log_loss(label, predicted, sample_weight=weight),
    }


@pytest.mark.parametrize(("state", "other"), [("cut", "live"), ("live", "cut")])
def test_figures_are_those_of_scikit_learn_in_both_states(world, state, other):
    content = judged(world, {"model": system_of(world.data)}, stage(state=state))
    assert content["state"] == state
    for name, part in ((state, content), (other, content[other])):
        for key, value in figures(*expected(world, name)).items():
            assert part["metrics"][key] == pytest.approx(value, abs=1e-9), (name, key)
    buys = np.array([r.buy for r in world.held_out])  # 0 where the label `click` is.
    _, predicted, weight = expected(world, state)
    value = sklearn.roc_auc_score(buys, predicted / 3, sample_weight=weight)
    assert content["metrics"]["roc_auc.buy"] == pytest.approx(value, abs=1e-9)
    assert content["rows"] == len(world.held_out)
    low, high = content["intervals"]["roc_auc"]
    assert low < content["metrics"]["roc_auc"] < high


def test_slices_are_of_new_users_and_cold_items(world):
    content = judged(world, {"model": system_of(world.data)}, stage(small_slice=20))
    found = {part["name"]: part for part in content["slices"]}
    rows = {
        "new users": [r for r in world.held_out if r.user in NEW_USERS],
        "cold items": [r for r in world.held_out if r.item not in world.known],
    }
    for name, own in rows.items():
        assert found[name]["rows"] == len(own)
        assert found[name]["is_small"] == (len({r.user for r in own}) < 20)
        for key, value in figures(*expected(world, "cut", own)).items():
            assert found[name]["metrics"][key] == pytest.approx(value, abs=1e-9)


def test_figures_of_the_report_add_up(world):
    content = judged(world, {"model": system_of(world.data)}, stage())
    bins = content["labels"]["click"]["calibration"]
    assert sum(one["rows"] for one in bins) == len(world.held_out)
    # Bins of equal weight: their errors are the calibration error's.
    error = np.mean([abs(one["rate"] - one["probability"]) for one in bins])
    assert error == pytest.approx(content["metrics"]["calibration_error"], abs=0.01)
    periods = content["label_rates"]["click"]
    for is_held_out, rows in ((False, world.train), (True, world.held_out)):
        own = [one for one in periods if one["held_out"] == is_held_out]
        assert sum(one["rows"] for one in own) == len(rows)
        assert all((one["from"] >= world.data.store.cut) == is_held_out for one in own)
    shares = {one["name"]: one["held_out"] for one in content["coverage"]}
    n_known = sum(r.user not in NEW_USERS for r in world.held_out)
    assert shares["user"] == pytest.approx(n_known / len(world.held_out))


def test_the_report_has_the_labels_and_no_lists(world, tmp_path):
    EvaluationResult(judged(world, {"model": system_of(world.data)}, stage())).save(tmp_path)
    folders = dict.fromkeys(("model", "evaluation"), tmp_path)
    more = {"config": {}, "dead_letters": {}, "bundle": None, "pushed": None}
    page = write_report(tmp_path, data=world.data.folder, **folders, **more).read_text()
    for words in ("Calibration of buy", "Mean of click", "Coverage of inputs", "as of the cut"):
        assert words in page
    for words in ("be shown", "By length of the list", "Neighbours", "Popularity"):
        assert words not in page


@pytest.mark.parametrize("is_worse", [True, False])
def test_a_worse_calibration_than_the_last_blessed_one_is_refused(world, is_worse):
    """Both systems order rows alike; only the probabilities of one are those of the world."""
    own = [system_of(world.data, oracle(world), power=power) for power in (1.0, 0.2)]
    model, blessed = own[::-1] if is_worse else own
    content = judged(world, {"model": model, "blessed_model": blessed}, stage())
    rule = next(r for r in content["verdict"]["rules"] if r["metric"] == "calibration_error")
    assert content["metrics"]["roc_auc"] == pytest.approx(content["blessed_model"]["roc_auc"])
    assert (rule["passed"], content["verdict"]["blessed"]) == (not is_worse, not is_worse)
    assert ("calibration_error is" in content["verdict"]["sentence"]) == is_worse


def oracle(world):
    """The share of clicks by item and device, so that it is calibrated."""
    rows = world.held_out
    sums = {}
    for row in rows:
        weight = 1 if row.click else 2
        own = sums.setdefault(pair_of(world, row), [0.1, 0.3])
        own[0] += weight * row.click
        own[1] += weight
    shares = {pair: a / b for pair, (a, b) in sums.items()}
    return lambda item, tv, _: np.array([shares[x] for x in zip(item, tv, strict=True)])


def test_a_system_of_other_rows_and_tokens_reads_its_own(world, tmp_path):
    """It knows the same items and devices in another order, and one device less."""
    rows = [r for r in world.train if r.item in world.known][::-2]
    other = ingested(tmp_path, rows, features=FEATURES)
    inputs = ModelInputs.of_data(other)
    assert inputs.items.fingerprint() != world.data.items.fingerprint()
    system = system_of(world.data, inputs=inputs)
    content = judged(world, {"model": system}, stage(metrics=("roc_auc", "log_loss")))
    for key, value in figures(*expected(world, "cut")).items():
        assert content["metrics"][key] == pytest.approx(value, abs=1e-9)


def test_a_trained_model_is_judged_by_its_calibrated_predictions(world, tmp_path):
    folder, data = tmp_path / "model", world.data
    train = {"batch_size": 64, "epochs": 2, "validation": {}, "calibration": "temperature"}
    train_here({"model": {"type": "dcn_v2", "dim": 4}, "train": train}, data.folder, folder)
    trained = load_model(folder)
    maps = load_calibration(folder, trained.model.label_names)
    config = trained.model.spec.config
    n, statistics = np.arange(len(data.store.eval_rows)), StatisticsState.open(data.folder, "cut")
    read = read_rows(data.store, "eval", n, trained.inputs, config, "cut", statistics)
    inputs = {x.name: read[x.name] for x in trained.model.inputs_of_sides}
    scores = trained.model.joint_scores(jax.jit(trained.model)(inputs))
    predicted = maps["click"].apply(np.asarray(scores["click"]))
    value = sklearn.log_loss(read["label.click"], predicted, sample_weight=1 / read["rate"])
    for model in (folder, trained):
        result = recsys.evaluate(model, data, baselines=["constant"], progress=False)
        assert result.metrics["log_loss"] == pytest.approx(value, abs=1e-5)
    assert result.content["verdict"]["metric"] == "roc_auc"
    assert "rows of" in repr(result)
    comparison = recsys.compare(trained, trained.model, data, k=[1], progress=False)
    roc_auc = comparison.metrics["roc_auc"]  # That the calibration doesn't change.
    assert roc_auc["a"] == pytest.approx(roc_auc["b"])
    with np.load(folder / PROBE) as file:
        probe = dict(file)
    np.savez(folder / PROBE, **{**probe, "score.click": probe["score.click"] + 1})
    with pytest.raises(RecsysError, match="R311"):
        recsys.evaluate(folder, data, progress=False)


@pytest.mark.filterwarnings("ignore:scipy.optimize")
def test_baselines_learn_from_the_training_rows(world):
    baselines = (
        "constant",
        {"type": "item_mean", "prior": 5.0},
        {"type": "logistic_regression", "strength": 2.0},
    )
    content = judged(world, {"model": system_of(world.data)}, stage(baselines=baselines))
    label = np.array([r.click for r in world.train])
    weight = np.where(label == 0, 2.0, 1.0)
    held_out, _, weights = expected(world, "cut")

    def of_item(item):
        own = np.array([r.item == item for r in world.train])
        return (weight[own] @ label[own] + 5 * mean) / (weight[own].sum() + 5)

    mean = np.average(label, weights=weight)
    found = {
        "constant": (held_out, np.full(len(held_out), mean), weights),
        "item_mean": (held_out, np.array([of_item(r.item) for r in world.held_out]), weights),
        "logistic_regression": regression(world.data),
    }
    for name, own in found.items():
        for key, value in figures(*own).items():
            assert content["baselines"][name][key] == pytest.approx(value, abs=2e-4), (name, key)


def regression(data):
    """Labels, predictions and weights of held-out rows by scikit-learn's one-hots and scaler."""
    store, parts = data.store, []
    at_cut = StatisticsState.open(data.folder, "cut").features
    for log, users in ((store.train_rows, store.train_users), (store.eval_rows, store.eval_users)):
        user, item = log.user_index(np.arange(len(log))), np.asarray(log.item_row)
        is_train = log is store.train_rows
        own = log.features if is_train else at_cut(users.rows[user], item, data.catalogue)
        rows, rates = own["user_rows"], np.asarray(own["item_rate"])
        tokens = [users.rows[user], item, np.ravel(log.features["device"]), np.ravel(rows)]
        label = np.asarray(log.labels["click"])
        parts.append((np.stack(tokens, axis=1), rates, label, 1 / np.asarray(log.rate)))
    (tokens, rates, label, weight), (*held_out, labels, weights) = parts
    encoder = OneHotEncoder(handle_unknown="ignore").fit(tokens)
    scaler = StandardScaler().fit(rates)

    def columns(tokens, rates):
        return hstack([encoder.transform(tokens), scaler.transform(rates)])

    model = Regression(C=0.5, max_iter=500).fit(columns(tokens, rates), label, weight)
    return labels, model.predict_proba(columns(*held_out))[:, 1], weights


def test_positives_alone_are_judged_against_drawn_items(tmp_path):
    rows = [r for r in shown(n_users=30, n=6) if r.click]
    data = ingested(tmp_path, rows, sampled=None)
    config, owner = stage(baselines=("constant",)), SimpleNamespace(data=data)
    n_items = int(data.catalogue.is_item.sum())
    p = 1.2 / n_items  # Among all items; of which some are drawn.
    system = system_of(data, lambda item, tv, n: np.full(len(item), p))
    content = judged(owner, {"model": system}, config)
    held_out = [r for r in rows if r.time >= data.store.cut]
    n_drawn = content["rows"] - len(held_out)
    assert 0.7 * NEGATIVES * len(held_out) < n_drawn <= NEGATIVES * len(held_out)
    assert content["negatives"]["per_row"] == NEGATIVES
    assert content["baselines"]["constant"]["roc_auc"] == 0.5
    odds = p / (1 - p) * n_items / NEGATIVES
    share = len(held_out) / content["rows"]
    value = np.log(1 + odds) - share * np.log(odds)
    assert content["metrics"]["log_loss"] == pytest.approx(value, abs=1e-9)


def test_a_threshold_on_a_metric_that_no_label_has_is_named(world):
    bless = {"metric": "squared_error", "over": {"constant": 1.0}}
    config = stage(bless, metrics=("log_loss", "squared_error"), baselines=("constant",))
    with pytest.raises(RecsysError, match=r"R416.*log_loss, log_loss.buy.*click .yes or no"):
        judged(world, {"model": system_of(world.data)}, config)
