"""How an error looks: one red sentence on stderr, never a traceback."""

from __future__ import annotations

import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from recsys.errors import RecsysError
from recsys.system.process import storage_error
from recsys.visible import visible


@contextmanager
def one_sentence() -> Iterator[None]:
    """Ends the program with one sentence if its block raises an error.

    The exit code is the error's own, and 1 for an error that nobody foresaw; the
    traceback of such a one goes to a file whose path the sentence names.
    """
    try:
        yield
    except RecsysError as error:
        print_error(str(error))
        sys.exit(error.exit_code)
    except OSError as error:
        print_error(str(storage_error(error)))
        sys.exit(1)
    except Exception as error:  # noqa: BLE001 the last stop before the user
        print_error(str(unforeseen(error)))
        sys.exit(1)


def print_error(sentence: str) -> None:
    """Prints `sentence` on stderr, red where that is a terminal."""
    red, plain = ("\033[31m", "\033[0m") if sys.stderr.isatty() else ("", "")
    print(f"{red}{visible(sentence)}{plain}", file=sys.stderr, flush=True)


def unforeseen(error: Exception) -> RecsysError:
    """Returns what to tell of a bug, after its traceback is written to a file."""
    path = _write_traceback(error)
    return RecsysError(
        "R900",
        "The program met an error that it has no sentence for.",
        f"Please report it with {path}.",
        error,
    )


def _write_traceback(error: Exception) -> Path:
    with tempfile.NamedTemporaryFile(
        "w",
        prefix="recsys-",
        suffix=".log",
        delete=False,
        encoding="utf-8",
        errors="backslashreplace",
    ) as file:
        file.write(f"{' '.join(sys.argv)}\n\n")
        file.writelines(traceback.format_exception(error))
    return Path(file.name)
