"""`pick_cube`: grasp a cube that lies anywhere on the table and lift it."""

from __future__ import annotations

import math

import mujoco
import numpy as np

from robot_rl.data.schema import Field, Observation
from robot_rl.env.robot import ARM_ACTIONS, GRIPPER_ACTION
from robot_rl.env.sim.grasping import TopGrasp
from robot_rl.env.sim.task import (
    Imperfections,
    ScriptedExpert,
    SimTask,
    Vector,
)
from robot_rl.safety import rotations

CUBE_WIDTH = 0.04
TABLE_CENTRE = np.array([0.45, 0.0, 0.0])
# A cube that is further than this from the TCP is not held [m].
_IN_HAND = 0.04
_QUARTER = 0.5 * math.pi


class PickCubeView:
    """The cube as seen: its pose, and where it is from the TCP.

    `relative_pose` is the way from the TCP to the cube, base frame [m], and the angle to the
    nearest alignment of fingers and faces [rad]; `lift` is the height over the table [m].

    Args:
        fine_scale: Distance d of the fine observation tanh(relative position / d) [m].
    """

    observation_fields: tuple[Field, ...] = (
        Field("state/object_poses", "float32", (1, 7)),
        Field("state/relative_pose", "float32", (4,)),
        Field("state/relative_position_fine", "float32", (3,)),
        Field("state/lift", "float32", (1,)),
    )
    action_names: tuple[str, ...] = (*ARM_ACTIONS, GRIPPER_ACTION)

    def __init__(self, fine_scale: float) -> None:
        """See the class."""
        self._fine_scale = fine_scale

    def observe(self, object_poses: Vector, tcp_pose: Vector) -> Observation:
        """See `TaskView`; the one object is the cube."""
        (cube,) = object_poses
        way = cube[:3] - tcp_pose[:3]
        turn = _to_nearest_face(rotations.heading(cube[3:]) - rotations.heading(tcp_pose[3:]))
        return {
            "state/object_poses": object_poses.astype(np.float32),
            "state/relative_pose": np.array([*way, turn], np.float32),
            "state/relative_position_fine": np.tanh(way / self._fine_scale).astype(np.float32),
            "state/lift": np.array([cube[2] - CUBE_WIDTH / 2], np.float32),
        }


class PickCube(SimTask):
    """Lift a 40 mm cube, whose pose is seen with a fixed error, by `lift_height`.

    Args:
        name: See `SimTask`.
        instruction: See `SimTask`.
        time_limit_steps: See `SimTask`.
        position_range: Half range of the cube's x and y [m].
        yaw_range: Half range of the cube's yaw [rad], at most 45 degrees.
        position_noise: Half range of the observation error per axis, fixed per episode [m].
        yaw_noise: Half range of the observed yaw's error [rad].
        fine_scale: See `PickCubeView`.
        start_height: Height of the TCP over the table at the start [m].
        start_noise: Half range of the start position per axis [m].
        lift_height: How far the cube must rise [m].
        mass: Of the cube [kg].
    """

    finger_opening = 0.08
    observed_objects: tuple[str, ...] = ("cube",)

    def __init__(
        self,
        name: str,
        instruction: str,
        time_limit_steps: int,
        position_range: float,
        yaw_range: float,
        position_noise: float,
        yaw_noise: float,
        fine_scale: float,
        start_height: float,
        start_noise: float,
        lift_height: float,
        mass: float,
    ) -> None:
        """See the class."""
        super().__init__(name, instruction, time_limit_steps, PickCubeView(fine_scale))
        self._position_range = position_range
        self._yaw_range = yaw_range
        self._position_noise = position_noise
        self._yaw_noise = yaw_noise
        self._start_height = start_height
        self._start_noise = start_noise
        self._lift_height = lift_height
        self._mass = mass
        self._position_error = np.zeros(3)
        self._yaw_error = rotations.about_z(0.0)

    def build(self, spec: mujoco.MjSpec) -> None:
        """Add the cube, free to move."""
        # MuJoCo's friction is soft: without this the cube creeps out of the fingers, 1 mm a second.
        spec.option.noslip_iterations = 3
        cube = spec.worldbody.add_body(name="cube", pos=[0.0, 0.0, CUBE_WIDTH / 2])
        cube.add_freejoint(name="cube")
        cube.add_geom(
            name="cube",
            type=mujoco.mjtGeom.mjGEOM_BOX,
            size=[CUBE_WIDTH / 2] * 3,
            mass=self._mass,
            rgba=[0.8, 0.2, 0.2, 1],
            contype=3,
            conaffinity=3,
            friction=[0.6, 0.005, 0.0001],
        )
        cube.add_site(name="cube")

    def reset(self, rng: np.random.Generator) -> Vector:
        """Draw the cube's pose, the error it is seen with, and the start pose."""
        shift = rng.uniform(-self._position_range, self._position_range, 2)
        yaw = rng.uniform(-self._yaw_range, self._yaw_range)
        position = TABLE_CENTRE + np.array([*shift, CUBE_WIDTH / 2])
        self.world.set_start_pose("cube", np.concatenate([position, rotations.about_z(yaw)]))
        self._position_error = rng.uniform(-self._position_noise, self._position_noise, 3)
        self._yaw_error = rotations.about_z(rng.uniform(-self._yaw_noise, self._yaw_noise))
        start = TABLE_CENTRE + np.array([0.0, 0.0, self._start_height])
        start = start + rng.uniform(-self._start_noise, self._start_noise, 3)
        return np.concatenate([start, rotations.DOWNWARD])

    def cube_pose(self) -> Vector:
        """The true pose (7,) of the cube's centre: for experts and tests, never observed."""
        return self.world.site_pose("cube")

    def grasp_pose(self) -> Vector:
        """TCP pose (7,) at which the fingers hold the cube by two faces, turned least."""
        cube = self.cube_pose()
        yaw = rotations.about_z(_to_nearest_face(rotations.heading(cube[3:])))
        return np.concatenate([cube[:3], rotations.multiply(yaw, rotations.DOWNWARD)])

    def goal_pose(self) -> Vector:
        """The TCP pose (7,) over the present grasp at which the cube is lifted."""
        pose = self.grasp_pose()
        pose[2] = CUBE_WIDTH / 2 + self._lift_height
        return pose

    def seen_poses(self) -> Vector:
        """The cube (1, 7) with the error with which it is seen."""
        cube = self.cube_pose()
        position = cube[:3] + self._position_error
        orientation = rotations.multiply(self._yaw_error, cube[3:])
        return np.concatenate([position, orientation])[None]

    def succeeded(self) -> bool:
        """The cube is high enough, and in the hand."""
        position = self.cube_pose()[:3]
        away = np.linalg.norm(position - self.world.tcp_pose()[:3])
        return bool(position[2] >= CUBE_WIDTH / 2 + self._lift_height and away < _IN_HAND)


class PickCubeExpert(ScriptedExpert):
    """Grasps where it believes the cube is and lifts; looks again when it holds nothing.

    Args:
        task: The task.
        imperfections: See `Imperfections`.
        translation_step: See `ScriptedExpert`.
        rotation_step: See `ScriptedExpert`.
        grasp: How the cube is taken.
    """

    def __init__(
        self,
        task: PickCube,
        imperfections: Imperfections,
        translation_step: float,
        rotation_step: float,
        grasp: TopGrasp,
    ) -> None:
        """See the class."""
        super().__init__(task, imperfections, translation_step, rotation_step)
        self._cube_task = task
        self._grasp = grasp

    def reset(self, rng: np.random.Generator) -> None:
        """Draw this episode's error and pace."""
        super().reset(rng)
        self._grasp.reset()

    def waypoint(self, rng: np.random.Generator) -> Vector:
        """Over the believed cube, down to it, and up once the fingers have closed."""
        if self._grasp.held and not self._grasp.lost(self):
            up = self.task.world.tcp_pose() + np.array([0.0, 0.0, 0.05, 0.0, 0.0, 0.0, 0.0])
            return np.concatenate([up[:3], self.task.goal_pose()[3:]])
        grasp = self._cube_task.grasp_pose()
        turn = rotations.about_z(self.yaw_error)
        believed = np.concatenate([grasp[:3] + self.error, rotations.multiply(turn, grasp[3:])])
        return self._grasp.waypoint(self, believed)


def _to_nearest_face(yaw: float) -> float:
    """The same alignment with a cube's faces, within 45 degrees."""
    return (yaw + 0.5 * _QUARTER) % _QUARTER - 0.5 * _QUARTER
