"""The split that data suggest: parts by name, times, or the order of rows."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping
from pathlib import PurePath

import pyarrow as pa
import pyarrow.compute as pc

from recsys.data.config import InteractionsConfig, Split
from recsys.data.inspect.layout import Layout
from recsys.data.inspect.names import words_of
from recsys.data.inspect.profile import Profile
from recsys.data.inspect.roles import parts_of
from recsys.data.sources.source_files import patterns as patterns_of
from recsys.data.sources.source_files import span_pattern

_ROWS, _MOST_NAMED_FILES = 200_000, 100
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
    rest = [name for name in profiles if name not in (config.columns.user, config.columns.item)]
    if rest or not _stands_together(profiles[config.columns.user], profiles[config.columns.item]):
        reason = (
            "no times and no sign of an order; if rows stand in the order of time: last_out, with"
            " interactions.order file"
        )
        return config, "random", reason
    reason = (
        "no times; rows of a user stand together, unsorted, so they seem to stand in their order;"
        " if they don't: random, without order"
    )
    return config.model_copy(update={"order": "file"}), "last_out", reason


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


def _stands_together(users: Profile, items: Profile) -> bool:
    """Returns whether rows are grouped by user, and not sorted by item.

    Items may be sorted as text or, if all are numbers, as numbers.
    """
    user, item = (profile.texts.slice(0, _ROWS) for profile in (users, items))
    is_same = pc.fill_null(pc.equal(user[1:], user[:-1]), False).to_numpy(zero_copy_only=False)
    n_runs = 1 + int((~is_same).sum())
    if n_runs > 1.01 * pc.count_distinct(user).as_py() or not is_same.any():
        return False
    falls = [pc.less(item[1:], item[:-1])]
    with contextlib.suppress(pa.ArrowInvalid):
        numbers = item.cast(pa.float64())
        falls.append(pc.less(numbers[1:], numbers[:-1]))
    descents = [pc.fill_null(fall, False).to_numpy(zero_copy_only=False) for fall in falls]
    return min(fall[is_same].mean() for fall in descents) >= _LEAST_DESCENTS
