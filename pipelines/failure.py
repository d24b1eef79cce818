"""What a step that failed is told as."""

from __future__ import annotations

import errno

from recsys.errors import RecsysError
from recsys.process import storage_error

_STORAGE = {errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO}


def as_recsys_error(error: BaseException, step: str) -> RecsysError:
    """Returns the `RecsysError` that caused `error`, or one that says that `step` failed."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, RecsysError):
            return cause
        if isinstance(cause, OSError) and cause.errno in _STORAGE:
            return storage_error(cause)
        cause = cause.__cause__ or cause.__context__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return RecsysError(
        "R600",
        f"The step {step} failed.",
        "The run's log holds the whole story; if the data is in order, report it.",
        f"{type(error).__name__}: {lines[-1] if lines else ''}",
    )
