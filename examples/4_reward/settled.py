"""A reward of one's own: success counts only once the hand is at rest."""

from __future__ import annotations

import numpy as np

from robot_rl.data.schema import Observation
from robot_rl.env.task import Outcome
from robot_rl.rewards.source import RewardSource


class SettledReward(RewardSource):
    """The task's own success, held back until the TCP is slow.

    Args:
        speed: Largest speed of the TCP [m/s].
    """

    version = 1000  # `reward_version` of the rows that it judges
    observed = ("state/tcp_velocity",)

    def __init__(self, speed: float) -> None:
        self._speed = speed

    def judge(self, observation: Observation, task: Outcome) -> Outcome:
        """Judge the step that led to this observation; `task` is what its own detector says."""
        slow = np.linalg.norm(observation["state/tcp_velocity"][:3]) <= self._speed
        success = bool(task.success and slow)
        return Outcome(float(success), terminated=success, truncated=False, success=success)
