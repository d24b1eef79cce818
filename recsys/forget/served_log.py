"""Removes users from the logs of what was served, also while a server writes them."""

from __future__ import annotations

from pathlib import Path

from recsys.data.config import InteractionsConfig
from recsys.data.served_log import FOLDER, ServedRows, log_files, only_log_writer
from recsys.forget.files import Names
from recsys.system.files import replacing

_PRIVATE = 0o600


def forget_in_served_logs(root: Path, config: InteractionsConfig, names: Names) -> int:
    """Removes the rows of users from all logs below a root; returns how many files changed.

    Args:
        root: The root.
        config: Columns of the rows.
        names: The users.
    """
    rows, changed = ServedRows(config), 0
    for folder in filter(Path.is_dir, (root / FOLDER).glob("*")):
        with only_log_writer(folder):
            for file in log_files(folder):
                with file.open(encoding="utf-8", errors="surrogateescape", newline="\n") as opened:
                    lines = list(opened)
                kept = [line for line in lines if not rows.is_of(line, names.ids)]
                if len(kept) < len(lines):
                    with replacing(file) as temporary:
                        temporary.touch(_PRIVATE)
                        temporary.write_text("".join(kept), "utf-8", "surrogateescape")
                    changed += 1
    return changed
