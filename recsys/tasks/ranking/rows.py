"""The inputs of a ranking model for rows of a store, with their labels.

Training, validation and judging read rows here. The history of a row has its user's
events before the row's second; for a held-out row, training events are among them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, Protocol

import numpy as np

from recsys.data.catalogue import Catalogue, bags_of, bags_of_histories
from recsys.data.event_features import LearnedFeature, values_at
from recsys.data.event_features.statistics import Statistic
from recsys.data.event_log import (
    HistoryLog,
    ShardedColumn,
    input_dtype,
    newest_first,
    split_sorted,
)
from recsys.data.label_config import LabelConfig
from recsys.data.row_log import RowLog
from recsys.data.statistics_before import StatisticsBefore
from recsys.data.store import InteractionStore, LogUsers
from recsys.errors import RecsysError
from recsys.models.inputs import ModelInputs, trained_rows
from recsys.models.ranking_model import RETRIEVER, RETRIEVER_WIDTH

Part = Literal["train", "eval"]
State = Literal["cut", "live"]
"""What is known of users and items when a row is scored: the training data, or all events before
the row's second."""
Read = dict[str, np.ndarray]

LABEL = "label."
"""Prefix of the arrays of labels."""
NO_IMPRESSION = -1


class Statistics(Protocol):
    """Statistics of the training events, as of the cut."""

    def features(
        self, user_row: np.ndarray, item_row: np.ndarray, catalogue: Catalogue
    ) -> Mapping[str, np.ndarray]:
        """Returns the encoded features of pairs `[n, …]` by name."""


def read_rows(
    store: InteractionStore,
    part: Part,
    numbers: np.ndarray,
    inputs: ModelInputs,
    config: Any,
    state: State = "live",
    statistics: Statistics | None = None,
    item_row: np.ndarray | None = None,
) -> Read:
    """Returns the inputs of a model for rows of a store, and their labels.

    Args:
        store: The store.
        part: The part of the rows, `train` or `eval`.
        numbers: Indices of the rows in `store.train_rows` or `store.eval_rows` `[n]`.
        inputs: Vocabularies and features, with the counts of the model's training rows.
        config: Config of the model, a `RankingConfig`.
        state: State of the histories, statistics and gaps of held-out rows. Rows of `train` are
            always live.
        statistics: Statistics as of the cut, for held-out rows with `state="cut"`.
        item_row: Items to score instead of the rows' own `[n]` int32.

    Returns:
        The model's inputs by name, `label.<name>` `[n]` float32, NaN if unknown, and the arrays of
        `Rows.about`.
    """
    rows = Rows.of(store, part, inputs, config, state, statistics)
    read = rows.read(numbers)
    if item_row is not None:
        read = rows.of_items(read, item_row)
    about = {name: x for name, x in read.items() if name.startswith(LABEL) or name in ABOUT}
    return {**model_inputs(read, inputs, config), **about}


ABOUT = ("weight", "rate", "impression", "position", "timestamp")
"""Arrays that describe rows, and are no inputs of a model."""


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """The rows of a part of a store, as they are read for a model.

    Attributes:
        log: The rows.
        users: Their users.
        pasts: Histories, the oldest first; a row's history ends in the last of them.
        user_of: Index of each user of `log` in each of `pasts` `[users]`; None: the same; -1: none.
        inputs: Vocabularies and features.
        config: Config of the model.
        before: Statistics of other items, as of each row.
        statistics: Statistics as of the cut; None: as of each row.
        is_cut: Whether the last of `pasts` is left out.
        has_cut: Whether gaps are as of the cut.
    """

    log: RowLog
    users: LogUsers
    pasts: tuple[HistoryLog, ...]
    user_of: tuple[np.ndarray | None, ...]
    inputs: ModelInputs
    config: Any
    before: StatisticsBefore
    statistics: Statistics | None = None
    is_cut: bool = False
    has_cut: bool = False

    @classmethod
    def of(
        cls,
        store: InteractionStore,
        part: Part,
        inputs: ModelInputs,
        config: Any,
        state: State = "live",
        statistics: Statistics | None = None,
    ) -> Rows:
        """Returns the rows of a part; see `read_rows`.

        Raises:
            RecsysError: The data have no labels (R392).
        """
        log = store.train_rows if part == "train" else store.eval_rows
        if log is None:
            raise no_labels()
        # Those of users are the row's own.
        of_items = [one for one in inputs.event_features if _depends_on_item(one)]
        sources = inputs.catalogue, inputs.users, inputs.items
        before = StatisticsBefore(store, part, *sources, of_items)
        if part == "train":
            pasts = (store.train.history,), (None,)
            return cls(log, store.train_users, *pasts, inputs, config, before)
        is_cut = state == "cut"
        return cls(
            log,
            store.eval_users,
            (store.train.history, store.eval.history),
            (store.trained_user, None),
            inputs,
            config,
            before,
            statistics if is_cut else None,
            is_cut,
            is_cut and store.split.has_cut,
        )

    def read(self, numbers: np.ndarray) -> Read:
        """Reads rows at any indices `[n]`, in sorted order, which is several times faster.

        Returns:
            `user_index` `[n]` int64, in `users`; `user_row` and `item_row` `[n]` int32, with rows
            of vocabularies; `history` `[n, history]` int32, the newest first, padded with 0;
            `history.<name>`, context and features of rows by input; `label.<name>` `[n]` float32,
            NaN if unknown. `timestamp` `[n]` int64; `rate` and `weight` `[n]` float32, if the data
            have them; `impression` `[n]` int64, equal for the rows of an impression, -1 for none;
            and `position` `[n]` int32, -1 if unknown.
        """
        order = np.argsort(numbers, kind="stable")
        places = np.asarray(numbers, np.int64)[order]
        read = self._read_sorted(places)
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return {name: x[back] for name, x in read.items()}

    def _read_sorted(self, places: np.ndarray) -> Read:
        log = self.log

        def column(of: ShardedColumn) -> np.ndarray:
            return of.gather_sorted(places)

        user = log.user_index(places)
        read = {
            "user_index": user,
            "user_row": self.users.rows[user],
            "item_row": column(log.item_row),
            "timestamp": column(log.timestamp),
            **{f"{LABEL}{name}": known(column(x)) for name, x in log.labels.items()},
        }
        if log.rate is not None:
            read["rate"] = column(log.rate)
        if log.weight is not None:
            read["weight"] = column(log.weight)
        if log.position is not None:
            read["position"] = column(log.position)
        if log.impression is not None:
            of_user = column(log.impression).astype(np.int64)
            read["impression"] = np.where(of_user > 0, (user << 31) + of_user, NO_IMPRESSION)
        histories = self._histories(user, column(log.history_end))
        read["history"] = histories.items()
        for one in self.inputs.event_inputs(self.config):
            if one.of_history and one.feature is not None:
                read[one.name] = histories.items(one.feature)
        return read | self._of_rows(read, column, histories)

    def _of_rows(self, read: Read, column: Any, histories: _Histories) -> Read:
        """Returns the context and the features of rows by input."""
        found, log = {}, self.log
        at_cut = self.statistics and self.statistics.features(
            read["user_row"], read["item_row"], self.inputs.catalogue
        )
        for one in self.inputs.event_features:
            if one.feature.side == "row":
                values = at_cut[one.name] if at_cut else column(log.features[one.name])
            elif not one.feature.is_context:
                continue
            elif self.has_cut and one.feature.value == "gap":
                values = one.encode(values_at("gap", read["timestamp"], histories.idle_s(read)))
            else:
                values = column(log.features[one.name])
            found[one.name] = values.astype(input_dtype(values.dtype), copy=False)
        return found

    def of_items(self, read: Read, item_row: np.ndarray) -> Read:
        """Returns rows with other items `[n]` int32, and the statistics of these."""
        read = {**read, "item_row": item_row}
        if self.statistics is not None:
            of_pairs = self.statistics.features(read["user_row"], item_row, self.inputs.catalogue)
        else:
            of_pairs = self.before.features(read["user_index"], item_row, read["timestamp"])
        return read | {n: x.astype(input_dtype(x.dtype)) for n, x in of_pairs.items()}

    def _histories(self, user: np.ndarray, end: np.ndarray) -> _Histories:
        """Returns the slices of `pasts` that are the histories of rows.

        Args:
            user: Index of each row's user `[n]`.
            end: End of its history in the last of `pasts` `[n]`.
        """
        slices = []
        for past, of in zip(self.pasts, self.user_of, strict=True):
            slices.append((past, *past.slices(user if of is None else of[user])))
        last, start, _ = slices[-1]
        slices[-1] = (last, start, start if self.is_cut else end)
        return _Histories(tuple(slices), self.config.history)


@dataclasses.dataclass(frozen=True, eq=False)
class _Histories:
    """Histories that are slices of logs, one after another.

    Attributes:
        slices: Log, starts and ends `[n]`, the oldest log first.
        length: Maximum length of a history.
    """

    slices: tuple[tuple[HistoryLog, np.ndarray, np.ndarray], ...]
    length: int

    def items(self, feature: str | None = None) -> np.ndarray:
        """Returns the items `[n, length]` of the histories, or a feature `[n, length, …]`."""
        (log, start, end), *older = reversed(self.slices)
        newest = _newest(log, start, end, self.length, feature)
        n_newer = np.minimum(end - start, self.length)
        for log, start, end in older:
            rows = np.flatnonzero((n_newer < self.length) & (end > start))
            before = _newest(log, start[rows], end[rows], self.length, feature)
            place = np.arange(self.length) - n_newer[rows, None]
            is_older = place >= 0
            shape = (*place.shape, *[1] * (before.ndim - 2))
            moved = np.take_along_axis(before, np.maximum(place, 0).reshape(shape), axis=1)
            newest[rows] = np.where(is_older.reshape(shape), moved, newest[rows])
            n_newer = np.minimum(n_newer + end - start, self.length)
        return newest

    def idle_s(self, read: Read) -> np.ndarray:
        """Returns the time since the newest event of each history `[n]` int64 [s]; -1: none."""
        last = np.full(len(read["timestamp"]), -1, np.int64)
        for log, start, end in self.slices:
            is_there = end > start
            last[is_there] = log.timestamp[end[is_there] - 1]
        return np.where(last >= 0, read["timestamp"] - last, -1)


def _newest(
    log: HistoryLog, start: np.ndarray, end: np.ndarray, length: int, feature: str | None
) -> np.ndarray:
    """Returns the newest events of slices of a log `[n, length, …]`; see `newest_first`."""
    column = log.item_row if feature is None else log.features.get(feature)
    if column is None:  # No shards.
        return np.zeros((len(start), length, 1), np.int32)
    out = np.zeros((len(start), length, *column.shape[1:]), input_dtype(column.dtype))
    order = np.argsort(start, kind="stable")
    for number, part in split_sorted(start[order], column.starts):
        to, first = order[part], column.starts[number]
        shard = column.shards[number]
        out[to] = newest_first(shard, start[to] - first, end[to] - first, length)
    return out


def known(label: np.ndarray) -> np.ndarray:
    """Returns labels `[n]` float32; NaN if unknown, which is -1 for a yes/no label."""
    values = label.astype(np.float32)
    return values if label.dtype.kind == "f" else np.where(label < 0, np.float32("nan"), values)


def joint_labels(
    labels: Mapping[str, np.ndarray],
    configs: Mapping[str, LabelConfig],
    weight: np.ndarray | None,
) -> tuple[Read, Read]:
    """Returns yes/no labels given nothing, and factors of the weights of rows by label.

    They are what `recsys.losses.joint_labels` and `joint_weights` are: a label is 0 if the one that
    it is given is 0, and such rows weigh less if it is unknown in others.

    Args:
        labels: Labels by name `[n]`, NaN if unknown, each after its `given`.
        configs: Configs of the labels.
        weight: Weight of each row `[n]`; None: ones.
    """
    joint, factors = {**labels}, dict[str, np.ndarray]()
    for name, own in labels.items():
        given = configs[name].given
        if given not in joint or configs[name].is_amount:
            continue
        is_no, is_yes = joint[given] == 0.0, joint[given] == 1.0
        joint[name] = np.where(is_no, own.dtype.type(0), own)
        of_yes = np.ones(is_yes.sum()) if weight is None else weight[is_yes]
        share = of_yes @ ~np.isnan(own[is_yes]) / of_yes.sum() if len(of_yes) else 1.0
        if share < 1 or given in factors:
            factors[name] = np.where(is_no, factors.get(given, 1.0) * share, 1.0)
    return joint, factors


def model_inputs(read: Read, inputs: ModelInputs, config: Any) -> Read:
    """Returns the inputs of a model for rows that `Rows.read` returned."""
    features = inputs.catalogue.features
    of_histories = features if config.history and config.history_features else ()
    names = [x.name for x in inputs.event_inputs(config)]
    names += [one.name for one in inputs.event_features if is_row_feature(one)]
    return {
        **({"user_row": trained_rows(read["user_row"], inputs.users)} if config.user_id else {}),
        **({"history": trained_rows(read["history"], inputs.items)} if config.history else {}),
        **{name: read[name] for name in names},
        **bags_of(inputs.user_features, read["user_row"]),
        **bags_of_histories(of_histories, read["history"]),
        "id_row": trained_rows(read["item_row"], inputs.items),
        **bags_of(features, read["item_row"]),
        **({RETRIEVER: of_list(read)} if config.stage_one else {}),
    }


def of_list(read: Read) -> np.ndarray:
    """Returns `retriever` of rows; zeros if their lists are unknown."""
    unknown = np.zeros((len(read["item_row"]), RETRIEVER_WIDTH), np.float32)
    return read.get(RETRIEVER, unknown)


def is_row_feature(one: LearnedFeature) -> bool:
    """Returns whether a feature belongs to a pair of a query and an item."""
    return one.feature.side == "row"


def _depends_on_item(one: LearnedFeature) -> bool:
    return isinstance(one.feature, Statistic) and one.feature.by != "user"


def no_labels() -> RecsysError:
    """Returns the error for data without labels."""
    return RecsysError(
        "R392",
        "A ranking model learns labels, and the data have none.",
        "Name their columns by data.interactions.labels, such as {click: {column: clicked,"
        " at_least: 1}}, and ingest again.",
        "no labels",
    )
