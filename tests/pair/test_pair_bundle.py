"""The bundle of a pair, beside the lists that its signatures and NumPy make."""

import contextlib
import json
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import run_main

pytest.importorskip("tensorflow")
pytest.importorskip("fastapi", reason="needs the extra `serve`")
import tensorflow as tf
from on_tensorflow import run_on_tensorflow
from pair_worlds import pair_stage
from places import SUPPORT
from registrations import undone
from training_runs import on_devices

import recsys
from recsys.bundles.bundle import read_manifest
from recsys.bundles.publishing import latest, publish, rollback
from recsys.data.dataset import Data
from recsys.forget.files import Names
from recsys.forget.served import forget_in_versions
from recsys.savedmodel.signatures import SavedModelGraph
from recsys.training.pair import train_pair

K, N_CANDIDATES = 8, 12
OWN_RANKER = {"type": "rows_and_list", "dim": 4, "feature_dim": 4, "history": 3, "width": 8}


@contextlib.contextmanager
def plugin():
    """Lets folders load the ranker's plugin, which is not there before or after."""
    with undone():
        yield
    sys.modules.pop("ranker_plugin", None)


class World:
    """A pair on made-up impressions, a pair of a plugin's ranker that shares tables, bundles."""

    def __init__(self, folder, data, pair):
        self.folder, self.data, self.pair = folder, Data(data), pair
        with plugin(), on_devices(1):
            own = pair_stage(["ranker_plugin"], share_tables=True, model=OWN_RANKER)
            train_pair(own, data, folder / "shared")
        run_on_tensorflow(SUPPORT / "pair_exports.py", folder, data, pair)
        self.bundle = recsys.load_bundle(folder / "bundle")
        self.graph = SavedModelGraph(folder / "bundle")

    def texts(self, user, items, device=""):
        """Returns the inputs of `rank` of one user; the retriever's list is unknown."""
        texts = {
            **{name: [[""]] for name in self.graph.signatures["rank"]},
            "user_id": [user],
            "item_id": [items],
            "context_device": [[device]],
        }
        numbers = {"retriever_rank": [[-1.0]], "retriever_score": [[0.0]]}
        inputs = {name: np.array(x, object) for name, x in texts.items()}
        return inputs | {name: np.array(x, np.float32) for name, x in numbers.items()}

    def by_hand(self, user, device=""):
        """Returns the list of a user: the retriever's items in the order of the score."""
        first = self.graph.ask("recommend", {
            **{n: np.full((1, 1), b"", object) for n in self.graph.signatures["recommend"]},
            "user_id": np.array([user], object), "exclude_seen": np.array([True]),
            "context_device": np.array([[device]], object),
        })  # fmt: skip
        scores, items = first["scores"][0].astype(float), first["candidate_ids"][0].tolist()
        assert len(items) == N_CANDIDATES
        inputs = self.texts(user, items, device)
        inputs["retriever_rank"] = np.arange(1, len(items) + 1, dtype=np.float32)[None]
        normal = (scores - scores.mean()) / scores.std()
        inputs["retriever_score"] = normal[None].astype(np.float32)
        found = self.graph.ask("rank", inputs)
        score = found["click"][0] * found["buy"][0] ** 0.5
        np.testing.assert_allclose(found["score"][0], score, rtol=1e-5)
        order = np.argsort(-score, kind="stable")[:K]
        return [items[at].decode() for at in order], score[order]


@pytest.fixture(scope="module")
def world(tmp_path_factory, pair_data, trained_pair):
    return World(tmp_path_factory.mktemp("pair"), pair_data, trained_pair)


@pytest.mark.parametrize("device", ["", "tv"])
def test_lists_are_in_the_order_of_the_score(world, device):
    for user in ("u1", "u2", "u3"):
        found = world.bundle.recommend(user, k=K, context={"device": device})
        ids, scores = world.by_hand(user, device)
        assert [item.id for item in found] == ids
        np.testing.assert_allclose([item.score for item in found], scores, rtol=1e-5)
        assert found.stage == "ranker"


def test_an_unknown_context_is_the_default(world):
    asked = [{}, {"device": "radio"}, {"device": ""}, {"device": "tv"}]
    lists = [world.bundle.recommend("u5", k=K, context=context).to_rows() for context in asked]
    assert lists[0] == lists[1] == lists[2] != lists[3]


def test_what_a_ranker_reads_of_the_list_changes_its_score(world):
    inputs = world.texts("u1", ["i1", "i2"])
    before = world.graph.ask("rank", inputs)
    inputs["retriever_rank"] = np.array([[1.0, 12.0]], np.float32)
    inputs["retriever_score"] = np.array([[2.0, -1.0]], np.float32)
    after = world.graph.ask("rank", inputs)
    assert np.abs(after["click"] - before["click"]).min() > 1e-5
    ranked = world.bundle.rank("u1", ["i1", "i2"])
    found = {item.id: item.scores["click"] for item in ranked}
    np.testing.assert_allclose([found["i1"], found["i2"]], before["click"][0], rtol=1e-6)


def test_another_ranker_than_that_of_training_is_refused(world):
    assert "[R530] The buy of rank" in (world.folder / "refused.txt").read_text()


def test_a_ranker_that_was_left_out_is_not_in_the_bundle(world):
    alone = SavedModelGraph(world.folder / "alone")
    assert "rank" not in alone.signatures
    assert recsys.load_bundle(world.folder / "alone").recommend("u1", k=3).stage == "retriever"


def test_the_manifest_and_the_card_describe_both_stages(world):
    manifest = read_manifest(world.folder / "bundle")
    assert (manifest["answers"], manifest["k"]) == ("lists", K)
    ranker = manifest["ranker"]
    assert (ranker["labels"], ranker["candidates"]) == (["click", "buy"], N_CANDIDATES)
    assert ranker["score"] == "click * buy ^ 0.5"
    card = (world.folder / "bundle" / "MODEL_CARD.md").read_text()
    assert "orders them by `click * buy ^ 0.5`" in card
    assert "| `buy` | probability of both `click` and `buy` | temperature |" in card


def test_a_file_of_users_gets_the_lists_of_the_pair(world, tmp_path, capsys):
    publish(world.folder / "bundle", tmp_path / "serving" / "shop", 2)
    (tmp_path / "users.txt").write_text("u1\nu2\nnobody\n")
    out = tmp_path / "out.parquet"
    words = ["--users", tmp_path / "users.txt", "--out", out, "--root", tmp_path, "-k", K]
    assert run_main("recommend", *words, "--context", "device=tv", "--json") == 0
    assert json.loads(capsys.readouterr().out)["unknown"] == 1
    rows = pq.read_table(out).to_pylist()
    assert [row["item_ids"] for row in rows[:2]] == [
        world.by_hand(u, "tv")[0] for u in ("u1", "u2")
    ]
    assert len(rows[2]["item_ids"]) == K


def test_a_pair_is_rolled_back_as_one_and_forgets_users_in_both_stages(world, tmp_path):
    publish(world.folder / "alone", tmp_path, 3)
    publish(world.folder / "bundle", tmp_path, 3)
    done = forget_in_versions(tmp_path, Names({"u3"}), 3, lambda *_: None)
    assert not done.failed
    after = recsys.load_bundle(done.published)
    before = world.bundle.recommend("u4", k=K)
    assert after.recommend("u4", k=K) == before
    assert not after.recommend("u3", k=K).known
    assert not after.rank("u3", ["i1"]).known
    rollback(tmp_path)
    assert recsys.load_bundle(latest(tmp_path)).recommend("u4", k=K).stage == "retriever"


def test_a_bundle_with_shared_tables_has_one_copy_which_forgets_users(world, tmp_path):
    """The export has compared `rank` with the ranker's probe in the pair's folder."""

    def variables(bundle):
        reader = tf.train.load_checkpoint(str(bundle / "variables" / "variables"))
        shapes = reader.get_variable_to_shape_map()
        return {name: reader.get_tensor(name) for name, shape in shapes.items() if len(shape) == 2}

    before = variables(world.folder / "shared_bundle")
    with plugin():
        tables = recsys.load_model(world.folder / "shared").model.tables
    for table in tables.values():
        rows = table.read_rows()
        (name,) = (name for name, values in before.items() if np.array_equal(values, rows))
        if table.name == "users":
            of_users = name
    publish(world.folder / "shared_bundle", tmp_path, 2)
    row = int(world.data.users.rows(pa.array(["u3"]))[0])
    after = variables(forget_in_versions(tmp_path, Names({"u3"}), 2, lambda *_: None).published)
    assert before[of_users][row].any()
    assert not after[of_users][row].any()
    rest = [np.delete(x[of_users], row, axis=0) for x in (before, after)]
    np.testing.assert_array_equal(*rest)


EVALUATED = {"baselines": [], "k": [5], "progress": False}


def assert_measured_alike(bundle, folder):
    """Asserts that the evaluations of a bundle and of its folder have the same figures."""
    assert bundle.metrics == pytest.approx(folder.metrics, abs=1e-5)
    its, own = (one.content["ranker"] for one in (bundle, folder))
    assert its["metrics"] == pytest.approx(own["metrics"], abs=1e-5)
    assert its["live"]["metrics"] == pytest.approx(own["live"]["metrics"], abs=1e-5)


def test_a_bundle_is_measured_as_its_folder_is(world):
    """With `alone`, of which the ranker was left out."""
    folder, bundle, alone = (
        recsys.evaluate(one, world.data, **EVALUATED)
        for one in (world.pair, world.folder / "bundle", world.folder / "alone")
    )
    assert_measured_alike(bundle, folder)
    retriever = folder.content["retriever"]["metrics"]
    assert folder.metrics["ndcg@5"] != pytest.approx(retriever["ndcg@5"], abs=1e-5)
    assert alone.metrics == pytest.approx({n: retriever[n] for n in alone.metrics}, abs=1e-5)


def test_the_ranker_of_a_plugin_is_found_by_its_folder_and_served_without_the_plugin(world):
    """Its tables are the retriever's."""
    bundle = world.folder / "shared_bundle"
    assert recsys.load_bundle(bundle).recommend("u1", k=3).stage == "ranker"
    served = recsys.evaluate(bundle, world.data, **EVALUATED)
    assert "ranker_plugin" not in sys.modules
    with plugin():
        trained = recsys.evaluate(world.folder / "shared", world.data, **EVALUATED)
    assert_measured_alike(served, trained)
