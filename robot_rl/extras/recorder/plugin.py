"""Flight recorder plugin: a process that records the last minutes of the ROS 2 topics."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING

from robot_rl.plugins import Plugin

if TYPE_CHECKING:
    from omegaconf import DictConfig


def recorder(config: DictConfig) -> list[str] | None:
    """Return the recorder's command; None if recording is off or the robot has no topics."""
    from robot_rl.config import section  # imported late because Hydra is slow to load
    from robot_rl.config.sections import RecorderSection
    from robot_rl.errors import require

    options = section(config, "recorder", RecorderSection)
    if not options.minutes:
        return None
    if "namespace" not in config.robot:
        _say(f"robot={config.choices.robot} has no topics: recorder.minutes records nothing")
        return None
    require("mcap", "mcap")
    settings = (config.robot.namespace, options.minutes, options.segment_s)
    return ["robot_rl.extras.recorder.recorder", *map(str, settings)]


@functools.cache
def _say(words: str) -> None:
    """Print a message once."""
    print(words, file=sys.stderr, flush=True)


PLUGIN = Plugin(companions={"recorder": f"{__name__}:recorder"})
