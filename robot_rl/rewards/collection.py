"""How examples for a success classifier are made: what is recorded, and who acts meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from robot_rl.data.rows import Active, Decision, Instructions, Seen, Slots
from robot_rl.data.schema import Observation
from robot_rl.env.controllers import ControllerWrapper
from robot_rl.env.operator import NOTHING, OperatorEvent, OperatorInput
from robot_rl.env.robot import Action, gripper_columns
from robot_rl.env.robot_env import RobotEnvWrapper
from robot_rl.env.rollout import Controller
from robot_rl.env.task import Outcome
from robot_rl.rewards.source import TASK_VERSION, RewardError

TASK, OPERATOR = "task", "operator"
LABELS = (OperatorEvent.SUCCESS, OperatorEvent.FAILURE)


@dataclass(frozen=True)
class CollectionOptions:
    """What `robot-rl collect-reward` records.

    Attributes:
        labels: Whose: ``task``, the task's detector while a scripted expert acts; or ``operator``,
            who moves the robot and says when it has succeeded.
        positive_frames: Frames that show success, in all.
        frames_after_success: Frames that an episode goes on for from its success on.
        negative_episodes: Episodes that never reach the goal.
        offset: Standard deviation of a misplaced expert's error, per axis [m].
        yaw_offset: Likewise of its yaw [rad].
        action_noise: Standard deviation of a wandering expert's noise on each action column.
        stall_steps: Most steps before its success at which a stalling expert stops for good.
        fidget: Standard deviation of the action columns of one that has stopped.
        reaction_s: Longest time [s] that an operator takes to say that it has succeeded; what the
            frames of that time show, nobody knows.
    """

    labels: str
    positive_frames: int
    frames_after_success: int
    negative_episodes: int
    offset: float
    yaw_offset: float
    action_noise: float
    stall_steps: int
    fidget: float
    reaction_s: float

    def __post_init__(self) -> None:
        """Check whose labels are wanted, and the operator's time."""
        if self.labels not in (TASK, OPERATOR):
            raise RewardError(
                "nobody of that name gives labels", got=self.labels, expected=f"{TASK}, {OPERATOR}"
            )
        if self.reaction_s < 0:
            raise RewardError(
                "the operator's reaction_s is negative", got=self.reaction_s, expected=">= 0 [s]"
            )


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


class OperatorDetector(RobotEnvWrapper):
    """Takes the operator's word for what the task's detector says, where there is no detector.

    From the event `success` on every frame shows success, until the episode ends; `failure` ends
    it. Wrappers around this one hear neither of the two.

    Attributes:
        labelled: Whether the operator has said of the episode that it succeeded or failed.
    """

    def __init__(self, env: RobotEnvWrapper) -> None:
        """Listen to the operator of an `Intervention`."""
        super().__init__(env)
        self.labelled = self._success = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode; what was said before it is about none."""
        observation, info = super().reset(seed=seed, options=options)
        self.labelled = self._success = False
        return observation, info | {"operator": NOTHING}

    def step(self, action: Action) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Step, and judge as the operator does."""
        observation, _, _, truncated, info = super().step(action)
        said: OperatorInput = info["operator"]
        self._success |= OperatorEvent.SUCCESS in said.events
        failed = OperatorEvent.FAILURE in said.events and not self._success
        self.labelled |= self._success or failed
        others = tuple(event for event in said.events if event not in LABELS)
        info |= {"success": self._success, "operator": said._replace(events=others)}
        # After a success the episode may go on, but not where the operator has cut it.
        return observation, float(self._success), self._success or failed, truncated, info


class StallingController(ControllerWrapper[Controller]):
    """Lets another controller act, and stops for good at a step of the episode.

    What follows are the hardest negatives there are: almost done, from every side and for long.

    Args:
        controller: Who acts before.
        action_names: Columns of the action; those of grippers stay as the other controls them.
        fidget: Standard deviation of the other columns afterwards.

    Attributes:
        stall_at: Step of the next episode from which nothing more is done.
    """

    def __init__(self, controller: Controller, action_names: Sequence[str], fidget: float) -> None:
        """See the class."""
        super().__init__(controller)
        self._fidget = fidget
        self._moving = np.ones(len(action_names), bool)
        self._moving[gripper_columns(action_names)] = False
        self.stall_at = 0
        self._step = 0
        self._rng = np.random.default_rng(0)

    def reset(
        self, slots: Slots = None, *, seeds: Sequence[int], instructions: Instructions = None
    ) -> None:
        """Begin an episode."""
        super().reset(slots, seeds=seeds, instructions=instructions)
        self._step = 0
        self._rng = np.random.default_rng(seeds[0])

    def act(self, observation: Seen, active: Active = None) -> Decision:
        """Decide as the other does, or hardly move."""
        decision = super().act(observation, active)
        self._step += 1
        if self._step > self.stall_at:
            noise = self._rng.normal(0.0, self._fidget, decision.action.shape)
            still = np.where(self._moving, noise.clip(-1.0, 1.0), decision.action)
            decision.action[:] = still
        return decision
