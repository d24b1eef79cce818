"""What a split of the data needs, and what needs a split by time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from recsys.config.data import DataConfig, InteractionsConfig
    from recsys.config.run import Config

Split = Literal["time", "last_out", "random", "given"]
"""How the positives are split into those trained on and those held out."""

Order = Literal["time", "file", "none"]
"""What orders the events: timestamps, their places in the files, or nothing."""

_SPAN = re.compile(r"\{(SPAN|VERSION|YYYY|MM|DD)(:\d+)?\}")


def refuse(misfits: Iterable[str]) -> None:
    """Raises ValueError with the first of `misfits`, if there is any."""
    for misfit in misfits:
        raise ValueError(misfit)


def misfits_of_interactions(config: InteractionsConfig) -> Iterator[str]:
    """Yields what is wrong with the order and the parts of interactions, a sentence each."""
    if config.order is not None and config.columns.timestamp is not None:
        yield (
            "order says what takes the place of timestamps, and columns.timestamp names"
            " them: leave out one of the two"
        )
    if config.order == "file" and config.query is not None:
        yield "order: file needs files: the rows that a query returns have no order"
    if config.eval_files and config.query is not None:
        yield "eval_files needs files: name the part of a query's rows by columns.part"
    if config.eval_files and config.columns.part is not None:
        yield "eval_files and columns.part both name the held-out rows: leave out one of the two"
    if config.columns.part is not None:
        if not config.train_parts or not config.eval_parts:
            yield "columns.part needs a value or more in each of train_parts and eval_parts"
        for value in set(config.train_parts) & set(config.eval_parts):
            yield f"train_parts and eval_parts both name {value!r}: a row is of one part"


def misfits_of_split(data: DataConfig) -> Iterator[str]:
    """Yields why the data can't be split as `data.split` says, a sentence each."""
    source, split = data.interactions, data.split
    order = source.ordered_by
    if split == "time" and order != "time":
        yield (
            "split: time needs interactions.columns.timestamp: name the column of the times, or"
            " set data.split to last_out, random or given, which need none"
        )
    if split == "last_out" and order == "none":
        yield (
            "split: last_out needs an order: name interactions.columns.timestamp, or set"
            " interactions.order to file where rows stand in the order in which things happened;"
            " without an order, set data.split to random"
        )
    names_parts = source.columns.part is not None or bool(source.eval_files)
    if split == "given" and not names_parts:
        yield "split: given needs interactions.columns.part or interactions.eval_files"
    if split != "given" and names_parts:
        yield (
            "interactions.columns.part and interactions.eval_files need split: given; leave them"
            f" out to split by {split}"
        )
    yield from _needs_of_time(data)


def _needs_of_time(data: DataConfig) -> Iterator[str]:
    named = (data.interactions.files, data.interactions.eval_files)
    patterns = [p for files in named for p in ((files,) if isinstance(files, str) else files)]
    spans = [pattern for pattern in patterns if _SPAN.search(pattern)]
    if data.split != "time" and spans:
        yield (
            f"split: {data.split} can't go with spans ({spans[0]!r}): a window of nights is split"
            " by time; set data.split to time, or name the files without {SPAN} or a date"
        )
    for name in ("users", "items"):
        is_timed = getattr(data.vocabulary, name).evict_after_days is not None
        if is_timed and data.interactions.ordered_by != "time":
            yield (
                f"vocabulary.{name}.evict_after_days needs interactions.columns.timestamp: without"
                " times nobody knows how long an id has not been seen; leave it out"
            )


def misfits_of_run(config: Config) -> Iterator[str]:
    """Yields what else of a config needs another split or an order, a sentence each."""
    split, order = config.data.split, config.data.interactions.ordered_by
    if config.warm_start is not None and split != "time":
        yield (
            f"warm_start needs data.split: time; with {split} an earlier model may have been"
            " trained on what is held out now: leave warm_start out"
        )
    is_unordered = split == "random" or (split == "given" and order == "none")
    if config.evaluate.query == "each_moment" and is_unordered:
        yield (
            f"evaluate.query: each_moment needs held-out events that come after what is known;"
            f" with data.split: {split} nothing says that they do: leave it out, or set at_cut"
        )
    if config.model.history_of == "past" and order == "none":
        yield (
            "model.history_of: past needs an order of the events, and data.interactions has none:"
            " leave it out, or set others"
        )
