"""Environment variables of every process that takes part in ROS. Loads no ROS."""

from __future__ import annotations

import os

from robot_rl.resources import find_resource

PROFILE = "FASTRTPS_DEFAULT_PROFILES_FILE"
DISCOVERY = "ROS_AUTOMATIC_DISCOVERY_RANGE"


def ros_environment(discovery_range: str | None = None) -> dict[str, str]:
    """What robot_rl sets, where the user has not.

    Args:
        discovery_range: Which machines are found: `LOCALHOST` or `SUBNET`; None leaves it to ROS.

    Returns:
        Name → value of the variables that are not set yet.
    """
    wanted = {PROFILE: str(find_resource("launch/fastdds.xml"))}
    if discovery_range is not None:
        wanted[DISCOVERY] = discovery_range
    return {name: value for name, value in wanted.items() if name not in os.environ}


def prepare_environment(discovery_range: str | None = None) -> None:
    """Set them for this process and its children: before ROS is used."""
    os.environ.update(ros_environment(discovery_range))
