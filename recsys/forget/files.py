"""Removes users from texts, reports, records and logs, and files that the next run rebuilds.

In structured files every user id is found. In free text an id is searched as a word if it is
distinctive (`is_distinctive`): `7` is not.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import html
import json
import os
import re
import shutil
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from recsys.data import served_log
from recsys.data.config import InteractionsConfig
from recsys.data.forgotten import words_of
from recsys.runs.retention import Thing
from recsys.storage.bucket import Bucket
from recsys.storage.working_folder import home_of
from recsys.system import files
from recsys.system.files import commit_folder, commit_text, folders_in, read_json, remove

GONE = "[forgotten]"
"""Replacement of an id in a text."""
USER_COLUMN = "user_id"
_LEAST, _LEAST_DIGITS = 4, 7
_ARTICLE = re.compile(r'<article class="person">\s*<h3>User (.*?) <span.*?</article>\s*', re.S)
_LETTER = re.compile(r'<p class="letter">.*?<code>(.*?)</code></p>\s*', re.S)
_STATISTICS = re.compile(
    rf"<tr>\s*<th[^>]*>{USER_COLUMN}</th>.*?</tr>|<tbody>\s*<tr[^>]*><th[^>]*>{USER_COLUMN}</th>"
    r".*?</tbody>",
    re.S,
)


def is_distinctive(id_: str) -> bool:
    """Returns whether an id is unambiguous in free text: not a short word or number."""
    return len(id_) >= (_LEAST_DIGITS if id_.isdecimal() else _LEAST)


class Names:
    """User ids to remove.

    Args:
        ids: The ids, as in the vocabularies.
    """

    def __init__(self, ids: Iterable[str]) -> None:
        self.ids = frozenset(ids)
        distinctive = {id_ for id_ in self.ids if is_distinctive(id_)}
        spelled = {
            text
            for id_ in distinctive
            for text in (
                id_,
                json.dumps(id_)[1:-1],
                html.escape(id_),
                html.escape(id_, quote=False),
                id_.replace("'", "''"),
            )
        }
        words = "|".join(map(re.escape, sorted(spelled, key=len, reverse=True)))
        self._words = re.compile(rf"(?<!\w)(?:{words})(?!\w)") if words else None

    def without_words(self, text: str) -> str:
        """Returns a text without the distinctive ids."""
        return text if self._words is None else self._words.sub(GONE, text)

    def in_row(self, row: str) -> bool:
        """Returns whether a raw row has one of the ids as a cell or a word."""
        return not self.ids.isdisjoint(words_of(row))

    def without_json(self, value: Any, name: str = "") -> Any:
        """Returns JSON without entries about the ids.

        Removes list entries about a user: objects with this `user_id`, dead letters with it in
        their row, frequent values of the column of user ids, and examples of new or evicted users.

        Args:
            value: The JSON.
            name: Key of the value, or name of the column that it describes.
        """
        if isinstance(value, str):
            return self.without_words(value)
        if isinstance(value, Mapping):
            column = str(value.get("name") or name)
            column = name if name == "users" else column
            return {
                self.without_words(key): self.without_json(
                    part, key if key in ("users", "items") else column
                )
                for key, part in value.items()
            }
        if isinstance(value, list):
            kept = [part for part in value if not self._is_about(part, name)]
            return [self.without_json(part, name) for part in kept]
        return value

    def _is_about(self, part: Any, name: str) -> bool:
        if isinstance(part, Mapping):
            row = part.get("row")
            return part.get(USER_COLUMN) in self.ids or (isinstance(row, str) and self.in_row(row))
        if isinstance(part, list):
            return bool(part) and name == USER_COLUMN and part[0] in self.ids
        return isinstance(part, str) and name == "users" and part in self.ids

    def without_html(self, page: str) -> str:
        """Returns a report without examples of these users, and without the ids."""

        def emptied(match: re.Match[str]) -> str:
            return "" if html.unescape(match[1]) in self.ids else match[0]

        def without_letter(match: re.Match[str]) -> str:
            return "" if self.in_row(html.unescape(match[1])) else match[0]

        def without_values(match: re.Match[str]) -> str:
            words = "|".join(re.escape(html.escape(id_)) for id_ in self.ids)
            return re.sub(
                rf"(?<=[:,>] )(?:{words})(?= \()|(?<=>)(?:{words})(?= \()", GONE, match[0]
            )

        page = _LETTER.sub(without_letter, _ARTICLE.sub(emptied, page))
        return self.without_words(_STATISTICS.sub(without_values, page))


REBUILT = (
    *("InteractionGen", "UserGen", "Transform.Users", "InteractionEncoder", "Exporter"),
    *(
        f"{step}.{what}"
        for step in ("SchemaGen", "ExampleValidator", "DriftValidator")
        for what in ("Interactions", "Users")
    ),
)
"""Steps whose outputs are removed: the next run rebuilds them, since `data.forget` is part of their
cache keys or of the cache keys of earlier steps."""

_TEXTS = (".html", ".json", ".jsonl", ".log", ".txt", ".yaml", ".yml", ".md", ".pbtxt", ".csv")
_OWN = ("segments", "serving", "checkpoints", served_log.FOLDER)
_OWN_STEPS = ("Trainer", "RankTrainer", "VocabularyGen", *REBUILT)
_DATABASE = ".db"
"""Database of Optuna's studies."""


def rebuilt(root: Path) -> Iterator[Thing]:
    """Yields files and folders that hold many users and are rebuilt, so they are removed whole."""
    for step in REBUILT:
        for folder in sorted((root / "artifacts" / step).glob("*/*")):
            if folder.is_dir() and folder.parent.name != ".system":
                yield Thing(step, folder, "it is made anew", goes=True)
    for name, kind in (("segments", "segment"), ("checkpoints", "checkpoints")):
        for path in folders_in(root / name):
            yield Thing(kind, path, "it is made anew", goes=True)
    for trial in sorted(root.glob("tuning/*/trials/*")):
        yield Thing("trial", trial, "its checkpoints hold users", goes=True)


def forget_in_texts(root: Path, names: Names) -> int:
    """Removes users from reports, records, logs and JSON below a root; returns how many changed."""
    changed = 0
    for path in _files(root, root):
        if path.suffix == _DATABASE:
            changed += _forget_in_database(path, names)
        elif path.suffix in _TEXTS:
            text = path.read_text("utf-8", "surrogateescape")  # A log may contain any bytes.
            new = _without(text, path.suffix, names)
            if new != text:
                with files.replacing(path) as temporary:
                    temporary.write_text(new, "utf-8", "surrogateescape")
                changed += 1
    return changed


def forget_in_served_logs(root: Path, config: InteractionsConfig, names: Names) -> int:
    """Removes the rows of users from all logs of a root; returns how many files changed.

    Args:
        root: The root.
        config: Columns of the rows.
        names: The users.
    """
    rows, changed = served_log.ServedRows(config), 0
    for folder in filter(Path.is_dir, served_log.log_folder(root).glob("*")):
        with served_log.only_log_writer(folder):
            for file in served_log.log_files(folder):
                content = file.read_bytes()
                if (new := rows.without(content, names.ids.__contains__)) != content:
                    with files.replacing(file) as temporary:
                        temporary.touch(0o600)
                        temporary.write_bytes(new)
                    changed += 1
    if (url := home_of(root)) is not None:
        bucket = Bucket(f"{url}/{served_log.FOLDER}")
        for key in [entry.key for entry in bucket.list()]:
            content, _ = bucket.read(key)
            if (new := rows.without(content, names.ids.__contains__)) != content:
                bucket.write(key, new)
                changed += 1
    return changed


def compact(database: Path) -> None:
    """Rewrites a SQLite database, whose free pages still have the content of deleted records."""
    with contextlib.closing(sqlite3.connect(database)) as connection:
        connection.execute("VACUUM")


def _forget_in_database(path: Path, names: Names) -> bool:
    """Rewrites a SQLite database without the ids; returns whether there were any."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        content = "\n".join(connection.iterdump())
    new = names.without_words(content)
    if new != content:
        with (
            files.replacing(path) as temporary,
            contextlib.closing(sqlite3.connect(temporary)) as connection,
        ):
            connection.executescript(new)
    return new != content


def _files(folder: Path, root: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        is_own = folder == root and path.name in _OWN
        if is_own or (folder == root / "artifacts" and path.name in _OWN_STEPS):
            continue
        if path.is_dir():
            yield from _files(path, root)
        elif path.is_file():
            yield path


def _without(text: str, suffix: str, names: Names) -> str:
    if suffix == ".html":
        return names.without_html(text)
    if suffix == ".json":
        return _without_json(text, names, indent=1)
    if suffix == ".jsonl":
        return "".join(_without_json(line, names) for line in text.splitlines(keepends=True))
    return names.without_words(text)


def _without_json(text: str, names: Names, indent: int | None = None) -> str:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return names.without_words(text)
    new = names.without_json(content)
    if new == content:
        return text
    return json.dumps(new, indent=indent, ensure_ascii=False) + "\n"


RECORD = "forget.json"


def start_record(root: Path, users: int) -> None:
    """Adds a record of a removal that has begun."""
    now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    _write(root, [*_read(root), {"started": now, "finished": None, "users": users}])


def finish_record(root: Path, removed: dict[str, Any]) -> None:
    """Completes the newest record with what was removed."""
    *before, last = _read(root)
    now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
    _write(root, [*before, {**last, "finished": now, "removed": removed}])


def is_unfinished(root: Path) -> bool:
    """Returns whether the newest removal was interrupted."""
    records = _read(root)
    return bool(records) and records[-1]["finished"] is None


def _read(root: Path) -> list[dict[str, Any]]:
    return list(read_json(root / RECORD)["removals"]) if (root / RECORD).is_file() else []


def _write(root: Path, removals: list[dict[str, Any]]) -> None:
    commit_text(json.dumps({"format": 1, "removals": removals}, indent=1) + "\n", root / RECORD)


_NEW, _OLD = ".forget-new-", ".forget-old-"


@contextmanager
def linked_copy(folder: Path) -> Iterator[Path]:
    """Yields a copy of `folder` beside it, made of hard links, and removes it at the end."""
    copy = folder.with_name(f"{_NEW}{folder.name}")
    remove(copy)
    try:
        shutil.copytree(folder, copy, copy_function=_link)
        yield copy
    finally:
        remove(copy)


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """Yields a copy of `folder` to change; it replaces `folder` at the end.

    Args:
        folder: The folder. It does not change before the end, nor if the block raises.
    """
    old = folder.with_name(f"{_OLD}{folder.name}")
    with linked_copy(folder) as copy:
        yield copy
        folder.rename(old)
        commit_folder(copy, folder)
        remove(old)


def fresh(path: Path) -> Path:
    """Unlinks a file of the copy, so that it can be rewritten, and returns its path."""
    path.unlink(missing_ok=True)
    return path


def recover(parent: Path) -> None:
    """Completes or undoes a killed call of `replacing`."""
    for old in sorted(parent.glob(f"{_OLD}*")):
        name = old.name.removeprefix(_OLD)
        new, folder = parent / f"{_NEW}{name}", parent / name
        if not folder.exists():
            (new if new.exists() else old).rename(folder)
        remove(old)
    for new in sorted(parent.glob(f"{_NEW}*")):
        remove(new)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # The file system has no hard links.
        shutil.copy2(source, target)
