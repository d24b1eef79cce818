"""Sources that aren't files: tables of other systems, of which a run reads one snapshot.

A config names them by `format` alone, without `files`. Before anything is read, `pinned` replaces
the table by what it holds at that moment, so that workers, caches and repeated tasks see the same
rows. Passwords are never in a config: `$NAME` refers to an environment variable.
"""

from __future__ import annotations

import abc
import importlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, TypeVar

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from recsys.errors import RecsysError
from recsys.strict import NOT_SHOWN, Strict
from recsys.system.installation import extra_needed

if TYPE_CHECKING:
    from recsys.data.source_config import SourceConfig
    from recsys.data.sources.source_files import SourceFile

_MOST_SAID = 300
LANDED = "landed.json"
"""Manifest beside the copied rows of a table."""

RemoveRows = Callable[[Path], bool]
"""Removes the rows of forgotten users from a file; returns whether there were any."""
ConfigT = TypeVar("ConfigT", bound="SourceConfig")
_PASSWORD = re.compile(r"://[^/@\s]*:[^/@\s]+@|(?i:password|pwd|secret|token)\s*=\s*\S")
_SECRET_KEY = re.compile(r"(?i)password|pwd|secret|token|credential|private|sasl\.jaas")
_ADVICE = "write $NAME, where NAME is an environment variable that holds it"


class Landing(NamedTuple):
    """Where copies of a source's rows go, kept from run to run."""

    what: str
    """`interactions`, `items` or `users`."""
    folder: Path
    spans: int | None = None
    """Number of newest spans that are read; None: all."""
    remove_rows: RemoveRows | None = None
    """Removes the rows of forgotten users from a copy; None: there are none."""

    def clean(self, copy: Path) -> None:
        """Removes the rows that must not be kept, before the copy is."""
        if self.remove_rows is not None:
            self.remove_rows(copy)


class Table(Strict, abc.ABC):
    """A source that is no file. Its fields are its options in the config."""

    title: ClassVar[str]
    """Name of the kind of table in messages."""
    lands: ClassVar[bool] = True
    """Whether `pinned` copies the rows into files."""
    has_spans: ClassVar[bool] = False
    """Whether these files are spans."""

    @abc.abstractmethod
    def reach(self, columns: Sequence[str]) -> None:
        """Checks that the table can be read.

        Raises:
            RecsysError: It can't be, or lacks one of `columns`.
        """

    @abc.abstractmethod
    def pinned(self, columns: Sequence[str], landing: Landing) -> dict[str, Any]:
        """Returns the keys of a config that reads the rows of this moment, and no later ones.

        Args:
            columns: The columns to read.
            landing: Where copies of rows go that the table may lose.

        Raises:
            RecsysError: The table can't be read, or lacks a column.
        """

    def snapshot(self) -> dict[str, Any]:
        """Returns the identity of a pinned table that doesn't land, plain JSON."""
        raise NotImplementedError

    def files(self) -> list[SourceFile]:
        """Returns the data files of a table that doesn't land, once it is pinned."""
        raise RecsysError(
            "R257",
            f"The rows of {self.title} are in files only during a run.",
            "Run once, so that they are counted.",
        )


def pinned(config: ConfigT, columns: Sequence[str], landing: Landing) -> ConfigT:
    """Returns a config that reads the rows of this moment; one with files is returned unchanged.

    Args:
        config: A table, or files.
        columns: The columns to read.
        landing: Where copies of rows go that the table may lose.

    Raises:
        RecsysError: The table can't be read, or lacks a column.
    """
    if not isinstance(config.format, Table):
        return config
    own = config.format.pinned(table_columns(config, columns), landing)
    return config.model_copy(update=own)


def snapshot_of(config: SourceConfig, last_file: str) -> dict[str, Any]:
    """Returns `snapshot`, the identity of what a pinned config reads; nothing for plain files.

    For copied rows it is the manifest beside them, such as the offsets of a night.
    """
    if isinstance(config.format, Table):
        return {"snapshot": config.format.snapshot()}
    manifest = Path(last_file).with_name(LANDED)
    return {"snapshot": json.loads(manifest.read_text())} if manifest.is_file() else {}


def table_columns(config: SourceConfig, columns: Sequence[str]) -> list[str]:
    """Returns the columns of a table that hold `columns`, which may be fields of events."""
    events = getattr(config, "explode", None)
    names = columns if events is None else map(events.raw_column, columns)
    return list(dict.fromkeys(names))


def required(module: str, extra: str) -> Any:
    """Imports a module of an extra.

    Raises:
        RecsysError: It isn't installed.
    """
    rule = f"This source needs the package {module.partition('.')[0]}."
    with extra_needed(extra, "R248", rule):
        return importlib.import_module(module)


@contextmanager
def answering(system: str, cure: str, secrets: Iterable[str] = ()) -> Iterator[None]:
    """Turns any error of a system's client into one line, without secrets.

    Args:
        system: What must answer.
        cure: Advice.
        secrets: Texts that must not be shown.
    """
    try:
        yield
    except (RecsysError, GeneratorExit):
        raise
    except Exception as error:  # noqa: BLE001 each client raises its own
        said = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        for secret in filter(None, secrets):
            said = said.replace(secret, "***")
        rule = f"{system} must answer; its client says: {said[:_MOST_SAID].rstrip('.')}."
        raise RecsysError("R249", rule, cure, type(error).__name__) from None


# --- secrets


def from_environment(text: str) -> str:
    """Returns a text; for `$NAME`, the value of the environment variable.

    Raises:
        RecsysError: The variable isn't set.
    """
    if not text.startswith("$"):
        return text
    value = os.environ.get(text[1:])
    if not value:
        raise RecsysError(
            "R248",
            f"The environment variable {text[1:]} must be set, as the config refers to {text}.",
            "Set it where the run starts.",
        )
    return value


def _without_password(uri: str) -> str:
    if _PASSWORD.search(uri):
        raise PydanticCustomError(NOT_SHOWN, f"must hold no password: {_ADVICE}")
    return uri


def _without_secrets(options: Mapping[str, str]) -> Mapping[str, str]:
    for name, value in options.items():
        if (_SECRET_KEY.search(name) and not value.startswith("$")) or _PASSWORD.search(value):
            rule = "the option {name} must not hold a secret: " + _ADVICE
            raise PydanticCustomError(NOT_SHOWN, rule, {"name": name})
    return options


PlainUri = Annotated[str, AfterValidator(_without_password)]
"""A URI without a password; or `$NAME`, an environment variable with the URI."""
PlainOptions = Annotated[dict[str, str], AfterValidator(_without_secrets)]
"""Options of a client; the values of secret ones are `$NAME`, environment variables."""
