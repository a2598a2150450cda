"""The environment of a stage that an operator attends to, with the console beside their device."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from omegaconf import DictConfig

from robot_rl.console.link import ConsoleLink
from robot_rl.console.telemetry import TelemetryEnv
from robot_rl.env.factory import make_inbox, make_intervention
from robot_rl.env.intervention import Intervention
from robot_rl.env.reset import make_reset
from robot_rl.env.robot_env import RobotEnvWrapper
from robot_rl.rewards.wrapper import RewardWrapper, make_source, make_watched_env, reward_cameras
from robot_rl.run import RunDirectory


def make_driven_env(config: DictConfig, run: RunDirectory) -> tuple[TelemetryEnv, Intervention]:
    """Make the configured environment for an operator who begins each episode and drives it.

    Args:
        config: The configuration; its `operator` or `teleop` says who drives.
        run: The run whose console shows it.

    Returns:
        The environment, and the wrapper in it that listens to the operator.

    Raises:
        RewardError: The model of the configured reward cannot be read.
    """
    return _make(config, run, lambda operated: operated)


def make_attended_env(config: DictConfig, run: RunDirectory) -> tuple[TelemetryEnv, Intervention]:
    """As `make_driven_env`, for a policy that acts, with the reset that is configured for it."""
    return _make(config, run, lambda operated: make_reset(config, operated, lambda: False))


def once_free(
    seeds: Iterator[int], env: TelemetryEnv, note: Callable[[str], None]
) -> Iterator[int]:
    """Hand on each seed once an episode may begin, as far as people are concerned.

    Args:
        seeds: Of the episodes.
        env: Where they run.
        note: Told what is waited for.
    """
    for seed in seeds:
        env.wait_until_free(lambda: False, note)
        yield seed


def _make(
    config: DictConfig, run: RunDirectory, reset: Callable[[Intervention], RobotEnvWrapper]
) -> tuple[TelemetryEnv, Intervention]:
    inner, hidden = make_watched_env(config, reward_cameras(config))
    inbox = make_inbox(config)
    operated = make_intervention(config, inner, inbox)
    judged = RewardWrapper(reset(operated), make_source(config), hidden=hidden)
    return TelemetryEnv(judged, operated, ConsoleLink(run, inbox)), operated
