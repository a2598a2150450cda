"""`reach`: bring the TCP to a target pose that changes every episode."""

from __future__ import annotations

import mujoco
import numpy as np

from robot_rl.data.schema import Field, Observation
from robot_rl.env.robot import ARM_ACTIONS
from robot_rl.env.sim.task import ScriptedExpert, SimTask, Vector
from robot_rl.safety import rotations

HOME = np.concatenate([[0.45, 0.0, 0.2], rotations.DOWNWARD])


class ReachView:
    """The target pose, and the motion (m, rad; base frame) that is left to it."""

    observation_fields: tuple[Field, ...] = (
        Field("state/object_poses", "float32", (1, 7)),
        Field("state/relative_pose", "float32", (6,)),
    )
    action_names: tuple[str, ...] = ARM_ACTIONS

    def observe(self, object_poses: Vector, tcp_pose: Vector) -> Observation:
        """See `TaskView`; the one object is the target."""
        return {
            "state/object_poses": object_poses.astype(np.float32),
            "state/relative_pose": rotations.between(tcp_pose, object_poses[0]).astype(np.float32),
        }


class Reach(SimTask):
    """Reach a pose within `tolerance` [m] and `angle_tolerance` [rad].

    Args:
        name: See `SimTask`.
        instruction: See `SimTask`.
        time_limit_steps: See `SimTask`.
        position_range: Half width of the cube of targets about the home position [m].
        yaw_range: Largest yaw of a target [rad].
        tolerance: Distance that counts as reached [m].
        angle_tolerance: Angle that counts as reached [rad].
    """

    observed_objects: tuple[str, ...] = ("goal",)

    def __init__(
        self,
        name: str,
        instruction: str,
        time_limit_steps: int,
        position_range: float,
        yaw_range: float,
        tolerance: float,
        angle_tolerance: float,
    ) -> None:
        """See the class."""
        super().__init__(name, instruction, time_limit_steps, ReachView())
        self._position_range = position_range
        self._yaw_range = yaw_range
        self._tolerance = tolerance
        self._angle_tolerance = angle_tolerance
        self._goal = HOME

    def build(self, spec: mujoco.MjSpec) -> None:
        """Add a marker that nothing collides with."""
        goal = spec.worldbody.add_body(name="goal")
        goal.add_geom(
            type=mujoco.mjtGeom.mjGEOM_SPHERE,
            size=[self._tolerance, 0, 0],
            rgba=[0.2, 0.7, 0.3, 0.6],
            contype=0,
            conaffinity=0,
        )

    def reset(self, rng: np.random.Generator) -> Vector:
        """Draw a target; the arm starts at home."""
        offset = rng.uniform(-self._position_range, self._position_range, 3)
        yaw = rotations.about_z(rng.uniform(-self._yaw_range, self._yaw_range))
        self._goal = np.concatenate(
            [HOME[:3] + offset, rotations.multiply(yaw, rotations.DOWNWARD)]
        )
        self.world.set_body_pose("goal", self._goal)
        return HOME

    def resume(self, rng: np.random.Generator) -> None:
        """Draw another target; the arm starts where it is."""
        self.reset(rng)

    def goal_pose(self) -> Vector:
        """The target (7,)."""
        return self._goal

    def seen_poses(self) -> Vector:
        """The target (1, 7), seen without noise."""
        return self._goal[None]

    def succeeded(self) -> bool:
        """Within both tolerances."""
        remaining = rotations.between(self.world.tcp_pose(), self._goal)
        distance = np.linalg.norm(remaining[:3])
        angle = np.linalg.norm(remaining[3:])
        return bool(distance <= self._tolerance and angle <= self._angle_tolerance)


class ReachExpert(ScriptedExpert):
    """Goes straight to where it believes the target is; corrects itself when it has stopped."""

    def waypoint(self, rng: np.random.Generator) -> Vector:
        """The believed target."""
        goal = self.task.goal_pose()
        turn = rotations.about_z(self.yaw_error)
        believed = np.concatenate([goal[:3] + self.error, rotations.multiply(turn, goal[3:])])
        if np.abs(self.motion(believed)).max() < 0.2:
            self.correct()
        return believed
