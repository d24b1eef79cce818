"""The exported bundle, asked in raw ids, against the trained weights by hand in numpy.

One small world for all tests: TFT makes the token rows from raw text, the real trainer the model,
the real export the bundle. TensorFlow runs in processes of its own: one exports, one is a client
with only the bundle.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import yaml
from data_folders import write_data
from on_tensorflow import run_on_tensorflow
from places import SUPPORT
from training_runs import train_here

from recsys.bundles.bundle import verify
from recsys.data.catalogue import FeatureBags
from recsys.data.store import InteractionStore, ServingHistories, serving_histories
from recsys.data.vocabulary import Vocabulary

pytestmark = [pytest.mark.pipeline, pytest.mark.slow]  # The token rows are TFT's.

_SCRIPTS = SUPPORT
_STARTUP = _SCRIPTS.parent / "startup"
_K, _HISTORY = 12, 4
_EVALUATION = {
    "query": "each_moment",
    "users": 7,
    "queries": 47,
    "candidates": 40,
    "metrics": {"recall@10": 0.25, "coverage@10": 0.5},
    "confidence": 0.95,
    "intervals": {"recall@10": [0.2, 0.3]},
    "baselines": {"popularity": {"recall@10": 0.125}},
    "verdict": {"blessed": True, "sentence": "Twice as good", "reasons": ["recall@10 is 0.2500"]},
}
_INPUTS = {"config": "export.json", "data": "data", "model": "model", "evaluation": ".",
           "transform": "item_transform", "user-transform": "user_transform"}  # fmt: skip
_WORDS = ["Red", "Blue", "the", "sea", "Night", "Über", "wolf", "of"]
_GENRES = ["Drama", "Sci-Fi", "War", "Comedy"]


_USER_IDS = ["007", *(f"u{n}" for n in range(1, 30))]


def make_items() -> list[dict[str, Any]]:
    rng = np.random.default_rng(1)
    items = []
    for n in range(40):
        words, genres = rng.choice(_WORDS, 3), rng.choice(_GENRES, 2, replace=False)
        # Ids of any content: leading zeros, spaces, newlines, not ASCII.
        id_ = {3: "003", 4: "a b", 5: "c\nd", 6: "ü"}.get(n, f"i{n}")
        items.append({"item_id": id_, "title": " ".join(words), "genres": sorted(genres)})
    return items


def make_users() -> list[dict[str, Any]]:
    """Returns the users' file: all of training but `u9`, and two who did nothing yet."""
    rng = np.random.default_rng(4)
    ids = [*(id_ for id_ in _USER_IDS if id_ != "u9"), "still 1", "late2"]
    return [
        {
            "user_id": id_,
            "plan": [str(rng.choice(["free", "Pro"]))] if n % 3 else [],
            "age": float(rng.integers(18, 80)),
            "joined": [int(rng.integers(1, 17) * 10**8)] if n % 4 else [],
        }
        for n, id_ in enumerate(ids)
    ]


def events_table(
    ids: list[str], user_row: np.ndarray, item_row: np.ndarray, timestamp: np.ndarray
) -> pa.Table:
    return pa.table(
        {
            "user_id": ids,
            "user_row": user_row.astype(np.int32),
            "item_row": item_row.astype(np.int32),
            "timestamp": timestamp.astype(np.int64),
        }
    )


def features_of(world: Path, side: str, rows: np.ndarray, n_rows: int) -> list[FeatureBags]:
    """Returns what TFT made of a side, each of its bags at one of `rows`."""
    tables = json.loads((world / f"{side}_bags.json").read_text())
    features = []
    for name, bag in sorted(np.load(world / f"{side}_bags.npz").items()):
        bags = np.zeros((n_rows, bag.shape[1]), np.int32)
        bags[rows] = bag
        features.append(FeatureBags(name, tables[name], bags))
    return features


def write_world_data(folder: Path, items: list[dict[str, Any]]) -> None:
    """Writes a data folder: users `007`, `u1` …; 5 of them only after the cut."""
    rng = np.random.default_rng(2)
    n_items, n_users, n_events = len(items), 30, 600
    train_items = rng.integers(1, n_items - 4, n_events)  # The last 5 are never seen.
    counts = np.bincount(train_items, minlength=n_items + 1)[1:]
    item_vocabulary = Vocabulary(pa.array([item["item_id"] for item in items]), counts)
    index = np.concatenate([np.arange(1, n_users + 1), rng.integers(1, n_users + 1, 570)])
    # Users of the users' file without events before the cut have a row, too.
    user_ids = [*_USER_IDS, "still 1", "late2"]
    users = Vocabulary(pa.array(user_ids), np.bincount(index, minlength=n_users + 3)[1:])
    times = rng.integers(0, 1000, n_events)
    train = events_table([user_ids[row - 1] for row in index], index, train_items, times)

    eval_ids = ["u3", "late0", "late1", "007", "late2", "late3", "late4"]
    who = np.concatenate([np.arange(7), rng.integers(0, 7, 40)])
    rows = users.rows(eval_ids)
    later = rng.integers(1000, 1100, 47)
    later_items = rng.integers(1, n_items + 1, 47)
    held_out = events_table([eval_ids[user] for user in who], rows[who], later_items, later)

    titles = ["", *(item["title"] for item in items)]
    features = features_of(folder.parent, "item", np.arange(1, n_items + 1), n_items + 1)
    rows = users.rows([user["user_id"] for user in make_users()])
    of_users = features_of(folder.parent, "user", rows, users.n_rows)
    tables = train, held_out
    write_data(folder, 1000, *tables, users, item_vocabulary, features, of_users, titles)


class World:
    """The numpy reference: data, weights and the towers by hand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.items = json.loads((folder / "items.json").read_text())
        self.users = Vocabulary.load(folder / "model" / "vocabulary" / "users.parquet")
        self.vocabulary = Vocabulary.load(folder / "model" / "vocabulary" / "items.parquet")
        self.histories: ServingHistories = serving_histories(
            InteractionStore.open(folder / "data" / "store")
        )
        described = json.loads((folder / "model" / "model.json").read_text())["variables"]
        self.weights = {
            variable["path"].removeprefix("two_tower/"): np.load(
                folder / "model" / "weights" / f"{n}.npy"
            )
            for n, variable in enumerate(described)
        }
        n_items = len(self.items)
        features = features_of(folder, "item", np.arange(1, n_items + 1), n_items + 1)
        self.bags = {feature.name: feature.bags for feature in features}
        ids = [user["user_id"] for user in json.loads((folder / "users.json").read_text())]
        bags = dict(np.load(folder / "user_bags.npz"))
        self.user_bags = {
            id_: {name: bag[n : n + 1] for name, bag in bags.items()} for n, id_ in enumerate(ids)
        }
        self.no_bags = {name: np.zeros_like(bag[:1]) for name, bag in bags.items()}

    def trained(self, rows: np.ndarray) -> np.ndarray:
        return np.where(self.vocabulary.row_counts[rows] > 0, rows, 0)

    def tower(self, side: str, anchor: np.ndarray, x: np.ndarray) -> np.ndarray:
        w = self.weights
        hidden = x @ w[f"{side}/hidden_0/kernel"] + w[f"{side}/hidden_0/bias"]
        out = anchor + (hidden / (1 + np.exp(-hidden))) @ w[f"{side}/out/kernel"]
        return out / np.sqrt((out**2).sum(axis=1, keepdims=True) + 1e-12)

    def means(self, bags: dict[str, np.ndarray]) -> list[np.ndarray]:
        """Returns the mean embedding `[b, dim]` of the tokens of each feature."""
        means = []
        for name in sorted(bags):
            present = (bags[name] > 0)[..., None]
            vectors = self.weights[f"embedding/{name}/embeddings"][bags[name]] * present
            means.append(vectors.sum(axis=1) / np.maximum(present.sum(axis=1), 1e-6))
        return means

    def query(
        self, user_id: str, history: list[str] | None = None, like: str | None = None
    ) -> np.ndarray:
        """Returns the embedding `[dim]`.

        Args:
            user_id: Who asks.
            history: Ids, the newest first; None for the stored ones.
            like: The user whose features these are, if not the asking one's.
        """
        done = self.done(user_id) if history is None else self.vocabulary.rows(history).tolist()
        rows = np.array((done + [0] * _HISTORY)[:_HISTORY])
        rows = self.trained(rows)
        weight = (rows > 0) * np.log1p(np.exp(self.weights["history/place"]))
        pooled = weight @ self.weights["embedding/items/embeddings"][rows] / max(weight.sum(), 1e-6)
        (row,) = self.users.rows([user_id])
        row = row if self.users.row_counts[row] > 0 else 0
        user = self.weights["embedding/users/embeddings"][row]
        means = self.means(self.user_bags.get(like or user_id, self.no_bags))
        known = np.concatenate([pooled, user, *(mean[0] for mean in means)])
        return self.tower("query_tower", (pooled + user)[None], known[None])[0]

    def candidates(self, rows: np.ndarray, bags: dict[str, np.ndarray]) -> np.ndarray:
        own = self.weights["embedding/items/embeddings"][self.trained(rows)]
        inputs = np.concatenate([own, *self.means(bags)], axis=1)
        return self.tower("candidate_tower", own, inputs)

    def catalogue(self) -> np.ndarray:
        return self.candidates(np.arange(self.vocabulary.n_rows), self.bags)

    def done(self, user_id: str) -> list[int]:
        """Returns the item rows of a user, the newest first; none of an unknown one."""
        n = self.histories.ids.index(user_id).as_py()
        if n < 0:
            return []
        offsets = self.histories.offsets
        return self.histories.item_rows[offsets[n] : offsets[n + 1]].tolist()[::-1]

    def best(
        self, user_id: str, history: list[str] | None, exclude_seen: bool
    ) -> tuple[list[str], np.ndarray]:
        """Returns ids and scores of the best `_K`."""
        if user_id == "nobody" and not history:
            counts = np.bincount(self.histories.item_rows, minlength=len(self.items) + 1)
            scores = counts / counts.sum()
        else:
            scores = self.catalogue() @ self.query(user_id, history)
        scores[0] = -np.inf
        if exclude_seen:
            scores[self.done(user_id)] = -np.inf
            scores[self.vocabulary.rows(history or [])] = -np.inf
        rows = np.argsort(-scores, kind="stable")[:_K]
        rows = rows[np.isfinite(scores[rows])]
        return [self.items[row - 1]["item_id"] for row in rows], scores[rows]


def run_client(folder: Path) -> None:
    """Asks the bundle in a process that has no KERAS_BACKEND, and where ours can't be imported."""
    finished = subprocess.run(
        [sys.executable, _SCRIPTS / "client.py", folder],
        env={**os.environ, "KERAS_BACKEND": "", "PYTHONPATH": str(_STARTUP)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-4000:]


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> World:
    folder = tmp_path_factory.mktemp("export")
    items = make_items()
    (folder / "items.json").write_text(json.dumps(items))
    (folder / "users.json").write_text(json.dumps(make_users()))
    run_on_tensorflow(_SCRIPTS / "transform.py", folder)
    write_world_data(folder / "data", items)
    model = {"dim": 8, "feature_dim": 6, "history": _HISTORY, "widths": [10]}
    stage = {"model": model, "train": {"batch_size": 64, "epochs": 3}}
    (folder / "export.json").write_text(json.dumps({"name": "tiny", "export": {"k": _K}}))
    (folder / "evaluation.json").write_text(json.dumps(_EVALUATION))
    train_here(stage, folder / "data", folder / "model")
    return World(folder)


@dataclasses.dataclass(frozen=True)
class Exported:
    """The output and the errors of the export, and the answers of the bundle."""

    world: World
    result: dict[str, Any]
    refused: dict[str, list[str]]
    answers: list[dict[str, Any]]
    graph: dict[str, Any]

    def answer(self, signature: str, **inputs: Any) -> dict[str, Any]:
        return self.answers[_QUESTIONS.index((signature, inputs))]


_UNSEEN = "i38"  # In the catalogue, in no training interaction.
_QUERIES: list[tuple[str, list[str] | None, bool]] = [
    ("007", None, True),
    ("007", None, False),
    ("u5", None, True),
    ("late2", None, True),
    ("nobody", None, True),
    ("007", ["003", "a b", "i9"], True),
    ("late2", ["c\nd", "no such item", _UNSEEN, "ü", "i1", "i2"], False),
    ("nobody", ["ü"], True),
    ("u9", None, True),  # Not in the users' file.
    ("still 1", None, True),  # There alone.
]
_WIDEST = 6


_NOTHING = {"age": "", "joined": "", "plan": ""}


def as_inputs(queries: list[tuple[str, list[str] | None, bool]]) -> dict[str, Any]:
    return {
        **{column: [[""]] * len(queries) for column in _NOTHING},
        "user_id": [user for user, _, _ in queries],
        "history": [[*(h or []), *[""] * (_WIDEST - len(h or []))] for _, h, _ in queries],
        "exclude_seen": [seen for _, _, seen in queries],
    }


def as_examples(queries: list[tuple[str, list[str] | None, bool]]) -> list[dict[str, Any]]:
    examples = []
    for user, history, seen in queries:
        optional = {"history": history} if history else {}
        flag = {} if seen else {"exclude_seen": [0]}
        examples.append({"user_id": [user], **optional, **flag})
    return examples


_EMBEDDED = {name: value for name, value in as_inputs(_QUERIES).items() if name != "exclude_seen"}
_ITEM_IDS = [*(item["item_id"] for item in make_items()), "no such item"]
_STORED = {"item_id": _ITEM_IDS, "title": [[""]] * 41, "genres": [["", ""]] * 41}
_RAW = {
    "item_id": _ITEM_IDS,
    "title": [*([item["title"]] for item in make_items()), ["The WOLF, of Night!"]],
    "genres": [*(item["genres"] for item in make_items()), ["", " War "]],
}


def as_text(user: dict[str, Any]) -> dict[str, list[str]]:
    """Returns the raw columns of a user, as a client writes them."""
    return {
        "plan": user["plan"] or [""],
        "age": [str(user["age"])],
        "joined": [str(seconds) for seconds in user["joined"]] or [""],
    }


# Each user's own columns, sent for an unknown user.
_RAW_USERS: dict[str, list[Any]] = {
    "user_id": ["nobody"] * len(make_users()),
    "history": [["i9"]] * len(make_users()),
    **{name: [as_text(user)[name] for user in make_users()] for name in _NOTHING},
}
_LIKE_007 = {"user_id": ["nobody"], "history": ["i9"], **as_text(make_users()[0])}
_QUESTIONS: list[tuple[str, dict[str, Any]]] = [
    ("recommend", as_inputs(_QUERIES)),
    ("serving_default", {"examples": as_examples(_QUERIES)}),
    ("serving_default", {"examples": []}),
    ("embed_query", _EMBEDDED),
    ("embed_candidate", _STORED),
    ("embed_candidate", _RAW),
    ("stored_history", {"user_id": ["007", "late2", "nobody"]}),
    ("embed_query", _RAW_USERS),
    ("serving_default", {"examples": [_LIKE_007]}),
]


@pytest.fixture(scope="module")
def exported(world) -> Exported:
    printed = run_on_tensorflow(_SCRIPTS / "export.py", world.folder)
    (world.folder / "questions.json").write_text(json.dumps(_QUESTIONS))
    run_client(world.folder)
    answers = json.loads((world.folder / "answers.json").read_text())
    return Exported(
        world=world,
        result=json.loads(printed.splitlines()[0]),
        refused=json.loads((world.folder / "refused.json").read_text()),
        answers=answers.pop("answers"),
        graph=answers,
    )


def test_the_export_says_what_it_checked(exported):
    assert exported.result["bundle"] == str(exported.world.folder / "bundle")
    assert 0 <= exported.result["max_difference"] <= 1e-5
    assert exported.result["checked_queries"] >= 40


def assert_same_bytes(*bundles: Path) -> None:
    first, second = (
        {
            str(path.relative_to(bundle)): path.read_bytes()
            for path in bundle.rglob("*")
            if path.is_file()
        }
        for bundle in bundles
    )
    assert {"saved_model.pb", "fingerprint.pb", "manifest.json"} <= first.keys()
    assert [name for name in first | second if first.get(name) != second.get(name)] == []


def test_equal_inputs_give_equal_bytes(exported):
    """Over an older bundle."""
    assert_same_bytes(exported.world.folder / "bundle", exported.world.folder / "second")


@pytest.mark.thorough
def test_processes_of_other_hashes_give_equal_bytes(exported):
    folder = exported.world.folder
    words = [f"--{name}={folder / file}" for name, file in _INPUTS.items()]
    subprocess.run(
        [sys.executable, "-m", "recsys.stages.export", *words, f"--out={folder / 'again'}"],
        env={**os.environ, "KERAS_BACKEND": "tensorflow", "PYTHONHASHSEED": "77"},
        check=True,
    )
    assert_same_bytes(folder / "bundle", folder / "again")


def test_the_bundle_is_whole_and_nothing_stays_beside_it(exported):
    bundle = exported.world.folder / "bundle"
    verify(bundle)
    manifest = json.loads((bundle / "manifest.json").read_text())
    assert manifest["k"] == _K
    assert manifest["metrics"] == _EVALUATION["metrics"]
    assert manifest["item_columns"] == ["genres", "title"]
    assert manifest["user_columns"] == ["age", "joined", "plan"]
    assert {"MODEL_CARD.md", "saved_model.pb", "titles.parquet", "item_embeddings.npy"} <= set(
        manifest["files"]
    )
    assert not [path for path in exported.world.folder.iterdir() if path.name.startswith(".")]


def test_the_model_card_has_the_header_and_the_figures(exported):
    card = (exported.world.folder / "bundle" / "MODEL_CARD.md").read_text()
    header = yaml.safe_load(card.split("---")[1])
    assert header["model-index"][0]["results"][0]["metrics"][0]["value"] == 0.25
    assert "| recall@10 | 0.2500 | 0.2000 … 0.3000 | 0.1250 |" in card
    assert "| coverage@10 | 0.5000 | – | – |" in card
    assert "Twice as good" in card


def test_a_client_needs_only_tensorflow(exported):
    assert exported.graph["modules"] == []
    assert "XlaCallModule" not in exported.graph["ops"]
    # By one of them TensorFlow keeps the whole model for ever, once it was loaded.
    assert exported.graph["gradients"] == 0


def test_no_variable_is_copied_whenever_it_is_read(exported):
    assert exported.graph["copied"] == []
    assert exported.graph["copied_of_wasteful"]


def test_warm_up_requests_ask_every_signature_and_are_answered(exported):
    found = exported.graph["warmup"]
    assert sorted({signature for signature, _ in found}) == exported.graph["signatures"]
    assert {rows for _, rows in found} >= {1}
    assert len(found) <= 1000


def test_query_embeddings_are_those_of_the_weights(exported):
    expected = [exported.world.query(user, history) for user, history, _ in _QUERIES]
    found = exported.answer("embed_query", **_EMBEDDED)["embedding"]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_raw_item_columns_embed_as_the_catalogue_does(exported):
    world = exported.world
    expected = world.catalogue()[1:]
    stored = exported.answer("embed_candidate", **_STORED)["embedding"]
    raw = exported.answer("embed_candidate", **_RAW)["embedding"]
    np.testing.assert_allclose(stored[:40], expected, atol=1e-5)
    np.testing.assert_allclose(raw[:40], expected, atol=1e-5)
    # The unknown item: row 0 of the table, with its own features or with none.
    assets = world.folder / "item_transform" / "transform_fn" / "assets"
    words = (assets / "words").read_text().splitlines()
    row_of = {word: row + 1 for row, word in enumerate(words)}
    tokens = [row_of[word] for word in ("the", "wolf", "of", "night")]
    war = (assets / "genres").read_text().splitlines().index("War") + 1
    bags = {"genres": np.array([[war, 0, 0, 0]]), "words": np.array([tokens])}
    np.testing.assert_allclose(raw[40:], world.candidates(np.array([0]), bags), atol=1e-5)
    none = {name: np.zeros((1, 4), np.int64) for name in bags}
    np.testing.assert_allclose(stored[40:], world.candidates(np.array([0]), none), atol=1e-5)


def test_raw_user_columns_embed_as_the_stored_features_do(exported):
    world = exported.world
    users = make_users()
    found = exported.answer("embed_query", **_RAW_USERS)["embedding"]
    expected = [world.query("nobody", ["i9"], like=user["user_id"]) for user in users]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    # The features say something: no two kinds of user are one query.
    assert len(np.unique(np.round(expected, 4), axis=0)) > 10


def test_an_example_may_have_raw_user_columns(exported):
    answer = exported.answer("serving_default", examples=[_LIKE_007])
    scores = exported.world.catalogue() @ exported.world.query("nobody", ["i9"], like="007")
    scores[[0, *exported.world.vocabulary.rows(["i9"])]] = -np.inf
    rows = np.argsort(-scores)[:_K]
    assert answer["candidate_ids"] == [[exported.world.items[row - 1]["item_id"] for row in rows]]
    np.testing.assert_allclose(answer["scores"][0], scores[rows], atol=1e-5)


def test_every_kind_of_query_ranks_as_the_weights_do(exported):
    assert_ranked(exported, exported.answer("recommend", **as_inputs(_QUERIES)), _QUERIES)


def test_serialized_examples_are_answered_alike(exported):
    answer = exported.answer("serving_default", examples=as_examples(_QUERIES))
    assert_ranked(exported, answer, _QUERIES)
    assert exported.answer("serving_default", examples=[])["candidate_ids"] == []


def assert_ranked(exported: Exported, answer: dict[str, Any], queries: list[Any]) -> None:
    cache: dict[str, Any] = {}
    known = {*exported.world.histories.ids.to_pylist(), *exported.world.user_bags}
    assert answer["known"] == [user in known for user, _, _ in queries]
    assert len(answer["candidate_ids"]) == len(answer["scores"]) == len(queries)
    for query, ids, scores in zip(queries, answer["candidate_ids"], answer["scores"], strict=True):
        key = json.dumps(query)
        best, expected = cache.setdefault(key, exported.world.best(*query))
        assert ids == best + [""] * (_K - len(best))
        np.testing.assert_allclose(scores[: len(best)], expected, atol=1e-5)


def test_a_user_known_from_evaluation_alone_has_a_history(exported):
    answer = exported.answer("stored_history", user_id=["007", "late2", "nobody"])
    assert answer["known"] == [True, True, False]
    for user, found in zip(["007", "late2", "nobody"], answer["item_ids"], strict=True):
        rows = exported.world.done(user)
        ids = [exported.world.items[row - 1]["item_id"] for row in rows]
        assert found == ids + [""] * (len(found) - len(ids))
    assert exported.world.done("late2")


@pytest.mark.parametrize(
    ("what", "code", "named"),
    [
        ("query", "R530", "a difference of 2"),
        ("candidate", "R531", "a difference of 2"),
        ("last candidate", "R531", "a difference of "),
        ("scores", "R532", "scores of recommend"),
        ("slow", "R528", "0.0001 ms"),
        ("short table", "R310", "0.npy"),
        ("full disk", "R52", "Free disk space"),
        ("missing file", "R221", "training.json"),
        ("no transform graph", "R522", "data"),
        ("other data", "R524", "users"),
        ("taken folder", "R521", "data"),
        ("another backend", "R520", "'jax'"),
    ],
)
def test_an_invalid_model_is_not_exported(exported, what, code, named):
    found, text = exported.refused[what]
    assert found.startswith(code)
    assert named in text
    assert not (exported.world.folder / "refused").exists()


@pytest.fixture(scope="module")
def said(exported) -> dict[str, Any]:
    run_on_tensorflow(_SCRIPTS / "recommend.py", exported.world.folder)
    assert (exported.world.folder / "recommend.err").read_text() == ""
    result: dict[str, Any] = json.loads((exported.world.folder / "said.json").read_text())
    return result


def test_the_recommender_answers_with_titles(exported, said):
    titles = {item["item_id"]: item["title"] for item in exported.world.items}
    for user, answer in zip(["007", "late2"], said["answers"], strict=True):
        best, scores = exported.world.best(user, None, True)
        assert answer["user_id"] == user
        assert [item["id"] for item in answer["items"]] == best[:5]
        assert [item["title"] for item in answer["items"]] == [titles[id_] for id_ in best[:5]]
        np.testing.assert_allclose(
            [item["score"] for item in answer["items"]], scores[:5], atol=1e-5
        )
        done = [exported.world.items[row - 1]["item_id"] for row in exported.world.done(user)]
        assert answer["history"] == [{"id": id_, "title": titles[id_]} for id_ in done]
        # The other one came after the cut, and training learnt nothing of it.
        assert (answer["known"], answer["source"]) == (True, {"007": "user"}.get(user, "history"))
    assert said["nobody"] == []
