"""Reward sources without a model: the task, a pose, a person."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from robot_rl.data.schema import Observation
from robot_rl.env.task import (
    DISTANCE_VERSION,
    HUMAN_VERSION,
    POSE_VERSION,
    SUCCESS_VERSION,
    Outcome,
)
from robot_rl.env.task import RewardError as RewardError
from robot_rl.env.task import RewardSource as RewardSource
from robot_rl.safety import rotations


class TaskReward(RewardSource):
    """The result of the task's own detector, unchanged."""


class SuccessReward(RewardSource):
    """Sparse reward from the success of the task's own detector, instead of the task's reward."""

    version = SUCCESS_VERSION

    def judge(self, observation: Observation, task: Outcome) -> Outcome:
        """Return reward 1 and end the episode at success."""
        return sparse(task.success, task)


class HumanReward(RewardSource):
    """Reward from operator labels only; labels count with every source."""

    version = HUMAN_VERSION

    def judge(self, observation: Observation, task: Outcome) -> Outcome:
        """Return no reward; end the episode if the task has failed."""
        return sparse(False, task)


class DistanceReward(RewardSource):
    """The task's reward plus the step's progress towards the goal.

    Observation `key` is the remaining distance to the goal, (n,); `scale` (n,) is the change of
    each component that is worth a reward of 1, in the component's unit.
    """

    version = DISTANCE_VERSION

    def __init__(self, key: str, scale: Sequence[float]) -> None:
        self.observed, self._scale, self._left = (key,), np.array(scale, float), 0.0

    def reset(self, observation: Observation) -> None:
        """Store the distance to the goal."""
        left = observation[self.observed[0]]
        if left.shape != self._scale.shape:
            raise RewardError(
                f"the scale of the reward does not fit {self.observed[0]}",
                got=self._scale.tolist(),
                expected=f"{left.size} numbers",
                hint="set reward.source.scale",
            )
        self._left = float(np.linalg.norm(left / self._scale))

    def judge(self, observation: Observation, task: Outcome) -> Outcome:
        """Add the progress to the task's reward."""
        before = self._left
        self.reset(observation)
        return task._replace(reward=task.reward + before - self._left)


@dataclass(eq=False)
class PoseReward(RewardSource):
    """Success if the TCP has been within tolerances of a pose for some steps in a row."""

    version = POSE_VERSION  # without annotation, so not a dataclass field

    pose: Sequence[float]  # target position [m] and quaternion xyzw (7,), base frame
    # Largest error along each axis of the base frame (3,) [m].
    position_tolerance: Sequence[float]
    rotation_tolerance: float  # largest angle from the target's orientation [rad]
    steps: int = 1  # control steps in a row
    key: str = "state/tcp_pose"  # observation that holds the measured pose (7,)

    def __post_init__(self) -> None:
        self._pose = np.array(self.pose, float)
        self._tolerance = np.array(self.position_tolerance, float)
        norm = float(np.linalg.norm(self._pose[3:])) if self._pose.shape == (7,) else 0.0
        if abs(norm - 1.0) > 1e-3 or self._tolerance.shape != (3,) or self.steps < 1:
            tolerances = list(self.position_tolerance)
            raise RewardError(
                "the pose of a pose reward, its tolerances or its steps are impossible",
                got=f"pose {list(self.pose)}, tolerances {tolerances}, steps {self.steps}",
                expected="x, y, z [m] and a unit quaternion xyzw; 3 tolerances [m]; steps >= 1",
                hint="read the pose off a demonstration's last observation",
            )
        self.observed = (self.key,)
        self._inside = 0

    def reset(self, observation: Observation) -> None:
        """Forget the steps within the tolerances."""
        self._inside = 0

    def judge(self, observation: Observation, task: Outcome) -> Outcome:
        """Return reward 1 and end the episode after enough steps within the tolerances."""
        way = rotations.between(self._pose, observation[self.key].astype(np.float64))
        near = bool((np.abs(way[:3]) <= self._tolerance).all())
        near = near and float(np.linalg.norm(way[3:])) <= self.rotation_tolerance
        self._inside = self._inside + 1 if near else 0
        return sparse(self._inside >= self.steps, task)


def sparse(success: bool, task: Outcome) -> Outcome:
    """Sparse reward: 1 and the end at success; also the end if the task has failed."""
    failed = task.terminated and not task.success
    return Outcome(float(success), success or failed, truncated=False, success=success)
