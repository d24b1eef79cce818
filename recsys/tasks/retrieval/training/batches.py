"""Training batches, read from the memory-mapped store in a deterministic shuffle.

A batch is a function of (seed, step), so a run can be repeated and resumed to the bit, and each
of several processes builds its own part of a batch. `recsys.training.prefetch` reads batches
ahead.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from recsys.data.catalogue import Catalogue, FeatureBags, bags_of, bags_of_histories, of_history
from recsys.data.event_log import (
    ITEM,
    PLACE,
    input_dtype,
    split_sorted,
)
from recsys.data.hold_out import KeptEvents
from recsys.data.shuffle import WHOLE, BatchPart, epoch_order
from recsys.data.vocabulary import UNKNOWN_ROW
from recsys.errors import RecsysError
from recsys.models.config import RetrievalConfig
from recsys.tasks.batch_parts import ReadCount, drop_rows, hidden
from recsys.tasks.config import TrainConfig
from recsys.tasks.retrieval.training.sampling import BatchCandidates
from recsys.tasks.training_side import Batch

_DERIVED = ("item_row", "id_row", "log_q", ITEM, PLACE)
"""Arrays of a batch that are drawn or looked up, not read, except for the positives."""

_OF_EVENTS = ("weight", "known")
"""Arrays that are passed on as they were read."""


@dataclasses.dataclass(frozen=True, eq=False)
class BatchSource:
    """The batches of a training run, in order, over all epochs.

    Every epoch takes all events in another order; its last, partial batch is left out, so each
    epoch skips other events.

    Attributes:
        events: Training events, without those that validation holds back.
        catalogue: The items' features.
        model: Config of the model, for the inputs of its towers.
        train: Batch size, negatives and seed.
        user_features: The users' features.
        context: Names of the events' features that an example has.
        attributes: Names of the events' features that the events of its history have.
        multiple: Number of devices; a full softmax pads the catalogue to a multiple of it.
        part: The rows of each array to read and return.
        reads: Counts the bytes read.

    Raises:
        RecsysError: There are fewer events than a batch has.
    """

    events: KeptEvents
    catalogue: Catalogue
    model: RetrievalConfig
    train: TrainConfig
    user_features: tuple[FeatureBags, ...] = ()
    context: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()
    multiple: int = 1
    part: BatchPart = WHOLE
    reads: ReadCount = dataclasses.field(default_factory=ReadCount)

    def __post_init__(self) -> None:
        if len(self.events) < self.batch_size:
            raise self._too_few()

    def _too_few(self) -> RecsysError:
        return RecsysError(
            "R320",
            "A batch must not hold more examples than there are training positives.",
            f"Lower train.batch_size to at most {len(self.events)}.",
            {"train.batch_size": self.batch_size, "training positives": len(self.events)},
        )

    @property
    def batch_size(self) -> int:
        """Number of events per batch."""
        return self.train.batch_size

    @property
    def epochs(self) -> int:
        """Number of passes over the events."""
        return self.train.epochs

    @property
    def steps_per_epoch(self) -> int:
        """Number of full batches per epoch."""
        return len(self.events) // self.batch_size

    @property
    def n_candidates(self) -> int:
        """Number of items in a batch, negatives included."""
        return len(self._candidates)

    @property
    def size_of_part(self) -> tuple[int, int, int]:
        """Numbers of examples and candidates of the part, and of all arrays' entries, about."""
        examples, candidates = (self.part.size(n) for n in (self.batch_size, self.n_candidates))
        of_user = sum(feature.bags.shape[1] for feature in self.user_features)
        of_item = sum(feature.bags.shape[1] for feature in self.catalogue.features)
        history, features = self._read_model.history, self.events.log.features
        histories = history * (2 if self.history_items else 1)
        of_events = sum(features[name].shape[1] for name in self.context)
        of_events += history * sum(features[name].shape[1] for name in self.attributes)
        of_query = 2 + histories + self.train.known_positives + of_user + of_events
        return examples, candidates, examples * of_query + candidates * (3 + of_item)

    @property
    def bytes_per_epoch(self) -> int:
        """Bytes of store and features read per epoch; 0 before the first batch."""
        return self.reads.bytes * self.steps_per_epoch // max(1, self.reads.batches)

    def __len__(self) -> int:
        return self.steps_per_epoch * self.epochs

    def __getitem__(self, step: int) -> Batch:
        """Returns batch `step`: the model's inputs, `item_row` and `log_q`.

        `id_row`, `item_row`, `log_q` and the items' features have `n_candidates` entries, in the
        order of `BatchCandidates`. `user_row`, `history`, the users' features, context, attributes
        and, if present, `weight` and `known` have `batch_size`. Only the rows of `part`
        are read and returned. If the query reads the features of a history's items, they may be
        given for the unique items `history_item`, with the index of each entry in
        `history_place`; see
        `unique_items`.
        """
        return self.batches(step, step + 1)[0]

    def batches(self, first: int, end: int) -> list[Batch]:
        """Returns the batches of the steps `first` … `end` - 1, all in one epoch.

        Reading them together is several times faster, with the same result.
        """
        epoch, position = divmod(first, self.steps_per_epoch)
        starts = np.arange(position, position + end - first) * self.batch_size
        examples = self._examples(epoch, starts)
        items = self._positives(epoch, starts, examples)
        sizes = {name: len(column) // len(starts) for name, column in examples.items()}
        batches = [
            self._batch(
                first + i,
                {k: v[i * sizes[k] : (i + 1) * sizes[k]] for k, v in examples.items()},
                items[i],
            )
            for i in range(len(starts))
        ]
        arrays = [
            x.nbytes for batch in batches for name, x in batch.items() if name not in _DERIVED
        ]
        of_items = len(starts) * len(self._needed_examples) * items.itemsize
        self.reads.add(len(starts), sum(arrays) + of_items)
        return batches

    def _examples(self, epoch: int, starts: np.ndarray) -> Batch:
        """Reads the examples of the part, batch by batch.

        Args:
            epoch: The epoch.
            starts: Position of each batch's first example in the epoch `[steps]`.
        """
        rows = self.part.rows(self.batch_size)
        return read_events(
            self.events,
            self._numbers(epoch, (starts[:, None] + rows).ravel()),
            self._read_model,
            self.train,
            with_items=self.part.is_whole,
            context=self.context,
            attributes=self.attributes,
        )

    def _numbers(self, epoch: int, places: np.ndarray) -> np.ndarray:
        """Returns the kept events `[n]` int64 at ascending positions `[n]` in an epoch."""
        train = self.train
        return epoch_order(self.events.starts, train.shuffle, train.seed, epoch)[places]

    def _positives(self, epoch: int, starts: np.ndarray, examples: Batch) -> np.ndarray:
        """Returns the items of all examples `[steps, batch]` int32.

        For a part, only the items that its candidates need are read; others are 0. They
        differ from the part's own examples, since candidates put all positives first.
        """
        if self.part.is_whole:
            return examples["item_row"].reshape(len(starts), -1)
        items = np.zeros((len(starts), self.batch_size), np.int32)
        needed = self._needed_examples
        numbers = self._numbers(epoch, (starts[:, None] + needed).ravel())
        items[:, needed] = self.events.items(numbers).reshape(len(starts), -1)
        return items

    def _batch(self, step: int, examples: Batch, positives: np.ndarray) -> Batch:
        random = np.random.default_rng([self.train.seed, 1, step])
        item_row = self._candidates.of_batch(positives, random, self._candidate_rows)
        query, id_row = self._query(examples, random), self._trained_row[item_row]
        model = self.model
        share = model.id_dropout if model.item_id_dropout is None else model.item_id_dropout
        return {
            **query,
            "id_row": drop_rows(id_row, share, random, self.part),
            "item_row": item_row,
            "log_q": self._log_q[item_row],
            **{name: examples[name] for name in _OF_EVENTS if name in examples},
            **bags_of(self.catalogue.features, item_row),
            # If the user's row is dropped, its features are still given.
            **bags_of(self.user_features, examples["user_row"]),
            **(self._of_histories(query["history"]) if "history" in query else {}),
        }

    @functools.cached_property
    def _read_model(self) -> RetrievalConfig:
        """The model's config for reading examples: no histories if it doesn't train on them."""
        model = self.model
        return model if model.trains_on_history else model.model_copy(update={"history": 0})

    def _query(self, examples: Batch, random: np.random.Generator) -> Batch:
        """Returns the query's user rows and histories, with dropout applied."""
        model, part = self.model, self.part
        user_row = drop_rows(examples["user_row"], model.id_dropout, random, part)
        history = drop_rows(examples["history"], model.history_dropout, random, part)
        if model.new_user_share:
            is_new = part.uniform(user_row.shape, random) < model.new_user_share
            user_row = np.where(is_new, UNKNOWN_ROW, user_row)
            history[is_new] = UNKNOWN_ROW
        histories = {"history": history} if model.trains_on_history else {}
        return {"user_row": user_row, **histories, **self._of_events(examples, history, random)}

    def _of_events(
        self, examples: Batch, history: np.ndarray, random: np.random.Generator
    ) -> Batch:
        """Returns context and attributes, some of them hidden.

        Args:
            examples: The examples of the part.
            history: Their histories `[b, history]`, with dropout applied.
            random: Random generator.
        """
        share, part = self.model.attribute_dropout, self.part
        shown = {name: examples[name] for name in self.context}
        if shown and share:
            is_hidden = part.uniform(examples["user_row"].shape, random) < share
            shown = {name: hidden(x, is_hidden) for name, x in shown.items()}
        attributes = {of_history(name): examples[of_history(name)] for name in self.attributes}
        is_missing = history == UNKNOWN_ROW
        if share and attributes:
            is_missing |= (part.uniform(history.shape[:1], random) < share)[:, None]
        attributes = {name: hidden(x, is_missing) for name, x in attributes.items()}
        return {**shown, **attributes}

    @functools.cached_property
    def history_items(self) -> int:
        """Number of unique items given for a batch's histories; 0: they aren't made unique."""
        is_split = self.multiple > 1 or not self.part.is_whole
        if not self.model.distinct_history or is_split or self.train.accumulate > 1:
            return 0  # Devices have separate parts; accumulated batches must have equal shapes.
        positions = np.linspace(0, self.steps_per_epoch - 1, _SAMPLED_BATCHES).astype(np.int64)
        random = np.random.default_rng([self.train.seed, 4])
        parts = [self._examples(0, np.array([n])) for n in np.unique(positions) * self.batch_size]
        return items_for([self._query(examples, random)["history"] for examples in parts])

    def _of_histories(self, history: np.ndarray) -> Batch:
        """Returns the inputs that the query reads for the items of histories `[b, history]`."""
        features = self.catalogue.features if self.model.history_features else ()
        if not self.history_items:
            return bags_of_histories(features, history)
        once = unique_items(history, self.history_items)
        return {**once, **bags_of_histories(features, once[ITEM])}

    @functools.cached_property
    def _log_q(self) -> np.ndarray:
        """Correction of scores (logQ) by item row `[item rows]` float32."""
        candidates = self._candidates
        return candidates.log_q((candidates.event_shares, self.batch_size))

    @functools.cached_property
    def _candidate_rows(self) -> np.ndarray:
        """Indices of the part's candidates `[candidates of the part]` int64, ascending."""
        return self.part.rows(self.n_candidates)

    @functools.cached_property
    def _needed_examples(self) -> np.ndarray:
        """Indices of the examples whose items the part's candidates need `[k]` int64."""
        return self._candidates.examples_of(self._candidate_rows)

    @functools.cached_property
    def _candidates(self) -> BatchCandidates:
        train = self.train.model_copy(update={"batch_size": self.batch_size})
        return BatchCandidates(self._counts, self.catalogue.is_item, train, self.multiple)

    @functools.cached_property
    def _counts(self) -> np.ndarray:
        """Number of training events of each item row `[item rows]` int64."""
        return self.events.item_counts(self.catalogue.n_rows)

    @functools.cached_property
    def _trained_row(self) -> np.ndarray:
        """Table row that each item row reads `[item rows]` int32; 0 for items without events."""
        rows = np.arange(len(self._counts), dtype=np.int32)
        return np.where(self._counts > 0, rows, np.int32(UNKNOWN_ROW))


# --- unique items of histories

_SAMPLED_BATCHES = 8
"""Number of batches from which the number of unique items is estimated."""

_MARGIN, _MULTIPLE = 1.125, 128


def unique_items(history: np.ndarray, n: int) -> dict[str, np.ndarray]:
    """Returns the unique items of histories, and the index of each entry in them.

    Every batch has these arrays, since Keras' `fit` requires the same keys in all.

    Args:
        history: Item rows `[batch, history]` int32; 0 is padding, and counts as an item.
        n: Number of items to return, doubled until all fit; padded by repeating the last.

    Returns:
        `history_item` `[n]` int32, the unique rows, ascending; `history_place`
        `[batch, history]` int32, the index in them of each entry of `history`.
    """
    rows, place = np.unique(history, return_inverse=True)
    while n < len(rows):
        n *= 2
    items = np.pad(rows, (0, n - len(rows)), mode="edge")
    return {ITEM: items, PLACE: place.reshape(history.shape).astype(np.int32)}


def items_for(histories: list[np.ndarray]) -> int:
    """Returns the number of unique items to give per batch, estimated from some batches.

    A batch with more items doubles the number and recompiles the step, so there is a margin.

    Args:
        histories: Histories of some batches, each `[batch, history]`.

    Returns:
        The number, a multiple of 128; 0 if most items are unique, so that there is no gain.
    """
    most = max(len(np.unique(history)) for history in histories)
    n = -(-int(most * _MARGIN) // _MULTIPLE) * _MULTIPLE
    return n if n <= histories[0].size // 2 else 0


def read_events(
    events: KeptEvents,
    numbers: np.ndarray,
    model: RetrievalConfig,
    train: TrainConfig,
    with_items: bool = True,
    context: tuple[str, ...] = (),
    attributes: tuple[str, ...] = (),
) -> dict[str, np.ndarray]:
    """Reads events at any indices, with the histories of their users.

    The events are read in sorted order, shard by shard, which is several times faster.

    Args:
        events: The events that training sees.
        numbers: Numbers of the events `[n]` int64.
        model: Kind and length of a history.
        train: Number of known positives, and weights of events. `user_balance` divides a weight
            by a power of the number of the user's events: at 1 all users have the same weight
            (Covington et al., "Deep Neural Networks for YouTube Recommendations", RecSys 2016,
            section 3.3, use equally many examples of each user). `half_life` halves it with the
            number of later events (Ding and Li, "Time Weight Collaborative Filtering", CIKM
            2005, use days instead of events).
        with_items: Whether to read the events' own items.
        context: Names of features of the events themselves to read.
        attributes: Names of features of the histories' events to read.

    Returns:
        `user_row` and, with `with_items`, `item_row` `[n]` int32; `history` `[n, model.history]`
        int32, the user's earlier items, or all others; if `train.known_positives` is not 0,
        `known` of that width, int32, the user's newest items, maybe including the event's;
        `weight` `[n]` float32 if any is not 1; context `[n, …]`, and attributes
        `[n, model.history, …]` by input, int32 or float32. Items are the newest first, padded
        with 0.
    """
    n, order = len(numbers), np.argsort(numbers)
    known = train.known_positives
    widths = {"history": model.history, **({"known": known} if known else {})}
    names = ("user_row", "item_row") if with_items else ("user_row",)
    read = {name: np.empty(n, np.int32) for name in names}
    read |= {name: np.empty((n, width), np.int32) for name, width in widths.items()}
    if events.log.weight is not None or train.user_balance > 0 or train.half_life:
        read["weight"] = np.empty(n, np.float32)
    features = events.log.features
    for name in context:
        read[name] = np.empty((n, *features[name].shape[1:]), input_dtype(features[name].dtype))
    for name in attributes:
        shape = (n, model.history, *features[name].shape[1:])
        read[of_history(name)] = np.empty(shape, input_dtype(features[name].dtype))
    for number, part in split_sorted(numbers[order], events.starts):
        kept, to = events.shards[number], order[part]
        ordered, shard = numbers[to] - events.starts[number], kept.shard
        places = kept.log_indices(ordered)
        for name in names:
            read[name][to] = getattr(shard, name)[places]
        for name in context:
            read[name][to] = shard.features[name][places]
        histories = kept.others if model.history_of == "others" else kept.past
        if model.history:
            read["history"][to] = histories(ordered, model.history)
        for name in attributes:
            read[of_history(name)][to] = histories(ordered, model.history, name)
        if known:
            read["known"][to] = kept.newest(ordered, known)
        if "weight" in read:
            weight = kept.of_user(ordered) ** -train.user_balance
            if shard.weight is not None:
                weight = weight * shard.weight[places]
            if train.half_life:
                newer = events.newer_share(shard.timestamp[places])
                weight = weight * 0.5 ** (newer / train.half_life)
            read["weight"][to] = weight
    return read
