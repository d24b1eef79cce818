"""Draws what the ranker of a pair learns from: items of a retriever's lists, and random ones.

The retriever was trained on the events up to a cut, and its lists are exact, as of each later row:
with the user's history before the row, and without the items that were seen. So no list depends on
the row, nor on anything after it. Lists of the final retriever would: it was trained on these rows.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import keras
import numpy as np
import pyarrow as pa

from recsys import registry
from recsys.data.candidates import ARRAYS, seal
from recsys.data.dataset import Data
from recsys.data.hold_out import newest_share
from recsys.data.row_log import RowLog
from recsys.distributed.coordination import agreed, is_primary
from recsys.embedding import device_mesh
from recsys.errors import RecsysError
from recsys.models.inputs import ModelInputs
from recsys.models.summary import read_summary
from recsys.pair.config import PairStage
from recsys.pair.lists import list_features, normalised
from recsys.ragged import RaggedRows, ranges, run_starts
from recsys.system.files import commit_folder, remove
from recsys.tasks.judging_side import Progress
from recsys.tasks.ranking.rows import Rows, known
from recsys.tasks.retrieval.judging.ranking import rank
from recsys.tasks.retrieval.judging.systems import System, open_folder

if TYPE_CHECKING:
    from recsys.kernels.rank_jobs import RankResults

_ROWS = 8192
"""Number of rows whose lists are in memory at a time."""
_SEED = 8


def draw(
    stage: PairStage, data: Data, inner: Path, out: Path, progress: Progress | None = None
) -> None:
    """Draws candidates for the rows after the cut; see `recsys.data.candidates`.

    Each of them gets `ranker.negatives` items: one of each of k / 2 equal parts of the retriever's
    list, then random items of the catalogue. With impressions, or if the first label is an amount,
    it gets none: then its own item's place in the list is written.

    Every process calls it, with the same result for any number of devices.

    Args:
        stage: Config of the pair.
        data: The data.
        inner: Model folder of the retriever, trained without the newest `ranker.held_back`.
        out: Folder to write.
        progress: Called with the number of finished queries and the total.

    Raises:
        RecsysError: No row is newer than the cut (R398), or the retriever is damaged.
    """
    # The layout of the training before would give other last bits than a resumed run has.
    keras.distribution.set_distribution(None)
    drawing = _Drawing.of(stage, data, inner)
    work = out.with_name(f".{out.name}")
    arrays = agreed(lambda: remove(work)) or (_arrays(work, drawing) if is_primary() else {})
    for rows, drawn in drawing.blocks(progress):
        for name, array in arrays.items():
            array[rows] = drawn[name]

    def commit() -> None:
        for array in arrays.values():
            array.flush()
        ranker = stage.ranker
        seal(work, {"candidates": ranker.candidates, "negatives": drawing.k, "rows": len(drawing)})
        remove(out)
        commit_folder(work, out)

    agreed(commit)


def _arrays(folder: Path, drawing: _Drawing) -> dict[str, np.memmap]:
    """Creates the files of the arrays, which needn't fit into memory."""
    folder.mkdir(parents=True)
    n, k = len(drawing), 1 + drawing.k
    shapes = {"rows": (n,), "retriever": (n, k, 3)}
    return {
        name: np.lib.format.open_memmap(
            folder / f"{name}.npy", "w+", dtype, shapes.get(name, (n, k))
        )
        for name, dtype in ARRAYS.items()
    }


@dataclasses.dataclass(frozen=True, eq=False)
class _Drawing:
    """The rows after the cut, and the retriever that they are drawn with.

    Attributes:
        stage: Config of the pair.
        data: The data.
        system: The retriever.
        rows: Reads the rows.
        numbers: Indices of the rows after the cut `[n]`, ascending.
        is_first: Which of them begin another query: another user or second `[n]` bool.
        k: Number of items to draw for each row.
    """

    stage: PairStage
    data: Data
    system: System
    rows: Rows
    numbers: np.ndarray
    is_first: np.ndarray
    k: int

    @classmethod
    def of(cls, stage: PairStage, data: Data, inner: Path) -> _Drawing:
        # As in an evaluation: one process holds everything.
        mesh = device_mesh() if jax.process_count() > 1 else None
        name = f"the inner retriever ({inner})"
        system = System(name, open_folder(inner, name, mesh), data)
        config = registry.Choice("model").read(read_summary(inner)["spec"]["config"])
        rows = Rows.of(data.store, "train", ModelInputs.of_data(data), config)
        log, ranker = rows.log, stage.ranker
        first = next(iter(ranker.labels))
        is_drawn = log.impression is None and not data.labels[first].is_amount
        numbers = _later_rows(data, log, ranker.held_back, tuple(ranker.labels), is_drawn)
        time, user = log.timestamp[numbers], log.user_index(numbers)
        is_first = run_starts(user, time)
        return cls(stage, data, system, rows, numbers, is_first, ranker.negatives * is_drawn)

    def __len__(self) -> int:
        return len(self.numbers)

    def blocks(self, progress: Progress | None) -> Iterator[tuple[slice, dict[str, np.ndarray]]]:
        """Yields slices of the rows, and their parts of the arrays."""
        first = np.append(np.flatnonzero(self.is_first), len(self))
        for number, block in enumerate(RaggedRows(self.numbers, first).blocks(_ROWS)):
            starts = first[block.start : block.stop + 1]
            random = np.random.default_rng([self.stage.ranker.train.seed, _SEED, number])
            rows = slice(int(starts[0]), int(starts[-1]))
            yield rows, self._of_queries(rows, starts - starts[0], random)
            if progress is not None:
                progress(block.stop, len(first) - 1)

    def _of_queries(
        self, rows: slice, offsets: np.ndarray, random: np.random.Generator
    ) -> dict[str, np.ndarray]:
        """Returns the arrays of rows, whose queries begin at `offsets` `[queries + 1]`."""
        numbers, ranker = self.numbers[rows], self.stage.ranker
        query = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        found = self._lists(numbers[offsets[:-1]])
        length = (found.top_scores > -np.inf).sum(axis=1)[query, None]
        lists, is_item = found.top[query], self.data.catalogue.is_item
        own = self.rows.log.item_row[numbers]
        n_places, items = self.k // 2, np.flatnonzero(is_item)
        drawn = items[random.integers(0, len(items), (len(numbers), self.k))]
        if n_places:  # One place of each part: every place is as likely, and none comes twice.
            part = np.arange(n_places) + random.random((len(numbers), n_places))
            at = np.minimum((part * length / n_places).astype(np.int64), np.maximum(length - 1, 0))
            listed = np.take_along_axis(lists, at, axis=1)
            drawn[:, :n_places] = np.where(length > 0, listed, drawn[:, :n_places])
        item_row = np.concatenate([own[:, None], drawn], axis=1).astype(np.int32)
        place = _places(lists, item_row)
        scores = normalised(found.top_scores)[query]
        score = np.take_along_axis(scores, np.maximum(place - 1, 0), axis=1)
        rate = np.where(length > 0, self.k - n_places, self.k) / len(items)
        rate = rate + np.where(place > 0, n_places / np.maximum(length, 1), 0.0)
        rate = np.where(is_item[item_row] & (rate > 0), rate, 1.0)
        return {
            "rows": numbers,
            "item_row": item_row,
            "retriever": list_features(place.astype(np.float32), score, ranker.candidates),
            "log_rate": np.log(rate).astype(np.float32),
        }

    def _lists(self, numbers: np.ndarray) -> RankResults:
        """Returns the retriever's lists at the moments of rows `[q]`."""
        read, system = self.rows.read(numbers), self.system
        given = {name: read[name] for name in system.inputs if name in read}
        user = self.rows.log.user_index(numbers)
        ids = self.data.store.train_users.ids.take(pa.array(user))
        scorer, none = system.scorer(ids, read["history"], given), RaggedRows.empty(len(numbers))
        seen, n = self._seen(numbers, user), self.stage.ranker.candidates
        return rank(scorer, none, seen, system.is_candidate, n)

    def _seen(self, numbers: np.ndarray, user: np.ndarray) -> RaggedRows:
        """Returns the items that a served list would leave out for the users of rows `[q]`."""
        if self.stage.repeats == "include":
            return RaggedRows.empty(len(numbers))
        past = self.data.store.train.history
        start, end = past.offsets[user], np.asarray(self.rows.log.history_end[numbers])
        places, lengths = ranges(start, end - start), end - start
        if self.data.store.has_others:  # Only positives are left out.
            is_left_out = self._is_positive[places]
            owner = np.repeat(np.arange(len(user)), lengths)[is_left_out]
            places, lengths = places[is_left_out], np.bincount(owner, minlength=len(user))
        return RaggedRows(past.item_row[places], np.concatenate([[0], np.cumsum(lengths)]))

    @functools.cached_property
    def _is_positive(self) -> np.ndarray:
        return self.data.store.train.history.is_positive


def _later_rows(
    data: Data, log: RowLog, share: float, labels: tuple[str, ...], is_drawn: bool
) -> np.ndarray:
    """Returns the rows with a label after the newest `share` of events begins `[n]`, ascending.

    With drawn negatives, rows with the first label 0 are left out.
    """
    events = data.store.train
    cut = events.timestamp[newest_share(events, share)].min()
    parts = [np.zeros(0, np.int64)]
    for shard, start in zip(log.shards, log.item_row.starts, strict=False):
        is_known = np.zeros(len(shard), bool)
        for name in labels:
            is_known |= ~np.isnan(known(shard.labels[name]))
        if is_drawn:
            is_known &= shard.labels[labels[0]] != 0
        parts.append(np.flatnonzero((shard.timestamp > cut) & is_known) + start)
    if len(later := np.concatenate(parts)):
        return later
    raise RecsysError(
        "R398",
        "A ranker of a pair learns from rows that are newer than what its retriever learned from.",
        "Add data whose events have times or an order, or raise ranker.held_back.",
        f"no row after {int(cut)}",
    )


def _places(lists: np.ndarray, items: np.ndarray) -> np.ndarray:
    """Returns the places from 1 of items `[n, k]` in lists `[n, length]`; 0: they aren't there."""
    is_same = (lists[:, None] == items[..., None]) & (items > 0)[..., None]  # Row 0 is padding.
    return np.where(is_same.any(axis=2), is_same.argmax(axis=2) + 1, 0)
