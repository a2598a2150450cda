"""Locks that the system drops with the last process that holds them, however that ends."""

from __future__ import annotations

import fcntl


def locked(descriptor: int) -> bool:
    """Lock an open file or folder for its descriptor alone, if nobody else has; never waits."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
