"""Error output: one red sentence on stderr, never a traceback."""

from __future__ import annotations

import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from recsys.cli.terminal import Console
from recsys.errors import RecsysError, visible
from recsys.system.disk import storage_error


@contextmanager
def one_sentence() -> Iterator[None]:
    """Ends the program with one sentence if its block raises an error.

    The exit code is the error's own, and 1 for an unexpected error, whose traceback goes to a
    file that the sentence names.
    """
    try:
        yield
    except RecsysError as error:
        failure = error
    except OSError as error:
        failure = storage_error(error)
    except Exception as error:  # noqa: BLE001 the last stop before the user
        failure = _unforeseen(error)
    else:
        return
    print_error(str(failure))
    sys.exit(failure.exit_code)


@contextmanager
def log_of_failure(name: str) -> Iterator[IO[bytes]]:
    """Yields a log file; of an error it names the file, without one it removes it.

    Args:
        name: Prefix of the file name.
    """
    with tempfile.NamedTemporaryFile(prefix=f"{name}-", suffix=".log", delete=False) as log:
        try:
            yield log.file
        except RecsysError:
            print(f"Log: {visible(log.name)}", file=sys.stderr)
            raise
    Path(log.name).unlink()


def print_error(sentence: str) -> None:
    """Prints `sentence` on stderr, in red on a terminal."""
    Console(stderr=True).write_line(sentence, "red")


def _unforeseen(error: Exception) -> RecsysError:
    """Returns the error of a bug, whose traceback is written to a file."""
    with tempfile.NamedTemporaryFile(
        "w", prefix="recsys-", suffix=".log", delete=False, errors="backslashreplace"
    ) as file:
        file.writelines([" ".join(sys.argv), "\n\n", *traceback.format_exception(error)])
    return RecsysError(
        "R900",
        "The program ended with an unexpected error.",
        f"Please report it with {file.name}.",
        error,
    )
