"""What a task owns: where an episode starts, what it adds to the observation, and its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, Protocol

import numpy as np
import numpy.typing as npt

from robot_rl.data.schema import Field, Observation
from robot_rl.env.robot import Action
from robot_rl.errors import RobotRLError

Vector = npt.NDArray[np.float64]


class Outcome(NamedTuple):
    """What the last step brought."""

    reward: float
    terminated: bool  # the episode is over and nothing can follow: no bootstrapping
    truncated: bool  # it is cut, the task's own time limit apart, which `RobotEnv` keeps
    success: bool  # whether the goal is reached now


class Task(Protocol):
    """The part of an environment that knows what is to be achieved."""

    name: str  # recorded with every episode
    instruction: str  # what the robot is to do in the present episode, in words
    time_limit_steps: int  # control steps after which an episode is truncated
    observation_fields: tuple[Field, ...]  # what `observe` gives

    def reset(self, rng: np.random.Generator) -> Vector:
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
    """What a policy sees of a task, worked out from where its objects are: simulated or tracked."""

    name: str  # see `Task`, as the two below
    instruction: str
    time_limit_steps: int
    observation_fields: tuple[Field, ...]  # `state/object_poses` (k, 7), and what `see` gives
    action_names: tuple[str, ...]  # columns of the action

    def see(self, object_poses: Vector, tcp_pose: Vector) -> dict[str, Vector]:
        """What is seen beside the objects' poses (k, 7), with the TCP (7,) there; base frame."""


def seen(view: TaskView, object_poses: Vector, tcp_pose: Vector) -> Observation:
    """The task's part of the observation; see `TaskView.see`."""
    values = {"state/object_poses": object_poses, **view.see(object_poses, tcp_pose)}
    return {name: value.astype(np.float32) for name, value in values.items()}


class Expert(Protocol):
    """Demonstrates a task from its true state, with all the randomness from given generators."""

    def reset(self, rng: np.random.Generator) -> None:
        """Begin an episode."""

    def act(self, rng: np.random.Generator) -> Action:
        """The action (d,) in [-1, 1] for the present state."""


def refuse_resume(name: str) -> NoReturn:
    """Raise `RobotRLError`: a task of this name cannot begin where the last episode ended."""
    raise RobotRLError(
        f"the task {name!r} cannot begin where its last episode ended",
        hint="take reset=scripted, which puts robot and scene back",
    )


class Tracker(Protocol):
    """A robot that knows more than its own state."""

    @property
    def tracked(self) -> Mapping[str, Any]:
        """The newest `tcp_pose` (7,), and where known `object_poses` (k, 7) and `success`."""


@dataclass(eq=False)
class Tracked:
    """A task whose objects are tracked from outside: by cameras and markers, or by a simulation.

    Observations and actions are those of the simulated task, so that a policy that was trained on
    one runs on the other.
    """

    task: TaskView  # what is seen, and done; a simulated one, which needs no world for this
    start_pose: Sequence[float]  # TCP pose (7,), m and xyzw, about which episodes start
    start_noise: float  # half range of the start position per axis [m]
    # Whether something tells when the goal is reached (`task/success`); if not, episodes end by
    # their time limit or by a person.
    reports_success: bool

    def __post_init__(self) -> None:
        self.name, self.instruction = self.task.name, self.task.instruction
        self.time_limit_steps = self.task.time_limit_steps
        self.observation_fields = self.task.observation_fields
        self.action_names = self.task.action_names
        self._start = np.array(self.start_pose, np.float64)
        if self._start.shape != (7,):
            raise RobotRLError(
                "task.tracked.start_pose is no pose",
                got=list(self.start_pose),
                expected="7 numbers",
            )
        self.tracker: Tracker  # set by the robot

    @property
    def objects(self) -> int:
        """How many objects are tracked."""
        poses = (f for f in self.observation_fields if f.name == "state/object_poses")
        return next((field.shape[0] for field in poses), 0)

    def reset(self, rng: np.random.Generator) -> Vector:
        """Draw where the episode starts; the objects lie where they lie."""
        shift = rng.uniform(-self.start_noise, self.start_noise, 3)
        return np.concatenate([self._start[:3] + shift, self._start[3:]])

    def resume(self, rng: np.random.Generator) -> None:
        """Nothing is drawn: the objects are seen where they are."""

    def observe(self) -> Observation:
        """The task's part of the observation."""
        tracked = self.tracker.tracked
        return seen(self.task, tracked["object_poses"], tracked["tcp_pose"])

    def outcome(self) -> Outcome:
        """The sparse reward: 1 and the end of the episode at success, 0 before."""
        success = bool(self.tracker.tracked.get("success", False))
        return Outcome(float(success), terminated=success, truncated=False, success=success)
