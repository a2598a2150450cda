"""What judges each step beside the task: the base of all reward sources (`robot_rl.rewards`)."""

from __future__ import annotations

from collections.abc import Sequence

from robot_rl.data.schema import Observation
from robot_rl.env.operator import OperatorEvent
from robot_rl.env.task import Outcome
from robot_rl.errors import RobotRLError

# `reward_version` of a row: these for sources without a model, a model's own from FIRST_MODEL on.
TASK_VERSION, HUMAN_VERSION, POSE_VERSION, DISTANCE_VERSION, SUCCESS_VERSION = range(5)
FIRST_MODEL = 1 << 16


class RewardError(RobotRLError):
    """A reward source that does not fit the robot, its cameras or its task."""


class RewardSource:
    """Judges each step in the actor, in place of the task's own detector or with it.

    This one takes over what the detector says: a simulation's true state, or a sensor.

    Attributes:
        version: `reward_version` of the rows that it judges.
        observed: Observation names that it reads.
        alarm: What is wrong with the rewards of this episode, None while nothing is.
    """

    version: int = TASK_VERSION
    observed: tuple[str, ...] = ()
    alarm: str | None = None

    def reset(self, observation: Observation) -> None:
        """Begin an episode with its first observation."""

    def judge(self, observation: Observation, task: Outcome) -> Outcome:
        """Judge the step that led to an observation; `truncated` is the caller's business.

        `task` is what the task's own detector said of it.
        """
        return task

    def label(self, events: Sequence[OperatorEvent]) -> bool | None:
        """Success or failure, as the operator said last; None if they said neither.

        A label ends the episode, with a reward of 1 or 0, whatever the source says of the step.
        """
        labels = [e for e in events if e in (OperatorEvent.SUCCESS, OperatorEvent.FAILURE)]
        return labels[-1] is OperatorEvent.SUCCESS if labels else None
