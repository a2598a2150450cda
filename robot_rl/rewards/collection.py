"""How examples for a success classifier are made: what is recorded, and who acts meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from robot_rl.data.rows import Conclusion, Decision
from robot_rl.data.schema import Observation
from robot_rl.env.robot import GRIPPER_ACTION
from robot_rl.env.rollout import Controller
from robot_rl.env.task import Outcome
from robot_rl.rewards.source import TASK_VERSION


@dataclass(frozen=True)
class CollectionOptions:
    """What `robot-rl collect-reward` records.

    Attributes:
        positive_frames: Frames that show success, in all.
        frames_after_success: Frames that an episode goes on for from its success on.
        negative_episodes: Episodes that never reach the goal.
        offset: Standard deviation of a misplaced expert's error, per axis [m].
        yaw_offset: Likewise of its yaw [rad].
        action_noise: Standard deviation of a wandering expert's noise on each action column.
        stall_steps: Most steps before its success at which a stalling expert stops for good.
        fidget: Standard deviation of the action columns of one that has stopped.
    """

    positive_frames: int
    frames_after_success: int
    negative_episodes: int
    offset: float
    yaw_offset: float
    action_noise: float
    stall_steps: int
    fidget: float


class Lingering:
    """The judgement of the task's own detector, with episodes that go on after their success.

    Attributes:
        frames: Frames from the success on after which the episode ends.
    """

    version = TASK_VERSION
    observed: tuple[str, ...] = ()
    alarm: str | None = None

    def __init__(self, frames: int) -> None:
        """Go on for `frames` frames."""
        self.frames = frames
        self._since = 0

    def reset(self, observation: Observation) -> None:
        """Begin an episode."""
        self._since = 0

    def judge(self, observation: Observation, task: Outcome) -> Outcome:
        """The same reward and success, and the end some frames after the first success."""
        if self._since or task.success:
            self._since += 1
        ends = self._since >= self.frames or (task.terminated and not task.success)
        return task._replace(terminated=ends)


class StallingController:
    """Lets another controller act, and stops for good at a step of the episode.

    What follows are the hardest negatives there are: almost done, from every side and for long.

    Args:
        controller: Who acts before.
        action_names: Columns of the action; the gripper's keeps its last value.
        fidget: Standard deviation of the other columns afterwards.

    Attributes:
        stall_at: Step of the next episode from which nothing more is done.
    """

    def __init__(self, controller: Controller, action_names: Sequence[str], fidget: float) -> None:
        """See the class."""
        self._controller, self._fidget = controller, fidget
        self._moving = np.array([name != GRIPPER_ACTION for name in action_names])
        self.stall_at = 0
        self._step = 0
        self._rng = np.random.default_rng(0)

    def reset(
        self,
        slots: Sequence[int] | None = None,
        *,
        seeds: Sequence[int],
        instructions: Sequence[str] | None = None,
    ) -> None:
        """Begin an episode."""
        self._controller.reset(slots, seeds=seeds, instructions=instructions)
        self._step = 0
        self._rng = np.random.default_rng(seeds[0])

    def act(
        self,
        observation: Mapping[str, npt.NDArray[Any]],
        active: npt.NDArray[np.bool_] | None = None,
    ) -> Decision:
        """Decide as the other does, or hardly move."""
        decision = self._controller.act(observation, active)
        self._step += 1
        if self._step > self.stall_at:
            noise = self._rng.normal(0.0, self._fidget, decision.action.shape)
            still = np.where(self._moving, noise.clip(-1.0, 1.0), decision.action)
            decision.action[:] = still
        return decision

    def conclude(
        self,
        observation: Mapping[str, npt.NDArray[Any]],
        active: npt.NDArray[np.bool_] | None = None,
    ) -> Conclusion:
        """What the other concludes."""
        return self._controller.conclude(observation, active)

    def observe_override(
        self, executed: npt.NDArray[np.float32], slots: Sequence[int] | None = None
    ) -> None:
        """Hand it on."""
        self._controller.observe_override(executed, slots)
