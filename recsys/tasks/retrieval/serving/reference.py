"""The results in training for some probes, which an exported bundle must reproduce.

They are passed in a folder to the process that checks the bundle:

    probes.parquet     user_id, history, query and source of each probe, in raw ids, and the
                       facts of the histories
    popularity.npy     score of each item row for users without any information
    options.json       storage of the items, and the requirements for the bundle
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recsys.data.event_log import Facts
from recsys.data.vocabulary import Vocabulary, stand_ins
from recsys.savedmodel.signatures import QUERY_TIME, Arrays, fact_texts
from recsys.tasks.retrieval.serving.quantization import Kind

PROBES, POPULARITY, OPTIONS = "probes.parquet", "popularity.npy", "options.json"
_COLUMNS = ("user_id", "history", "query", "source")


@dataclasses.dataclass(frozen=True)
class RetrievalProbes:
    """The results that a bundle must reproduce.

    Attributes:
        user_id: User of each probe `[n]`, text.
        history: Item ids of each probe `[n, length + 1]`, text, the newest first.
        query: Embedding of each probe `[n, dim]` float32.
        source: Required source of each answer `[n]`, text, one of `SOURCES`.
        popularity: Score of each item row for users without any information `[item rows]`
            float32.
        kind: Dtype of the candidates in the SavedModel.
        min_parity: Minimum recall of the exact best candidates [0..1].
        vectors: Location of the candidates, `bundle` or `apart`.
        facts: Facts of `history`, each `[n, length + 1]` text.
    """

    user_id: np.ndarray
    history: np.ndarray
    query: np.ndarray
    source: np.ndarray
    popularity: np.ndarray
    kind: Kind = "float32"
    min_parity: float = 0.99
    vectors: Literal["bundle", "apart"] = "bundle"
    facts: Facts = dataclasses.field(default_factory=dict)

    @property
    def probes(self) -> Arrays:
        """Inputs of the probes, by name of the signature's input."""
        return {"user_id": self.user_id, "history": self.history, **self.facts}

    def __len__(self) -> int:
        return len(self.query)

    def save(self, folder: Path) -> None:
        """Writes the reference into `folder`, which must exist."""
        probes = {**self.probes, "query": self.query, "source": self.source}
        columns = {name: pa.array(values.tolist()) for name, values in probes.items()}
        pq.write_table(pa.table(columns), folder / PROBES)
        np.save(folder / POPULARITY, self.popularity)
        names = ("kind", "min_parity", "vectors")
        options = {name: getattr(self, name) for name in names}
        (folder / OPTIONS).write_text(json.dumps(options))

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Reads a reference that `save` wrote."""
        probes = pq.read_table(folder / PROBES).to_pydict()
        return cls(
            user_id=np.asarray(probes["user_id"], object),
            history=np.asarray(probes["history"], object),
            query=np.asarray(probes["query"], np.float32),
            source=np.asarray(probes["source"], object),
            popularity=np.load(folder / POPULARITY, allow_pickle=False),
            facts={n: np.asarray(x, object) for n, x in probes.items() if n not in _COLUMNS},
            **json.loads((folder / OPTIONS).read_text()),
        )


def raw_probes(
    users: Vocabulary, items: Vocabulary, user_row: np.ndarray, history: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Returns user ids `[n]` and histories `[n, length + 1]`, as a client sends them.

    An unknown id follows each history, so that an empty one isn't replaced by the stored
    history.

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


def raw_facts(facts: Facts, kinds: Sequence[str] = ()) -> dict[str, np.ndarray]:
    """Returns facts as texts `[n, …]`, as a client sends them with `raw_probes`.

    Args:
        facts: The facts.
        kinds: The kinds of events by index.
    """
    return {
        name: np.pad(texts, ((0, 0), (0, int(name != QUERY_TIME))), constant_values="")
        for name, texts in fact_texts(facts, kinds).items()
    }


def _unknown_id(*vocabularies: Vocabulary) -> str:
    unknown = "?"
    while any(
        pc.index(vocabulary.own_ids, pa.scalar(unknown, pa.large_string())).as_py() >= 0
        for vocabulary in vocabularies
    ):
        unknown += "?"
    return unknown
