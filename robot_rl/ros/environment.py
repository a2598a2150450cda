"""Prepare processes that use ROS: environment variables, and leftovers of killed processes.

Does not import ROS. Shared memory: each participant of Fast DDS sends through a segment
`fastrtps_<16 hex digits>` in /dev/shm. It holds an exclusive `flock` on the file `…_el` next to it
as long as it lives, even if frozen. A killed participant leaves both files, 35 MB with our profile,
and their random names are never reused. Port files, `fastrtps_port<number>…`, are reused.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import sys
import time
from pathlib import Path

from robot_rl.processes.resources import find_resource

PROFILE = "FASTRTPS_DEFAULT_PROFILES_FILE"
DISCOVERY = "ROS_AUTOMATIC_DISCOVERY_RANGE"

SHARED_MEMORY = Path("/dev/shm")
# A live participant locks its new lock file much sooner than this.
_MINIMUM_AGE_SECONDS = 5.0
_LOCK = re.compile(r"fastrtps_[0-9a-f]{16}_el")

_PICTURES = "launch/fastdds.xml"
_UDP = "launch/fastdds_udp.xml"
_UDP_LOCALHOST = "launch/fastdds_udp_localhost.xml"


def ros_environment(discovery_range: str | None = None) -> dict[str, str]:
    """Return the variables robot_rl sets, name → value, without those the user has set.

    `discovery_range` limits which machines are found, `LOCALHOST` or `SUBNET`; None leaves it to
    ROS.
    """
    wanted = {PROFILE: str(find_resource(_PICTURES))}
    if discovery_range is not None:
        wanted[DISCOVERY] = discovery_range
    return {name: value for name, value in wanted.items() if name not in os.environ}


def prepare_environment(discovery_range: str | None = None) -> None:
    """Set the variables for this process and its children. Call before using ROS."""
    os.environ.update(ros_environment(discovery_range))


def leave_shared_memory() -> None:
    """Restrict this process to UDP, unless the user has set a profile. Call before using ROS.

    For nodes that must not be blocked by others. A receiver through Fast DDS's shared memory
    occasionally takes a lock, and its senders block while it is frozen: an arm's node could then
    neither read nor hold its arm. Call after `prepare_environment`.
    """
    if os.environ.get(PROFILE) != str(find_resource(_PICTURES)):
        return
    if os.environ.get(DISCOVERY) == "LOCALHOST":
        # For this range rmw_fastrtps adds shared memory to the profile's transports.
        os.environ[DISCOVERY] = "SYSTEM_DEFAULT"
        os.environ[PROFILE] = str(find_resource(_UDP_LOCALHOST))
    else:
        os.environ[PROFILE] = str(find_resource(_UDP))


def is_owned(lock: Path) -> bool:
    """Whether a live process holds a lock file; a file that cannot be opened counts as held."""
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        return not isinstance(error, FileNotFoundError)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def remove_abandoned_segments(folder: Path = SHARED_MEMORY) -> list[Path]:
    """Remove this user's segments without a live owner, and their locks; returns them."""
    removed = []
    for lock in folder.glob("fastrtps_*_el"):
        segment = lock.with_name(lock.name.removesuffix("_el"))
        # Skip files that are gone or belong to another user.
        with contextlib.suppress(FileNotFoundError, PermissionError):
            old = time.time() - lock.stat().st_mtime >= _MINIMUM_AGE_SECONDS
            if _LOCK.fullmatch(lock.name) and old and not is_owned(lock):
                segment.unlink(missing_ok=True)
                lock.unlink()
                removed.append(segment)
    return removed


def clean_shared_memory() -> None:
    """Remove leftovers of killed processes, and report them on stderr. Call before using ROS."""
    removed = len(remove_abandoned_segments())
    if removed:
        what = "segment" if removed == 1 else "segments"
        sys.stderr.write(
            f"removed {removed} {what} of shared memory that killed ROS processes had left\n"
        )
