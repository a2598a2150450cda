"""What a task owns: where an episode starts, what it adds to the observation, and its end."""

from __future__ import annotations

from typing import NamedTuple, NoReturn, Protocol

import numpy as np
import numpy.typing as npt

from robot_rl.data.schema import Field, Observation
from robot_rl.env.robot import Action
from robot_rl.errors import RobotRLError


class Outcome(NamedTuple):
    """What the last step brought.

    Attributes:
        reward: Its reward.
        terminated: The episode is over and nothing can follow: no bootstrapping.
        truncated: The episode is cut, the task's own time limit apart, which `RobotEnv` keeps.
        success: Whether the goal is reached now.
    """

    reward: float
    terminated: bool
    truncated: bool
    success: bool


class Task(Protocol):
    """The part of an environment that knows what is to be achieved.

    Attributes:
        name: Recorded with every episode.
        instruction: What the robot is to do in the present episode, in words.
        time_limit_steps: Control steps after which an episode is truncated.
        observation_fields: What `observe` gives.
    """

    name: str
    instruction: str
    time_limit_steps: int
    observation_fields: tuple[Field, ...]

    def reset(self, rng: np.random.Generator) -> npt.NDArray[np.float64]:
        """Randomise the scene; returns the TCP pose (7,) to start from, in the base frame."""

    def resume(self, rng: np.random.Generator) -> None:
        """Begin an episode with robot and scene as they are; draws what each episode has anew.

        Raises:
            RobotRLError: The task can only begin from a scene that was put back.
        """

    def observe(self) -> Observation:
        """The task's own part of the observation, keyed by `observation_fields`."""

    def outcome(self) -> Outcome:
        """Judge where the last step has led, or before the first one where the episode begins."""


class TaskView(Protocol):
    """What a policy sees of a task, worked out from where its objects are: simulated or tracked.

    Attributes:
        observation_fields: What `observe` gives.
        action_names: Columns of the action.
    """

    observation_fields: tuple[Field, ...]
    action_names: tuple[str, ...]

    def observe(
        self, object_poses: npt.NDArray[np.float64], tcp_pose: npt.NDArray[np.float64]
    ) -> Observation:
        """The task's part of the observation.

        Args:
            object_poses: Poses (k, 7) of the objects as seen, base frame.
            tcp_pose: Pose (7,) of the TCP, base frame.
        """


class Expert(Protocol):
    """Demonstrates a task from its true state, with all the randomness from given generators."""

    def reset(self, rng: np.random.Generator) -> None:
        """Begin an episode."""

    def act(self, rng: np.random.Generator) -> Action:
        """The action (d,) in [-1, 1] for the present state."""


def refuse_resume(name: str) -> NoReturn:
    """Say that a task of this name cannot begin where the last episode ended.

    Raises:
        RobotRLError: Always.
    """
    raise RobotRLError(
        f"the task {name!r} cannot begin where its last episode ended",
        hint="take reset=scripted, which puts robot and scene back",
    )
