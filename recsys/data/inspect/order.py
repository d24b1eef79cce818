"""The split that data suggest: parts by name, times, or the order of rows."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from pathlib import PurePath

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recsys.data.config import InteractionsConfig, Split
from recsys.data.hashes import fingerprints
from recsys.data.inspect.layout import Layout
from recsys.data.inspect.names import words_of
from recsys.data.inspect.profile import Profile
from recsys.data.inspect.roles import parts_of
from recsys.data.sources.source_files import patterns as patterns_of
from recsys.data.sources.source_files import span_pattern
from recsys.errors import shown

_ROWS, _COLUMNS = 200_000, 50
_MOST_NAMED_FILES = 100
_LEAST_CHANGES, _MOST_REVERSALS = 0.05, 0.01
"""Shares of a user's consecutive rows that differ, and that contradict the order of a column."""
_LEAST_DESCENTS = 0.2
"""Share of a user's consecutive rows with descending item ids, above which the rows are not sorted
by item; in random order it is one half."""


def globs_of_spans(layout: Layout) -> list[str]:
    """Returns the globs of patterns that have spans."""
    spans = map(span_pattern, patterns_of(layout.source.files))
    return [span.as_glob for span in spans if span is not None]


def propose_split(
    config: InteractionsConfig, profiles: Mapping[str, Profile], layout: Layout
) -> tuple[InteractionsConfig, Split, str]:
    """Returns the config with the parts or the order of a split, the split, and the reason."""
    files = {} if globs_of_spans(layout) else _named_files(layout)
    has_times = config.columns.timestamp is not None
    if config.columns.part is not None or files:
        reason = "names of files say which are held out" if files else "a column names the parts"
        how = "eval_files, with all files in files" if files else "columns.part"
        instead = f"; for one split in time instead: split: time, without {how}"
        return config.model_copy(update=files), "given", reason + instead * has_times
    if has_times:
        return config, "time", "there are times"
    stands_together, sorted_by = _order_of_rows(config, profiles)
    is_weighed = config.columns.rating is not None or config.columns.weight is not None
    if stands_together and sorted_by is None and not is_weighed and not config.labels:
        reason = (
            "no times; rows of a user stand together and are not sorted by any column, so they"
            " seem to stand in their order; if they don't: random, without order"
        )
        return config.model_copy(update={"order": "file"}), "last_out", reason
    sign = "no times and no sign of an order"
    if stands_together and sorted_by is not None:
        why = "which explains their order"
        sign = f"no times; rows of a user are sorted by {shown(sorted_by)}, {why}"
    reason = f"{sign}; if rows stand in the order of time: last_out, with interactions.order file"
    return config, "random", reason


def _named_files(layout: Layout) -> dict[str, tuple[str, ...]]:
    """Returns the files of each part if their names, or those of their folders, say it."""
    listed = patterns_of(layout.source.files), [file.path for file in layout.files]
    for files, at in itertools.product(listed, (-1, -2)):
        parts = parts_of({file: words_of(PurePath("x", "x", file).parts[at]) for file in files})
        is_clear = parts and not set(parts["eval"]) & set(parts["train"])
        if is_clear and len(files) <= _MOST_NAMED_FILES:
            valid = tuple(f for f in parts["valid"] if f not in parts["eval"] + parts["train"])
            rest = tuple(file for file in files if file not in parts["eval"] + valid)
            return {"files": rest, "eval_files": parts["eval"], "valid_files": valid}
    return {}


def _order_of_rows(
    config: InteractionsConfig, profiles: Mapping[str, Profile]
) -> tuple[bool, str | None]:
    """Returns whether rows are grouped by user, and the column that they are sorted by."""
    user, item = config.columns.user, config.columns.item
    plain = [n for n, p in profiles.items() if p.kind not in ("empty", "list", "vector")]
    texts = {name: profiles[name].texts.slice(0, _ROWS) for name in (user, item, *plain[:_COLUMNS])}
    is_known = texts[user].is_valid()
    users = fingerprints(texts.pop(user).filter(is_known))
    is_same = users[1:] == users[:-1]
    n_runs = 1 + int((~is_same).sum())
    if n_runs > 1.01 * len(np.unique(users)) or not is_same.any():
        return False, None
    # Items may be sorted as text or, if all are numbers, as numbers.
    falls = [rank[1:] < rank[:-1] for rank in _ranks(texts.pop(item).filter(is_known))]
    if min(fall[is_same].mean() for fall in falls) < _LEAST_DESCENTS:
        return True, item
    for name, values in texts.items():
        steps = np.diff(next(_ranks(values.filter(is_known))))
        fewer, more = sorted([(steps[is_same] < 0).mean(), (steps[is_same] > 0).mean()])
        is_row_number = (steps == 1).mean() >= 1 - _MOST_REVERSALS
        if fewer <= _MOST_REVERSALS and more >= _LEAST_CHANGES and not is_row_number:
            return True, name
    return True, None


def _ranks(values: pa.Array) -> Iterator[np.ndarray]:
    """Yields values as numbers, if all are numbers, and their ranks as text `[n]`; NaN for null."""
    with contextlib.suppress(pa.ArrowInvalid):
        yield pc.cast(values, pa.float64()).to_numpy(zero_copy_only=False)
    is_null = values.is_null().to_numpy(zero_copy_only=False)
    yield np.where(is_null, np.nan, pc.rank(values, tiebreaker="dense").to_numpy())
