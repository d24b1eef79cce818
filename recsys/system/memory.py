"""Memory that a process has freed, given back to the machine."""

from __future__ import annotations

import ctypes
import gc

import pyarrow as pa


def release_freed() -> None:
    """Gives back what is free: for another process, where this one waits for it.

    The allocators of Arrow and of C keep it for later; that of C only glibc can be asked.
    """
    gc.collect()
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
