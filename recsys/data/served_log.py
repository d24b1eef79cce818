"""Files of the log of what was served: JSON Lines that the ingestion reads.

    <root>/served/<model>/2026-11-27-000001.jsonl     a row for each item of an answer

A row has the columns of `data.interactions` in the config: user, item, time of the request,
impression, position in the answer, and context. Labels and other columns are null. Rows with labels
that name the same impression are merged with it by the ingestion (`recsys.data.labels`). The
columns `SCORES` and `VERSION` are added.
"""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from recsys.data.config import InteractionsConfig
from recsys.data.forgotten import words_of
from recsys.data.sources.values import plain_id, to_times
from recsys.storage.working_folder import home_of
from recsys.system.files import only_writer

FOLDER = "served"
"""Folder of the logs in a root."""
SCORES, VERSION = "served_scores", "served_version"
"""Columns of the scores by label, `served_scores.<label>`, and of the version of the model."""
DAY = "%Y-%m-%d"
"""Format of the day in the name of a file."""
_UNFINISHED = ".new-"
_TICKS = {"seconds": 1, "milliseconds": 10**3, "microseconds": 10**6, "nanoseconds": 10**9}


class Served(NamedTuple):
    """An answer.

    Attributes:
        time: Time of the request [seconds since 1970, UTC].
        user: Id of the user.
        impression: Id of the answer.
        version: Version of the model.
        items: Ids of the items, in the order of the answer.
        context: Values of the request by column.
        by_item: Values of each item by column, in that order.
        scores: Scores of the items by label.
    """

    time: float
    user: str
    impression: str
    version: int
    items: Sequence[str]
    context: Mapping[str, Any]
    by_item: Mapping[str, Sequence[Any]]
    scores: Mapping[str, Sequence[float]]


class ServedRows:
    """Converts answers to rows of the log.

    Args:
        config: The interactions of the config; lists of events (`explode`) become rows.
    """

    def __init__(self, config: InteractionsConfig) -> None:
        self._config, names = config, config.columns
        self.user, self.item = names.user, names.item
        self.impression = names.impression or "impression"
        self._position = names.position or "position"
        self.timestamp = names.timestamp or "timestamp"
        # A file lacks no column that the ingestion reads.
        self._nothing = dict.fromkeys(config.raw_names())

    def lines(self, served: Served) -> str:
        """Returns the row of each item as a line of JSON."""
        shared = {
            **self._nothing,
            **served.context,
            self.user: served.user,
            self.timestamp: self._written(served),
            self.impression: served.impression,
            VERSION: served.version,
        }
        own = {
            self.item: served.items,
            self._position: range(len(served.items)),
            **served.by_item,
        }
        kept = {name: value for name, value in shared.items() if name not in own}
        scores = ",".join(f"{_key(label)}:%s" for label in served.scores).join("{}")
        # One template for all rows: a row of 500 takes no longer than a microsecond.
        fields = ",".join([*(f"{_key(name)}:%s" for name in own), f'"{SCORES}":{scores}'])
        start = _json(kept)[:-1].replace("%", "%%")
        columns = [map(_text, values) for values in (*own.values(), *served.scores.values())]
        template = f"{start},{fields}}}\n"
        return "".join(template % row for row in zip(*columns, strict=True))

    def times(self, column: pa.Array) -> pa.Array:
        """Returns the times of rows `[n]` int64 [seconds since 1970, UTC]."""
        return to_times(column, self._config.timestamp_unit, self._config.timestamp_format)

    def without(self, content: bytes, is_gone: Callable[[str], bool]) -> bytes:
        """Returns lines without the rows of some users; a damaged row may be of any word in it.

        Args:
            content: Lines of a log.
            is_gone: Whether the rows of a user id go.
        """
        lines = content.decode("utf-8", "surrogateescape").split("\n")
        kept = [line for line in lines if not any(map(is_gone, self._users_of(line)))]
        return "\n".join(kept).encode("utf-8", "surrogateescape")

    def _users_of(self, line: str) -> set[str]:
        try:
            return {plain_id(str(json.loads(line)[self.user]).strip())}
        except (ValueError, KeyError, TypeError):
            return words_of(line)

    def _written(self, served: Served) -> Any:
        """Returns the query time, or else the time of the request, as the raw data have it."""
        seconds, given = served.time, served.context.get(self.timestamp)
        if given not in (None, ""):
            text = pa.array([str(given)])
            units = ("seconds", "iso8601")
            found = [to_times(text, unit)[0].as_py() for unit in units]  # type: ignore[arg-type]
            seconds = next((x for x in found if x is not None), seconds)
        moment = dt.datetime.fromtimestamp(int(seconds), dt.UTC)
        if self._config.timestamp_format is not None:
            return moment.strftime(self._config.timestamp_format)
        if self._config.timestamp_unit == "iso8601":
            return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
        return int(seconds * _TICKS[self._config.timestamp_unit])


def _text(value: Any) -> str:
    """Returns a value as JSON; encoders take long for a number."""
    if type(value) in (int, float):
        return repr(value) if math.isfinite(value) else "null"
    return _json(value)


def _key(name: str) -> str:
    return _json(name).replace("%", "%%")


_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def log_folder(root: Path) -> Path:
    """Returns the folder of the logs of a root, for a root in a bucket beside its working folder.

    In the working folder, files that no commit has are removed.
    """
    if home_of(root) is None:
        return root / FOLDER
    return root.with_name(f"{root.name}-{FOLDER}")


def surplus(sizes: Mapping[str, int], days: int, most_bytes: int) -> list[str]:
    """Returns the files of a log that are too old, and the oldest beyond a size of all.

    Args:
        sizes: Size of each file [bytes], by name, which begins with its day.
        days: Days for which files are kept.
        most_bytes: Maximum size of all.
    """
    oldest = (dt.datetime.now(dt.UTC) - dt.timedelta(days=days)).strftime(DAY)
    gone, total = [], sum(sizes.values())
    for name in sorted(sizes):
        if total > most_bytes or name < oldest:
            total -= sizes[name]
            gone.append(name)
    return gone


def log_files(folder: Path) -> list[Path]:
    """Returns the files of a log, the oldest first."""
    return sorted(folder.glob("*.jsonl"))


def only_log_writer(folder: Path) -> AbstractContextManager[None]:
    """Waits for other writers of a log: servers, and `recsys forget`."""
    return only_writer(folder, _UNFINISHED)
