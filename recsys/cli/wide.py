"""A console for tables of many columns, wide enough where it is no terminal."""

from __future__ import annotations

import os
import sys

from recsys.cli.terminal import Console

_WIDTH = 130


def wide_console() -> Console:
    """Returns a console on stdout; into a file or a pipe it writes lines of 130 characters."""
    is_told = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if is_told else _WIDTH)
