"""The rows that a ranking model trains on, those held back for validation, and their negatives."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from recsys.data.candidates import Candidates
from recsys.data.config import ValidationConfig
from recsys.data.hold_out import Draw, KeptEvents, draw_of, held_back
from recsys.data.row_log import RowLog, RowShard
from recsys.data.store import InteractionStore, LogUsers
from recsys.errors import RecsysError
from recsys.tasks.ranking.rows import known, no_labels

Negatives = Literal["rows", "sampled", "candidates"]
"""Where negatives come from: rows of the data with the first label 0, such as items that were
shown; items drawn from the catalogue; or items drawn from a retriever's lists."""


@dataclasses.dataclass(frozen=True, eq=False)
class TrainingRows(KeptEvents):
    """The rows of a log that training sees; `held` are all others.

    Attributes:
        users: The users of the log.
        labels: Names of the labels that the model learns, the first one first.
        validation: Indices of the rows held back for validation `[v]` int64, ascending.
        positives: Number of rows to train on with the first label 1.
        negatives: Number of rows to train on with the first label 0.
        source: Where negatives come from.
        log_rate: Logarithm of the share of negatives that the source kept, relative to that of
            positives, of the first label.
        weighs_rate: Whether rows have the weight 1 / rate instead: the rate isn't one number for
            each label.
        candidates: What a retriever says of the items of rows, and items drawn for them; None:
            nothing.
    """

    users: LogUsers = dataclasses.field(kw_only=True)
    labels: tuple[str, ...] = dataclasses.field(kw_only=True)
    validation: np.ndarray = dataclasses.field(kw_only=True)
    positives: int = 0
    negatives: int = 0
    source: Negatives = "rows"
    log_rate: float = 0.0
    weighs_rate: bool = False
    candidates: Candidates | None = None

    @property
    def first_label(self) -> str:
        """Name of the label by which rows are thinned, and metrics decide."""
        return self.labels[0]

    @property
    def rows(self) -> RowLog:
        """All rows of the log."""
        log: Any = self.log
        return log

    def user_counts(self, n_rows: int) -> np.ndarray:
        """Returns the number of training rows of each user row `[n_rows]` int64."""
        kept = [np.diff(part.offsets) for part in self.shards]
        counts = np.concatenate([np.zeros(0, np.int64), *kept])
        return np.bincount(self.users.rows, counts, n_rows).astype(np.int64)

    @functools.cached_property
    def is_negative(self) -> np.ndarray:
        """Whether the first label of each row to train on is 0 `[n]` bool."""
        column = np.asarray(self.rows.labels[self.first_label])
        return np.delete(column, self.held) == 0


def training_rows(
    store: InteractionStore,
    labels: Sequence[str],
    validation: ValidationConfig | None,
    only_newer: bool = False,
) -> TrainingRows:
    """Returns the rows with a known label that training sees.

    Args:
        store: The store.
        labels: Names of the labels that the model learns, the first one first.
        validation: Which rows are held back; None: none.
        only_newer: Whether to leave out the rows that the retriever of a pair was trained on.

    Raises:
        RecsysError: The data have no labels, all are unknown, or no rows are left.
        UsageError: The draw needs something that the data don't have.
    """
    log = store.train_rows
    if log is None:
        raise no_labels()
    is_known = np.zeros(len(log), bool)
    for name in labels:
        is_known |= ~np.isnan(known(np.asarray(log.labels[name])))
    if only_newer and store.candidates is not None:
        is_known &= np.isin(np.arange(len(log)), store.candidates.rows)
    is_drawn = store.candidates is not None and store.candidates.n_negatives > 0
    if is_drawn:  # The corrections hold for drawn negatives only.
        is_known &= np.asarray(log.labels[labels[0]]) != 0
    if not is_known.any():
        raise RecsysError(
            "R393",
            "Some training rows must have a known label.",
            "Check the columns in data.interactions.labels, and that data.interactions.label_after"
            " is shorter than the training data.",
            {"training rows": len(log), "labels": list(labels)},
        )
    draw: Draw = "newest"
    held = np.zeros(0, np.int64)
    if validation is not None:
        of_known: Any = log if is_known.all() else _only(log, is_known)
        draw = draw_of(of_known, validation, store.split)
        held = held_back(of_known, validation, draw)
        held = held if is_known.all() else np.flatnonzero(is_known)[held]
    left_out = ~is_known
    left_out[held] = True
    facts = _facts(log, labels[0], ~left_out)
    if store.candidates is not None:
        facts["candidates"] = store.candidates
        facts["source"] = "candidates" if is_drawn else facts["source"]
    return TrainingRows(
        _as_log(log),
        np.flatnonzero(left_out),
        draw,
        users=store.train_users,
        labels=tuple(labels),
        validation=held,
        **facts,
    )


def _as_log(log: Any) -> Any:
    return log


def _only(log: RowLog, which: np.ndarray) -> RowLog:
    """Returns the rows `which` `[n]` bool, with what a draw reads of them."""
    shards = []
    for shard, start in zip(log.shards, log.item_row.starts, strict=False):
        own = which[start : start + len(shard)]
        before = np.concatenate([[0], np.cumsum(own)])
        shards.append(
            RowShard(
                shard.item_row[own],
                shard.timestamp[own],
                shard.history_end[own],
                before[shard.offsets],
                labels={},
                valid=None if shard.valid is None else shard.valid[own],
            )
        )
    return RowLog(shards)


def _facts(log: RowLog, label: str, is_kept: np.ndarray) -> dict[str, Any]:
    """Returns numbers of positives and negatives, and the rates of the source."""
    values = known(np.asarray(log.labels[label]))[is_kept]
    classes = [values == 1.0, values == 0.0]
    n_positives, n_negatives = (int(of.sum()) for of in classes)
    facts: dict[str, Any] = {"positives": n_positives, "negatives": n_negatives}
    is_yes_or_no = log.labels[label].dtype.kind != "f"
    facts["source"] = "sampled" if is_yes_or_no and n_positives and not n_negatives else "rows"
    if log.rate is None:
        return facts
    rate = np.asarray(log.rate)[is_kept]
    if not is_yes_or_no:
        return facts | {"weighs_rate": len(np.unique(rate)) > 1}
    rates = [np.unique(rate[of]) for of in classes]
    if all(len(of) == 1 for of in rates):
        return facts | {"log_rate": float(np.log(rates[1][0]) - np.log(rates[0][0]))}
    return facts | {"weighs_rate": any(len(of) > 1 for of in rates)}
