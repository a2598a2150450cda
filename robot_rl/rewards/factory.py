"""From a configuration to a reward source, and to an environment that shows what it needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from policies import registry
from robot_rl.env.factory import make_env
from robot_rl.env.robot_env import RobotEnv
from robot_rl.rewards.source import RewardSource

Config = Mapping[str, Any]


def make_source(config: Config) -> RewardSource:
    """Make the configured source.

    Raises:
        RewardError: Its model cannot be read.
    """
    source: RewardSource = registry.make(config["reward"]["source"])
    return source


def reward_cameras(config: Config) -> list[Mapping[str, Any]]:
    """Cameras that the configured source needs, as `observation.cameras` describes cameras."""
    return list(config["reward"]["cameras"])


def make_watched_env(
    config: Config, cameras: Iterable[Mapping[str, Any]]
) -> tuple[RobotEnv, frozenset[str]]:
    """Make the configured environment with cameras for the reward beside those of the policy.

    Args:
        config: The configuration.
        cameras: As `observation.cameras`; one of a name that is there already is not added.

    Returns:
        The environment, and the observation names that are there for the reward alone.
    """
    observed = {camera["name"] for camera in config["observation"]["cameras"]}
    further = [camera for camera in cameras if camera["name"] not in observed]
    names = {f"images/{camera['name']}{kind}" for camera in further for kind in ("", "_depth")}
    return make_env(config, further), frozenset(names)
