"""Environment variables of every process that takes part in ROS. Loads no ROS."""

from __future__ import annotations

import os

from robot_rl.processes.resources import find_resource

PROFILE = "FASTRTPS_DEFAULT_PROFILES_FILE"
DISCOVERY = "ROS_AUTOMATIC_DISCOVERY_RANGE"

_SHARED_MEMORY = "launch/fastdds.xml"
_UDP = "launch/fastdds_udp.xml"
_UDP_LOCALHOST = "launch/fastdds_udp_localhost.xml"


def ros_environment(discovery_range: str | None = None) -> dict[str, str]:
    """What robot_rl sets, where the user has not.

    Args:
        discovery_range: Which machines are found: `LOCALHOST` or `SUBNET`; None leaves it to ROS.

    Returns:
        Name → value of the variables that are not set yet.
    """
    wanted = {PROFILE: str(find_resource(_SHARED_MEMORY))}
    if discovery_range is not None:
        wanted[DISCOVERY] = discovery_range
    return {name: value for name, value in wanted.items() if name not in os.environ}


def prepare_environment(discovery_range: str | None = None) -> None:
    """Set them for this process and its children: before ROS is used."""
    os.environ.update(ros_environment(discovery_range))


def leave_shared_memory() -> None:
    """Let this process use UDP alone, unless the user has named a profile: before ROS is used.

    For nodes that must go on whatever happens to others. Who receives through Fast DDS's shared
    memory holds a lock now and then, and all who send to it wait while it is frozen: an arm's node
    then neither reads its arm nor holds it. Call it after `prepare_environment`.
    """
    if os.environ.get(PROFILE) != str(find_resource(_SHARED_MEMORY)):
        return
    if os.environ.get(DISCOVERY) == "LOCALHOST":
        # For this range rmw_fastrtps adds shared memory to what a profile says.
        os.environ[DISCOVERY] = "SYSTEM_DEFAULT"
        os.environ[PROFILE] = str(find_resource(_UDP_LOCALHOST))
    else:
        os.environ[PROFILE] = str(find_resource(_UDP))
