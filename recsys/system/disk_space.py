"""Free disk space."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def free_bytes(path: str | os.PathLike[str] | None) -> int | None:
    """Returns the free bytes on the disk of `path`; None if unknown.

    Args:
        path: A file or folder; it need not be there. None: nowhere.
    """
    if path is None:
        return None
    place = Path(path).absolute()
    for folder in (place, *place.parents):
        try:
            return shutil.disk_usage(folder).free
        except FileNotFoundError:
            continue
        except OSError:
            return None
    return None


def free_there(path: str | os.PathLike[str] | None) -> str:
    """Returns the free space on the disk of `path` as the end of a sentence; may be empty."""
    free = free_bytes(path)
    return "" if free is None else f"; {free:,} bytes are free there"
