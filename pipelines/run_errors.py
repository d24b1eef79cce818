"""The errors of a step that failed and of a run that was stopped."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

from recsys.errors import RecsysError
from recsys.system.disk import full_disk_error, storage_error
from recsys.system.signals import StoppedError
from recsys.system.unexpected import plugin_error

_STORAGE = {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO}
_FULL = re.compile(r"No space left on device|Disk quota exceeded|database or disk is full")
"""What Beam, TensorFlow, Arrow and SQLite say in errors that have no number."""
_NAMED = re.compile(r"[\s'\"](/[^'\";\s]+)")


def as_recsys_error(error: BaseException, step: str, root: Path) -> RecsysError:
    """Returns the `RecsysError` that caused `error`, or one that says that `step` failed.

    Args:
        error: What was raised.
        step: The step that raised it.
        root: Where the run writes, for errors that name no file.
    """
    causes = list(_chain(error))
    for cause in causes:
        if isinstance(cause, RecsysError):
            return cause
        if isinstance(cause, OSError) and cause.errno in _STORAGE:
            return storage_error(cause, root)
    for cause in causes:
        if full := _FULL.search(str(cause)):
            near = full.string[max(0, full.start() - 300) : full.end() + 300]
            named = [path for path in _NAMED.findall(near) if Path(path).parent.is_dir()]
            where = [*named, str(root)][0]
            return storage_error(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), where))
    if full_disk := full_disk_error(root):
        return full_disk
    for cause in reversed(causes):
        if told := plugin_error(cause, "R600"):
            return told
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    rule = f"The step {step} failed."
    cure = "See the log of the run; if the data are correct, report this as a bug."
    return RecsysError("R600", rule, cure, f"{type(error).__name__}: {lines[-1] if lines else ''}")


def stopped_error(stopped: StoppedError, step: str | None) -> RecsysError:
    """Returns the error for a run that was asked to stop."""
    errors = [cause for cause in _chain(stopped) if isinstance(cause, RecsysError)]
    where = f" in {step}" if step else ""
    more = f" {errors[0].rule}" if errors else ""
    rule = f"The run was stopped by {stopped.name}{where}; all its processes have ended.{more}"
    cure = "Run the same command again to resume."
    return RecsysError("R606", rule, cure)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yields an error and what caused it, each once."""
    cause: BaseException | None = error
    seen: set[int] = set()
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__
