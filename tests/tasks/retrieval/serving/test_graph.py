"""The functions of the graph, asked in raw ids, against rankings by hand in numpy."""

import functools
import json

import numpy as np
import pytest
from data_folders import counted, event_table, write_data
from on_tensorflow import run_on_tensorflow
from places import SUPPORT

from recsys.config import TrainConfig, TrainStage, TwoTowerConfig, VocabularyConfig
from recsys.data.catalogue import FeatureBags
from recsys.data.store import InteractionStore, serving_histories
from recsys.models import ModelInputs, ModelSpec, TwoTower
from recsys.models.inference import Inference, embed_catalogue
from recsys.tasks.model_folder import load_model, save_model

pytestmark = pytest.mark.slow

_SCRIPT = SUPPORT / "answers.py"
_CUT, _HISTORY, _K = 900, 3, 8
_TRAINED, _ITEMS = 30, 40
"""Numbers of items with events, and of the catalogue: ten have no events."""
_GENRES = ["", "Drama", "Sci-Fi", "ü", "War"]
_ITEM_IDS = [f"i{n}" for n in range(_ITEMS)]
_PEOPLE = [f"u{n}" for n in range(20)]
_SHARED = VocabularyConfig(hash_buckets=3)


def make_events(rng):
    """Returns (user, item, time): `late` comes after the cut, `cold` took one cold item then.

    `u18` and `u19` share rows with all other users that have none of their own.
    """
    who, what = rng.choice(_PEOPLE, 400), rng.choice(_ITEM_IDS[:_TRAINED], 400)
    events = [(str(u), str(i), n * 2) for n, (u, i) in enumerate(zip(who, what, strict=True))]
    events += [("late", "i3", 900), ("late", "i4", 901), ("cold", "i35", 902), ("odd", "?", 903)]
    return events


def write_world_data(folder):
    rng = np.random.default_rng(0)
    events = make_events(rng)
    train = [event for event in events if event[2] < _CUT]
    own = [*_PEOPLE[:18], "told", "untold"]  # The last two did nothing.
    users = counted(own, [user for user, _, _ in train], _SHARED)
    items = counted(_ITEM_IDS, [item for _, item, _ in train])
    genres = rng.integers(0, len(_GENRES), (items.n_rows, 2)).astype(np.int32)
    colours = rng.integers(0, 3, (items.n_rows, 1)).astype(np.int32)
    features = (
        FeatureBags("genres", len(_GENRES), genres, _GENRES),
        FeatureBags("its-colour", 3, colours, ["", "red", "blue"]),
        FeatureBags("hashed", 3, colours),
    )
    plans = np.zeros((users.n_rows, 1), np.int32)
    plans[users.rows(["told"])], plans[users.rows(["u1"])] = 2, 1
    late = [event for event in events if event[2] >= _CUT]
    tables = (event_table(part, users, items) for part in (train, late))
    plan = (FeatureBags("plan", 3, plans),)
    write_data(folder, _CUT, *tables, users, items, features, plan)


def write_model(folder, data):
    inputs = ModelInputs.open(data)
    config = TwoTowerConfig(dim=8, feature_dim=3, history=_HISTORY, widths=(6,))
    spec = ModelSpec.for_data(config, inputs.users.n_rows, inputs.catalogue, inputs.user_features)
    model = TwoTower(spec)
    model.build()
    rng = np.random.default_rng(3)
    for variable in model.weights:
        if "steps" not in variable.path:
            variable.assign(rng.normal(0, 0.5, variable.shape).astype(np.float32))
    save_model(folder, model, TrainStage(model=config, train=TrainConfig()), data)
    np.save(folder / "candidates.npy", embed_catalogue(model, inputs))


class World:
    """The results of the model by row, in NumPy."""

    def __init__(self, folder):
        self.saved = load_model(folder / "model")
        self.queries = Inference(self.saved.model).queries  # Compiled once.
        self.embeddings = np.load(folder / "model" / "candidates.npy")
        self.histories = serving_histories(InteractionStore.open(folder / "data" / "store"))
        counts = np.bincount(self.histories.item_rows, minlength=_ITEMS + 1).astype(float)
        counts[0] = 0
        self.shares = counts / len(self.histories.item_rows)

    def done(self, user):
        """Returns the item rows of a user, the newest first."""
        n = self.histories.ids.index(user).as_py()
        if n < 0:
            return []
        start, end = self.histories.offsets[n : n + 2]
        return self.histories.item_rows[start:end].tolist()[::-1]

    def read(self, user, history):
        """Returns the item rows of a user's stored history."""
        return self.saved.items.rows(history).tolist() if any(history) else self.done(user)

    def source(self, user, history):
        saved = self.saved
        [row] = saved.users.rows([user]) if user else [0]
        if row >= saved.users.first_own_row and saved.users.row_counts[row]:
            return "user"
        if any(0 < item <= _TRAINED for item in self.read(user, history)[:_HISTORY]):
            return "history"
        return "features" if user == "told" else "popularity"

    def scores(self, user, history):
        """Returns the score of each item row; -inf for row 0."""
        return self._scores(user, tuple(history)).copy()

    @functools.cache  # noqa: B019 the world lives as long as its module
    def _scores(self, user, history):
        if self.source(user, history) == "popularity":
            scores = self.shares.copy()
        else:
            rows = (self.read(user, history) + [0] * _HISTORY)[:_HISTORY]
            row = self.saved.users.rows([user]) if user else np.zeros(1, np.int32)
            query = self.queries(row, np.array([rows]), self.saved.inputs)
            scores = (query @ self.embeddings.T)[0]
        scores[0] = -np.inf
        return scores

    def seen(self, user, history):
        return {*self.done(user), *self.saved.items.rows(history).tolist()} - {0}

    def best(self, user, history, exclude_seen, allowed=None):
        """Returns ids and scores of the best; of equal ones the smaller row first."""
        scores = self.scores(user, history)
        if exclude_seen:
            scores[list(self.seen(user, history))] = -np.inf
        if allowed is not None:
            scores[~allowed] = -np.inf
        rows = [row for row in np.lexsort([np.arange(_ITEMS + 1), -scores]) if scores[row] > -1e30]
        return [_ITEM_IDS[row - 1] for row in rows[:_K]], scores[rows[:_K]]


_QUERIES = [
    ("u1", [], True),
    ("u1", [], False),
    ("u2", ["i31", "i5"], True),
    ("u18", [], True),
    ("late", [], True),
    ("cold", [], True),
    ("cold", [], False),
    ("odd", [], True),
    ("told", [], True),
    ("told", ["i3"], True),
    ("told", ["?"], True),
    ("untold", [], True),
    ("nobody", [], True),
    ("nobody", ["i9"], True),
    ("nobody", ["?", "i9"], True),
    ("nobody", ["?", "i33", "?", "i9"], True),
    ("", [], True),
    ("ü\n", ["i30"], True),
    *((f"stranger {n}", [], True) for n in range(9)),
]
_ONLY = [
    {},
    {"exclude_ids": ["i1", "i7", "nothing"]},
    {"only_genres": ["War"]},
    {"only_genres": ["War", "ü"], "exclude_ids": ["i2"]},
    {"only_genres": ["no such genre"]},
    {"only_genres": ["no such genre", "Drama"]},
    {"only_its_colour": ["red"], "only_genres": ["Drama", "Sci-Fi"]},
    {"only_its_colour": ["red", "blue"]},
]
_FILTERED = [
    (*_QUERIES[n % len(_QUERIES)], _ONLY[(n * 5 + n // 8) % 8]) for n in range(4 * len(_QUERIES))
]
_INPUTS = ("exclude_ids", "only_genres", "only_its_colour")


def as_inputs(queries):
    return {
        "user_id": [user for user, _, _ in queries],
        "history": [history for _, history, _ in queries],
        "exclude_seen": [seen for _, _, seen in queries],
    }


def filtered(queries):
    only = {name: [filters.get(name, []) for *_, filters in queries] for name in _INPUTS}
    return {**as_inputs([query[:3] for query in queries]), **only}


_QUESTIONS = {
    "recommend": as_inputs(_QUERIES),
    "recommend:0": as_inputs([]),
    "recommend:many": as_inputs([_QUERIES[n % len(_QUERIES)] for n in range(200)]),
    "recommend_filtered": filtered(_FILTERED),
    "recommend_filtered:0": filtered([]),
    "recommend_filtered:one": filtered(_FILTERED[2:3]),
    "popular": filtered(_FILTERED),
    "popular:0": filtered([]),
    "prepare_query": as_inputs(_QUERIES),
    "prepare_query:0": as_inputs([]),
    "embed_candidate": {"item_id": ["i3", "i35", "nothing", ""]},
}


_BATCHES = [
    ([], {}),
    (["i1", "i7", "nothing"], {"genres": ["War", "ü"]}),
    ([], {"genres": ["Drama"], "its-colour": ["red"]}),
]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("graph")
    write_world_data(folder / "data")
    write_model(folder / "model", folder / "data")
    asked = {"k": _K, "questions": _QUESTIONS, "batches": _BATCHES}
    (folder / "questions.json").write_text(json.dumps(asked))
    run_on_tensorflow(_SCRIPT, folder)
    return World(folder), json.loads((folder / "answers.json").read_text())


def assert_ranked(answer, n, best):
    """Asserts that answer `n` is the best; equal scores but for rounding may change places."""
    ids, scores = best
    assert answer["candidate_ids"][n][len(ids) :] == [""] * (_K - len(ids))
    np.testing.assert_allclose(answer["scores"][n][: len(ids)], scores, atol=1e-5)
    given = answer["candidate_ids"][n][: len(ids)]
    assert len(set(given)) == len(ids)
    if answer["source"][n] == "popularity":  # Exact: many items are equal.
        assert given == ids


@pytest.mark.parametrize("form", ["whole", "looped"])
def test_every_query_is_ranked_and_says_what_it_rests_on(found, form):
    world, answers = found
    answer = answers[form]["recommend"]
    assert answer["source"] == [world.source(user, history) for user, history, _ in _QUERIES]
    assert set(answer["source"]) == {"user", "history", "features", "popularity"}
    known = {*world.histories.ids.to_pylist(), "told", "untold"}
    assert answer["known"] == [user in known for user, _, _ in _QUERIES]
    scores = {}
    for n, query in enumerate(_QUERIES):
        best = world.best(*query)
        assert_ranked(answer, n, best)
        all_scores = scores.setdefault(query[0] + str(query[1]), world.scores(*query[:2]))
        rows = [_ITEM_IDS.index(id_) + 1 for id_ in answer["candidate_ids"][n] if id_]
        np.testing.assert_allclose(all_scores[rows], best[1], atol=1e-5)
        if query[2]:
            assert not world.seen(*query[:2]) & set(rows)


def test_cold_items_are_recommended_by_their_features(found):
    world, answers = found
    answer = answers["whole"]["recommend"]
    assert not world.saved.items.row_counts[_TRAINED + 1 :].any()
    given = {id_ for ids in answer["candidate_ids"] for id_ in ids}
    assert given & {f"i{n}" for n in range(_TRAINED, _ITEMS)} - {"i35"}


@pytest.mark.parametrize("form", ["looped", "int8"])
def test_blocks_answer_as_one_block_does(found, form):
    _, answers = found
    for name in ("recommend", "recommend:many", "recommend_filtered", "recommend:0"):
        one, other = answers["whole"][name], answers[form][name]
        assert (one["source"], one["known"]) == (other["source"], other["known"])
        atol = {"looped": 1e-6, "int8": 3e-2}[form]
        np.testing.assert_allclose(one["scores"], other["scores"], atol=atol)
        if form == "looped":
            assert one["candidate_ids"] == other["candidate_ids"]


def allowed_by(world, exclude_ids, only):
    """Returns which item rows a filter allows."""
    names = {"genres": _GENRES, "its-colour": ["", "red", "blue"]}
    bags = {f.name: np.asarray(f.bags) for f in world.saved.catalogue.features}
    allowed = np.ones(_ITEMS + 1, bool)
    for feature, wanted in only.items():
        if wanted:
            named = [[names[feature][token] for token in bag] for bag in bags[feature]]
            allowed &= np.array([any(token and token in wanted for token in x) for x in named])
    allowed[world.saved.items.rows(exclude_ids)] = False
    return allowed


@pytest.mark.parametrize("form", ["whole", "apart"])
@pytest.mark.parametrize("n", range(len(_BATCHES)))
def test_a_batch_is_answered_as_by_the_signatures(found, n, form):
    world, answers = found
    table = answers[form]["batches"][n]
    users = [user for user, _, _ in _QUERIES]
    assert table["user_id"] == users
    assert table["source"] == [world.source(user, []) for user in users]
    known = {*world.histories.ids.to_pylist(), "told", "untold"}
    assert table["known"] == [user in known for user in users]
    allowed = allowed_by(world, *_BATCHES[n])
    for place, user in enumerate(users):
        ids, scores = world.best(user, [], True, allowed)
        np.testing.assert_allclose(table["scores"][place], scores, atol=1e-5)
        rows = [_ITEM_IDS.index(id_) + 1 for id_ in table["item_ids"][place]]
        assert allowed[rows].all()
        if table["source"][place] == "popularity":
            assert table["item_ids"][place] == ids
        np.testing.assert_allclose(world.scores(user, [])[rows], scores, atol=1e-5)


def test_what_users_have_seen_is_in_the_lists_where_the_config_includes_repeats(found):
    world, answers = found
    # The form in a loop is of a config that includes repeats, that as a whole of the default.
    n_seen = {"whole": 0, "looped": 0}
    for place, (user, _, _) in enumerate(_QUERIES):
        scores = world.best(user, [], False)[1]
        np.testing.assert_allclose(
            answers["whole"]["with_repeats"]["scores"][place], scores, atol=1e-5
        )
        seen = {_ITEM_IDS[row - 1] for row in world.seen(user, [])}
        for form in n_seen:
            n_seen[form] += len(seen & set(answers[form]["examples"][place]))
    assert n_seen["whole"] == 0
    assert n_seen["looped"] > 10


@pytest.mark.parametrize("form", ["whole", "looped"])
def test_filters_leave_the_best_of_what_is_wanted(found, form):
    world, answers = found
    answer = answers[form]["recommend_filtered"]
    for n, (user, history, seen, only) in enumerate(_FILTERED):
        tokens = {
            feature: only.get("only_" + feature.replace("-", "_"), [])
            for feature in ("genres", "its-colour")
        }
        allowed = allowed_by(world, only.get("exclude_ids", []), tokens)
        assert_ranked(answer, n, world.best(user, history, seen, allowed))
        rows = [_ITEM_IDS.index(id_) + 1 for id_ in answer["candidate_ids"][n] if id_]
        assert allowed[rows].all()
    assert answers[form]["recommend_filtered:0"]["candidate_ids"] == []
    one = answers[form]["recommend_filtered:one"]
    assert one["candidate_ids"][0] == answer["candidate_ids"][2]
    assert answers["whole"]["inputs"] == sorted([*_QUESTIONS["recommend"], *_INPUTS])


def test_ranking_outside_of_the_graph_gives_the_same(found):
    world, answers = found
    prepared, answer = (answers["looped"][name] for name in ("prepare_query", "recommend"))
    assert prepared["source"] == answer["source"]
    assert prepared["known"] == answer["known"]
    offsets = prepared["seen_offsets"]
    assert len(offsets) == len(_QUERIES) + 1
    for n, (user, history, exclude_seen) in enumerate(_QUERIES):
        seen = prepared["seen_rows"][offsets[n] : offsets[n + 1]]
        assert set(seen) == (world.seen(user, history) if exclude_seen else set())
        if answer["source"][n] == "popularity":
            continue
        scores = world.embeddings @ np.array(prepared["embedding"][n])
        scores[[0, *seen]] = -np.inf
        np.testing.assert_allclose(-np.sort(-scores)[:_K], answer["scores"][n], atol=1e-5)
    none = answers["looped"]["prepare_query:0"]
    assert (none["embedding"], none["seen_rows"], none["seen_offsets"]) == ([], [], [0])


def test_an_embedded_item_says_whether_it_is_known(found):
    world, answers = found
    answer = answers["whole"]["embed_candidate"]
    assert answer["known"] == [True, True, False, False]
    np.testing.assert_allclose(answer["embedding"][:2], world.embeddings[[4, 36]], atol=1e-5)


def test_vectors_that_are_stored_apart_are_not_in_the_graph_which_answers_by_popularity(found):
    world, answers = found
    apart = answers["apart"]
    assert apart["signatures"] == [
        "embed_candidate",
        "embed_query",
        "popular",
        "prepare_query",
        "stored_history",
    ]
    shape = list(world.embeddings.shape)
    assert answers["whole"]["shapes"].count(shape) == apart["shapes"].count(shape) + 1
    np.testing.assert_allclose(
        apart["prepare_query"]["embedding"], answers["looped"]["prepare_query"]["embedding"]
    )
    answer = apart["popular"]
    assert set(answer["source"]) == {"popularity"}
    for n, (user, history, seen, only) in enumerate(_FILTERED):
        allowed = allowed_by(
            world,
            only.get("exclude_ids", []),
            {
                name: only.get("only_" + name.replace("-", "_"), [])
                for name in ("genres", "its-colour")
            },
        )
        scores = np.where(allowed, world.shares, -np.inf)
        scores[[0, *(world.seen(user, history) if seen else [])]] = -np.inf
        rows = np.lexsort([np.arange(_ITEMS + 1), -scores])[:_K]
        best = [_ITEM_IDS[row - 1] for row in rows if scores[row] > -np.inf]
        assert [id_ for id_ in answer["candidate_ids"][n] if id_] == best
    assert apart["popular:0"]["candidate_ids"] == []
