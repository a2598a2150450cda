"""Tasks: define an episode's start, the task's observations, and its reward and end.

A reward source may replace the task's reward; see `robot_rl.rewards`.
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

# `reward_version` of a row: these for sources without a model; models use FIRST_MODEL and above.
TASK_VERSION, HUMAN_VERSION, POSE_VERSION, DISTANCE_VERSION, SUCCESS_VERSION = range(5)
FIRST_MODEL = 1 << 16


class Outcome(NamedTuple):
    """Result of the last step."""

    reward: float
    terminated: bool  # the episode is over, in a terminal state: no bootstrapping
    truncated: bool  # the episode is cut; `RobotEnv` adds the task's time limit
    success: bool  # whether the goal is reached now


class Task(Protocol):
    """Goal of an environment: its scene, observations and reward."""

    name: str  # recorded with every episode
    instruction: str  # the robot's task in the current episode, as text
    time_limit_steps: int  # control steps after which an episode is truncated
    observation_fields: tuple[Field, ...]  # fields that `observe` returns

    def reset(self, rng: np.random.Generator) -> Vector:
        """Randomise the scene; return the TCP start pose (7,) in the base frame."""

    def resume(self, rng: np.random.Generator) -> None:
        """Start an episode with robot and scene as they are; draw per-episode values.

        Raises:
            RobotRLError: The task can only start from a restored scene.
        """

    def observe(self) -> Observation:
        """Return the task's part of the observation, keyed by `observation_fields`."""

    def outcome(self) -> Outcome:
        """Judge the current state, after a step or at the start of the episode."""


class RewardError(RobotRLError):
    """A reward source that does not fit the robot, its cameras or its task."""


class RewardSource:
    """Judges each step in the actor, instead of or together with the task's own detector.

    This base class passes the detector's result on: from a simulation's true state, or a sensor.

    Attributes:
        version: `reward_version` of the rows that it judges.
        observed: Observation names that it reads.
        alarm: Problem with the rewards of this episode, or None.
    """

    version: int = TASK_VERSION
    observed: tuple[str, ...] = ()
    alarm: str | None = None

    def reset(self, observation: Observation) -> None:
        """Start an episode with its first observation."""

    def judge(self, observation: Observation, task: Outcome) -> Outcome:
        """Judge the step that led to an observation; the caller handles `truncated`.

        `task` is the result of the task's own detector.
        """
        return task

    def label(self, events: Sequence[OperatorEvent]) -> bool | None:
        """Return the operator's last `success` or `failure` as a bool; None if there is neither.

        A label ends the episode with a reward of 1 or 0, instead of the source's result.
        """
        labels = [e for e in events if e in (OperatorEvent.SUCCESS, OperatorEvent.FAILURE)]
        return labels[-1] is OperatorEvent.SUCCESS if labels else None


class TaskView(Protocol):
    """A policy's view of a task, computed from object poses."""

    name: str  # see `Task`, also for the next two
    instruction: str
    time_limit_steps: int
    observation_fields: tuple[Field, ...]  # `state/object_poses` (k, 7), and those of `see`
    action_names: tuple[str, ...]  # columns of the action

    def see(self, object_poses: Vector, tcp_pose: Vector) -> dict[str, Vector]:
        """Compute further observations from poses of objects (k, 7) and TCP (7,), base frame."""


def seen(view: TaskView, object_poses: Vector, tcp_pose: Vector) -> Observation:
    """The task's part of the observation; see `TaskView.see`."""
    values = {"state/object_poses": object_poses, **view.see(object_poses, tcp_pose)}
    return {name: value.astype(np.float32) for name, value in values.items()}


class Expert(Protocol):
    """Demonstrates a task from its true state; all randomness comes from the given generators."""

    def reset(self, rng: np.random.Generator) -> None:
        """Start an episode."""

    def act(self, rng: np.random.Generator) -> Action:
        """Return the action (d,) in [-1, 1] for the current state."""


def refuse_resume(name: str) -> NoReturn:
    """Raise `RobotRLError`: the named task cannot start where the last episode ended."""
    raise RobotRLError(
        f"the task {name!r} cannot begin where its last episode ended",
        hint="take reset=scripted, which puts robot and scene back",
    )


@dataclass(eq=False)
class RobotTask:
    """A `TaskView` without a simulation: only the robot and its cameras are observed."""

    name: str  # see `Task`, also for the next two
    instruction: str
    time_limit_steps: int
    # Some of `ARM_ACTIONS` in their order (the target does not move along the others), then
    # `GRIPPER_ACTION` if the policy opens and closes the gripper.
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
        """Return no further observations."""
        return {}


@dataclass(eq=False)
class TrackedTask:
    """A task on a robot whose objects, if any, are tracked externally, by cameras and markers.

    Observations and actions are those of the simulated task, so that a policy trained on one runs
    on the other; or those of a `RobotTask`.
    """

    task: TaskView  # observations and actions; a simulated task needs no world for this
    start_pose: Sequence[float]  # centre of TCP start poses (7,), m and xyzw
    # Half range of the start position [m], for all axes or per axis (3,).
    start_noise: float | Sequence[float]
    # Whether a publisher reports success (`task/success`); if not, episodes end by their time limit
    # or by a person.
    reports_success: bool
    # Whether the gripper closes before moving to a start and never opens: it holds a tool.
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
        # The latest `tcp_pose` (7,) and, if known, `object_poses` (k, 7) and `success`; set by the
        # robot.
        self.tracked: Mapping[str, Any] = {}

    def check_start(self, limits: PoseLimits) -> None:
        """Check that all start poses are within a robot's limits; `RobotRLError` names which."""
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
        """Draw the start pose; the objects stay where they are."""
        shift = rng.uniform(-self._noise, self._noise, 3)
        return np.concatenate([self._start[:3] + shift, self._start[3:]])

    def resume(self, rng: np.random.Generator) -> None:
        """Do nothing: the objects are tracked where they are."""

    def observe(self) -> Observation:
        """Return the task's part of the observation."""
        if not self.objects:
            return {}
        return seen(self.task, self.tracked["object_poses"], self.tracked["tcp_pose"])

    def outcome(self) -> Outcome:
        """Return the sparse reward: 1 and the end of the episode at success, 0 before."""
        success = bool(self.tracked.get("success", False))
        return Outcome(float(success), terminated=success, truncated=False, success=success)
