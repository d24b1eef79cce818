"""The command line, run in this process."""

from pathlib import Path

import pytest

from recsys.cli import main

SMALL = (
    "name: small\n"
    "root: runs\n"
    "data:\n"
    "  interactions: {files: e.csv, columns: {user: u, item: i, timestamp: t}}\n"
    "  items: {files: i.csv, columns: {item: i, title: n}}\n"
)
"""A small config; its files need not exist."""


def small_config(folder: Path) -> Path:
    """Writes `SMALL` into a folder."""
    path = folder / "small.yaml"
    path.write_text(SMALL)
    return path


def run_main(*words: object) -> int:
    """Runs `recsys words` and returns its exit code."""
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return int(ended.value.code or 0)
