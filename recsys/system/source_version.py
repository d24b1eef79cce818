"""The commit of the running code, for the records of a run."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recsys import __version__

_ROOT = Path(__file__).resolve().parents[2]
_PACKAGES = ("recsys", "components", "pipelines")
_TIMEOUT_S = 10.0


def source_version(root: Path = _ROOT) -> dict[str, Any]:
    """Returns the commit of the code; without git, or outside a checkout, its version alone.

    Args:
        root: Folder that holds our packages.

    Returns:
        `version`, that of the package; `commit`, 40 hex digits or None; `is_dirty`, whether
        the packages' sources differ from it, or None.
    """
    commit = _git(root, "rev-parse", "HEAD") if (root / ".git").exists() else None
    changes = None if commit is None else _git(root, "status", "--porcelain", "--", *_PACKAGES)
    return {
        "version": __version__,
        "commit": commit,
        "is_dirty": None if changes is None else bool(changes),
    }


def version_text(source: Mapping[str, Any] | None) -> str:
    """Returns in words what `source_version` returned; None was not recorded."""
    if not source:
        return "not recorded"
    if not source.get("commit"):
        return f"version {source.get('version')}, outside a git checkout"
    dirty = ", with changes that were not committed" if source.get("is_dirty") else ""
    return f"{source['commit']}{dirty}"


def _git(root: Path, *words: str) -> str | None:
    """Returns what git prints, or None if it can't be had."""
    command = ["git", "-C", str(root), "-c", "core.fsmonitor=false", *words]
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    environment.pop("GIT_DIR", None)  # As a hook of another repository would have it.
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return done.stdout.strip()
