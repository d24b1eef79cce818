"""Bundles that answer scores: from Python, over HTTP and gRPC, and where lists are needed."""

import json

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")
pytest.importorskip("tensorflow", reason="needs the extra `serve`")
import requesting
import rpc
import tensorflow as tf
from serving import Running

import recsys
from recsys.bundles.bundle import write_manifest
from recsys.bundles.publishing import publish
from recsys.cli import main
from recsys.errors import RecsysError, UsageError
from recsys.forget.served import knows
from recsys.savedmodel.inputs import IdTable
from recsys.serving.served_model import Retriever
from recsys.serving.service import load_version
from recsys.vectors import ItemVectors

USERS, ITEMS = {"u1": 1.0, "u2": -1.0}, {"i1": 1.0, "i2": 3.0, "i3": 2.0}
"""The score of a pair is the product of both numbers, plus the price and the count."""


class Pairs(tf.Module):
    """Scores pairs; an unknown user or item counts 0."""

    def __init__(self):
        super().__init__()
        self.users, self.items = (
            IdTable([*ids], np.arange(1, len(ids) + 1)) for ids in (USERS, ITEMS)
        )
        self.of_users = tf.Variable([0.0, *USERS.values()])
        self.of_items = tf.Variable([0.0, *ITEMS.values()])

    def score(self, user_id, item_id, price, count):
        users = tf.gather(self.of_users, self.users.lookup(user_id))
        items = tf.gather(self.of_items, self.items.lookup(item_id))
        return {"score": users * items + price[:, 0] + tf.cast(count, tf.float32)}

    def signatures(self):
        score = tf.function(self.score).get_concrete_function(
            user_id=tf.TensorSpec([None], tf.string, "user_id"),
            item_id=tf.TensorSpec([None], tf.string, "item_id"),
            price=tf.TensorSpec([None, 2], tf.float32, "price"),
            count=tf.TensorSpec([None], tf.int64, "count"),
        )
        return {"score": score, "serving_default": score}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scores") / "bundle"
    module = Pairs()
    tf.saved_model.save(module, str(folder), signatures=module.signatures())
    write_manifest(folder, {"name": "pairs", "answers": "scores"})
    return folder


@pytest.fixture(scope="module")
def loaded(bundle):
    return recsys.load_bundle(bundle)


@pytest.fixture(scope="module")
def root(bundle, tmp_path_factory):
    root = tmp_path_factory.mktemp("root")
    publish(bundle, root / "serving" / "pairs", 1)
    return root


@pytest.fixture(scope="module")
def server(root):
    folder = root / "serving" / "pairs"
    with Running(
        versions=(1,), kind=lambda version: load_version(folder / str(version))
    ) as running:
        yield running


ROWS = {
    "user_id": ["u1", "u2", "?"],
    "item_id": ["i2", "i2", "i1"],
    "price": [[0.5, 9.0], [0.0, 9.0], [0.25, 9.0]],
    "count": [0, 1, 2],
}
SCORES = [3.5, -2.0, 2.25]


def test_rows_are_scored_from_python(loaded):
    scores = loaded.score(**ROWS)
    assert scores.dtype == np.float32
    assert scores.tolist() == SCORES


def test_items_are_ranked_for_a_user(loaded):
    def ranked(*of, **more):
        return [(item.id, item.score) for item in loaded.rank(*of, **more, **pair)]

    pair = {"price": [0.0, 0.0], "count": 0}
    assert ranked("u1", ["i1", "i2", "i3"]) == [("i2", 3.0), ("i3", 2.0), ("i1", 1.0)]
    assert ranked("u2", ["i1", "i2", "i3"], k=1) == [("i1", -1.0)]
    # Ties keep their order.
    assert ranked("?", ["i3", "i1"]) == [("i3", 0.0), ("i1", 0.0)]
    assert ranked("u1", []) == []


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"count": None}, "R549"),
        ({"color": ["red"] * 3}, "R549"),
        ({"user_id": ["\ud800"] * 3}, "R540"),
    ],
    ids=["missing", "unknown", "no text"],
)
def test_wrong_inputs_are_refused(loaded, change, code):
    rows = {name: value for name, value in {**ROWS, **change}.items() if value is not None}
    with pytest.raises(UsageError, match=code):
        loaded.score(**rows)


def test_the_rest_protocol_of_tensorflow_serving_answers_scores(server):
    rows = [dict(zip(ROWS, row, strict=True)) for row in zip(*ROWS.values(), strict=True)]
    for body in ({"instances": rows}, {"signature_name": "score", "instances": rows}):
        assert server.predict(body).json() == {"predictions": SCORES}
    wrong = server.predict({"instances": [{**rows[0], "count": 0.5}]})
    assert wrong.status_code == 400
    assert "R555" in wrong.json()["error"]


def test_grpc_answers_scores(server):
    outputs = rpc.predict(server.grpc, rpc.predict_request(ROWS))
    assert outputs["score"].tolist() == SCORES


def test_the_page_says_that_there_are_no_lists(server):
    state = requesting.get(f"{server.url}/api/state").json()
    assert state["ready"] is False
    assert "scores" in state["sentence"]
    for path in ("about", "users", "items", "similar?item=i1"):
        answer = requesting.get(f"{server.url}/api/{path}")
        assert answer.status_code == 400
        assert "R545" in answer.json()["error"]


def test_what_needs_lists_refuses_a_bundle_of_scores(bundle, loaded, root, tmp_path, capsys):
    with pytest.raises(UsageError, match="R545"):
        loaded.recommend("u1")
    with pytest.raises(UsageError, match="R545"):
        Retriever.open(bundle)
    with pytest.raises(RecsysError, match="R545"):
        knows(bundle, ["u1"])
    with pytest.raises(UsageError, match="R545"):
        ItemVectors.open(bundle)
    users = tmp_path / "users.txt"
    users.write_text("u1\n")
    for words in (
        ["--user", "u1"],
        ["--users", str(users), "--out", str(tmp_path / "out.parquet")],
    ):
        with pytest.raises(SystemExit):
            main(["recommend", "--root", str(root), *words])
        assert "R545" in capsys.readouterr().err


def test_a_bundle_of_lists_has_no_scores(exported_world):
    with pytest.raises(UsageError, match="R545"):
        recsys.load_bundle(exported_world.bundle).rank("u1", ["i1"])
    manifest = json.loads((exported_world.bundle / "manifest.json").read_text())
    assert manifest["answers"] == "lists"
