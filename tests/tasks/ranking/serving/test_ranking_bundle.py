"""A ranking bundle, asked in raw ids and columns, against the model on the rows of the store."""

from __future__ import annotations

import dataclasses
import json
import shutil

import numpy as np
import pytest
import system_worlds
from row_worlds import LABELS, ingested, shown

import recsys
from recsys.bundles.publishing import publish
from recsys.config import ExportConfig
from recsys.data.statistics import StatisticsState
from recsys.errors import RecsysError, UsageError
from recsys.forget.files import Names
from recsys.models.calibration import Isotonic, Temperature
from recsys.models.dcn import DcnV2
from recsys.tasks.config import TrainStage
from recsys.tasks.ranking.calibration_file import load_calibration, save_calibration
from recsys.tasks.ranking.rows import read_rows
from recsys.training.stage import write_model

pytest.importorskip("tensorflow")
pytest.importorskip("fastapi", reason="needs the extra `serve`")
import requesting
from serving import Running

from recsys.forget.served import forget_in_versions
from recsys.savedmodel.signatures import SavedModelGraph, load_saved_model
from recsys.serving.opening import open_bundle
from recsys.tasks.ranking.serving.parity import Bounds, RankingReference
from recsys.tasks.serving.requests import example
from recsys.tasks.serving.stored_users import StoredIds

STAGE = {
    "model": {"type": "dcn_v2", "dim": 8, "history": 32, "labels": ["click", "buy", "depth"]},
    "train": {"epochs": 4, "batch_size": 64, "calibration": "temperature", "validation": {}},
}
DEPTH = {"column": "position"}
FEATURES = [
    {"name": "device", "column": "device", "kind": "category"},
    {"name": "clicked", "column": "click", "kind": "category", "outcome": True},
    {"name": "user_clicks", "kind": "mean", "label": "click", "by": "user", "prior": 2},
    {"name": "last_buys", "kind": "last", "label": "buy", "length": 3},
    {"name": "item_rows", "kind": "count", "by": "item", "as": "dense"},
]
OF_ITEMS, OF_ROWS = ["item_rows"], ["item_rows", "user_clicks", "last_buys"]


class World:
    """A model that was trained on impressions by eight devices, and its bundle."""

    def __init__(self, folder):
        self.raw = shown(n_users=25, n_items=12)
        labels = {**LABELS, "depth": DEPTH}
        options = {"labels": labels, "features": FEATURES, "history_events": "all"}
        self.data = ingested(folder, self.raw, **options)
        stage = TrainStage.model_validate(STAGE, strict=False)
        model = DcnV2.from_config(stage, self.data)
        result = recsys.Trainer(stage.train, folder / "run", verbose=0).fit(model, self.data)
        self.model, self.inputs = result.model, result.inputs
        self.model_folder = folder / "model"
        write_model(self.model_folder, result, self.data)
        self.maps = load_calibration(self.model_folder, self.model.label_names)
        self.bundle = recsys.export(
            self.model_folder,
            self.data,
            folder / "bundle",
            name="shop",
            config=ExportConfig(latency_ms=1e5),
        )
        self.graph = SavedModelGraph(self.bundle)

    def predicted(self, inputs):
        """Returns the calibrated predictions of the model by label."""
        scores = self.model.joint_scores(self.model.call(inputs))
        found = {name: np.asarray(x) for name, x in scores.items()}
        maps = {name: self.maps.get(name, Temperature()) for name in ("click", "buy")}
        return found | {name: map_.apply(found[name]) for name, map_ in maps.items()}

    def rows(self, newest=OF_ITEMS, zeros=()):
        """Returns training rows as they were ingested, and the model's predictions for them.

        newest: Statistics that are those of all rows, not of the rows before.
        zeros: Inputs that are 0.
        """
        store = self.data.store
        log, config = store.train_rows, self.model.spec.config
        # A user's first row has no labels that would replace the stored statistics.
        numbers = np.random.default_rng(1).permutation(len(log))
        numbers = numbers[
            log.history_end[numbers] > store.train.history.offsets[log.user_index(numbers)]
        ][:40]
        inputs = read_rows(store, "train", numbers, self.inputs, config)
        user_row, item_row = store.train_users.rows[log.user_index(numbers)], log.item_row[numbers]
        if "id_row" in zeros:
            item_row = np.zeros_like(item_row)
        state = StatisticsState.open(self.data.folder, "newest")
        found = state.features(user_row, item_row, self.inputs.catalogue)
        inputs |= {name: found[name].astype(inputs[name].dtype) for name in newest}
        users, items = store.train_users.ids, self.inputs.items.ids_of_rows
        keys = [
            (users[int(user)].as_py(), items[int(item)].as_py(), int(time))
            for user, item, time in zip(
                log.user_index(numbers), log.item_row[numbers], log.timestamp[numbers], strict=True
            )
        ]
        by_key = {(row.user, row.item, row.time): row for row in self.raw}
        changed = {name: np.zeros_like(inputs[name]) for name in zeros}
        own = {x.name: inputs[x.name] for x in self.model.inputs_of_sides}
        return [by_key[key] for key in keys], self.predicted({**own, **changed})

    def asked(self, rows, items=None, **changes):
        """Returns the answers to requests for rows, with their histories before."""
        pasts = [self._past(row) for row in rows]
        width = 1 + max(map(len, pasts))
        texts = {
            "user_id": [row.user for row in rows],
            "item_id": [[row.item] for row in rows] if items is None else items,
            # An unknown item, so that an empty history isn't replaced by the stored one.
            "history": [padded([past.item for past in one], width, "?") for one in pasts],
            "history_device": [padded([past.device for past in one], width) for one in pasts],
            "history_click": [padded([past.click for past in one], width) for one in pasts],
            "history_buy": [padded([past.buy for past in one], width) for one in pasts],
            "context_device": [[row.device] for row in rows],
            **changes,
        }
        return self.graph.ask("rank", {name: np.array(x, object) for name, x in texts.items()})

    def _past(self, row):
        past = [r for r in self.raw if r.user == row.user and r.time < row.time]
        return sorted(past, key=lambda r: (r.time, self.data.items.rows([r.item])[0]))[::-1]


def padded(values, width, last=""):
    return [*map(str, values), last, *[""] * (width - len(values) - 1)]


def assert_near(answers, expected):
    for name in ("click", "buy", "depth"):
        np.testing.assert_allclose(answers[name][:, 0], expected[name], atol=2e-5)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return World(tmp_path_factory.mktemp("ranking"))


NO_LABELS = {"history_click": [[""]] * 40, "history_buy": [[""]] * 40}


def test_raw_requests_get_the_predictions_of_their_rows(world):
    rows, expected = world.rows()
    answers = world.asked(rows)
    assert_near(answers, expected)
    assert answers["known"].all()
    assert answers["known_items"].all()
    assert answers["click"].std() > 0.01  # The model learned something.


def test_a_history_without_labels_keeps_the_statistics_of_its_user(world):
    rows, expected = world.rows(OF_ROWS, zeros=["history.clicked"])
    assert_near(world.asked(rows, **NO_LABELS), expected)


def test_missing_and_unknown_values_have_defaults(world):
    rows, expected = world.rows(zeros=["device"])
    assert_near(world.asked(rows, context_device=[["radio"]] * 40), expected)
    assert_near(world.asked(rows, context_device=[[""]] * 40), expected)
    rows, expected = world.rows(zeros=["id_row"])
    answers = world.asked(rows, items=[["none"]] * 40)
    assert_near(answers, expected)
    assert not answers["known_items"].any()
    rows, expected = world.rows(zeros=["user_row"])
    answers = world.asked(rows, user_id=["none"] * 40)
    assert_near(answers, expected)
    assert not answers["known"].any()


def test_a_context_belongs_to_the_request_or_to_each_item(world):
    rows = world.rows()[0][:3]
    items = [[f"i{n}" for n in (3, 0, 7, 5)]] * len(rows)
    devices = [["phone", "tv", "", "tv"]] * len(rows)
    together = world.asked(rows, items, context_device=devices)
    for place, (item, device) in enumerate(zip(items[0], devices[0], strict=True)):
        shape = [len(rows), 1]
        alone = world.asked(rows, np.full(shape, item), context_device=np.full(shape, device))
        for name, x in alone.items():
            if name != "known":
                np.testing.assert_allclose(together[name][:, place], x[:, 0], atol=2e-5)
    tv = world.asked(rows, items, context_device=[["tv"]] * len(rows))
    np.testing.assert_allclose(tv["click"][:, 1], together["click"][:, 1], atol=2e-5)
    with pytest.raises(UsageError, match=r"R563.*one for each item"):
        world.asked(rows, items, context_device=[["tv", "tv"]] * len(rows))
    serialized = [
        example(row.user, [], {"item_id": items[0][:n], "context_device": devices[0][:n]})
        for row, n in zip(rows, (4, 2, 1), strict=True)
    ]
    of_examples = world.graph.ask("serving_default", {"examples": np.array(serialized, object)})
    nothing = [[""]] * len(rows)
    stored = {"history": nothing, "history_device": nothing, **dict.fromkeys(NO_LABELS, nothing)}
    expected = world.asked(rows, items, context_device=devices, **stored)
    for place, n in enumerate((4, 2, 1)):
        for name in ("click", "buy", "depth"):
            np.testing.assert_allclose(
                of_examples[name][place, :n], expected[name][place, :n], atol=2e-5
            )


def test_a_bundle_is_judged_like_its_model_folder(world):
    """In both states, although the bundle holds the histories and statistics of all rows."""
    content = [
        recsys.evaluate(model, world.data, baselines=[], progress=False).content
        for model in (world.bundle, world.model_folder)
    ]
    states = [(one["metrics"], one["live"]["metrics"]) for one in content]
    for found, expected in zip(*states, strict=True):
        assert found == pytest.approx(expected, abs=1e-6)
    assert states[0][0]["log_loss"] != pytest.approx(states[0][1]["log_loss"], abs=1e-3)


def test_the_manifest_names_labels_and_columns(world):
    manifest = json.loads((world.bundle / "manifest.json").read_text())
    assert manifest["answers"] == "scores"
    assert manifest["labels"] == ["click", "buy", "depth"]
    assert manifest["outputs"] == {"click": "probability", "buy": "probability", "depth": "amount"}
    assert manifest["calibration"] == {"click": "temperature", "buy": "temperature"}
    assert [*manifest["context"]] == ["device"]
    assert [*manifest["history"]] == ["buy", "click", "device"]
    assert manifest["counts"] == {"users": 25, "items": 12}
    assert manifest["max_difference"] < 1e-3
    assert manifest["latency_ms"]["p99"] < 1e5
    card = (world.bundle / "MODEL_CARD.md").read_text()
    assert "| `buy` | probability of both `click` and `buy` | temperature |" in card


def test_other_predictions_than_those_of_training_are_refused(world, tmp_path):
    rows, _ = world.rows()
    texts = {
        "user_id": np.array([row.user for row in rows], object),
        "item_id": np.array([row.item for row in rows], object),
        "history": np.full((len(rows), 1), "?", object),
        "context_device": np.array([[row.device] for row in rows], object),
    }
    nothing = {"history_device": [[""]] * 40, **NO_LABELS}
    answers = world.asked(rows, history=texts["history"], **nothing)
    click = np.float32(answers["click"][:, 0])
    reference = RankingReference(texts, {"click": Bounds(click - 1e-6, click, click + 1e-6)})
    reference.save(tmp_path)
    reference = RankingReference.load(tmp_path)
    model = load_saved_model(world.bundle)
    assert reference.check(model, world.bundle, print) < 1e-5
    click[17] += 1e-3
    wrong = dataclasses.replace(reference, predictions={"click": Bounds(click, click, click)})
    with pytest.raises(RecsysError, match=r"R530.*click of rank"):
        wrong.check(model, world.bundle, print)


def test_a_forgotten_user_is_in_no_variable_of_the_bundle(world, tmp_path):
    publish(world.bundle, tmp_path, 1)
    rows, _ = world.rows()
    gone, stays = rows[0], next(row for row in rows if row.user != rows[0].user)
    done = forget_in_versions(tmp_path, Names({gone.user}), 1, lambda *_: None)
    assert not done.failed
    graph = SavedModelGraph(done.published)
    nothing = {name: [[""]] * 2 for name in world.graph.signatures["rank"]}
    texts = {**nothing, "user_id": [gone.user, stays.user], "item_id": [["i1", "i2"]] * 2}
    texts = {name: np.array(x, object) for name, x in texts.items()}
    before, after = (one.ask("rank", texts) for one in (world.graph, graph))
    texts["user_id"] = np.array(["none", stays.user], object)
    nobody = world.graph.ask("rank", texts)
    assert after["known"].tolist() == [False, True]
    for name in ("click", "buy", "depth"):
        np.testing.assert_array_equal(after[name][1], before[name][1])
        np.testing.assert_array_equal(after[name][0], nobody[name][0])
    row = world.data.users.rows([gone.user])[0]
    stored = StoredIds(done.published, [gone.user])
    keys = stored._get("_statistics/_user_keys/user_clicks")
    assert row not in keys >> 32
    assert row in StoredIds(world.bundle, [])._get("_statistics/_user_keys/user_clicks") >> 32
    assert not forget_in_versions(tmp_path, Names({gone.user}), 1, lambda *_: None).changed


def test_items_of_one_calibrated_probability_are_in_the_order_of_their_scores(world, tmp_path):
    shutil.copytree(world.model_folder, tmp_path / "model")
    steps = Isotonic(logit=(-99.0, 99.0), probability=(0.25, 0.25))
    save_calibration(tmp_path / "model", {"click": steps})
    (tmp_path / "data").symlink_to(world.data.folder)
    (tmp_path / "export.json").write_text(json.dumps({"name": "shop"}))
    bundle = tmp_path / "bundle"
    system_worlds.export(tmp_path, tmp_path / "model", bundle)
    query = {"user": "u3", "items": [f"i{n}" for n in range(12)], "context": {"device": "tv"}}
    expected, found = (recsys.load_bundle(one).rank(**query) for one in (world.bundle, bundle))
    assert [item.id for item in found] == [item.id for item in expected]
    assert {item.score for item in found} == {0.25}


def test_the_server_and_python_rank_as_the_signature_predicts(world):
    items, devices = [f"i{n}" for n in (3, 0, 7, 5)], ["phone", "tv", "radio", ""]
    history = [{"item": "i1", "device": "tv", "click": 1}, {"item": "i2"}]
    texts = {
        "user_id": ["u3"],
        "item_id": [items],
        "history": [["i1", "i2"]],
        "history_device": [["tv", ""]],
        "history_click": [["1", ""]],
        "history_buy": [["", ""]],
        "context_device": [devices],
    }
    asked = {name: np.array(x, object) for name, x in texts.items()}
    predicted = {name: x[0] for name, x in world.graph.ask("rank", asked).items()}
    order = np.argsort(-predicted["click"], kind="stable")[:3]
    query = {"user": "u3", "context": {"device": devices}, "history": history, "k": 3}
    found = recsys.load_bundle(world.bundle).rank(items=items, **query)
    assert [item.id for item in found] == [items[place] for place in order]
    assert (found.known, found.missing, found.unknown) == (True, {"device": 1}, {"device": 1})
    with Running(versions=(1,), kind=lambda _: open_bundle(world.bundle)) as server:
        answer = server.predict({**query, "items": items}, "/v1/models/m:rank").json()
        wish = {"user": "u3", "candidates": items, "k": 2}
        shown_on_page = requesting.post(f"{server.url}/api/recommend", json=wish).json()
    assert len(shown_on_page["items"]) == 2
    for label in ("click", "buy", "depth"):
        right = predicted[label][order]
        np.testing.assert_allclose([item.scores[label] for item in found], right, atol=2e-5)
        scores = [item["scores"][label] for item in answer["items"]]
        np.testing.assert_allclose(scores, right, atol=2e-5)
