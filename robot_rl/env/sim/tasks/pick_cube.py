"""`pick_cube`: grasp a cube at a random pose on the table and lift it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import mujoco
import numpy as np

from robot_rl.env.robot import ARM_ACTIONS, GRIPPER_ACTION
from robot_rl.env.sim.task import ScriptedExpert, SimTask, TopGrasp, Vector, box, downward, observed
from robot_rl.safety import rotations

CUBE_WIDTH = 0.04
TABLE_CENTRE = np.array([0.45, 0.0, 0.0])
# A cube farther than this from the TCP is not held [m].
_IN_HAND = 0.04
_QUARTER = 0.5 * math.pi


@dataclass(kw_only=True, eq=False)
class PickCube(SimTask):
    """Lift a 40 mm cube, whose pose is observed with a fixed error.

    In the observation, `relative_pose` is the vector from the TCP to the cube, base frame [m], and
    the angle to the nearest alignment of fingers and faces [rad]; `lift` is the height over the
    table [m].
    """

    observation_fields = observed(
        object_poses=(1, 7), relative_pose=(4,), relative_position_fine=(3,), lift=(1,)
    )
    action_names = (*ARM_ACTIONS, GRIPPER_ACTION)
    finger_opening = 0.08
    observed_objects = ("cube",)

    position_range: float  # half range of the cube's x and y [m]
    yaw_range: float  # half range of the cube's yaw [rad], at most 45 degrees
    position_noise: float  # half range of the observation error per axis, fixed per episode [m]
    yaw_noise: float  # half range of the observed yaw's error [rad]
    fine_scale: float  # distance d of the fine observation tanh(relative position / d) [m]
    start_height: float  # height of the TCP over the table at the start [m]
    start_noise: float  # half range of the start position per axis [m]
    lift_height: float  # how far the cube must rise [m]
    mass: float  # of the cube [kg]

    def build(self, spec: mujoco.MjSpec) -> None:
        """Add the cube, free to move."""
        # MuJoCo's friction is soft: without this the cube creeps out of the fingers at 1 mm/s.
        spec.option.noslip_iterations = 3
        cube = spec.worldbody.add_body(name="cube", pos=[0.0, 0.0, CUBE_WIDTH / 2])
        cube.add_freejoint(name="cube")
        solid = box([CUBE_WIDTH] * 3, friction=0.6, mass=self.mass, rgba=[0.8, 0.2, 0.2, 1])
        cube.add_geom(name="cube", contype=3, conaffinity=3, **solid)
        cube.add_site(name="cube")

    def reset(self, rng: np.random.Generator) -> Vector:
        """Draw the cube's pose, its observation error, and the start pose."""
        shift = rng.uniform(-self.position_range, self.position_range, 2)
        yaw = rng.uniform(-self.yaw_range, self.yaw_range)
        position = TABLE_CENTRE + np.array([*shift, CUBE_WIDTH / 2])
        self.world.set_start_pose("cube", np.concatenate([position, rotations.about_z(yaw)]))
        self._position_error = rng.uniform(-self.position_noise, self.position_noise, 3)
        self._yaw_error = rotations.about_z(rng.uniform(-self.yaw_noise, self.yaw_noise))
        start = TABLE_CENTRE + np.array([0.0, 0.0, self.start_height])
        return downward(start + rng.uniform(-self.start_noise, self.start_noise, 3))

    def cube_pose(self) -> Vector:
        """True pose (7,) of the cube's centre; for experts and tests, never observed."""
        return self.world.site_pose("cube")

    def grasp_pose(self) -> Vector:
        """TCP pose (7,) to hold the cube by two faces, with the least rotation."""
        cube = self.cube_pose()
        yaw = rotations.about_z(_to_nearest_face(rotations.heading(cube[3:])))
        return np.concatenate([cube[:3], rotations.multiply(yaw, rotations.DOWNWARD)])

    def goal_pose(self) -> Vector:
        """TCP pose (7,) above the current grasp at which the cube is lifted."""
        pose = self.grasp_pose()
        pose[2] = CUBE_WIDTH / 2 + self.lift_height
        return pose

    def seen_poses(self) -> Vector:
        """Pose (1, 7) of the cube with its observation error."""
        return rotations.displaced(self.cube_pose(), self._position_error, self._yaw_error)[None]

    def see(self, object_poses: Vector, tcp_pose: Vector) -> dict[str, Vector]:
        """See `TaskView`; the one object is the cube."""
        (cube,) = object_poses
        way = cube[:3] - tcp_pose[:3]
        turn = _to_nearest_face(rotations.heading(cube[3:]) - rotations.heading(tcp_pose[3:]))
        return {
            "state/relative_pose": np.array([*way, turn]),
            "state/relative_position_fine": np.tanh(way / self.fine_scale),
            "state/lift": np.array([cube[2] - CUBE_WIDTH / 2]),
        }

    def succeeded(self) -> bool:
        """Whether the cube is high enough and in the hand."""
        position = self.cube_pose()[:3]
        away = np.linalg.norm(position - self.world.tcp_pose()[:3])
        return bool(position[2] >= CUBE_WIDTH / 2 + self.lift_height and away < _IN_HAND)


@dataclass(kw_only=True, eq=False)
class PickCubeExpert(ScriptedExpert):
    """Grasps at the believed cube pose and lifts; looks again if the grasp is empty."""

    task: PickCube
    grasp: TopGrasp  # the grasp motion

    def reset(self, rng: np.random.Generator) -> None:
        """Draw this episode's error and pace."""
        super().reset(rng)
        self.grasp.reset()

    def waypoint(self, rng: np.random.Generator) -> Vector:
        """Move over the believed cube, descend, and lift once the fingers have closed."""
        if self.grasp.held and not self.grasp.lost(self):
            up = self.task.world.tcp_pose()[:3] + np.array([0.0, 0.0, 0.05])
            return np.concatenate([up, self.task.goal_pose()[3:]])
        return self.grasp.waypoint(self, self.believed(self.task.grasp_pose()))


def _to_nearest_face(yaw: float) -> float:
    """Equivalent yaw for a cube's faces, within 45 degrees."""
    return (yaw + 0.5 * _QUARTER) % _QUARTER - 0.5 * _QUARTER
