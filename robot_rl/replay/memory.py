"""The server process's own memory: how much there is, and what the C library does with it."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_STATM = Path("/proc/self/statm")


def keep_freed_memory() -> None:
    """Let glibc keep what rows free for the next rows, instead of faulting it in again.

    Without this a third of the server's time goes into the kernel's clearing of pages. What is
    kept is bounded by the most that ever waited at a time. Other C libraries are left alone.
    """
    trim_threshold, mmap_threshold = -1, -3  # from glibc's malloc.h
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(trim_threshold, 256 << 20)
        mallopt(mmap_threshold, 4 << 20)


def return_freed_memory() -> None:
    """Let glibc give back to the system what is free; other C libraries are left alone."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


def anonymous_bytes() -> int:
    """Return this process's memory without mapped files; 0 where the system does not tell."""
    try:
        _, resident, shared = map(int, _STATM.read_bytes().split()[:3])
    except OSError:
        return 0
    return (resident - shared) * _PAGE_BYTES
