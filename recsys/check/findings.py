"""What a run would do with the rows: which it rejects, and how many are duplicates."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recsys.check.profile import Advance
from recsys.config import InteractionsConfig
from recsys.data.event_times import time_columns
from recsys.data.farmhash import fingerprints
from recsys.data.interactions import PART, interaction_columns, parse_interactions
from recsys.data.sources.files import held_out_files
from recsys.data.sources.pieces import plan_pieces, read_piece

_MOST_KEYS = 1 << 24
_ODD = np.uint64(0x9E3779B97F4A7C15)


@dataclasses.dataclass
class Findings:
    """What became of the rows.

    Attributes:
        n_read: Rows.
        n_good: Good ones, duplicates among them.
        n_positive: Positives among the good ones.
        rejected: How many rows break each rule.
        examples: Line and text of the first row that breaks each rule.
        first: Earliest good time [seconds since 1970, UTC].
        last: Latest good time.
    """

    n_read: int = 0
    n_good: int = 0
    n_positive: int = 0
    rejected: dict[str, int] = dataclasses.field(default_factory=dict)
    examples: dict[str, tuple[str, int, str]] = dataclasses.field(default_factory=dict)
    first: int | None = None
    last: int | None = None
    keys: KeySample = dataclasses.field(default_factory=lambda: KeySample())

    @property
    def duplicate_share(self) -> float:
        """Share of the good rows that repeat an earlier one [0..1]."""
        return self.keys.repeated_share()

    def add_letters(self, letters: pa.RecordBatch) -> None:
        """Counts dead letters."""
        for entry in pc.value_counts(letters.column("reason")).to_pylist():
            reason = entry["values"]
            self.rejected[reason] = self.rejected.get(reason, 0) + entry["counts"]
            if reason not in self.examples:
                at = pc.index(letters.column("reason"), reason).as_py()
                row = {name: letters.column(name)[at].as_py() for name in ("file", "line", "row")}
                self.examples[reason] = (row["file"], row["line"], row["row"])

    def add_rows(self, rows: pa.RecordBatch) -> None:
        """Counts good rows."""
        if not rows.num_rows:
            return
        self.n_good += rows.num_rows
        self.n_positive += pc.sum(rows.column("label")).as_py()
        self.keys.add(rows)
        if "timestamp" not in rows.schema.names:
            return
        ends = pc.min_max(rows.column("timestamp"))
        low, high = ends["min"].as_py(), ends["max"].as_py()
        self.first = low if self.first is None else min(self.first, low)
        self.last = high if self.last is None else max(self.last, high)


class KeySample:
    """Keys of rows as hashes: all of them, or a sample by hash where they are very many."""

    def __init__(self) -> None:
        self._hashes: list[np.ndarray] = []
        self._n_kept = 0
        self._shift = np.uint64(0)

    def add(self, rows: pa.RecordBatch) -> None:
        """Adds the keys of rows."""
        more = [name for name in ("event", PART.name) if name in rows.schema.names]
        names = ["user_id", "item_id", *more]
        key = np.zeros(rows.num_rows, np.uint64)
        for time in time_columns(rows.schema.names):
            key = rows.column(time).to_numpy().view(np.uint64)
        for name in names:
            key = (key ^ fingerprints(rows.column(name))) * _ODD
            key ^= key >> np.uint64(29)
        self._hashes.append(self._sampled(key))
        self._n_kept += len(self._hashes[-1])
        if self._n_kept > _MOST_KEYS:
            self._shift += np.uint64(1)
            self._hashes = [self._sampled(np.concatenate(self._hashes))]
            self._n_kept = len(self._hashes[0])

    def _sampled(self, key: np.ndarray) -> np.ndarray:
        return key[key & ((np.uint64(1) << self._shift) - np.uint64(1)) == 0]

    def repeated_share(self) -> float:
        """Returns the share of keys that stand behind an equal one [0..1]."""
        if not self._n_kept:
            return 0.0
        n_distinct = len(np.unique(np.concatenate(self._hashes)))
        return 1.0 - n_distinct / self._n_kept


def try_rows(
    config: InteractionsConfig, now: int, sample: int | None, advance: Advance
) -> Findings:
    """Reads interactions as a run would.

    Args:
        config: Which column holds what.
        now: The time [seconds since 1970, UTC].
        sample: Rows to read; `None`: all.
        advance: Told of what was read.
    """
    findings, held_out = Findings(), held_out_files(config, "interactions")
    for piece in plan_pieces(config, "interactions", interaction_columns(config)):
        for batch in read_piece(piece):
            rows, letters = parse_interactions(batch, config, now, piece.file_index, held_out)
            findings.n_read += batch.n_read
            findings.add_rows(rows)
            findings.add_letters(letters)
            if sample is not None and findings.n_read >= sample:
                return findings
        advance(piece.n_bytes)
    return findings
