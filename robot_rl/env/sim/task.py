"""Base classes of simulated tasks and their scripted experts."""

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

# Fingers closer than this hold no object [m].
_EMPTY = 0.01


@dataclass(kw_only=True, eq=False)
class SimTask(ABC):
    """A simulated task: adds bodies, randomises, observes and judges them, in one file.

    Subclasses are dataclasses too: their fields are the keys of their configuration.
    """

    # Fields of `observe`: `state/object_poses`, and those of `see`.
    observation_fields: tuple[Field, ...] = field(default=(), init=False)
    # Action columns: some of `ARM_ACTIONS` in their order (the target does not move along the
    # others), then `GRIPPER_ACTION` if the task uses the gripper. Without that column the fingers
    # stay `finger_opening` apart.
    action_names: tuple[str, ...] = field(default=ARM_ACTIONS, init=False)
    # Distance between the fingers at the start of an episode [m].
    finger_opening: float = field(default=0.0, init=False)
    # Names of the bodies, or of sites on them, whose poses are the rows of `state/object_poses`;
    # for drawing the scene.
    observed_objects: tuple[str, ...] = field(default=(), init=False)
    name: str  # name of the task, recorded with every episode
    instruction: str  # the robot's task as text
    time_limit_steps: int  # control steps after which an episode is truncated
    _world: World | None = field(default=None, init=False)

    def attach(self, world: World) -> None:
        """Set the world, which was compiled with `build`."""
        self._world = world

    @property
    def world(self) -> World:
        """The task's world; `RobotRLError` before `attach`."""
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
        """Randomise the scene; return the TCP start pose (7,), base frame."""

    def resume(self, rng: np.random.Generator) -> None:
        """See `Task`; refused unless a subclass overrides it."""
        refuse_resume(self.name)

    @abstractmethod
    def seen_poses(self) -> Vector:
        """Poses (k, 7) of the objects, with the task's own error in each; base frame."""

    def measured_poses(self) -> Vector:
        """`seen_poses` (k, 7) with sensor errors; goals are exact."""
        poses = self.seen_poses()
        objects = len(self.observed_objects) or len(poses)
        measured = self.world.sensors.object_poses(poses[:objects])
        return np.concatenate([measured, poses[objects:]])

    @abstractmethod
    def see(self, object_poses: Vector, tcp_pose: Vector) -> dict[str, Vector]:
        """See `TaskView`."""

    def observe(self) -> Observation:
        """Return the task's part of the observation, with noise."""
        return seen(self, self.measured_poses(), self.world.measured_tcp_pose())

    @abstractmethod
    def succeeded(self) -> bool:
        """Whether the goal is reached, from the true state."""

    def outcome(self) -> Outcome:
        """Return the sparse reward: 1 and the end of the episode at success, 0 before."""
        success = self.succeeded()
        return Outcome(float(success), terminated=success, truncated=False, success=success)

    @abstractmethod
    def goal_pose(self) -> Vector:
        """True TCP pose (7,) that completes the task; for experts, never observed."""

    def is_at(self, pose: Vector, tolerance: float, angle_tolerance: float) -> bool:
        """Whether the TCP is within both tolerances [m, rad] of a pose (7,)."""
        distance, angle = rotations.apart(self.world.tcp_pose(), pose)
        return distance <= tolerance and angle <= angle_tolerance


def put_in_world(task: Task, model: str, gripper: GripperMotor) -> SimTask:
    """Build the world of a task for `SimRobot`; `RobotRLError` if the task is not simulated."""
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
    task.reset(np.random.default_rng(0))  # it may be observed before its first episode
    return task


def observed(**shapes: tuple[int, ...]) -> tuple[Field, ...]:
    """Float32 fields `state/<name>` of the given shapes."""
    return tuple(Field(f"state/{name}", "float32", shape) for name, shape in shapes.items())


def box(size: Sequence[float], *, friction: float | None = None, **of_geom: Any) -> dict[str, Any]:
    """Geom arguments of a box, `size` (3,) [m] long, wide and high."""
    if friction is not None:  # sliding; torsional and rolling as MuJoCo's defaults
        of_geom["friction"] = [friction, 0.005, 0.0001]
    return {"type": mujoco.mjtGeom.mjGEOM_BOX, "size": [side / 2 for side in size], **of_geom}


def downward(position: Vector) -> Vector:
    """TCP pose (7,) at a position (3,) with the tool pointing down."""
    return np.concatenate([position, rotations.DOWNWARD])


@dataclass(frozen=True)
class Imperfections:
    """Errors of a scripted expert, like those of a person with a SpaceMouse."""

    offset: float  # standard deviation of its error in the goal's position, per axis [m]
    yaw_offset: float  # standard deviation of its error in the goal's yaw [rad]
    correction: float  # fraction of the error that remains each time it notices being stuck
    action_noise: float  # standard deviation of noise on each action column
    hesitation: float  # probability per step of starting a pause
    hesitation_steps: int  # length of a pause [control steps]
    speed_low: float  # slowest pace of an episode, as a fraction of the largest action
    speed_high: float  # fastest pace


@dataclass(kw_only=True, eq=False)
class ScriptedExpert:
    """Imperfect expert that goes straight to its believed goal; subclasses set other waypoints."""

    task: SimTask  # attached to its world
    imperfections: Imperfections
    translation_step: float  # metres that an action of 1 moves the target
    rotation_step: float  # radians that an action of 1 turns the target
    # Its current error in the goal's position (3,), base frame [m], and yaw [rad].
    error: Vector = field(default_factory=lambda: np.zeros(3), init=False)
    yaw_error: float = field(default=0.0, init=False)
    speed: float = field(default=1.0, init=False)  # of the episode, fraction of the largest action
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
        """Return the expert's action (d,) in [-1, 1] for the current state."""
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
        """Return the next TCP pose (7,) in the base frame."""
        return self.straight_to(self.task.goal_pose())

    def straight_to(self, goal: Vector) -> Vector:
        """Return a TCP pose (7,) with the expert's error; reduce the error once it has stopped."""
        believed = self.believed(goal)
        if np.abs(self.motion(believed)).max() < 0.2:
            self.correct()
        return believed

    def believed(self, pose: Vector) -> Vector:
        """Add the expert's error to a pose (7,)."""
        return rotations.displaced(pose, self.error, rotations.about_z(self.yaw_error))

    def motion(self, waypoint: Vector) -> Vector:
        """Motion (6,) towards a TCP pose (7,), at the episode's pace, in action units."""
        whole = self.motion_between(self.task.world.tcp_pose(), waypoint)
        for part in (whole[:3], whole[3:]):
            norm = float(np.sqrt(part @ part))
            if norm > self.speed:
                part *= self.speed / norm
        return whole

    def motion_between(self, start: Vector, end: Vector) -> Vector:
        """Unlimited motion (6,) from one TCP pose (7,) to another, in action units."""
        way = rotations.between(start, end)
        return np.concatenate([way[:3] / self.translation_step, way[3:] / self.rotation_step])

    def destination(self) -> Vector | None:
        """Return the target pose (7,) after `act` if any path will do; None if the path matters."""
        return None

    def is_beyond_help(self) -> bool:
        """Whether success has become visibly impossible; False unless a subclass overrides it."""
        return False

    def correct(self) -> None:
        """Reduce the error, as after noticing being stuck and looking again."""
        self.error = self.error * self.imperfections.correction
        self.yaw_error *= self.imperfections.correction


@dataclass
class JointExpert:
    """Drives an arm with joint targets by a scripted expert, through inverse kinematics."""

    expert: ScriptedExpert
    steps: Sequence[float]  # motion of each joint's target for an action of 1 (n,) [rad]

    def reset(self, rng: np.random.Generator) -> None:
        """Start an episode."""
        self.expert.reset(rng)

    def act(self, rng: np.random.Generator) -> Action:
        """Return the joint action (n,), plus the gripper if the task has one, in [-1, 1]."""
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
    """Moves an expert's gripper to an object from above and closes it."""

    hover: float  # height over the object until the fingers are above it [m]
    align: float  # horizontal distance at which they start to descend [m]
    close_steps: int  # control steps allowed for closing
    patience: int  # control steps of descent before the expert looks again
    # Whether the fingers hold an object, as far as the expert knows.
    held: bool = field(default=False, init=False)
    _descending: int = field(default=0, init=False)
    _closing: int = field(default=0, init=False)

    def reset(self) -> None:
        """Restart with an empty hand."""
        self.held = False
        self._descending = self._closing = 0

    def waypoint(self, expert: ScriptedExpert, grasp: Vector) -> Vector:
        """Return the next TCP pose (7,) towards `grasp` (7,); also command the gripper."""
        offset = grasp[:3] - expert.task.world.tcp_pose()[:3]
        if self._descending or float(np.hypot(offset[0], offset[1])) < self.align:
            self._descending += 1
        if self._closing or (self._descending and abs(float(offset[2])) < self.align):
            self._closing += 1
        elif self._descending > self.patience:  # the fingers are blocked by an object
            expert.correct()
            self.reset()
        expert.gripper = 1.0 if self._closing else -1.0
        self.held = self._closing > self.close_steps
        lift = 0.0 if self._descending else self.hover
        return np.concatenate([grasp[:3] + np.array([0.0, 0.0, lift]), grasp[3:]])

    def lost(self, expert: ScriptedExpert) -> bool:
        """Return whether the fingers have closed without an object; the expert then looks again."""
        if not self.held or expert.task.world.finger_opening() > _EMPTY:
            return False
        expert.correct()
        self.reset()
        return True
