"""An arm under ros2_control's `joint_trajectory_controller`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from drivers.arm.base import Vector
from drivers.arm.topics import COMMAND_RATE_HZ, TopicArm, named
from drivers.errors import DriverError, DriverFault, check_ranges
from robot_rl.errors import RobotRLError
from robot_rl.processes.resources import find_resource
from robot_rl.safety import Compliance

if TYPE_CHECKING:
    from robot_rl.ros.client import RosClient


class TrajectoryTopicArm(TopicArm):
    """Solves targets to joint angles, and publishes them as trajectories.

    It is position controlled. Each command is a trajectory of one point, `horizon_s` ahead: when
    this process is killed, the controller ends it and holds.

    Args:
        namespace: Of the controller's topics.
        joint_names: Names of the arm's joints, in its JointState and in the model.
        model: MJCF of the arm: a path, or one that begins with `hardware/`.
        tcp_site: Name of the site of the TCP in the model, whose world is the base frame.
        command_topic: JointTrajectory.
        joint_topic: JointState.
        pose_topic: PoseStamped, measured; empty: the model tells it from the joints.
        twist_topic: TwistStamped, measured; empty where there is none.
        wrench_topic: WrenchStamped, what the environment exerts; empty where there is none.
        horizon_s: Time until the point of a trajectory [s].
        max_joint_step: Farthest that a joint may go in one command [rad].
        stale_after_s: Age at which a measurement is too old [s].
        timeout_s: For the first messages [s].

    Raises:
        MissingExtra: ROS 2 is not installed.
        DriverError: A number is out of range, or the model lacks a joint or the site.
    """

    compliance: Compliance = "position"

    def __init__(
        self,
        namespace: str,
        joint_names: Sequence[str],
        model: str,
        tcp_site: str = "tcp",
        command_topic: str = "joint_trajectory_controller/joint_trajectory",
        joint_topic: str = "joint_states",
        pose_topic: str = "",
        twist_topic: str = "",
        wrench_topic: str = "",
        horizon_s: float = 0.1,
        max_joint_step: float = 0.3,
        stale_after_s: float = 0.1,
        timeout_s: float = 5.0,
    ) -> None:
        """See the class."""
        check_ranges(
            "arm on topics",
            {"horizon_s": (horizon_s, 0.01, 1.0), "max_joint_step": (max_joint_step, 0.01, 1.0)},
        )
        topics = named(joint_topic, pose_topic, twist_topic, wrench_topic)
        super().__init__(namespace, joint_names, topics, stale_after_s, timeout_s)
        self._command_topic = command_topic
        self._horizon, self._step = horizon_s, max_joint_step
        self._load(model, tcp_site)

    def _pose(self, found: Mapping[str, Any], joints: Vector) -> tuple[Vector, int]:
        if "pose" in found:
            return super()._pose(found, joints)
        import mujoco

        from robot_rl.env.sim.kinematics import site_pose
        from robot_rl.ros.stamps import to_nanoseconds

        self._data.qpos[self._chain.qpos] = joints
        mujoco.mj_kinematics(self._model, self._data)
        return site_pose(self._data, self._chain.site), to_nanoseconds(found["joints"].header.stamp)

    def _load(self, model: str, tcp_site: str) -> None:
        import mujoco

        from robot_rl.env.sim.kinematics import Chain

        path = find_resource(model) if model.startswith("hardware/") else model
        try:
            self._model = mujoco.MjModel.from_xml_path(str(path))
            joints = [self._model.joint(name).id for name in self.joint_names]
            site = self._model.site(tcp_site).id
        except (ValueError, KeyError) as error:
            raise DriverError(
                f"the model {model} does not describe the arm",
                got=error,
                expected=f"joints {', '.join(self.joint_names)} and the site {tcp_site!r}",
            ) from error
        low, high = self._model.jnt_range[joints].T
        qpos, dofs = self._model.jnt_qposadr[joints], self._model.jnt_dofadr[joints]
        self._chain = Chain(site, qpos, dofs, low, high)
        self._data = mujoco.MjData(self._model)
        self.joint_limits = tuple(low.tolist()), tuple(high.tolist())

    def _advertise(self, client: RosClient) -> None:
        from trajectory_msgs.msg import JointTrajectory

        from robot_rl.ros import qos

        profile = qos.command_publisher(COMMAND_RATE_HZ)
        self._publisher = client.node.create_publisher(
            JointTrajectory, self._command_topic, profile
        )

    def _send(self, target_pose: Vector) -> None:
        from builtin_interfaces.msg import Duration
        from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

        joints = self._solved(target_pose)
        seconds = int(self._horizon)
        ahead = Duration(sec=seconds, nanosec=round((self._horizon - seconds) * 1e9))
        point = JointTrajectoryPoint(positions=joints.tolist(), time_from_start=ahead)
        self._publisher.publish(JointTrajectory(joint_names=list(self.joint_names), points=[point]))

    def _solved(self, target_pose: Vector) -> Vector:
        from robot_rl.env.sim.kinematics import solve_inverse_kinematics

        measured = self.read().joint_positions
        try:
            joints = solve_inverse_kinematics(
                self._model, self._data, self._chain, target_pose, measured, 1e-4
            )
        except RobotRLError as error:
            raise DriverFault(str(error), hint="move the arm away, then clear_errors") from error
        step = float(np.abs(joints - measured).max())
        if step > self._step:
            raise DriverFault(
                "a joint would jump",
                got=f"{step:.2f} rad",
                expected=f"at most {self._step} rad in one command",
                hint="the arm is near a singularity: move it away, then clear_errors",
            )
        return joints
