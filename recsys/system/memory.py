"""Memory that a process has freed, given back to the machine."""

from __future__ import annotations

import ctypes
import gc

import pyarrow as pa


def release_freed() -> None:
    """Returns free memory to the system, before this process waits for another one.

    The allocators of Arrow and C would keep it for later; only glibc can trim that of C.
    """
    gc.collect()
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
