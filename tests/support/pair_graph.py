"""A pair whose signatures have a closed form, and its list by brute force."""

import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from recsys.data.vocabulary import Vocabulary
from recsys.index.search import Ranker
from recsys.savedmodel.event_columns import Column, EventColumns
from recsys.savedmodel.signatures import SignatureInput
from recsys.serving.catalogue_search import CatalogueSearch
from recsys.serving.pair import Pair, SecondStage

N_USERS, N_ITEMS, N_CANDIDATES, K = 6, 60, 25, 25
RNG = np.random.default_rng(0)
VECTORS = RNG.normal(size=(N_ITEMS + 1, 4)).astype(np.float32)
QUERIES = RNG.normal(size=(N_USERS, 4)).astype(np.float32)
SEEN = [RNG.choice(np.arange(1, N_ITEMS + 1), 5, replace=False) for _ in range(N_USERS)]
BIAS = RNG.normal(size=N_ITEMS + 1)
GENRES = [[f"g{n}" for n in {*RNG.integers(5, size=2).tolist()}] for _ in range(N_ITEMS)]
STOCK = [["yes"] if RNG.random() < 0.6 else ["no"] for _ in range(N_ITEMS)]
DEVICES = {b"phone": 1.5, b"tv": -1.0}
_TEXT, _TEXTS = SignatureInput("DT_STRING", (-1,)), SignatureInput("DT_STRING", (-1, -1))
_FLOATS = SignatureInput("DT_FLOAT", (-1, -1))
_QUERY = {"user_id": _TEXT, "history": _TEXTS}


class PairGraph:
    """A retriever of dot products, and a ranker of sums.

    Attributes:
        delay_s: Time that the ranker takes.
        error: What it raises.
    """

    def __init__(self):
        seen = {**_QUERY, "exclude_seen": SignatureInput("DT_BOOL", (-1,))}
        only = {"exclude_ids": _TEXTS, "only_genre": _TEXTS, "only_stock": _TEXTS}
        lists = {"retriever_rank": _FLOATS, "retriever_score": _FLOATS}
        self.signatures = {
            "recommend": seen,
            "recommend_filtered": {**seen, **only},
            "prepare_query": seen,
            "stored_history": {"user_id": _TEXT},
            "rank": {**_QUERY, "context_device": _TEXTS, "item_id": _TEXTS, **lists},
        }
        self.metadata, self.delay_s, self.error = {}, 0.0, None

    def ask(self, signature, inputs):
        assert set(inputs) >= set(self.signatures[signature])
        users = [int(id_[1:]) for id_ in inputs["user_id"]]
        if signature == "stored_history":
            return {"item_ids": np.array([[b"i%d" % row for row in SEEN[u]] for u in users])}
        if signature == "prepare_query":
            both = zip(users, inputs["exclude_seen"], strict=True)
            seen = [SEEN[user] if is_excluded else [] for user, is_excluded in both]
            return {
                "embedding": QUERIES[users],
                "known": np.ones(len(users), bool),
                "source": np.array([b"user"] * len(users), object),
                "seen_rows": np.concatenate(seen).astype(np.int32),
                "seen_offsets": np.cumsum([0, *map(len, seen)]),
            }
        time.sleep(self.delay_s)
        if self.error is not None:
            raise self.error
        rows = np.array([[int(id_[1:] or 0) for id_ in row] for row in inputs["item_id"]])
        device = np.array([[DEVICES.get(x, 0.0) for x in row] for row in inputs["context_device"]])
        return predicted(rows, inputs["retriever_rank"], inputs["retriever_score"], device)


def predicted(rows, rank, score, device):
    """Returns what the ranker says of items, as its signature `rank` does."""
    click = 1 / (1 + np.exp(-(BIAS[rows] * (1 + device) + 0.3 * score - 0.05 * rank)))
    like = click * (rows % 7) / 7
    known = {"known": np.ones(len(rows), bool), "known_items": rows > 0}
    values = {"click": click, "like": like, "score": click * like**0.5}
    return {**{name: x.astype(np.float32) for name, x in values.items()}, **known}


def make_pair(version=1, **options):
    """Returns a served pair."""
    items = Vocabulary(pa.array([f"i{row}" for row in range(1, N_ITEMS + 1)]), np.ones(N_ITEMS))
    features = {
        name: pa.array(lists, pa.list_(pa.string()))
        for name, lists in (("genre", GENRES), ("stock", STOCK))
    }
    users = pa.array([f"u{n}" for n in range(N_USERS)], pa.large_string())
    titles = pa.array(["", *(f"Item {row}" for row in range(1, N_ITEMS + 1))], pa.large_string())
    catalogue = CatalogueSearch(users, items, titles, VECTORS, items.has_id(), features)
    second = SecondStage(("click", "like"), N_CANDIDATES, 2000.0, **options)
    ranker = Ranker(VECTORS, items.has_id())
    events = EventColumns({"device": Column("context_device", "text", ("device",))})
    graph, bundle = PairGraph(), Path(str(version))
    return Pair(graph, catalogue, K, ranker, second=second, bundle=bundle, events=events)


def candidates(user, only=None):
    """Returns the retriever's item rows of a user, the best first, and their scores."""
    scores = VECTORS.astype(float) @ QUERIES[user]
    allowed = [
        row
        for row in range(1, N_ITEMS + 1)
        if row not in SEEN[user] and (only is None or STOCK[row - 1][0] in only)
    ]
    rows = np.array(sorted(allowed, key=lambda row: -scores[row])[:N_CANDIDATES])
    return rows, scores[rows]


def by_hand(user, k, device=0.0, diversity=0.0, caps=None, only=None):
    """Returns the ids of a pair's list: retrieve, rank, and choose one item after the other."""
    rows, first = candidates(user, only)
    normal = (first - first.mean()) / first.std()
    place = np.arange(1, len(rows) + 1)
    score = predicted(rows[None], place[None], normal[None], device)["score"][0].astype(float)
    relevance = (score - score.min()) / (score.max() - score.min())
    unit = VECTORS / np.linalg.norm(VECTORS, axis=1, keepdims=True)
    chosen = []
    while len(chosen) < k:
        best = None
        for at, row in enumerate(rows):
            counts = [
                (value, sum(value in GENRES[rows[other] - 1] for other in chosen))
                for value in GENRES[row - 1]
            ]
            if at in chosen or (caps and any(n >= caps["genre"] for _, n in counts)):
                continue
            near = max([0.0, *(float(unit[row] @ unit[rows[other]]) for other in chosen)])
            value = (1 - diversity) * relevance[at] - diversity * near
            if best is None or value > best[0]:
                best = (value, at)
        if best is None:
            break
        chosen.append(best[1])
    return [f"i{rows[at]}" for at in chosen]
