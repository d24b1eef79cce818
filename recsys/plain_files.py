"""Files of a folder that may be made in bad faith: no link is followed, no pipe waited for."""

from __future__ import annotations

import os
import stat
from io import BufferedReader
from pathlib import Path


def read_plain(path: Path, limit_bytes: int) -> bytes:
    """Returns the content of a plain file.

    Raises:
        OSError: It is none, or longer than the limit, or can't be read.
    """
    with open_plain(path) as file:
        content = file.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        raise OSError(f"more than {limit_bytes} bytes")
    return content


def open_plain(path: Path) -> BufferedReader:
    """Opens a plain file to be read; its folder must be a real one.

    Raises:
        OSError: It is a link, a pipe, a device or a folder, or can't be read.
    """
    if not stat.S_ISREG(os.lstat(path).st_mode):
        raise OSError("no plain file")
    # It may be another one by now.
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError("no plain file")
    return file
