"""The retriever: one way to recommend from a bundle, for server, file and command line.

The SavedModel embeds a query and tells which items its user has seen (`prepare_query`);
the items are ranked here by exact float32 dot products, by an index where that is faster.
Queries of which nothing is known are answered by the SavedModel, by popularity. Inputs and
outputs are those of `recommend` and `recommend_filtered`, see `recsys.bundles.graph`.
"""

from __future__ import annotations

import dataclasses
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from recsys import kernels
from recsys.bundles.bundle import excludes_seen, verify
from recsys.bundles.signatures import NO_SCORE, POPULARITY, Arrays, Signature
from recsys.bundles.versions import is_version
from recsys.errors import RecsysError, UsageError
from recsys.ragged import RaggedRows
from recsys.serving.ann_index import FOLDER, read_index
from recsys.serving.catalogue_search import CatalogueSearch, ItemFilters
from recsys.serving.ranker import Ranker
from recsys.serving.saved_model import SavedModelGraph

RECOMMEND, FILTERED, PREPARE = "recommend", "recommend_filtered", "prepare_query"
_EXCLUDED = "exclude_ids"
_OWN = ("user_id", "history", "exclude_seen")
_HISTORY_BLOCK = 512
"""Users whose histories are read at a time; the result is as wide as the longest."""
_POPULAR_BLOCK = 64
"""Queries that the SavedModel ranks at a time; it scores all items for each."""


class Graph(Protocol):
    """The signatures of a bundle, whatever computes them."""

    @property
    def signatures(self) -> Mapping[str, Signature]:
        """The signatures by name."""
        ...

    def ask(self, signature: str, inputs: Arrays) -> Arrays:
        """Returns the outputs of a signature for all of its inputs; text is bytes."""
        ...


@dataclasses.dataclass(frozen=True)
class RankedRows:
    """Answers to a batch of queries, in item rows.

    Attributes:
        rows: Item rows `[n, k]` int32, the best first, 0: none.
        scores: Their scores `[n, k]` float32, `-inf` where there is no item.
        known: Whether the data hold the user `[n]` bool.
        source: What each answer rests on `[n]` bytes, see `recsys.bundles.signatures`; empty
            where an older bundle doesn't tell.
    """

    rows: np.ndarray
    scores: np.ndarray
    known: np.ndarray
    source: np.ndarray


class Retriever:
    """Recommends the items of one bundle. May be called from several threads.

    Args:
        graph: The signatures of the bundle.
        catalogue: Its users and items by name.
        max_k: Most items of an answer.
        ranker: Ranks the items; None: the graph does, which is slower.
        is_seen_excluded: Whether answers leave out what users have seen, by default.
        bundle: Folder of the bundle.

    Attributes:
        filters: The filters by named features of the items.
    """

    def __init__(
        self,
        graph: Graph,
        catalogue: CatalogueSearch,
        max_k: int,
        ranker: Ranker | None = None,
        *,
        is_seen_excluded: bool = True,
        bundle: Path = Path(),
    ) -> None:
        self._graph, self._ranker = graph, ranker
        self.catalogue, self.max_k, self.excludes_seen = catalogue, max_k, is_seen_excluded
        self.bundle = bundle
        self.filters = ItemFilters(catalogue.features, catalogue.items.n_rows)

    @classmethod
    def open(cls, bundle: Path) -> Retriever:
        """Loads a bundle, after a check of all of its files.

        Raises:
            RecsysError: The bundle is damaged (R501 … R503, R514), lacks something (R544,
                R583), has an index that can't be used (R580, R582), or TensorFlow is
                missing (R542) or can't load it (R543).
        """
        manifest = verify(bundle)
        catalogue, max_k = CatalogueSearch.open(bundle), manifest.get("k")
        if type(max_k) is not int or max_k < 1:
            raise _incomplete(bundle, f"k {max_k!r}")
        graph = SavedModelGraph(bundle)
        ranker = open_ranker(bundle, graph.signatures, catalogue, max_k)
        is_excluded = excludes_seen(manifest)
        return cls(graph, catalogue, max_k, ranker, is_seen_excluded=is_excluded, bundle=bundle)

    @property
    def version(self) -> int:
        """Number of the published version; 0 for a bundle that isn't one."""
        return int(self.bundle.name) if is_version(self.bundle.name) else 0

    @property
    def signatures(self) -> Mapping[str, Signature]:
        """The signatures by name."""
        return self._graph.signatures

    @property
    def metadata(self) -> dict[str, Any]:
        """All signatures as TensorFlow Serving describes them in JSON."""
        metadata: dict[str, Any] = getattr(self._graph, "metadata", {})
        return metadata

    def ask(self, signature: str, inputs: Arrays) -> Arrays:
        """Returns the outputs of a signature; recommendations are ranked here.

        Args:
            signature: Name of the signature.
            inputs: All of its inputs, of the types and shapes that it takes; text as
                bytes in arrays of objects.

        Raises:
            UnreadableInputsError: The signature can't read their content (R563).
        """
        if self._ranker is None or signature not in (RECOMMEND, FILTERED):
            return self._graph.ask(signature, inputs)
        answers = self._rank(self._ranker, signature, inputs, self.max_k)
        return {
            "candidate_ids": self._as_ids(answers.rows),
            "scores": np.where(answers.rows > 0, answers.scores, NO_SCORE),
            "known": answers.known,
            "source": answers.source,
        }

    def rank(self, inputs: Arrays, k: int, *, is_batch: bool = False) -> RankedRows:
        """Returns the best `k` items of queries.

        Args:
            inputs: As `query_inputs` returns them.
            k: Items of an answer.
            is_batch: Whether all items are looked at, exactly and on all cores; else this
                thread answers alone, by the index where there is one.

        Raises:
            UsageError: `k` is out of range (R541).
        """
        check_k(k, self.max_k)
        signature = FILTERED if _EXCLUDED in inputs else RECOMMEND
        if self._ranker is None:
            return self._by_graph(signature, inputs, k)
        return self._rank(self._ranker, signature, inputs, k, is_batch=is_batch)

    @property
    def user_columns(self) -> list[str]:
        """Inputs that take raw values of the users."""
        return [name for name in self._graph.signatures[RECOMMEND].inputs if name not in _OWN]

    def histories(self, user_ids: Sequence[str]) -> list[list[int]]:
        """Returns the item rows of the stored histories of users, the newest first."""
        histories = []
        for start in range(0, len(user_ids), _HISTORY_BLOCK):
            ids = as_texts(user_ids[start : start + _HISTORY_BLOCK])
            outputs = self._graph.ask("stored_history", {"user_id": ids})
            histories += [[id_.decode() for id_ in row if id_] for row in outputs["item_ids"]]
        return [self.catalogue.item_rows(ids) for ids in histories]

    def query_inputs(self, user_ids: Sequence[str], **options: Any) -> Arrays:
        """Returns the inputs for some users; see `query_inputs` of this module."""
        options.setdefault("is_new_only", self.excludes_seen)
        return query_inputs(self._graph.signatures, user_ids, **options)

    def _rank(
        self, ranker: Ranker, signature: str, inputs: Arrays, k: int, *, is_batch: bool = False
    ) -> RankedRows:
        names = self._graph.signatures[PREPARE].inputs
        query = self._graph.ask(PREPARE, {name: inputs[name] for name in names})
        n = len(query["known"])
        rows = np.zeros((n, k), np.int32)
        scores = np.full((n, k), -np.inf, np.float32)
        hidden = RaggedRows(query["seen_rows"].astype(np.int32), query["seen_offsets"])
        if _EXCLUDED in inputs:
            hidden = self._with_excluded(hidden, inputs[_EXCLUDED])
        is_popular = query["source"] == POPULARITY.encode()
        best = ranker.best_of_batch if is_batch else ranker.best
        for at, allowed in self.filters.groups(inputs, np.flatnonzero(~is_popular)):
            rows[at], scores[at] = best(query["embedding"][at], hidden.select(at), k, allowed)
        for groups in self._alike(inputs, np.flatnonzero(is_popular), hidden):
            first = np.array([places[0] for places in groups])
            popular = {name: values[first] for name, values in inputs.items()}
            answers = self._by_graph(signature, popular, k)
            for number, places in enumerate(groups):
                rows[places], scores[places] = answers.rows[number], answers.scores[number]
        return RankedRows(rows, scores, query["known"], query["source"])

    def _alike(self, inputs: Arrays, at: np.ndarray, hidden: RaggedRows) -> list[list[list[int]]]:
        """Returns the places `at`, those of one answer by popularity together, in blocks."""
        names = [name for name in self.filters.feature_of if name in inputs]
        groups: dict[tuple[Any, ...], list[int]] = {}
        for place in at.tolist():
            filters = (tuple(inputs[name][place].tolist()) for name in names)
            start, end = hidden.offsets[place : place + 2]
            groups.setdefault((hidden.rows[start:end].tobytes(), *filters), []).append(place)
        every = list(groups.values())
        return [every[n : n + _POPULAR_BLOCK] for n in range(0, len(every), _POPULAR_BLOCK)]

    def _by_graph(self, signature: str, inputs: Arrays, k: int) -> RankedRows:
        outputs = self._graph.ask(signature, inputs)
        ids = outputs["candidate_ids"][:, :k]
        n, width = ids.shape
        texts = [as_text(id_) for id_ in ids.ravel().tolist()]
        rows, scores = np.zeros((n, k), np.int32), np.full((n, k), -np.inf, np.float32)
        rows[:, :width] = np.reshape(self.catalogue.item_rows(texts), ids.shape)
        scores[:, :width] = outputs["scores"][:, :k]
        return RankedRows(
            rows,
            np.where(rows > 0, scores, -np.inf).astype(np.float32),
            outputs["known"],
            outputs.get("source", np.full(n, b"", object)),
        )

    def _with_excluded(self, hidden: RaggedRows, ids: np.ndarray) -> RaggedRows:
        """Returns the rows to hide of each query, with those of `ids` `[n, any]`."""
        is_id = ids != b""
        rows = self.catalogue.item_rows([as_text(id_) for id_ in ids[is_id]])
        owner = np.concatenate([hidden.owner(), np.nonzero(is_id)[0]])
        every = np.concatenate([hidden.rows, np.asarray(rows, np.int32)])
        order = np.argsort(owner, kind="stable")
        counts = np.bincount(owner, minlength=len(hidden))
        return RaggedRows(every[order], np.concatenate([[0], np.cumsum(counts)]))

    def _as_ids(self, rows: np.ndarray) -> np.ndarray:
        """Returns the ids of rows of any shape as bytes; empty for no item."""
        ids = self.catalogue.items.ids_of_rows
        texts = ids.take(pa.array(rows.ravel())).cast(pa.large_binary()).to_pylist()
        out = np.empty(rows.size, object)
        out[:] = [text if row else b"" for text, row in zip(texts, rows.ravel(), strict=True)]
        return out.reshape(rows.shape)


def query_inputs(
    signatures: Mapping[str, Signature],
    user_ids: Sequence[str],
    *,
    is_new_only: bool,
    history: Sequence[str] = (),
    exclude: Sequence[str] = (),
    only: Mapping[str, Sequence[str]] | None = None,
    columns: Mapping[str, Sequence[str]] | None = None,
) -> Arrays:
    """Returns the inputs of `recommend`, or of `recommend_filtered` where something is filtered.

    Args:
        signatures: Those of the bundle.
        user_ids: Ids `[n]`; unknown ones may be among them, and the empty one is nobody.
        is_new_only: Whether what a user has seen is left out.
        history: Item ids in place of the stored histories, the newest first.
        exclude: Item ids that are left out.
        only: Names of tokens by filter: every item has one of each filter.
        columns: Raw values of the users by input, in place of the stored features.
    """
    n = len(user_ids)
    is_filtered = bool(exclude or only) and FILTERED in signatures
    inputs: Arrays = {
        "user_id": as_texts(user_ids),
        "history": _tiled(history, n),
        "exclude_seen": np.full(n, is_new_only),
    }
    if is_filtered:
        inputs[_EXCLUDED] = _tiled(exclude, n)
    inputs |= {
        name: _tiled(values, n) for name, values in {**(only or {}), **(columns or {})}.items()
    }
    # Padding stands for what the bundle has stored.
    names = signatures[FILTERED if is_filtered else RECOMMEND].inputs
    return {name: inputs.get(name, _tiled((), n)) for name in names}


def open_ranker(
    bundle: Path, signatures: Mapping[str, Signature], catalogue: CatalogueSearch, max_k: int
) -> Ranker | None:
    """Returns what ranks the items of a bundle; None where its graph is as fast.

    Raises:
        RecsysError: The bundle has an index that can't be used (R580, R582, R583), or
            damaged item embeddings (R583).
    """
    has_index = (bundle / FOLDER).exists()
    if PREPARE not in signatures:
        if has_index:
            raise _no_query(bundle, sorted(signatures))
        return None
    if not has_index and not kernels.status().available:
        return None
    is_item = catalogue.items.has_id()
    embeddings = _checked(bundle, catalogue.embeddings, len(is_item))
    ranker = Ranker(embeddings, is_item, *(read_index(bundle, embeddings, is_item) or ()))
    # Reads the embeddings once, so that the first request doesn't wait for the disk.
    ranker.best(np.zeros((1, embeddings.shape[1]), np.float32), RaggedRows.empty(1), max_k)
    return ranker


def normal_id(id_: str) -> str:
    """Returns an id as the ingest writes it.

    Raises:
        UsageError: It can't be written as UTF-8 (R540): what a terminal brings may be no text.
    """
    try:
        id_.encode()
    except UnicodeEncodeError:
        raise UsageError(
            "R540",
            "A user id must be text in UTF-8.",
            "Write the id as the data have it.",
            id_,
        ) from None
    return unicodedata.normalize("NFC", id_)


def check_k(k: int, max_k: int) -> None:
    """Raises an error if an answer of a bundle can't have `k` items (R541)."""
    if not 1 <= k <= max_k:
        raise UsageError(
            "R541",
            f"The number of items must be 1 … {max_k}.",
            "Ask for fewer, or set export.k in the config and run again: recsys run.",
            k,
        )


def as_texts(texts: Sequence[str]) -> np.ndarray:
    """Returns texts `[n]` as bytes; NULs at the end stay."""
    array = np.empty(len(texts), object)
    array[:] = [text.encode() for text in texts]
    return array


def as_text(id_: bytes) -> str:
    """Returns the text of an id; empty where it is none, as no item has such an id."""
    try:
        return id_.decode()
    except UnicodeDecodeError:
        return ""


def _tiled(texts: Sequence[str], n: int) -> np.ndarray:
    """Returns texts as the same row of bytes for each of `n` queries; padding where empty."""
    return np.tile(as_texts(texts or [""]), (n, 1))


def _checked(bundle: Path, embeddings: np.ndarray, n_rows: int) -> np.ndarray:
    if embeddings.ndim != 2 or len(embeddings) != n_rows or embeddings.dtype != np.float32:
        raise RecsysError(
            "R583",
            f"The item embeddings of {str(bundle)!r} must be float32, a line for each item row.",
            "Export the model again: recsys export.",
            f"{embeddings.dtype} {embeddings.shape} for {n_rows} item rows",
        )
    return np.ascontiguousarray(embeddings)


def _no_query(bundle: Path, received: Any) -> RecsysError:
    return RecsysError(
        "R583",
        f"A bundle with an index must have the signature {PREPARE!r}; {str(bundle)!r} lacks it.",
        "Export the model again: recsys export.",
        received,
    )


def _incomplete(bundle: Path, received: str) -> RecsysError:
    return RecsysError(
        "R544",
        f"The manifest of the bundle {str(bundle)!r} must tell how many items an answer has.",
        "Export the model again: recsys export.",
        received,
    )
