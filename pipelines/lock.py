"""The lock of a root, for the pipeline's own programs; it lives where all may take it."""

from recsys.run_lock import LOCK_NAME, RunLock, run_lock

__all__ = ["LOCK_NAME", "RunLock", "run_lock"]
