"""Reads all rows as a run would: what it rejects, duplicates, and other remarkable facts."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recsys.data.config import GateConfig, InteractionsConfig
from recsys.data.dead_letters import letters_tally
from recsys.data.entities import EntityConfig, id_column, parse_entities, raw_columns, row_hashes
from recsys.data.hash_count import HashCount
from recsys.data.hashes import fingerprints, mix
from recsys.data.inspect.profile import Profile
from recsys.data.inspect.roles import has_few_numbers
from recsys.data.inspect.sides import Side
from recsys.data.interactions import (
    duplicate_keys,
    interaction_columns,
    parse_interactions,
    remark_on_positives,
)
from recsys.data.labels import IMPRESSION
from recsys.data.sources.pieces import read_all
from recsys.data.sources.source import RawBatch
from recsys.data.sources.source_files import parts_of_files
from recsys.errors import shown
from recsys.formats import counted

Advance = Callable[[int], None]
"""Called with the number of bytes of each batch."""
_MOST_KEYS = 1 << 25


@dataclasses.dataclass
class Findings:
    """Counts of good, rejected and duplicate rows; estimates if there are very many.

    Attributes:
        n_read: Number of rows; of events if a row holds a list of them.
        n_empty: Number of rows with an empty list of events, which aren't counted as read.
        rejected: Number of rows that break each rule.
        examples: File, line and text of the first row that breaks each rule.
        times: Valid times [seconds since 1970, UTC]: the earliest and the latest of each batch.
        n_known: Number of accepted rows whose item or user is in the catalogue, by the name of
            the catalogue.
        distinct: Distinct hashes: `keys` of the accepted rows, of which duplicates have equal
            ones, flagged if they are positives; of positives the user and item as `pairs`, and
            their `users` and `items`; for items and users also all `values` of a row.
        ids: Hashes of the ids of each batch, for items and users.
    """

    n_read: int = 0
    n_empty: int = 0
    rejected: Counter[str] = dataclasses.field(default_factory=Counter)
    examples: dict[str, tuple[str, int, str]] = dataclasses.field(default_factory=dict)
    times: list[int] = dataclasses.field(default_factory=list)
    n_known: Counter[str] = dataclasses.field(default_factory=Counter)
    distinct: dict[str, HashCount] = dataclasses.field(
        default_factory=lambda: defaultdict(lambda: HashCount(_MOST_KEYS))
    )
    ids: list[np.ndarray] = dataclasses.field(default_factory=list)

    @property
    def n_conflicts(self) -> int:
        """Number of rows of items or users that differ from all earlier rows of their id."""
        return max(0, len(self.distinct["values"]) - self.n_good)

    @property
    def n_rejected(self) -> int:
        """Number of rows that break a rule."""
        return self.rejected.total()

    @property
    def n_good(self) -> int:
        """Number of rows that a run keeps, without duplicates."""
        return len(self.distinct["keys"])

    @property
    def n_positive(self) -> int:
        """Number of positives among the good rows."""
        return self.distinct["keys"].n_flagged

    @property
    def first(self) -> int | None:
        """Earliest valid time [seconds since 1970, UTC]."""
        return min(self.times, default=None)

    @property
    def last(self) -> int | None:
        """Latest valid time [seconds since 1970, UTC]."""
        return max(self.times, default=None)

    def share_known(self, what: str) -> float:
        """Returns the share of accepted rows whose item or user is in the catalogue [0..1]."""
        return self.n_known[what] / max(1, self.distinct["keys"].n_added)

    def to_json(self) -> dict[str, Any]:
        """Returns the counts, as `recsys check --json` prints them."""
        keys = self.distinct["keys"]
        n_duplicates = keys.n_added - len(keys)
        return {
            "rows": self.n_read,
            "good": self.n_good,
            "positives": self.n_positive if "pairs" in self.distinct else None,
            "rejected": self.rejected,
            "rejected_examples": self.examples,
            "duplicates": n_duplicates,
            "duplicates_are_exact": keys.is_exact,
            "duplicate_share": n_duplicates / max(1, keys.n_added),
            "empty_lists": self.n_empty,
            "first": self.first,
            "last": self.last,
        }

    def add(self, batch: RawBatch, letters: pa.RecordBatch) -> None:
        """Counts the rows of a batch; `letters` are the dead letters."""
        self.n_read += batch.n_read
        self.n_empty += batch.n_empty
        tally = letters_tally(letters)
        self.rejected.update(tally["by_reason"])
        for reason, (letter, *_) in tally["examples"].items():
            self.examples.setdefault(reason, (letter["file"], letter["line"], letter["row"]))


def check_rows(
    config: InteractionsConfig,
    now: int,
    sample: int | None,
    advance: Advance,
    sides: Mapping[str, Findings],
) -> Findings:
    """Reads interactions as a run would.

    Args:
        config: Files and columns.
        now: The current time [seconds since 1970, UTC].
        sample: Number of rows to read; `None`: all.
        advance: Called with the progress.
        sides: Findings in the catalogues, by `items` and `users`.
    """
    found, columns = Findings(), interaction_columns(config)
    parts = parts_of_files(config, "interactions")
    known = {what: np.unique(np.concatenate(side.ids)) for what, side in sides.items()}
    for file_index, batch in read_all(config, "interactions", columns, sample, advance):
        rows, letters = parse_interactions(batch, config, now, file_index, parts)
        found.add(batch, letters)
        is_positive = rows.column("label").to_numpy() == 1
        ids = {f"{name}s": fingerprints(rows.column(f"{name}_id")) for name in ("user", "item")}
        pairs = mix(mix(ids["users"]) ^ ids["items"])
        found.distinct["keys"].add(_keys(rows, pairs), is_positive)
        for name, numbers in {"pairs": pairs, **ids}.items():
            found.distinct[name].add(numbers[is_positive])
        for what, theirs in known.items():
            found.n_known[what] += int(np.isin(ids[what], theirs).sum())
        if rows.num_rows and "timestamp" in rows.schema.names:
            found.times += pc.min_max(rows.column("timestamp")).as_py().values()
    return found


def _keys(rows: pa.RecordBatch, pairs: np.ndarray) -> np.ndarray:
    """Returns a hash of each event `[n]`, equal for duplicates and for rows of one impression."""
    keys = pairs
    for name in duplicate_keys(rows.schema.names)[2:]:
        column = rows.column(name)
        is_text = pa.types.is_string(column.type)
        codes = fingerprints(column) if is_text else column.to_numpy().view(np.uint64)
        keys = mix(keys ^ codes)
    if IMPRESSION.name not in rows.schema.names:
        return keys
    shown_in = rows.column(IMPRESSION.name)
    is_there = shown_in.is_valid().to_numpy(zero_copy_only=False)
    return np.where(is_there, mix(pairs ^ fingerprints(shown_in)), keys)


def check_entities(what: str, config: EntityConfig, sample: int | None) -> Findings:
    """Reads `sample` rows (`None`: all) of `what`, the items or the users, as a run would."""
    found = Findings(ids=[np.zeros(0, np.uint64)])
    for file_index, batch in read_all(config, what, raw_columns(config), sample):
        rows, letters = parse_entities(batch, config, file_index)
        found.add(batch, letters)
        found.ids.append(fingerprints(rows.column(id_column(config))))
        found.distinct["keys"].add(found.ids[-1])
        found.distinct["values"].add(row_hashes(rows))
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
        if found.n_rejected > GateConfig().max_rejected_share * found.n_read:
            yield (
                f"{found.n_rejected:,} of {found.n_read:,} rows of {what} are rejected, which"
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
            yield (
                f"{found.n_conflicts:,} rows of {what} have other values than an earlier row with"
                f" their id, of which the first is used. Set data.{what}.latest to the column"
                f" that says which is newest{such}."
            )
    ids = {name: len(events.distinct[f"{name}s"]) for name in ("user", "item")}
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
    yield from filter(None, [remark_on_positives(config, events.n_positive, events.n_good)])
    n_left_out = events.n_good - events.n_positive
    if n_left_out and not config.labels:
        yield (
            f"{n_left_out:,} good rows are no positives. They also vanish from histories: of what"
            " a user did, a model reads only the positives. With labels, all rows are kept."
        )
    n_repeats = events.n_positive - len(events.distinct["pairs"])
    if events.first is not None and n_repeats > _MANY_REPEATS * events.n_positive:
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
