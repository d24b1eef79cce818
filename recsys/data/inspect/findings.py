"""Predicts the rows that a run will reject, and the duplicates."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recsys.data.config import InteractionsConfig
from recsys.data.dead_letters import letters_tally
from recsys.data.entities import EntityConfig, id_column, parse_entities, raw_columns, row_hashes
from recsys.data.hashes import fingerprints, mix
from recsys.data.inspect.profile import Advance, HashCount
from recsys.data.interactions import duplicate_keys, interaction_columns, parse_interactions
from recsys.data.sources.pieces import read_all
from recsys.data.sources.source import RawBatch
from recsys.data.sources.source_files import parts_of_files

_MOST_KEYS = 1 << 25
ENOUGH_IDS = 10
"""Minimum number of users, and of items, with positives for computing metrics."""


@dataclasses.dataclass
class Findings:
    """Counts of good, rejected and duplicate rows.

    Attributes:
        n_read: Number of rows; of events if a row holds a list of them.
        n_empty: Number of rows with an empty list of events, which aren't counted as read.
        rejected: Number of rows that break each rule.
        examples: File, line and text of the first row that breaks each rule.
        first: Earliest valid time [seconds since 1970, UTC].
        last: Latest valid time [seconds since 1970, UTC].
        n_known: Number of accepted rows whose item or user is in the catalogue, by the name of
            the catalogue.
        keys: Hashes of the accepted rows' keys; duplicates have equal keys.
        pairs: Hashes of the user and item of each positive.
        users: Ids of positives, not many more than `ENOUGH_IDS`.
        items: Ids of positives, not many more than `ENOUGH_IDS`.
        contents: Hashes of the accepted rows' values, for items and users.
    """

    n_read: int = 0
    n_empty: int = 0
    rejected: dict[str, int] = dataclasses.field(default_factory=dict)
    examples: dict[str, tuple[str, int, str]] = dataclasses.field(default_factory=dict)
    first: int | None = None
    last: int | None = None
    n_known: dict[str, int] = dataclasses.field(default_factory=dict)
    keys: HashCount = dataclasses.field(default_factory=lambda: HashCount(_MOST_KEYS))
    pairs: HashCount = dataclasses.field(default_factory=lambda: HashCount(_MOST_KEYS))
    users: set[str] = dataclasses.field(default_factory=set)
    items: set[str] = dataclasses.field(default_factory=set)
    contents: HashCount = dataclasses.field(default_factory=lambda: HashCount(_MOST_KEYS))

    @property
    def n_conflicts(self) -> int:
        """Number of rows of items or users that differ from all earlier rows of their id."""
        return max(0, len(self.contents) - len(self.keys))

    @property
    def n_rejected(self) -> int:
        """Number of rows that break a rule."""
        return sum(self.rejected.values())

    @property
    def n_good(self) -> int:
        """Number of rows that a run keeps, without duplicates; an estimate if there are many."""
        return len(self.keys)

    @property
    def n_positive(self) -> int:
        """Number of positives among the good rows."""
        return self.keys.n_flagged

    @property
    def n_duplicates(self) -> int:
        """Number of rows that repeat an earlier one."""
        return self.keys.n_added - len(self.keys)

    def to_json(self) -> dict[str, Any]:
        """Returns the counts, as `recsys check --json` prints them."""
        return {
            "rows": self.n_read,
            "good": self.n_good,
            "positives": self.n_positive,
            "rejected": self.rejected,
            "rejected_examples": self.examples,
            "duplicates": self.n_duplicates,
            "duplicates_are_exact": self.keys.is_exact,
            "duplicate_share": self.n_duplicates / max(1, self.keys.n_added),
            "empty_lists": self.n_empty,
            "first": self.first,
            "last": self.last,
        }

    def add(
        self, batch: RawBatch, rows: pa.RecordBatch, letters: pa.RecordBatch, keys: list[str]
    ) -> None:
        """Counts the rows of a batch.

        Args:
            batch: The batch.
            rows: The rows that break no rule.
            letters: The dead letters for the other rows.
            keys: Columns that are equal in duplicates.
        """
        self.n_read += batch.n_read
        self.n_empty += batch.n_empty
        has_labels = "label" in rows.schema.names
        labels = rows.column("label").to_numpy() == 1 if has_labels else None
        pairs = _hashes(rows, keys[:2])
        self.keys.add(_hashes(rows, keys[2:], pairs), labels)
        if labels is not None and labels.any():
            self.pairs.add(pairs[labels])
            for ids, name in ((self.users, "user_id"), (self.items, "item_id")):
                if len(ids) < ENOUGH_IDS:
                    new = pc.unique(rows.column(name).filter(pa.array(labels)))
                    ids.update(new.slice(0, ENOUGH_IDS).to_pylist())
        tally = letters_tally(letters)
        for reason, n_rows in tally["by_reason"].items():
            self.rejected[reason] = self.rejected.get(reason, 0) + n_rows
            letter = tally["examples"][reason][0]
            self.examples.setdefault(reason, (letter["file"], letter["line"], letter["row"]))
        if rows.num_rows and "timestamp" in rows.schema.names:
            ends = pc.min_max(rows.column("timestamp")).as_py()
            self.first = min(ends["min"], ends["min"] if self.first is None else self.first)
            self.last = max(ends["max"], ends["max"] if self.last is None else self.last)


def _hashes(rows: pa.RecordBatch, keys: list[str], first: np.ndarray | None = None) -> np.ndarray:
    """Returns a hash of some columns of each row `[n]` uint64, combined with the hash `first`."""
    hashes = np.zeros(rows.num_rows, np.uint64) if first is None else first
    for name in keys:
        column = rows.column(name)
        is_text = pa.types.is_string(column.type)
        code = fingerprints(column) if is_text else column.to_numpy().view(np.uint64)
        hashes = mix(hashes ^ code)
    return hashes


def check_rows(
    config: InteractionsConfig,
    now: int,
    sample: int | None,
    advance: Advance,
    known: dict[str, np.ndarray],
) -> Findings:
    """Reads interactions as a run would.

    Args:
        config: Files and columns.
        now: The current time [seconds since 1970, UTC].
        sample: Number of rows to read; `None`: all.
        advance: Called with the progress.
        known: Hashes of the catalogues' ids, by `items` and `users`.
    """
    findings, columns = Findings(), interaction_columns(config)
    parts = parts_of_files(config, "interactions")
    for file_index, batch in read_all(config, "interactions", columns, sample, advance):
        rows, letters = parse_interactions(batch, config, now, file_index, parts)
        findings.add(batch, rows, letters, duplicate_keys(rows.schema.names))
        for what, ids in known.items():
            is_known = np.isin(fingerprints(rows.column(f"{what[:-1]}_id")), ids)
            findings.n_known[what] = findings.n_known.get(what, 0) + int(is_known.sum())
    return findings


def check_entities(
    what: str, config: EntityConfig, sample: int | None
) -> tuple[Findings, np.ndarray]:
    """Reads items or users as a run would; also returns the hashes of their ids.

    Args:
        what: `items` or `users`.
        config: Files and columns.
        sample: Number of rows to read; `None`: all.
    """
    findings, ids = Findings(), [np.zeros(0, np.uint64)]
    for file_index, batch in read_all(config, what, raw_columns(config), sample):
        rows, letters = parse_entities(batch, config, file_index)
        findings.add(batch, rows, letters, [id_column(config)])
        findings.contents.add(row_hashes(rows))
        ids.append(fingerprints(rows.column(id_column(config))))
    return findings, np.unique(np.concatenate(ids))
