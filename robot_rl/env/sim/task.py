"""The base classes of simulated tasks and of their scripted experts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import mujoco
import numpy as np

from robot_rl.data.schema import Field, Observation
from robot_rl.env.robot import ARM_ACTIONS, GRIPPER_ACTION, Action
from robot_rl.env.sim.world import GripperMotor, World
from robot_rl.env.task import Outcome, Task, refuse_resume, seen
from robot_rl.errors import RobotRLError
from robot_rl.processes.resources import find_resource
from robot_rl.safety import rotations
from robot_rl.safety.rotations import Vector as Vector

# Fingers that come closer than this have nothing between them [m].
_EMPTY = 0.01


@dataclass(kw_only=True, eq=False)
class SimTask(ABC):
    """A simulated task: one file that adds bodies, randomises them, observes and judges them.

    A subclass is a dataclass too: its fields are the keys of its configuration.
    """

    # What `observe` returns: `state/object_poses`, and what `see` does.
    observation_fields: tuple[Field, ...] = field(default=(), init=False)
    # Columns of the action: some of `ARM_ACTIONS` in their order (the target does not move along
    # the others), then `GRIPPER_ACTION` where the task uses the gripper. Without that column the
    # fingers stay `finger_opening` apart.
    action_names: tuple[str, ...] = field(default=ARM_ACTIONS, init=False)
    # Distance between the fingers at the start of an episode [m].
    finger_opening: float = field(default=0.0, init=False)
    # Names of the bodies, or of sites on them, whose poses are the rows of `state/object_poses`;
    # for those who draw the scene.
    observed_objects: tuple[str, ...] = field(default=(), init=False)
    name: str  # name of the task, recorded with every episode
    instruction: str  # what the robot is to do, in words
    time_limit_steps: int  # control steps after which an episode is truncated
    _world: World | None = field(default=None, init=False)

    def attach(self, world: World) -> None:
        """Take a world that was compiled with `build`."""
        self._world = world

    @property
    def world(self) -> World:
        """The world that the task is in; `RobotRLError` before there is one."""
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
        """Poses (k, 7) of the objects, with the task's own error about each; base frame."""

    def measured_poses(self) -> Vector:
        """The same (k, 7) with the errors of the sensors; goals are exact."""
        poses = self.seen_poses()
        objects = len(self.observed_objects) or len(poses)
        measured = self.world.sensors.object_poses(poses[:objects])
        return np.concatenate([measured, poses[objects:]])

    @abstractmethod
    def see(self, object_poses: Vector, tcp_pose: Vector) -> dict[str, Vector]:
        """See `TaskView`."""

    def observe(self) -> Observation:
        """The task's part of the observation, with its noise."""
        return seen(self, self.measured_poses(), self.world.measured_tcp_pose())

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

    def is_at(self, pose: Vector, tolerance: float, angle_tolerance: float) -> bool:
        """Whether the TCP is within both tolerances [m, rad] of a pose (7,)."""
        distance, angle = rotations.apart(self.world.tcp_pose(), pose)
        return distance <= tolerance and angle <= angle_tolerance


def put_in_world(task: Task, model: str, gripper: GripperMotor) -> SimTask:
    """Build the world of a task as `SimRobot` does; `RobotRLError` if it is no simulated one."""
    if not isinstance(task, SimTask):
        raise RobotRLError(
            f"the simulated arm cannot do the task {task.name!r}",
            got=type(task).__name__,
            expected="a task of robot_rl.env.sim",
            hint="add robot=gym for a Gymnasium environment",
        )
    world = World(find_resource(model), task.build)
    if GRIPPER_ACTION in task.action_names:
        gripper.install(world.model)
    task.attach(world)
    task.reset(np.random.default_rng(0))  # it may be looked at before its first episode
    return task


def observed(**shapes: tuple[int, ...]) -> tuple[Field, ...]:
    """Fields `state/<name>`, float32, of these shapes."""
    return tuple(Field(f"state/{name}", "float32", shape) for name, shape in shapes.items())


def box(size: Sequence[float], *, friction: float | None = None, **of_geom: Any) -> dict[str, Any]:
    """Arguments of a geom that is a box, `size` (3,) [m] long, wide and high."""
    if friction is not None:  # sliding; MuJoCo's own against turning and rolling
        of_geom["friction"] = [friction, 0.005, 0.0001]
    return {"type": mujoco.mjtGeom.mjGEOM_BOX, "size": [side / 2 for side in size], **of_geom}


def downward(position: Vector) -> Vector:
    """The TCP pose (7,) at a position (3,) at which the tool points down."""
    return np.concatenate([position, rotations.DOWNWARD])


@dataclass(frozen=True)
class Imperfections:
    """The flaws of a scripted expert, like those of a person at a SpaceMouse."""

    offset: float  # standard deviation of its error about the goal's position, per axis [m]
    yaw_offset: float  # standard deviation of its error about the goal's yaw [rad]
    correction: float  # share of the error that remains each time that it notices being stuck
    action_noise: float  # standard deviation of noise on each action column
    hesitation: float  # probability per step of beginning a pause
    hesitation_steps: int  # length of a pause [control steps]
    speed_low: float  # slowest pace of an episode, as a share of the largest action
    speed_high: float  # fastest pace


@dataclass(kw_only=True, eq=False)
class ScriptedExpert:
    """Goes straight to where it believes the goal is, imperfectly; a subclass says where else."""

    task: SimTask  # attached to its world
    imperfections: Imperfections
    translation_step: float  # metres that an action of 1 moves the target
    rotation_step: float  # radians that an action of 1 turns the target
    # Its present error about the goal's position (3,), base frame [m], and yaw [rad].
    error: Vector = field(default_factory=lambda: np.zeros(3), init=False)
    yaw_error: float = field(default=0.0, init=False)
    speed: float = field(default=1.0, init=False)  # of the episode, share of the largest action
    gripper: float = field(default=-1.0, init=False)  # its command, -1 open to +1 closed
    _pause: int = field(default=0, init=False)

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
        values = dict(zip(ARM_ACTIONS, motion.tolist(), strict=True))
        values[GRIPPER_ACTION] = self.gripper
        action = np.array([values[name] for name in self.task.action_names])
        noisy = action + rng.normal(0.0, flaws.action_noise, action.shape)
        return np.clip(noisy, -1.0, 1.0).astype(np.float32)

    def waypoint(self, rng: np.random.Generator) -> Vector:
        """Where the TCP should be next: a pose (7,) in the base frame."""
        return self.straight_to(self.task.goal_pose())

    def straight_to(self, goal: Vector) -> Vector:
        """Where it believes that a TCP pose (7,) is; it corrects itself when it has stopped."""
        believed = self.believed(goal)
        if np.abs(self.motion(believed)).max() < 0.2:
            self.correct()
        return believed

    def believed(self, pose: Vector) -> Vector:
        """A pose (7,) with the expert's error."""
        return rotations.displaced(pose, self.error, rotations.about_z(self.yaw_error))

    def motion(self, waypoint: Vector) -> Vector:
        """The motion (6,) towards a TCP pose (7,), at the episode's pace, in action units."""
        whole = self.motion_between(self.task.world.tcp_pose(), waypoint)
        for part in (whole[:3], whole[3:]):
            norm = float(np.sqrt(part @ part))
            if norm > self.speed:
                part *= self.speed / norm
        return whole

    def motion_between(self, start: Vector, end: Vector) -> Vector:
        """The motion (6,) from one TCP pose (7,) to another, in action units, however large."""
        way = rotations.between(start, end)
        return np.concatenate([way[:3] / self.translation_step, way[3:] / self.rotation_step])

    def destination(self) -> Vector | None:
        """After `act`: the pose (7,) to come to by whatever way; None where the way counts."""
        return None

    def is_beyond_help(self) -> bool:
        """Whether success is visibly impossible by now; never, unless a task says so."""
        return False

    def correct(self) -> None:
        """Notice being stuck, look again, and come closer to the truth."""
        self.error = self.error * self.imperfections.correction
        self.yaw_error *= self.imperfections.correction


@dataclass
class JointExpert:
    """Lets a scripted expert move an arm that takes joint targets, by inverse kinematics."""

    expert: ScriptedExpert
    steps: Sequence[float]  # motion of each joint's target for an action of 1 (n,) [rad]

    def reset(self, rng: np.random.Generator) -> None:
        """Begin an episode."""
        self.expert.reset(rng)

    def act(self, rng: np.random.Generator) -> Action:
        """The action (n,), and of the gripper where the task has one, in [-1, 1]."""
        expert, task = self.expert, self.expert.task
        action = dict(zip(task.action_names, expert.act(rng).tolist(), strict=True))
        motion = np.array([action.get(name, 0.0) for name in ARM_ACTIONS])
        turn = rotations.from_rotation_vector(expert.rotation_step * motion[3:])
        shift = expert.translation_step * motion[:3]
        goal = rotations.displaced(task.world.tcp_pose(), shift, turn)
        world = task.world
        way = world.kinematics.step(world.joint_positions(), goal)
        joints = way / np.array(self.steps)
        joints /= max(1.0, float(np.abs(joints).max()))
        gripper = [action[GRIPPER_ACTION]] if GRIPPER_ACTION in action else []
        return np.array([*joints, *gripper], np.float32)


@dataclass
class TopGrasp:
    """Leads an expert's gripper to an object from above and closes it."""

    hover: float  # height over the object until the fingers are above it [m]
    align: float  # horizontal distance at which they begin to go down [m]
    close_steps: int  # control steps that they are given to close
    patience: int  # control steps of going down after which the expert looks again
    # Whether the fingers have closed on something, as far as the expert knows.
    held: bool = field(default=False, init=False)
    _descending: int = field(default=0, init=False)
    _closing: int = field(default=0, init=False)

    def reset(self) -> None:
        """Begin again with nothing in the hand."""
        self.held = False
        self._descending = self._closing = 0

    def waypoint(self, expert: ScriptedExpert, grasp: Vector) -> Vector:
        """Where the TCP should be next to close at `grasp` (7,); commands the gripper, too."""
        offset = grasp[:3] - expert.task.world.tcp_pose()[:3]
        if self._descending or float(np.hypot(offset[0], offset[1])) < self.align:
            self._descending += 1
        if self._closing or (self._descending and abs(float(offset[2])) < self.align):
            self._closing += 1
        elif self._descending > self.patience:  # the fingers stand on something
            expert.correct()
            self.reset()
        expert.gripper = 1.0 if self._closing else -1.0
        self.held = self._closing > self.close_steps
        lift = 0.0 if self._descending else self.hover
        return np.concatenate([grasp[:3] + np.array([0.0, 0.0, lift]), grasp[3:]])

    def lost(self, expert: ScriptedExpert) -> bool:
        """Whether the fingers are closed on nothing; the expert then looks again."""
        if not self.held or expert.task.world.finger_opening() > _EMPTY:
            return False
        expert.correct()
        self.reset()
        return True
