"""Arms that already have a controller on ROS 2 topics: Cartesian impedance, or joint trajectories.

The controller's topics must be in another namespace than the arm's node, or have other names.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from drivers.arm.base import ArmState, Vector
from drivers.errors import DriverError, DriverFault, DriverTimeout, Stale, check_ranges, require
from robot_rl.errors import RobotRLError
from robot_rl.resources import find_resource
from robot_rl.safety import Compliance

if TYPE_CHECKING:
    from robot_rl.ros.client import RosClient

_COMMAND_RATE_HZ = 100.0


class _TopicArm(ABC):
    """Reads an arm's state from topics; a subclass publishes its commands.

    Attributes:
        fault: Always None: the controller's faults are its own business.
    """

    joint_limits: tuple[tuple[float, ...], tuple[float, ...]] = ((), ())
    fault: str | None = None

    def __init__(
        self,
        namespace: str,
        joint_names: Sequence[str],
        topics: dict[str, str],
        stale_after_s: float,
        timeout_s: float,
    ) -> None:
        check_ranges(
            "arm on topics",
            {"stale_after_s": (stale_after_s, 0.005, 5.0), "timeout_s": (timeout_s, 0.1, 60.0)},
        )
        require("rclpy", "ros")
        self.joint_names = tuple(joint_names)
        self._namespace = namespace
        self._topics = topics
        self._stale_after, self._timeout = stale_after_s, timeout_s
        self._client: RosClient | None = None
        self._arrived = threading.Condition()
        self._newest: dict[str, tuple[Any, float]] = {}
        self._stopped = False

    def connect(self) -> None:
        """Subscribe, and wait for the first message of each topic.

        Raises:
            DriverTimeout: Names the topic that is silent.
        """
        from geometry_msgs.msg import PoseStamped, TwistStamped, WrenchStamped
        from sensor_msgs.msg import JointState

        from robot_rl.ros import qos
        from robot_rl.ros.client import RosClient

        self.close()
        kinds = {
            "joints": JointState,
            "pose": PoseStamped,
            "twist": TwistStamped,
            "wrench": WrenchStamped,
        }
        self._newest = {}
        client = self._client = RosClient("arm_controller", self._namespace)
        for name, topic in self._topics.items():
            take = lambda message, name=name: self._take(name, message)  # noqa: E731
            profile = qos.sensor_subscription(1)
            client.node.create_subscription(kinds[name], topic, take, profile)
        self._advertise(client)
        with self._arrived:
            self._arrived.wait_for(
                lambda: self._topics.keys() <= self._newest.keys(), self._timeout
            )
        silent = [topic for name, topic in self._topics.items() if name not in self._newest]
        if silent:
            name = client.topic(silent[0])
            raise DriverTimeout(
                f"no message on {name}",
                got=f"none within {self._timeout:g} s",
                hint="does the arm's controller run? Its topics are arguments of the driver",
            )

    def read(self) -> ArmState:
        """The newest messages, with the stamp of the pose; velocity and wrench NaN without a topic.

        Raises:
            Stale: A topic has become silent.
            DriverError: A message that cannot be used, for example without one of the joints.
        """
        from robot_rl.ros import messages
        from robot_rl.ros.stamps import to_nanoseconds

        self._connected().check()
        found = {name: self._fresh(name) for name in self._topics}
        try:
            wrench = messages.wrench_array(found["wrench"]) if "wrench" in found else _unknown()
            return ArmState(
                to_nanoseconds(found["pose"].header.stamp),
                messages.joint_positions(found["joints"], self.joint_names),
                messages.joint_velocities(found["joints"], self.joint_names),
                messages.pose_array(found["pose"]),
                messages.twist_array(found["twist"]) if "twist" in found else _unknown(),
                wrench,
            )
        except messages.MessageError as error:
            raise DriverError(f"the arm on {self._namespace}: {error}") from error

    def command(self, target_pose: Vector) -> None:
        """Publish a target.

        Raises:
            DriverFault: Stopped, or the pose cannot be reached; nothing was sent.
        """
        self._connected()
        if self._stopped:
            raise DriverFault("the arm is stopped", hint="look at the arm, then clear_errors")
        self._send(target_pose)

    def hold(self) -> None:
        """Publish the measured pose as the target."""
        if self._client is not None:
            self._send(self.read().tcp_pose)

    def stop(self) -> None:
        """Hold, and refuse motion until `clear_errors`: topics have no better stop.

        Raises:
            DriverError: The controller could not be told to hold: it keeps its last target.
        """
        self._stopped = True
        try:
            self.hold()
        except RobotRLError as error:
            raise DriverError(
                "the arm's controller was not told to hold, and keeps its last target",
                got=error,
                hint="nothing more is sent to it until clear_errors",
            ) from error

    def clear_errors(self) -> None:
        """Allow motion again, from where the arm is.

        Raises:
            DriverError: It is not known where the arm is.
        """
        self.hold()
        self._stopped = False

    def close(self) -> None:
        """Leave ROS; the controller keeps its last target."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    @abstractmethod
    def _advertise(self, client: RosClient) -> None:
        """Make the publisher of commands."""

    @abstractmethod
    def _send(self, target_pose: Vector) -> None:
        """Publish what leads to a target pose (7,)."""

    def _take(self, name: str, message: Any) -> None:
        if name == "joints" and not set(self.joint_names) & set(message.name):
            return  # joint_states may come from several controllers, each with its own joints
        with self._arrived:
            self._newest[name] = message, time.monotonic()
            self._arrived.notify_all()

    def _fresh(self, name: str) -> Any:
        with self._arrived:
            message, received = self._newest[name]
        age = time.monotonic() - received
        if age > self._stale_after:
            topic = self._connected().topic(self._topics[name])
            raise Stale(topic, age, self._stale_after, "does the arm's controller run?")
        return message

    def _connected(self) -> RosClient:
        if self._client is None:
            raise DriverError("the arm on topics is not connected", hint="call connect first")
        return self._client


class PoseTopicArm(_TopicArm):
    """An arm whose controller takes target poses, for example a Cartesian impedance controller.

    What the arm does when this process is killed is the controller's business: unless it has a
    watchdog of its own it keeps its last target, which leads the arm by a bounded distance.

    Args:
        namespace: Of the controller's topics.
        joint_names: Names of the arm's joints in its JointState.
        target_topic: PoseStamped, of commands.
        joint_topic: JointState.
        pose_topic: PoseStamped, measured.
        twist_topic: TwistStamped, measured; empty where there is none.
        wrench_topic: WrenchStamped, what the environment exerts; empty where there is none.
        compliance: Of the controller.
        frame: `frame_id` of targets.
        stale_after_s: Age at which a measurement is too old [s].
        timeout_s: For the first messages [s].

    Raises:
        MissingExtra: ROS 2 is not installed.
        DriverError: A number is out of range.
    """

    def __init__(
        self,
        namespace: str,
        joint_names: Sequence[str],
        target_topic: str = "target_pose",
        joint_topic: str = "joint_states",
        pose_topic: str = "current_pose",
        twist_topic: str = "current_twist",
        wrench_topic: str = "current_wrench",
        compliance: Compliance = "impedance",
        frame: str = "base",
        stale_after_s: float = 0.1,
        timeout_s: float = 5.0,
    ) -> None:
        """See the class."""
        topics = _named(joint_topic, pose_topic, twist_topic, wrench_topic)
        super().__init__(namespace, joint_names, topics, stale_after_s, timeout_s)
        self.compliance = compliance
        self._target_topic, self._frame = target_topic, frame

    def _advertise(self, client: RosClient) -> None:
        from geometry_msgs.msg import PoseStamped

        from robot_rl.ros import qos

        profile = qos.command_publisher(_COMMAND_RATE_HZ)
        self._publisher = client.node.create_publisher(PoseStamped, self._target_topic, profile)

    def _send(self, target_pose: Vector) -> None:
        from robot_rl.ros.messages import pose_message

        self._publisher.publish(pose_message(target_pose, time.time_ns(), self._frame))


class TrajectoryTopicArm(_TopicArm):
    """An arm under ros2_control's `joint_trajectory_controller`; solves targets to joint angles.

    It is position controlled. Each command is a trajectory of one point, `horizon_s` ahead: when
    this process is killed, the controller ends it and holds.

    Args:
        namespace: Of the controller's topics.
        joint_names: Names of the arm's joints, in its JointState and in the model.
        model: MJCF of the arm: a path, or one that begins with `hardware/`.
        tcp_site: Name of the site of the TCP in the model, whose world is the base frame.
        command_topic: JointTrajectory.
        joint_topic: JointState.
        pose_topic: PoseStamped, measured.
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
        pose_topic: str = "current_pose",
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
        topics = _named(joint_topic, pose_topic, twist_topic, wrench_topic)
        super().__init__(namespace, joint_names, topics, stale_after_s, timeout_s)
        self._command_topic = command_topic
        self._horizon, self._step = horizon_s, max_joint_step
        self._load(model, tcp_site)

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

        profile = qos.command_publisher(_COMMAND_RATE_HZ)
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


def _named(joints: str, pose: str, twist: str, wrench: str) -> dict[str, str]:
    """The topics that there are."""
    topics = {"joints": joints, "pose": pose, "twist": twist, "wrench": wrench}
    return {name: topic for name, topic in topics.items() if topic}


def _unknown() -> Vector:
    return np.full(6, np.nan)
