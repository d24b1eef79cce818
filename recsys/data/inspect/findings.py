"""What a run would do with the sampled rows: what it rejects, duplicates, and other facts."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from recsys.data.config import GateConfig, InteractionsConfig
from recsys.data.dead_letters import letters_tally
from recsys.data.entities import (
    EntityConfig,
    id_column,
    keep_latest,
    parse_entities,
    remark_on_conflicts,
)
from recsys.data.inspect.profile import Profile, Sample
from recsys.data.inspect.roles import has_few_numbers
from recsys.data.inspect.sides import Side
from recsys.data.interactions import drop_duplicates, parse_interactions, remark_on_positives
from recsys.data.sources.source import RawBatch
from recsys.data.sources.source_files import parts_of_files
from recsys.errors import shown
from recsys.formats import counted


@dataclasses.dataclass
class Findings:
    """What a run would do with the rows of a sample.

    Attributes:
        rows: The rows that a run keeps, typed.
        n_read: Number of rows; of events if a row holds a list of them.
        n_empty: Number of rows with an empty list of events, which aren't counted as read.
        rejected: Number of rows that break each rule.
        examples: File, line and text of the first row that breaks each rule.
        n_duplicates: Number of rows that repeat another one.
        n_conflicts: Number of rows of items or users that differ from all earlier ones of their id.
        n_known: Number of kept rows whose item or user is in the catalogue, by its name.
    """

    rows: pa.Table = dataclasses.field(default_factory=lambda: pa.table({}))
    n_read: int = 0
    n_empty: int = 0
    rejected: Counter[str] = dataclasses.field(default_factory=Counter)
    examples: dict[str, tuple[str, int, str]] = dataclasses.field(default_factory=dict)
    n_duplicates: int = 0
    n_conflicts: int = 0
    n_known: dict[str, int] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def positives(self) -> pa.Table:
        """The positives among the rows of interactions."""
        return self.rows.filter(pc.equal(self.rows["label"], 1))

    @property
    def times(self) -> tuple[int | None, int | None]:
        """The earliest and the latest time [seconds since 1970, UTC]."""
        if "timestamp" not in self.rows.column_names:
            return None, None
        ends = pc.min_max(self.rows["timestamp"]).as_py()
        return ends["min"], ends["max"]

    def share_known(self, what: str) -> float:
        """Returns the share of rows whose item or user is in the catalogue [0..1]."""
        return self.n_known[what] / max(1, self.rows.num_rows)

    def to_json(self) -> dict[str, Any]:
        """Returns the counts, as `recsys check --json` prints them."""
        n_good, (first, last) = self.rows.num_rows, self.times
        are_events = "label" in self.rows.column_names
        return {
            "rows": self.n_read,
            "good": n_good,
            "positives": self.positives.num_rows if are_events else None,
            "rejected": self.rejected,
            "rejected_examples": self.examples,
            "duplicates": self.n_duplicates,
            "duplicate_share": self.n_duplicates / max(1, n_good + self.n_duplicates),
            "empty_lists": self.n_empty,
            "first": first,
            "last": last,
        }

    def _add(
        self, batch: RawBatch, rows: pa.RecordBatch, letters: pa.RecordBatch
    ) -> pa.RecordBatch:
        """Counts the rows and the dead letters of a batch; returns the rows."""
        self.n_read += batch.n_read
        self.n_empty += batch.n_empty
        tally = letters_tally(letters)
        self.rejected.update(tally["by_reason"])
        for reason, (letter, *_) in tally["examples"].items():
            self.examples.setdefault(reason, (letter["file"], letter["line"], letter["row"]))
        return rows

    @classmethod
    def of_events(
        cls, config: InteractionsConfig, sample: Sample, now: int, sides: Mapping[str, Findings]
    ) -> Findings:
        """Returns the findings in interactions.

        Args:
            config: Files and columns.
            sample: The rows.
            now: The current time [seconds since 1970, UTC].
            sides: Findings in the catalogues, by `items` and `users`.
        """
        found, parts = cls(), parts_of_files(config, "interactions")
        batches = [
            found._add(batch, *parse_interactions(batch, config, now, at, parts))
            for at, batch in sample.batches
        ]
        found.rows, found.n_duplicates = drop_duplicates(pa.Table.from_batches(batches))
        for what, side in sides.items():
            key = f"{what[:-1]}_id"
            is_known = pc.is_in(found.rows[key], value_set=side.rows[key].combine_chunks())
            found.n_known[what] = pc.sum(is_known).as_py() or 0
        return found

    @classmethod
    def of_entities(cls, config: EntityConfig, sample: Sample) -> Findings:
        """Returns the findings in items or users."""
        found = cls()
        batches = [
            found._add(batch, *parse_entities(batch, config, at)) for at, batch in sample.batches
        ]
        kept = keep_latest(pa.Table.from_batches(batches), id_column(config))
        found.rows, found.n_duplicates, found.n_conflicts = kept
        return found


# --- remarks

_FEWEST, _ENOUGH_IDS = 2, 10
"""Minimum number of users, and of items, with positives for training, and for metrics."""
_MANY_REPEATS, _LEAST_KNOWN = 0.01, 0.9
_MOST_NAMED = 10


def remarks_on(
    config: InteractionsConfig,
    profiles: Mapping[str, Profile],
    findings: Mapping[str, Findings],
    sides: Mapping[str, Side],
) -> Iterator[str]:
    """Yields remarkable facts, a sentence each.

    Args:
        config: Config of the interactions.
        profiles: Profiles of their columns.
        findings: Predicted result of a run, by `interactions`, `items` and `users`; there are
            positives.
        sides: The items and the users.
    """
    events = findings["interactions"]
    for what, found in findings.items():
        if found.rejected.total() > GateConfig().max_rejected_share * found.n_read:
            yield (
                f"{found.rejected.total():,} of {found.n_read:,} rows of {what} are rejected, which"
                " exceeds data.gate.max_rejected_share: a run would stop. Repair the data, or"
                " raise the threshold."
            )
        if what in sides and events.share_known(what) < _LEAST_KNOWN:
            share = events.share_known(what)
            yield f"The file of {what} has {share:.2%} of the interactions' {what}."
        if found.n_conflicts:
            columns = sides[what].profiles.values()
            times = [p.name for p in columns if p.kind == "time" or p.unit is not None]
            such = f", such as {shown(times[0])}" if times else ""
            yield f"{remark_on_conflicts(what, found.n_conflicts)}{such}."
    positives = events.positives
    ids = {name: pc.count_distinct(positives[f"{name}_id"]).as_py() for name in ("user", "item")}
    few = " and ".join(counted(n, name, f"{name}s") for name, n in ids.items() if n < _ENOUGH_IDS)
    if min(ids.values()) < _FEWEST:
        yield (
            f"All positives are of {few}: a run would stop (R324). Training needs two users and"
            " two items at least."
        )
    elif few:
        yield (
            f"All positives are of {few}: a run would train, but may stop in the evaluation"
            " (R408), which needs items that a user has not had, and ten users for a verdict."
        )
    yield from filter(None, [remark_on_positives(config, positives.num_rows, events.rows.num_rows)])
    n_left_out = events.rows.num_rows - positives.num_rows
    if n_left_out and not config.labels:
        yield (
            f"{n_left_out:,} good rows are no positives. They also vanish from histories: of what"
            " a user did, a model reads only the positives. With labels, all rows are kept."
        )
    pairs = positives.group_by(["user_id", "item_id"]).aggregate([])
    n_repeats = positives.num_rows - pairs.num_rows
    if config.columns.timestamp is not None and n_repeats > _MANY_REPEATS * positives.num_rows:
        yield (
            f"{n_repeats:,} positives are of an item that the user had before. Lists leave such"
            " items out, unless the config has repeats: include (docs/evaluation.md, Repeats)."
        )
    used = {*config.raw_names()}
    rest = [p for p in profiles.values() if p.name not in used and p.kind != "list"]
    unused = [p for p in rest if len(p.distinct) == 2 or has_few_numbers(p)]
    if unused:
        named = "; ".join(
            f"{shown(p.name)} ({', '.join(shown(value, 16) for value in p.examples)})"
            for p in unused[:_MOST_NAMED]
        )
        more = f"; {len(unused) - _MOST_NAMED} more" if len(unused) > _MOST_NAMED else ""
        yield (
            f"Columns of few values that have no role, so that a run ignores them: {named}{more}."
            " If one says what a positive is, or where or when an event was, give it a role:"
            " --map label=COLUMN, context=COLUMN or outcome=COLUMN."
        )
