"""The environment of an evaluation in real time, on a robot that people attend to."""

from __future__ import annotations

from collections.abc import Callable

from omegaconf import DictConfig, OmegaConf

from robot_rl.env.factory import make_inbox, make_intervention
from robot_rl.env.intervention import Intervention
from robot_rl.env.operator import OperatorEvent
from robot_rl.env.reset import make_reset
from robot_rl.env.rollout import EpisodeResult
from robot_rl.rewards.factory import make_source, make_watched_env, reward_cameras
from robot_rl.rewards.source import TaskReward
from robot_rl.rewards.wrapper import RewardWrapper

# What an operator says of the attempt, not of the policy.
_TAKEN_BACK = (OperatorEvent.PAUSE, OperatorEvent.DISCARD)


class AttendedRobot:
    """One robot, with its operator and the reset that it is trained with.

    The task's own detector judges where there is one, else the configured reward source; the
    operator may say `success` and `failure` as in training. An episode in which the operator drives
    is none of the policy's successes. One that they `pause` or `discard` is made again.

    Args:
        config: The configuration.
        note: Told of labels that do not count.

    Attributes:
        env: The environment.
    """

    def __init__(self, config: DictConfig, note: Callable[[str], None]) -> None:
        """Make the environment; see the class for the arguments."""
        alone = _without_simulation(config)
        form = alone.task[alone.robot.get("task", "environment")]
        detected = form.get("reports_success", True)
        cameras = [] if detected else reward_cameras(alone)
        inner, hidden = make_watched_env(alone, cameras)
        self._operated: Intervention = make_intervention(alone, inner, make_inbox(alone))
        self.env = RewardWrapper(
            make_reset(alone, self._operated, lambda: False),
            TaskReward() if detected else make_source(alone),
            hidden=hidden,
        )
        self.env.on_late_label = lambda success: note(
            f"evaluation: the label {'success' if success else 'failure'} came after the end of"
            " its episode and does not count"
        )

    def taken_back(self) -> str | None:
        """Why the attempt that has just ended says nothing of the policy, None if it does."""
        event = self._operated.ended_by
        return f"the operator said {event}" if event in _TAKEN_BACK else None


def _without_simulation(config: DictConfig) -> DictConfig:
    """The configuration without what trains in simulation only: its operator and the way back."""
    replaced: dict[str, object] = {"operator": {"simulated": None}}
    if "backward" in config.reset:
        replaced["reset"] = {"wrapper": None}
    merged = OmegaConf.merge(config, replaced)
    assert isinstance(merged, DictConfig)
    return merged


def succeeded(result: EpisodeResult) -> bool:
    """Whether the policy alone reached the goal."""
    return result.success and not result.intervened_steps
