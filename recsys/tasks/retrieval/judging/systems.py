"""The systems that an evaluation compares, in the item rows of a data folder.

A system is a model folder or a bundle with its own vocabulary. If it differs from the data
folder's, items and users are translated by their ids, as a client of the served model would
give them.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import keras
import numpy as np
import pyarrow as pa

from recsys.data import event_features
from recsys.data.dataset import Data
from recsys.data.event_features import LearnedFeature, load_event_features
from recsys.data.transitions import TransitionScores
from recsys.data.vocabulary import Vocabulary
from recsys.distributed.coordination import from_primary, is_primary, meet
from recsys.errors import RecsysError
from recsys.kernels.rank_jobs import RankResults
from recsys.models.inference import Inference
from recsys.models.inputs import Given, ModelInputs
from recsys.ragged import RaggedRows
from recsys.tasks.bundle_process import BundleProcess
from recsys.tasks.judging_side import Progress
from recsys.tasks.model_folder import load_model
from recsys.tasks.own_rows import check_shared, check_split, own_rows, own_tokens
from recsys.tasks.retrieval.judging.bundle_queries import embed
from recsys.tasks.retrieval.judging.queries import Queries
from recsys.tasks.retrieval.judging.ranking import rank
from recsys.tasks.retrieval.judging.ranking_devices import ShardedCandidates, embedded_catalogue
from recsys.tasks.retrieval.judging.scores import (
    Candidates,
    DotProducts,
    PairedProducts,
    Scorer,
    check_scores,
    largest_of_rows,
)
from recsys.tasks.retrieval.probe import check_probe, read_probe

if TYPE_CHECKING:
    from keras.distribution import DeviceMesh


@dataclasses.dataclass(frozen=True)
class SystemEmbeddings:
    """The embeddings of a model, indexed by its own rows.

    Attributes:
        items: Vocabulary of its items.
        candidates: Item embeddings `[item rows, dim]` float32, which may be overwritten.
        history: Maximum length of a history.
        queries: Maps ids of users `[n]` text and item rows `[n, history]` int32, the newest
            first, padded with 0, to embeddings `[n, dim]` float32; the third argument are inputs of
            the model that come from events, by name.
        width: Number of an embedding's entries that define similarity (without bias and ages);
            None: all.
        inputs: Names of its inputs that come from events: context, attributes and times.
        event_features: The features of its events.
        transitions: What it adds for pairs of items, by its own rows; None: nothing.
    """

    items: Vocabulary
    candidates: Candidates
    history: int
    queries: Callable[..., np.ndarray]
    width: int | None = None
    inputs: tuple[str, ...] = ()
    event_features: tuple[LearnedFeature, ...] = ()
    transitions: TransitionScores | None = None


def check_numbers(name: str, embeddings: Candidates) -> None:
    """Checks that embeddings `[n, dim]` are finite.

    Args:
        name: The system, for the message.
        embeddings: The embeddings.

    Raises:
        RecsysError: An embedding is NaN or infinite (R402).
    """
    is_finite = np.isfinite(largest_of_rows(embeddings))
    if not is_finite.all():
        rule = f"Every embedding of {name} must be finite, otherwise ranks are undefined."
        cure = "Train again with lower learning rates."
        bad = int((~is_finite).sum())
        raise RecsysError("R402", rule, cure, f"{bad} of {len(is_finite)} embeddings are not")


def open_folder(folder: Path, name: str, mesh: DeviceMesh | None = None) -> SystemEmbeddings:
    """Reads a model folder, and checks that it computes the same as in training.

    Args:
        folder: A model folder.
        name: Display name.
        mesh: Devices to split tables and candidates over; None: this process holds them whole.

    Raises:
        RecsysError: It is damaged (R310), or computes other numbers than in training (R311)
            or NaN (R402).
    """
    trained, probe = load_model(folder, mesh=mesh), read_probe(folder)
    meet()  # The processes may read at different speeds.
    inference = Inference(trained.model)
    embeddings = of_model(inference, trained.inputs, name, mesh)
    query = inference.queries(probe.user_row, probe.history, trained.inputs, probe.given)
    check_numbers(name, query)
    candidates = embeddings.candidates
    if isinstance(candidates, np.ndarray):
        check_probe(folder, probe, query, [(slice(None), candidates)])
    else:
        check_probe(folder, probe, query, candidates.own_parts())
    return embeddings


def open_object(model: Any, data: Data, name: str) -> SystemEmbeddings:
    """Returns the embeddings of a `TrainedModel`, or of a built model of `data`."""
    if not hasattr(model, "embed_query"):
        return of_model(Inference(model.model), model.inputs, name)
    # A training result knows the trained rows: validation may hold back all events of one.
    trained = getattr(model, "training_result", None)
    inputs = ModelInputs.of_data(data) if trained is None else trained.inputs
    return of_model(Inference(model), inputs, name)


def of_model(
    inference: Inference, inputs: ModelInputs, name: str, mesh: DeviceMesh | None = None
) -> SystemEmbeddings:
    """Returns the embeddings of a model in memory.

    Args:
        inference: Inference with the model.
        inputs: Vocabularies, features and histories of users and items, by row.
        name: Display name.
        mesh: Devices of the candidates; None: in this process.

    Raises:
        RecsysError: An embedding is NaN or infinite (R402).
    """
    candidates = embedded_catalogue(inference, inputs, None if mesh is None else mesh.backend_mesh)
    check_numbers(name, candidates)
    # Another system's layout may be active when this one embeds.
    layout: Any = keras.distribution.distribution()

    def queries(user_ids: pa.Array, history: np.ndarray, given: Given | None = None) -> np.ndarray:
        with contextlib.nullcontext() if layout is None else layout.scope():
            return inference.queries(inputs.users.rows(user_ids), history, inputs, given)

    config = inference.model.spec.config
    return SystemEmbeddings(
        inputs.items,
        candidates,
        config.history,
        queries,
        width=config.dim if config.vector_dim > config.dim else None,
        inputs=tuple(x.name for x in inputs.event_inputs(config)),
        event_features=inputs.event_features,
        transitions=inference.model.transitions,
    )


def open_bundle(
    bundle: Path, manifest: Mapping[str, Any], name: str, mesh: DeviceMesh | None = None
) -> SystemEmbeddings:
    """Reads a bundle.

    Args:
        bundle: A bundle whose files match its manifest.
        manifest: Its manifest.
        name: Display name.
        mesh: Devices to split the candidates over; None: this process holds them whole.

    Raises:
        RecsysError: It lacks something that the evaluation needs (R409), or an embedding is not
            finite (R402).
    """
    items, of_file, length = read_bundle(bundle, manifest)
    candidates = of_file if mesh is None else ShardedCandidates.of(of_file, mesh.backend_mesh)
    check_numbers(name, candidates)
    # TensorFlow needs as much memory as a server of the bundle, so only on the first host.
    process = BundleProcess(bundle) if is_primary() else None

    def queries(user_ids: pa.Array, history: np.ndarray, given: Given | None = None) -> np.ndarray:
        return from_primary(
            lambda: embed(process, items, user_ids, history, given) if process else np.zeros(0)
        )

    return SystemEmbeddings(
        items,
        candidates,
        length,
        queries,
        manifest["direction_width"],
        tuple(manifest["event_inputs"]),
        load_event_features(bundle / event_features.FOLDER),
        TransitionScores.load(bundle),
    )


def read_bundle(bundle: Path, manifest: Mapping[str, Any]) -> tuple[Vocabulary, np.ndarray, int]:
    """Returns the items of a bundle, their embeddings, and the maximum length of a history.

    Args:
        bundle: The bundle.
        manifest: Its manifest.

    Raises:
        RecsysError: It lacks something that the evaluation needs (R409).
    """
    try:
        history = int(manifest["config"]["model"]["history"])
        items = Vocabulary.load(bundle / "vocabulary" / "items.parquet")
        # Copy on write, without reading the file into memory.
        candidates = np.load(bundle / "item_embeddings.npy", mmap_mode="c", allow_pickle=False)
        if candidates.ndim != 2 or len(candidates) != items.n_rows:
            raise ValueError(f"{candidates.shape} embeddings of {items.n_rows} item rows")
    except (OSError, ValueError, EOFError, KeyError, TypeError) as error:
        rule = (
            f"A bundle that is measured must hold item_embeddings.npy, vocabulary/ and, in its"
            f" manifest, the model's config; {str(bundle)!r} doesn't."
        )
        cure = "Export the model again: recsys export."
        raise RecsysError("R409", rule, cure, f"{type(error).__name__}: {error}") from None
    return items, candidates, history


class Reranker(Protocol):
    """A second stage, which orders the items at the top of a system's lists.

    Attributes:
        candidates: Number of these items.
        inputs: Names of its inputs that come from events.
    """

    candidates: int
    inputs: tuple[str, ...]

    def scores(
        self,
        user_ids: pa.Array,
        queries: Queries,
        lists: RankResults,
        progress: Progress | None = None,
    ) -> np.ndarray:
        """Returns the scores `[n, candidates]` float32 of the first items, -inf at padding."""


class System:
    """A model to measure, mapped to the item rows of a data folder.

    The history of a query is translated item by item. An item that the system doesn't know
    keeps its position, like an unknown id in the `history` of a served model: it reads row 0,
    which is ignored, or the hash row of its id. An item without an id in the data (in row 0, or
    in a hash row) reads row 0 if the vocabularies differ, because its id is unknown; if they
    are the same, it keeps its row. Tokens of events are translated, too; tokens that the system
    doesn't know become missing.

    Args:
        name: Display name.
        embeddings: Its embeddings, in its own rows.
        data: The data folder.
        reranker: Its second stage, if it has one.

    Attributes:
        name: Display name.
        reranker: Its second stage.
        is_candidate: Item rows of the data that it can recommend `[item rows]` bool.
        candidates: Their embeddings `[item rows, dim]` float32; zeros for all others.

    Raises:
        RecsysError: It shares no item with the data (R403), or was trained on events that
            are held out in the data (R411).
    """

    def __init__(
        self,
        name: str,
        embeddings: SystemEmbeddings,
        data: Data,
        reranker: Reranker | None = None,
    ) -> None:
        self.name, self._data, self._embed = name, data, embeddings.queries
        self.reranker = reranker
        self.history: int = embeddings.history
        """Maximum number of newest items in a history."""
        self.inputs = embeddings.inputs
        """Names of its inputs that come from events: context, attributes and times."""
        its, ours = embeddings.items, data.items
        check_split(name, its, data)
        self._own_row = own_rows(ours, its)
        self._own_tokens = own_tokens(data.event_features, embeddings.event_features)
        known = its.is_current()
        known = known if self._own_row is None else known[self._own_row]
        self.is_candidate = known & ours.is_current()
        check_shared(name, its, ours, self.is_candidate)
        self.candidates = _in_rows(embeddings.candidates, self._own_row, self.is_candidate)
        self._width, self._transitions = embeddings.width, embeddings.transitions

    @property
    def of_events(self) -> set[str]:
        """Names of the inputs of all stages that come from events."""
        return {*self.inputs, *(() if self.reranker is None else self.reranker.inputs)}

    def alone(self) -> System:
        """Returns the system without its second stage."""
        first = copy.copy(self)
        first.reranker = None
        return first

    def lists(
        self,
        user_ids: pa.Array,
        queries: Queries,
        masked: RaggedRows,
        k: int,
        progress: Progress | None = None,
    ) -> tuple[RankResults, RankResults]:
        """Ranks the positives of queries by the first stage, and by the whole system.

        Args:
            user_ids: Ids of the users `[n]`, text; they may be unknown.
            queries: The queries `[n]`.
            masked: Item rows to leave out of each list.
            k: Length of the lists.
            progress: Called with the number of finished queries and the total.
        """
        given = queries.given(self.inputs, self.history)
        scorer = self.scorer(user_ids, queries.histories(self.history), given)
        second = self.reranker
        n = k if second is None else max(k, second.candidates)
        first = rank(scorer, queries.positives, masked, self.is_candidate, n, progress)
        if second is None:
            return first, first
        scores = second.scores(user_ids, queries, first, progress)
        last = reordered(first, scores, queries.positives)
        short, last = (
            one._replace(top=one.top[:, :k], top_scores=one.top_scores[:, :k])
            for one in (first, last)
        )
        return short, last

    @property
    def directions(self) -> Candidates:
        """Part of the embeddings that defines similarity `[item rows, dim]`, without biases."""
        if isinstance(self.candidates, np.ndarray):
            return self.candidates[:, : self._width]
        return dataclasses.replace(self.candidates, width=self._width)

    def scorer_of(self, queries: Queries) -> Scorer:
        """Returns the scorer of items for `queries`; raises `RecsysError` as `embed`."""
        given = queries.given(self.inputs, self.history)
        return self.scorer(self.user_ids(queries), queries.histories(self.history), given)

    def scorer(self, user_ids: pa.Array, history: np.ndarray, given: Given | None = None) -> Scorer:
        """Returns the scorer of items for users with the given histories; see `embed`."""
        products = DotProducts(self.embed(user_ids, history, given), self.candidates)
        if self._transitions is None:
            return products
        rows = self._own_row
        added = self._transitions.of_histories(history if rows is None else rows[history])
        return PairedProducts(products, added if rows is None else added[:, rows])

    def user_ids(self, queries: Queries) -> pa.Array:
        """Returns the ids `[n]` of the evaluation users of `queries` `[n]`, text."""
        return self._data.store.eval_users.ids.take(pa.array(queries.user))

    def embed(
        self, user_ids: pa.Array, history: np.ndarray, given: Given | None = None
    ) -> np.ndarray:
        """Returns the query embeddings `[n, dim]` float32 of users with the given histories.

        Args:
            user_ids: Ids of the users `[n]`, text; they may be unknown.
            history: Item rows of the data `[n, history]` int32, the newest first, padded
                with 0. Histories that the system has stored are not used.
            given: Inputs of the model that come from events of the data, by name; those that
                aren't given are missing.

        Raises:
            RecsysError: An embedding is not finite (R402), or the bundle can't be loaded.
        """
        if not len(user_ids):
            return np.zeros((0, self.candidates.shape[1]), np.float32)
        rows = history if self._own_row is None else self._own_row[history]
        own = {
            name: self._own_tokens[name][x] if name in self._own_tokens else x
            for name, x in (given or {}).items()
        }
        embedded = self._embed(user_ids, rows, *([own] if self.inputs else []))
        check_numbers(self.name, embedded)
        return embedded


def reordered(ranking: RankResults, scores: np.ndarray, positives: RaggedRows) -> RankResults:
    """Returns a ranking whose lists are ordered by the scores of a second stage.

    Ties stay in the order of the first stage, and so do all items after those with a score.

    Args:
        ranking: Ranking of the first stage.
        scores: Scores of the first items of each list `[n, items]` float32, -inf at padding.
        positives: Held-out item rows of each query.

    Raises:
        RecsysError: A score is NaN (R405).
    """
    scores = scores[:, : ranking.top.shape[1]]
    n_items, bad = scores.shape[1], np.isnan(scores)
    rows = np.take_along_axis(ranking.top, bad.argmax(axis=1)[:, None], axis=1)[:, 0]
    check_scores(np.where(bad.any(axis=1), rows, -1), 0)
    order = np.argsort(-scores, axis=1, kind="stable")
    top, top_scores = ranking.top.copy(), ranking.top_scores.copy()
    top[:, :n_items] = np.take_along_axis(top[:, :n_items], order, axis=1)
    top_scores[:, :n_items] = np.take_along_axis(scores, order, axis=1)
    place, owner = np.argsort(order, axis=1), positives.owner()
    # The first items are those of the ranks 1, 2, …; other positives keep their rank.
    is_scored = ranking.ranks <= np.minimum(n_items, ranking.n_ranked[owner])
    ranks = ranking.ranks.copy()
    ranks[is_scored] = 1 + place[owner[is_scored], ranks[is_scored] - 1]
    return ranking._replace(ranks=ranks, top=top, top_scores=top_scores)


def _in_rows(
    candidates: Candidates, rows: np.ndarray | None, is_candidate: np.ndarray
) -> Candidates:
    """Returns candidates by the rows of the data, with zeros for rows that aren't candidates.

    Args:
        candidates: Embeddings by the system's own rows; consumed.
        rows: The system's row of each row of the data `[item rows]`; None: the same.
        is_candidate: Rows of the data that the system can recommend `[item rows]` bool.
    """
    if not isinstance(candidates, np.ndarray):
        of_rows = candidates if rows is None else candidates.taken(rows)
        return of_rows.without(~is_candidate)
    in_memory = candidates if rows is None else candidates[rows]
    in_memory[~is_candidate] = 0.0
    return in_memory
