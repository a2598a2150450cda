"""Tasks: where an episode starts, what they add to the observation, and how they judge it.

A reward source may judge in place of the task; `robot_rl.rewards` has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, Protocol

import numpy as np

from robot_rl.data.schema import Field, Observation
from robot_rl.env.operator import OperatorEvent
from robot_rl.env.robot import ARM_ACTIONS, GRIPPER_ACTION, Action
from robot_rl.errors import RobotRLError
from robot_rl.safety.commands import checked_pose
from robot_rl.safety.limits import PoseLimits
from robot_rl.safety.rotations import Vector

# `reward_version` of a row: these for sources without a model, a model's own from FIRST_MODEL on.
TASK_VERSION, HUMAN_VERSION, POSE_VERSION, DISTANCE_VERSION, SUCCESS_VERSION = range(5)
FIRST_MODEL = 1 << 16


class Outcome(NamedTuple):
    """The verdict on the last step."""

    reward: float
    terminated: bool  # the episode is over and nothing can follow: no bootstrapping
    truncated: bool  # it is cut; `RobotEnv` adds the task's time limit
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
        """Begin an episode with robot and scene as they are; draw what changes with each episode.

        Raises:
            RobotRLError: The task can only begin from a scene that was put back.
        """

    def observe(self) -> Observation:
        """The task's own part of the observation, keyed by `observation_fields`."""

    def outcome(self) -> Outcome:
        """Judge the present state: after a step, or at the begin of the episode."""


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
        """The operator's last `success` or `failure`; None if there is neither.

        A label ends the episode with a reward of 1 or 0, in place of the source's verdict.
        """
        labels = [e for e in events if e in (OperatorEvent.SUCCESS, OperatorEvent.FAILURE)]
        return labels[-1] is OperatorEvent.SUCCESS if labels else None


class TaskView(Protocol):
    """The observations that a policy has of a task, from the poses of its objects."""

    name: str  # see `Task`, as the two below
    instruction: str
    time_limit_steps: int
    observation_fields: tuple[Field, ...]  # `state/object_poses` (k, 7), and what `see` gives
    action_names: tuple[str, ...]  # columns of the action

    def see(self, object_poses: Vector, tcp_pose: Vector) -> dict[str, Vector]:
        """Further observations, from the poses of objects (k, 7) and TCP (7,) in the base frame."""


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


@dataclass(eq=False)
class RobotTask:
    """A `TaskView` that no simulation has: the robot and its cameras are all that is seen."""

    name: str  # see `Task`, as the two below
    instruction: str
    time_limit_steps: int
    # Some of `ARM_ACTIONS` in their order (the target does not move along the others), then
    # `GRIPPER_ACTION` where the policy opens and closes the gripper.
    action_names: Sequence[str]

    def __post_init__(self) -> None:
        self.observation_fields: tuple[Field, ...] = ()
        known = (*ARM_ACTIONS, GRIPPER_ACTION)
        names = self.action_names = tuple(self.action_names)
        if not names or names != tuple(name for name in known if name in names):
            expected = f"some of {', '.join(known)}, in this order"
            raise RobotRLError("action_names of the task", got=", ".join(names), expected=expected)
        if self.time_limit_steps < 1:
            problem, got = "time_limit_steps of the task", self.time_limit_steps
            raise RobotRLError(problem, got=got, expected="at least 1 step")

    def see(self, object_poses: Vector, tcp_pose: Vector) -> dict[str, Vector]:
        """Nothing."""
        return {}


@dataclass(eq=False)
class TrackedTask:
    """A task on a robot, whose objects, if any, are tracked from outside: by cameras and markers.

    Observations and actions are those of the simulated task, so that a policy that was trained on
    one runs on the other; or of a `RobotTask`.
    """

    task: TaskView  # what is seen, and done; a simulated one, which needs no world for this
    start_pose: Sequence[float]  # TCP pose (7,), m and xyzw, about which episodes start
    # Half range of the start position [m], of all axes or per axis (3,).
    start_noise: float | Sequence[float]
    # Whether something tells when the goal is reached (`task/success`); if not, episodes end by
    # their time limit or by a person.
    reports_success: bool
    # Whether the gripper closes before the arm goes to a start, and is never opened: it has a tool.
    gripper_closed: bool = False

    def __post_init__(self) -> None:
        self.name, self.instruction = self.task.name, self.task.instruction
        self.time_limit_steps = self.task.time_limit_steps
        self.observation_fields = self.task.observation_fields
        self.action_names = self.task.action_names
        self._start = checked_pose(self.start_pose, "task.tracked.start_pose")
        self._noise = np.array(self.start_noise, np.float64)
        if self._noise.shape not in ((), (3,)) or not (self._noise >= 0.0).all():
            raise RobotRLError(
                "task.tracked.start_noise is no half range",
                got=self.start_noise,
                expected="a number >= 0 [m], or one for each of x, y and z",
            )
        if self.gripper_closed and GRIPPER_ACTION in self.action_names:
            raise RobotRLError(
                "the gripper of the task is either kept closed or moved",
                got="task.tracked.gripper_closed=true, and gripper in action_names",
                hint="take one of them out",
            )
        # The newest `tcp_pose` (7,), and where known `object_poses` (k, 7) and `success`; the robot
        # sets it.
        self.tracked: Mapping[str, Any] = {}

    def check_start(self, limits: PoseLimits) -> None:
        """Check that all starts are inside of the limits of a robot; `RobotRLError` names which."""
        for side in (-1.0, 1.0):
            corner = self._start.copy()
            corner[:3] += side * self._noise
            limits.check_inside("task.tracked.start_pose, with its start_noise,", corner)

    @property
    def objects(self) -> int:
        """Number of tracked objects."""
        poses = (f for f in self.observation_fields if f.name == "state/object_poses")
        return next((field.shape[0] for field in poses), 0)

    def reset(self, rng: np.random.Generator) -> Vector:
        """Draw where the episode starts; the objects lie where they lie."""
        shift = rng.uniform(-self._noise, self._noise, 3)
        return np.concatenate([self._start[:3] + shift, self._start[3:]])

    def resume(self, rng: np.random.Generator) -> None:
        """Nothing is drawn: the objects are seen where they are."""

    def observe(self) -> Observation:
        """The task's part of the observation."""
        if not self.objects:
            return {}
        return seen(self.task, self.tracked["object_poses"], self.tracked["tcp_pose"])

    def outcome(self) -> Outcome:
        """The sparse reward: 1 and the end of the episode at success, 0 before."""
        success = bool(self.tracked.get("success", False))
        return Outcome(float(success), terminated=success, truncated=False, success=success)
