"""Shared memory of Fast DDS that killed processes have left. Loads no ROS.

Each participant sends through a segment `fastrtps_<16 hex digits>` in /dev/shm, and holds an
exclusive `flock` on the file `…_el` beside it for as long as it lives, frozen or not: the kernel
lets it go when the process ends, however it ends. Fast DDS itself tells by the same lock who lives.
A participant that is killed leaves both files, 35 MB with our profile; names are random, so that
nobody uses them again. The files of ports, `fastrtps_port<number>…`, are left alone: those of a
domain are used again by whoever comes next, and become no more.
"""

from __future__ import annotations

import fcntl
import os
import re
import sys
import time
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
# Between making a lock's file and locking it a participant needs far less.
_MINIMUM_AGE_SECONDS = 5.0
_LOCK = re.compile(r"fastrtps_[0-9a-f]{16}_el")
_LOCK_SUFFIX = "_el"


def is_owned(lock: Path) -> bool:
    """Whether a living process holds a lock file; one that cannot be opened counts as held."""
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def remove_abandoned_segments(
    folder: Path = SHARED_MEMORY, minimum_age_s: float = _MINIMUM_AGE_SECONDS
) -> list[Path]:
    """Remove the segments whose owner is gone; not inside a control loop.

    Args:
        folder: Where they are.
        minimum_age_s: A lock file younger than this [s] is left alone: its owner may be about to
            lock it.

    Returns:
        The segments that are gone, with their lock files; those of another user stay.
    """
    removed = []
    for lock in folder.glob(f"fastrtps_*{_LOCK_SUFFIX}"):
        if not _LOCK.fullmatch(lock.name):
            continue
        segment = lock.with_name(lock.name.removesuffix(_LOCK_SUFFIX))
        try:
            abandoned = time.time() - lock.stat().st_mtime >= minimum_age_s and not is_owned(lock)
            if abandoned:
                segment.unlink(missing_ok=True)
                lock.unlink()
                removed.append(segment)
        except FileNotFoundError:
            continue  # somebody else has removed it meanwhile
        except PermissionError:
            continue
    return removed


def clean_shared_memory() -> None:
    """Remove what killed processes have left, and say so: when a process begins to use ROS."""
    removed = remove_abandoned_segments()
    if removed:
        what = "segment" if len(removed) == 1 else "segments"
        sys.stderr.write(
            f"removed {len(removed)} {what} of shared memory that killed ROS processes had left\n"
        )
