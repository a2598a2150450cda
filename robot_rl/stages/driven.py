"""The environment of a stage in which a person drives, with the console beside their device."""

from __future__ import annotations

from omegaconf import DictConfig

from robot_rl.console.link import ConsoleLink
from robot_rl.console.telemetry import TelemetryEnv
from robot_rl.env.factory import make_inbox, make_intervention
from robot_rl.env.intervention import Intervention
from robot_rl.rewards.factory import make_source, make_watched_env, reward_cameras
from robot_rl.rewards.wrapper import RewardWrapper
from robot_rl.run import RunDirectory


def make_driven_env(config: DictConfig, run: RunDirectory) -> tuple[TelemetryEnv, Intervention]:
    """Make the configured environment for an operator who drives it, judged as configured.

    Args:
        config: The configuration; its `operator` or `teleop` says who drives.
        run: The run whose console shows it.

    Returns:
        The environment, and the wrapper in it that listens to the operator.

    Raises:
        RewardError: The model of the configured reward cannot be read.
    """
    inner, hidden = make_watched_env(config, reward_cameras(config))
    inbox = make_inbox(config)
    operated = make_intervention(config, inner, inbox)
    judged = RewardWrapper(operated, make_source(config), hidden=hidden)
    return TelemetryEnv(judged, operated, ConsoleLink(run, inbox)), operated
