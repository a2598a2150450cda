"""The base class of simulated tasks and of their scripted experts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import mujoco
import numpy as np
import numpy.typing as npt

from robot_rl.data.schema import Observation
from robot_rl.env.robot import ARM_ACTIONS, GRIPPER_ACTION, Action
from robot_rl.env.sim.world import World
from robot_rl.env.task import Outcome, TaskView, refuse_resume
from robot_rl.errors import RobotRLError
from robot_rl.safety import rotations

Vector = npt.NDArray[np.float64]


class SimTask(ABC):
    """A simulated task: one file that adds bodies, randomises them, observes and judges them.

    Args:
        name: Name of the task, recorded with every episode.
        instruction: What the robot is to do, in words.
        time_limit_steps: Control steps after which an episode is truncated.
        view: What is seen of the task.

    Attributes:
        observation_fields: What `observe` returns.
        action_names: Columns of the action: some of `ARM_ACTIONS` in their order (the target does
            not move along the others), then `GRIPPER_ACTION` where the task uses the gripper.
            Without that column the fingers stay `finger_opening` apart.
        finger_opening: Distance between the fingers at the start of an episode [m].
        observed_objects: Names of the bodies, or of sites on them, whose poses are the rows of
            `state/object_poses`; for those who draw the scene.
    """

    finger_opening: ClassVar[float] = 0.0
    observed_objects: tuple[str, ...] = ()

    def __init__(self, name: str, instruction: str, time_limit_steps: int, view: TaskView) -> None:
        """See the class."""
        self._view = view
        self.observation_fields = view.observation_fields
        self.action_names = view.action_names
        self.name = name
        self.instruction = instruction
        self.time_limit_steps = time_limit_steps
        self._world: World | None = None

    def attach(self, world: World) -> None:
        """Take the world that was compiled with `build`."""
        self._world = world

    @property
    def world(self) -> World:
        """The world that the task is in.

        Raises:
            RobotRLError: It is in none yet.
        """
        if self._world is None:
            raise RobotRLError(
                f"the task {self.name!r} is in no world",
                hint="make its robot first: robot_rl.env.factory.make_env",
            )
        return self._world

    @abstractmethod
    def build(self, spec: mujoco.MjSpec) -> None:
        """Add the task's bodies to the model."""

    @abstractmethod
    def reset(self, rng: np.random.Generator) -> Vector:
        """Randomise the scene; returns the TCP start pose (7,), base frame."""

    def resume(self, rng: np.random.Generator) -> None:
        """See `Task`; for a task that can do so to override."""
        refuse_resume(self.name)

    @abstractmethod
    def seen_poses(self) -> Vector:
        """Poses (k, 7) of the objects, with the noise that they are seen with; base frame."""

    def observe(self) -> Observation:
        """The task's part of the observation, with its noise."""
        return self._view.observe(self.seen_poses(), self.world.tcp_pose())

    @abstractmethod
    def succeeded(self) -> bool:
        """Whether the goal is reached, from the true state."""

    def outcome(self) -> Outcome:
        """The sparse reward: 1 and the end of the episode at success, 0 before."""
        success = self.succeeded()
        return Outcome(float(success), terminated=success, truncated=False, success=success)

    @abstractmethod
    def goal_pose(self) -> Vector:
        """The true TCP pose (7,) at which the task is done: for experts, never observed."""


@dataclass(frozen=True)
class Imperfections:
    """How a scripted expert falls short of a perfect one, like a person at a SpaceMouse.

    Attributes:
        offset: Standard deviation of its error about the goal's position, per axis [m].
        yaw_offset: Standard deviation of its error about the goal's yaw [rad].
        correction: Share of the error that remains after each time that it notices being stuck.
        action_noise: Standard deviation of noise on each action column.
        hesitation: Probability per step of beginning a pause.
        hesitation_steps: Length of a pause [control steps].
        speed_low: Slowest pace of an episode, as a share of the largest action.
        speed_high: Fastest pace.
    """

    offset: float
    yaw_offset: float
    correction: float
    action_noise: float
    hesitation: float
    hesitation_steps: int
    speed_low: float
    speed_high: float


class ScriptedExpert(ABC):
    """Demonstrates a task from the true state, imperfectly.

    Args:
        task: The task, attached to its world.
        imperfections: See `Imperfections`.
        translation_step: Metres that an action of 1 moves the target.
        rotation_step: Radians that an action of 1 turns the target.

    Attributes:
        error: The present error about the goal's position (3,), base frame [m].
        yaw_error: The present error about the goal's yaw [rad].
        speed: The episode's pace, as a share of the largest action.
        gripper: What the gripper is told, -1 open to +1 closed.
    """

    def __init__(
        self,
        task: SimTask,
        imperfections: Imperfections,
        translation_step: float,
        rotation_step: float,
    ) -> None:
        """See the class."""
        self.task = task
        self.imperfections = imperfections
        self._steps = (translation_step, rotation_step)
        self._pause = 0
        self.error = np.zeros(3)
        self.yaw_error = 0.0
        self.speed = 1.0
        self.gripper = -1.0

    def reset(self, rng: np.random.Generator) -> None:
        """Draw this episode's error and pace."""
        flaws = self.imperfections
        self.error = rng.normal(0.0, flaws.offset, 3) * np.array([1.0, 1.0, 0.0])
        self.yaw_error = float(rng.normal(0.0, flaws.yaw_offset))
        self.speed = float(rng.uniform(flaws.speed_low, flaws.speed_high))
        self._pause = 0
        self.gripper = -1.0

    def act(self, rng: np.random.Generator) -> Action:
        """The expert's action (d,) in [-1, 1] for the present state."""
        flaws = self.imperfections
        if self._pause == 0 and rng.random() < flaws.hesitation:
            self._pause = flaws.hesitation_steps
        if self._pause > 0:
            self._pause -= 1
            motion = np.zeros(6)
        else:
            motion = self.motion(self.waypoint(rng))
        wanted = self._columns(motion)
        noisy = wanted + rng.normal(0.0, flaws.action_noise, wanted.shape)
        return np.clip(noisy, -1.0, 1.0).astype(np.float32)

    @abstractmethod
    def waypoint(self, rng: np.random.Generator) -> Vector:
        """Where the TCP should be next: a pose (7,) in the base frame."""

    def motion(self, waypoint: Vector) -> Vector:
        """The motion (6,) towards a TCP pose (7,), at the episode's pace, in action units."""
        whole = self.motion_between(self.task.world.tcp_pose(), waypoint)
        parts = [_shortened(part, self.speed) for part in (whole[:3], whole[3:])]
        return np.concatenate(parts)

    def motion_between(self, start: Vector, end: Vector) -> Vector:
        """The motion (6,) from one TCP pose (7,) to another, in action units, however large."""
        turn = rotations.multiply(end[3:], rotations.conjugate(start[3:]))
        translation = (end[:3] - start[:3]) / self._steps[0]
        return np.concatenate([translation, rotations.to_rotation_vector(turn) / self._steps[1]])

    def destination(self) -> Vector | None:
        """Where the TCP should come by whatever way: a pose (7,); None where the way counts.

        Call it after `act`.
        """
        return None

    def is_beyond_help(self) -> bool:
        """Whether anyone sees that nobody could succeed any more; never, unless a task says so."""
        return False

    def correct(self) -> None:
        """Notice being stuck, look again, and come closer to the truth."""
        self.error = self.error * self.imperfections.correction
        self.yaw_error *= self.imperfections.correction

    def _columns(self, motion: Vector) -> Vector:
        """The task's action columns (d,) of a motion (6,) and the gripper."""
        values = dict(zip(ARM_ACTIONS, motion.tolist(), strict=True))
        values[GRIPPER_ACTION] = self.gripper
        return np.array([values[name] for name in self.task.action_names])


def _shortened(vector: Vector, length: float) -> Vector:
    norm = float(np.sqrt(vector @ vector))
    return vector if norm <= length else vector * (length / norm)
