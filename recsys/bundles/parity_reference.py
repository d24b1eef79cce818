"""What the trainer computed, as a folder that the process of the parity checks reads.

    probes.parquet     user_id, history, query and source of each probe, in raw ids
    popularity.npy     what each item row scores for who nothing is known of
    options.json       how the items are stored, and what is asked of the bundle

Item embeddings are those of the bundle, `item_embeddings.npy`: the trainer's own.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recsys.bundles.quantization import Kind
from recsys.data.vocabulary import Vocabulary

PROBES, POPULARITY, OPTIONS = "probes.parquet", "popularity.npy", "options.json"
_COLUMNS = ("user_id", "history", "query", "source")
_TRIES = 1 << 16


@dataclasses.dataclass(frozen=True)
class Reference:
    """What a bundle must reproduce.

    Attributes:
        user_id: User of each probe `[n]`, text.
        history: Item ids of each probe `[n, length + 1]`, text, the newest first.
        query: Embedding of each probe `[n, dim]` float32.
        source: What the answer to each must rest on `[n]`, text, one of `SOURCES`: who is
            answered by popularity is not for the SavedModel to say.
        popularity: What each item row scores for who nothing is known of `[item rows]`
            float32.
        kind: What the SavedModel stores the candidates as.
        min_parity: Share of the exact best that it must find nevertheless [0..1].
        latency_ms: Longest that 99 % of single requests may take [ms]; None: any time.
    """

    user_id: np.ndarray
    history: np.ndarray
    query: np.ndarray
    source: np.ndarray
    popularity: np.ndarray
    kind: Kind = "float32"
    min_parity: float = 0.99
    latency_ms: float | None = None

    def save(self, folder: Path) -> None:
        """Writes the reference into `folder`, which is there."""
        probes = {name: getattr(self, name) for name in _COLUMNS}
        columns = {name: pa.array(values.tolist()) for name, values in probes.items()}
        pq.write_table(pa.table(columns), folder / PROBES)
        np.save(folder / POPULARITY, self.popularity)
        options = {"kind": self.kind, "min_parity": self.min_parity, "latency_ms": self.latency_ms}
        (folder / OPTIONS).write_text(json.dumps(options))

    @classmethod
    def load(cls, folder: Path) -> Reference:
        """Reads what `save` wrote."""
        probes = pq.read_table(folder / PROBES).to_pydict()
        return cls(
            user_id=np.asarray(probes["user_id"], object),
            history=np.asarray(probes["history"], object),
            query=np.asarray(probes["query"], np.float32),
            source=np.asarray(probes["source"], object),
            popularity=np.load(folder / POPULARITY, allow_pickle=False),
            **json.loads((folder / OPTIONS).read_text()),
        )


def raw_probes(
    users: Vocabulary, items: Vocabulary, user_row: np.ndarray, history: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns user ids `[n]` and histories `[n, length + 1]`, as a client sends them.

    An unknown id follows each history, so that an empty one is given as empty and
    not taken for the stored one.

    Args:
        users: Vocabulary of the users.
        items: Vocabulary of the items.
        user_row: User row of each probe `[n]`.
        history: Item rows of each probe `[n, length]`, the newest first.
    """
    user_of_row, item_of_row = stand_ins(users, user_row), stand_ins(items, history)
    unknown = _unknown_id(users, items)
    if users.first_own_row == 1:
        user_of_row[0] = unknown
    last = np.full((len(user_row), 1), unknown, object)
    return user_of_row[user_row], np.concatenate([item_of_row[history], last], axis=1)


def stand_ins(vocabulary: Vocabulary, rows: np.ndarray) -> np.ndarray:
    """Returns an id `[n_rows]` for each of `rows` `[...]`; other rows have none.

    A row that unknown ids share has one of them, found by trying.
    """
    ids = np.full(vocabulary.n_rows, "", object)
    rows = np.unique(rows)
    # Few rows of a large table are needed: no Python object for each of its rows.
    n_shared = vocabulary.first_own_row
    own = rows[rows >= n_shared]
    ids[own] = vocabulary.own_ids.take(pa.array(own - n_shared)).fill_null("").to_pylist()
    wanted = rows[(rows > 0) & (rows < n_shared)]
    tried = 0
    while len(wanted):
        tries = [f"?{number}" for number in range(tried, tried + _TRIES)]
        rows_of_tries, first = np.unique(vocabulary.rows(tries), return_index=True)
        hit = np.isin(rows_of_tries, wanted)
        ids[rows_of_tries[hit]] = np.asarray(tries, object)[first[hit]]
        wanted = np.setdiff1d(wanted, rows_of_tries)
        tried += _TRIES
    return ids


def _unknown_id(*vocabularies: Vocabulary) -> str:
    unknown = "?"
    while any(
        pc.index(vocabulary.own_ids, pa.scalar(unknown, pa.large_string())).as_py() >= 0
        for vocabulary in vocabularies
    ):
        unknown += "?"
    return unknown
