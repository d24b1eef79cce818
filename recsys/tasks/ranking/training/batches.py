"""Training batches of a ranking model: rows in a deterministic shuffle, with their negatives.

A batch is a function of (seed, step), so a run can be repeated and resumed to the bit, and each of
several processes builds its own part of a batch. `recsys.tasks.ranking.training.other_batches` has
batches of positives with drawn negatives, and of whole impressions.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import numpy as np

from recsys.data.candidates import Listed
from recsys.data.event_features.statistics import Statistic
from recsys.data.shuffle import WHOLE, BatchPart, Permutation, epoch_order
from recsys.data.statistics import entry_of_none
from recsys.data.vocabulary import UNKNOWN_ROW
from recsys.errors import RecsysError
from recsys.models.inputs import ModelInputs
from recsys.models.ranking_config import RankingConfig
from recsys.models.ranking_model import RETRIEVER
from recsys.tasks.batch_parts import ReadCount, drop_rows, hidden
from recsys.tasks.config import TrainConfig
from recsys.tasks.ranking.rows import LABEL, Read, Rows, model_inputs
from recsys.tasks.ranking.training.training_rows import TrainingRows
from recsys.tasks.training_side import Batch


class Drawn(NamedTuple):
    """The rows of a part of a batch.

    Attributes:
        rows: Indices of rows of the log `[n]` int64.
        is_negative: Which rows have another item than their own, and label 0 `[n]`; None: none.
        item_row: Items of all rows `[n]` int32; None: their own.
        group: Number of each row's impression in the batch `[n]` int32, -1 for padding; None.
        listed: What a retriever says of these items; None: nothing.
    """

    rows: np.ndarray
    is_negative: np.ndarray | None = None
    item_row: np.ndarray | None = None
    group: np.ndarray | None = None
    listed: Listed | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class RowSource:
    """The batches of a training run, in order, over all epochs.

    Every epoch takes all rows in another order; its last, partial batch is left out. With
    `train.negative_share` it takes all rows but those with the first label 0, and a share of these,
    drawn anew.

    Attributes:
        events: The rows that training sees.
        rows: Reads them.
        inputs: Vocabularies with the counts of these rows, and features.
        model: Config of the model.
        train: Batch size, negatives and seed.
        part: The rows of each array to read and return.
        reads: Counts the bytes read.

    Raises:
        RecsysError: There are fewer rows than a batch has.
    """

    events: TrainingRows
    rows: Rows
    inputs: ModelInputs
    model: RankingConfig
    train: TrainConfig
    part: BatchPart = WHOLE
    reads: ReadCount = dataclasses.field(default_factory=ReadCount)

    def __post_init__(self) -> None:
        if self.steps_per_epoch < 1:
            raise RecsysError(
                "R320",
                "A batch must not hold more examples than there are training rows.",
                f"Lower train.batch_size to at most {self.rows_per_epoch}.",
                {"train.batch_size": self.batch_size, "training rows": self.rows_per_epoch},
            )

    @property
    def batch_size(self) -> int:
        """Number of rows per batch."""
        return self.train.batch_size

    @property
    def rows_per_epoch(self) -> int:
        """Number of rows that an epoch takes."""
        return len(self.events) - self.events.negatives + self._negatives_per_epoch

    @property
    def steps_per_epoch(self) -> int:
        """Number of full batches per epoch."""
        return self.rows_per_epoch // self.batch_size

    @property
    def size_of_part(self) -> tuple[int, int, int]:
        """Numbers of rows of the part, twice, and of all arrays' entries, about."""
        n = self.part.size(self.batch_size)
        features, of_users = self.inputs.catalogue.features, self.inputs.user_features
        of_item = sum(feature.bags.shape[1] for feature in features)
        of_user = sum(feature.bags.shape[1] for feature in of_users)
        of_event = sum(one.feature.width for one in self.inputs.event_features)
        of_past = 1 + of_event + (of_item if self.model.history_features else 0)
        of_row = 4 + of_item + of_user + of_event + len(self.events.labels)
        return n, n, n * (of_row + self.model.history * of_past)

    @property
    def bytes_per_epoch(self) -> int:
        """Bytes of store and features read per epoch; 0 before the first batch."""
        return self.reads.bytes * self.steps_per_epoch // max(1, self.reads.batches)

    def __len__(self) -> int:
        return self.steps_per_epoch * self.train.epochs

    def __getitem__(self, step: int) -> Batch:
        """Returns batch `step`: the model's inputs, and what its loss reads.

        These are `label.<name>` `[rows]` float32, NaN if unknown; and, if there are any, `weight`
        and `log_rate` `[rows]` float32 and `group` `[rows]` int32.
        """
        return self.batches(step, step + 1)[0]

    def batches(self, first: int, end: int) -> list[Batch]:
        """Returns the batches of the steps `first` … `end` - 1, all in one epoch.

        Reading them together is several times faster, with the same result.
        """
        drawn = [self._drawn(step) for step in range(first, end)]
        read = self.rows.read(np.concatenate([one.rows for one in drawn]))
        n = self.part.size(self.batch_size)
        batches = [
            self._batch(first + i, one, {k: x[i * n : (i + 1) * n] for k, x in read.items()})
            for i, one in enumerate(drawn)
        ]
        self.reads.add(len(batches), sum(x.nbytes for batch in batches for x in batch.values()))
        return batches

    # --- which rows

    def _drawn(self, step: int) -> Drawn:
        """Returns the part's rows of a batch."""
        return Drawn(self._rows_at(step, self.part.rows(self.batch_size), self.batch_size))

    def _rows_at(self, step: int, places: np.ndarray, size: int) -> np.ndarray:
        """Returns the rows at `places` `[n]` of a batch that has `size` rows of the log."""
        epoch, position = divmod(step, self.steps_per_epoch)
        order, numbers = self._epoch(epoch)
        at = order[position * size + places]
        return self.events.log_indices(at if numbers is None else numbers[at])

    @functools.cached_property
    def _epoch(self) -> Any:
        """Order of an epoch, and the training rows that it takes `[n]`; None: all of them."""
        events, train = self.events, self.train

        @functools.lru_cache(maxsize=2)
        def of(epoch: int) -> tuple[Any, np.ndarray | None]:
            numbers, starts = None, events.starts
            if train.negative_share < 1:
                numbers = self._thinned(epoch)
                starts = np.searchsorted(numbers, starts)
            return epoch_order(starts, train.shuffle, train.seed, epoch), numbers

        return of

    @functools.cached_property
    def _negatives_per_epoch(self) -> int:
        n = self.events.negatives
        return n if self.train.negative_share == 1 else round(n * self.train.negative_share)

    def _thinned(self, epoch: int) -> np.ndarray:
        """Returns the training rows without negatives, and a share of the negatives, ascending."""
        is_kept = ~self.events.is_negative
        negatives = np.flatnonzero(self.events.is_negative)
        chosen = Permutation(len(negatives), (self.train.seed, 6, epoch))
        is_kept[negatives[chosen[np.arange(self._negatives_per_epoch)]]] = True
        return np.flatnonzero(is_kept)

    # --- arrays

    def _batch(self, step: int, drawn: Drawn, read: Read) -> Batch:
        random = np.random.default_rng([self.train.seed, 1, step])
        read = self.with_items(read, drawn)
        labels = self.labels(read, drawn)
        of_loss = {name: x for name, x in self._of_loss(read, drawn).items() if x is not None}
        return {**self._inputs(self._dropped(read, random), random), **labels, **of_loss}

    def held_back(self, rows: np.ndarray) -> Drawn:
        """Returns rows of the log `[n]` that validation holds back, with negatives of theirs."""
        return Drawn(rows)

    def with_items(self, read: Read, drawn: Drawn) -> Read:
        """Returns rows with their items, and with what a retriever says of these."""
        if drawn.item_row is not None:
            read = self.rows.of_items(read, drawn.item_row)
        listed = drawn.listed
        if listed is None and self.events.candidates is not None:
            listed = self.events.candidates.of(drawn.rows, np.zeros_like(drawn.rows))
        return read if listed is None else {**read, RETRIEVER: listed.retriever}

    def labels(self, read: Read, drawn: Drawn) -> Batch:
        """Returns the labels `[n]` of rows by input; 0, or else unknown, for negatives."""
        labels = {f"{LABEL}{name}": read[f"{LABEL}{name}"] for name in self.events.labels}
        if drawn.is_negative is None:
            return labels
        first, unknown = f"{LABEL}{self.events.first_label}", np.float32("nan")
        labels = {n: np.where(drawn.is_negative, unknown, x) for n, x in labels.items()}
        return labels | {first: np.where(drawn.is_negative, np.float32(0), read[first])}

    def _of_loss(self, read: Read, drawn: Drawn) -> dict[str, np.ndarray | None]:
        """Returns `weight`, `group` and `log_rate`; None: not needed."""
        weight = self._weights(read, drawn)
        if drawn.group is not None:
            weight = (1.0 if weight is None else weight) * (drawn.group >= 0)
        return {
            "weight": None if weight is None else weight.astype(np.float32),
            "group": drawn.group,
            "log_rate": self.log_rate(drawn),
        }

    def log_rate(self, drawn: Drawn) -> np.ndarray | None:
        """Returns the logarithm of the share of negatives that is kept `[n]`; None: all are."""
        log_rate = self.events.log_rate + float(np.log(self.train.negative_share))
        return np.full(len(drawn.rows), log_rate, np.float32) if log_rate else None

    def _weights(self, read: Read, drawn: Drawn) -> np.ndarray | None:
        """Returns the weights of rows `[n]` float64; None: all are 1."""
        factors = [read["weight"].astype(np.float64)] if "weight" in read else []
        if self.events.weighs_rate:
            factors.append(1.0 / read["rate"].astype(np.float64))
        if self.train.user_balance:
            counts = self._rows_of_users[self.events.rows.user_index(drawn.rows)]
            factors.append(np.maximum(counts, 1.0) ** -self.train.user_balance)
        if self.train.half_life:
            newer = self.events.newer_share(read["timestamp"])
            factors.append(0.5 ** (newer / self.train.half_life))
        return np.prod(factors, axis=0) if factors else None

    @functools.cached_property
    def _rows_of_users(self) -> np.ndarray:
        """Number of training rows of each user of the log `[users]` int64."""
        return np.concatenate([np.diff(part.offsets) for part in self.events.shards])

    def _dropped(self, read: Read, random: np.random.Generator) -> Read:
        """Returns rows with a share of histories, attributes and context hidden."""
        model, part, read = self.model, self.part, {**read}
        history = drop_rows(read["history"], model.history_dropout, random, part)
        if model.new_user_share:
            is_new = part.uniform(history.shape[:1], random) < model.new_user_share
            history = np.where(is_new[:, None], np.int32(UNKNOWN_ROW), history)
            read["is_new"] = is_new
            for name, entry in self._of_new_users.items():
                read[name] = np.where(is_new[:, None], entry.astype(read[name].dtype), read[name])
        read["history"], share = history, model.attribute_dropout
        is_missing = history == UNKNOWN_ROW
        if share:
            is_hidden = part.uniform(history.shape[:1], random) < share
            is_missing = is_missing | is_hidden[:, None]
            is_hidden = part.uniform(history.shape[:1], random) < share
        if share and model.shared_tables:  # Every row has a list.
            read[RETRIEVER] = hidden(read[RETRIEVER], is_hidden)
        for x in self.inputs.event_inputs(model):
            if x.of_history:
                read[x.name] = hidden(read[x.name], is_missing)
            elif share:
                read[x.name] = hidden(read[x.name], is_hidden)
        return read

    @functools.cached_property
    def _of_new_users(self) -> dict[str, np.ndarray]:
        """Entry of a user without earlier events, of statistics of users and gaps by name."""
        entries = {}
        for one in self.inputs.event_features:
            feature = one.feature
            if isinstance(feature, Statistic) and feature.is_of_users:
                entries[one.name] = entry_of_none(one)
            elif feature.is_context and feature.value == "gap":
                entries[one.name] = np.zeros(feature.floats or feature.width)
        return entries

    def _inputs(self, read: Read, random: np.random.Generator) -> Batch:
        """Returns the model's inputs, with a share of ids hidden."""
        model, part = self.model, self.part
        batch = model_inputs(read, self.inputs, model)
        if "user_row" in batch:
            batch["user_row"] = drop_rows(batch["user_row"], model.id_dropout, random, part)
            if "is_new" in read:
                batch["user_row"] = np.where(read["is_new"], UNKNOWN_ROW, batch["user_row"])
        share = model.id_dropout if model.item_id_dropout is None else model.item_id_dropout
        batch["id_row"] = drop_rows(batch["id_row"], share, random, part)
        return {
            name: x.astype(np.int32, copy=False) if x.dtype.kind == "i" else x
            for name, x in batch.items()
        }
