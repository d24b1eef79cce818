"""Predicts which rows a run rejects, and which are duplicates."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recsys.config import InteractionsConfig
from recsys.data.entities import EntityConfig, id_column, parse_entities, raw_columns
from recsys.data.farmhash import fingerprints
from recsys.data.inspect.profile import Advance
from recsys.data.interactions import duplicate_keys, interaction_columns, parse_interactions
from recsys.data.sources.files import held_out_files
from recsys.data.sources.pieces import plan_pieces, read_piece

_MOST_KEYS = 1 << 25
_ODD = np.uint64(0x9E3779B97F4A7C15)


@dataclasses.dataclass
class Findings:
    """Counts of good, rejected and duplicate rows.

    Attributes:
        n_read: Rows; events where a row holds a list of them.
        n_empty: Rows whose list of events is empty, which are not among the read ones.
        rejected: How many rows break each rule.
        examples: Line and text of the first row that breaks each rule.
        first: Earliest good time [seconds since 1970, UTC].
        last: Latest good time.
        n_known: Rows, of those that aren't rejected, whose item or user the catalogue has,
            by the name of the catalogue.
    """

    n_read: int = 0
    n_empty: int = 0
    rejected: dict[str, int] = dataclasses.field(default_factory=dict)
    examples: dict[str, tuple[str, int, str]] = dataclasses.field(default_factory=dict)
    first: int | None = None
    last: int | None = None
    n_known: dict[str, int] = dataclasses.field(default_factory=dict)
    keys: Keys = dataclasses.field(default_factory=lambda: Keys())

    @property
    def n_rejected(self) -> int:
        """Rows that break a rule."""
        return sum(self.rejected.values())

    @property
    def n_duplicates(self) -> int:
        """Rows that repeat an earlier one; nearly, if there are very many rows."""
        return self.keys.n_rows - self.keys.count()[0]

    @property
    def n_good(self) -> int:
        """Rows that a run keeps: neither rejected nor duplicates."""
        return self.keys.count()[0]

    @property
    def n_positive(self) -> int:
        """Positives among the good rows."""
        return self.keys.count()[1]

    @property
    def duplicate_share(self) -> float:
        """Share of the rows that aren't rejected that repeat an earlier one [0..1]."""
        return self.n_duplicates / max(1, self.keys.n_rows)

    def add_letters(self, letters: pa.RecordBatch) -> None:
        """Counts dead letters."""
        for entry in pc.value_counts(letters.column("reason")).to_pylist():
            reason = entry["values"]
            self.rejected[reason] = self.rejected.get(reason, 0) + entry["counts"]
            if reason not in self.examples:
                at = pc.index(letters.column("reason"), reason).as_py()
                row = {name: letters.column(name)[at].as_py() for name in ("file", "line", "row")}
                self.examples[reason] = (row["file"], row["line"], row["row"])

    def add_times(self, rows: pa.RecordBatch) -> None:
        """Widens the span of times by those of good rows, if they have times."""
        if not rows.num_rows or "timestamp" not in rows.schema.names:
            return
        ends = pc.min_max(rows.column("timestamp"))
        low, high = ends["min"].as_py(), ends["max"].as_py()
        self.first = low if self.first is None else min(self.first, low)
        self.last = high if self.last is None else max(self.last, high)


class Keys:
    """Keys of rows as hashes, and whether each is a positive: all, or a sample of very many."""

    def __init__(self) -> None:
        self.n_rows = 0
        self._hashes: list[np.ndarray] = []
        self._labels: list[np.ndarray] = []
        self._n_kept = 0
        self._shift = np.uint64(0)
        self._counted: tuple[int, int] | None = None

    @property
    def is_exact(self) -> bool:
        """Whether all rows are counted, and not a sample."""
        return not self._shift

    def add(self, rows: pa.RecordBatch, keys: list[str]) -> None:
        """Adds the keys of rows, in their order."""
        key = np.zeros(rows.num_rows, np.uint64)
        for name in keys:
            column = rows.column(name)
            is_text = pa.types.is_string(column.type)
            code = fingerprints(column) if is_text else column.to_numpy().view(np.uint64)
            key = (key ^ code) * _ODD
            key ^= key >> np.uint64(29)
        is_label = "label" in rows.schema.names
        labels = rows.column("label").to_numpy() == 1 if is_label else np.ones(len(key), bool)
        self.n_rows += rows.num_rows
        self._counted = None
        self._keep([key], [labels])
        while self._n_kept > _MOST_KEYS:
            self._shift += np.uint64(1)
            hashes, flags, self._hashes, self._labels = self._hashes, self._labels, [], []
            self._n_kept = 0
            self._keep(hashes, flags)

    def _keep(self, hashes: list[np.ndarray], labels: list[np.ndarray]) -> None:
        for key, label in zip(hashes, labels, strict=True):
            is_kept = key & ((np.uint64(1) << self._shift) - np.uint64(1)) == 0
            self._hashes.append(key[is_kept])
            self._labels.append(label[is_kept])
            self._n_kept += int(is_kept.sum())

    def count(self) -> tuple[int, int]:
        """Returns the rows without duplicates, and the positives among them."""
        if self._counted is None:
            hashes = np.concatenate([np.zeros(0, np.uint64), *self._hashes])
            labels = np.concatenate([np.zeros(0, bool), *self._labels])
            first = np.unique(hashes, return_index=True)[1]
            scale = self.n_rows / max(1, len(hashes))
            self._counted = round(scale * len(first)), round(scale * int(labels[first].sum()))
        return self._counted


class Ids:
    """The ids of a catalogue, as hashes."""

    def __init__(self) -> None:
        self._parts: list[np.ndarray] = []

    def add(self, ids: pa.Array) -> None:
        """Adds ids `[n]`."""
        self._parts.append(fingerprints(ids))

    def count_known(self, ids: pa.Array) -> int:
        """Returns how many of ids `[n]` the catalogue has."""
        if len(self._parts) != 1:
            self._parts = [np.unique(np.concatenate([np.zeros(0, np.uint64), *self._parts]))]
        return int(np.isin(fingerprints(ids), self._parts[0]).sum())


def check_rows(
    config: InteractionsConfig,
    now: int,
    sample: int | None,
    advance: Advance,
    known: dict[str, Ids] | None = None,
) -> Findings:
    """Reads interactions as a run would.

    Args:
        config: Which column holds what.
        now: The time [seconds since 1970, UTC].
        sample: Rows to read; `None`: all.
        advance: Called with the progress.
        known: The ids of the catalogues, by `items` and `users`.
    """
    findings = Findings()
    held_out = held_out_files(config, "interactions")
    for piece in plan_pieces(config, "interactions", interaction_columns(config)):
        for batch in read_piece(piece):
            rows, letters = parse_interactions(batch, config, now, piece.file_index, held_out)
            findings.n_read += batch.n_read
            findings.n_empty += batch.n_empty
            findings.keys.add(rows, duplicate_keys(rows.schema.names))
            findings.add_times(rows)
            findings.add_letters(letters)
            for what, ids in (known or {}).items():
                n_known = ids.count_known(rows.column(f"{what[:-1]}_id"))
                findings.n_known[what] = findings.n_known.get(what, 0) + n_known
            if sample is not None and findings.n_read >= sample:
                return findings
        advance(piece.n_bytes)
    return findings


def check_entities(what: str, config: EntityConfig, sample: int | None) -> tuple[Findings, Ids]:
    """Reads items or users as a run would; returns their ids too.

    Args:
        what: `items` or `users`.
        config: Which column holds what.
        sample: Rows to read; `None`: all.
    """
    findings, ids = Findings(), Ids()
    for piece in plan_pieces(config, what, raw_columns(config)):
        for batch in read_piece(piece):
            rows, letters = parse_entities(batch, config, piece.file_index)
            findings.n_read += batch.n_read
            findings.keys.add(rows, [id_column(config)])
            findings.add_letters(letters)
            ids.add(rows.column(id_column(config)))
            if sample is not None and findings.n_read >= sample:
                return findings, ids
    return findings, ids
