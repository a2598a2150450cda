"""Keeping a server's log and memory small, whatever clients do."""

from __future__ import annotations

import ctypes
import logging
import os
import time
from pathlib import Path

LINES = 20
SECONDS = 10.0
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_STATM = Path("/proc/self/statm")


class LogLimit(logging.Filter):
    """Lets `LINES` records through in `SECONDS`; the next one tells how many were held back.

    Attach it to the logger of a module that logs what others send.
    """

    def __init__(self) -> None:
        """Start with nothing held back."""
        super().__init__()
        self._period_began = -SECONDS
        self._let_through = self._held_back = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the record is logged."""
        now = time.monotonic()
        if now >= self._period_began + SECONDS:
            if self._held_back:
                record.msg = f"({self._held_back} messages were held back) {record.getMessage()}"
                record.args = None
            self._period_began, self._let_through, self._held_back = now, 0, 0
        if self._let_through >= LINES:
            self._held_back += 1
            return False
        self._let_through += 1
        return True


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
