"""Returns memory that a process has freed to the system."""

from __future__ import annotations

import ctypes
import gc

import pyarrow as pa


def release_freed() -> None:
    """Returns freed memory to the system, as after compiling, or before another process needs it.

    The allocators of Arrow and C would keep it for later use; only glibc can trim that of C.
    """
    gc.collect()
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
