"""Arms that already have a controller on ROS 2 topics.

A Cartesian impedance controller takes poses; ros2_control's `joint_trajectory_controller` takes
joint angles. The controller's topics need a different namespace or names than the arm's node.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from drivers.arm.base import JointLimits, Vector
from drivers.base import DriverError, DriverFault, TopicDriver, check_ranges
from robot_rl.errors import RobotRLError, require
from robot_rl.processes.resources import find_resource
from robot_rl.safety import ArmState, Compliance

if TYPE_CHECKING:
    from robot_rl.ros.sensors import Sensor

_COMMAND_RATE_HZ = 100.0
_POSE, _WRENCH = "geometry_msgs/msg/PoseStamped", "geometry_msgs/msg/WrenchStamped"


@dataclass(eq=False)
class TopicArm(TopicDriver, ABC):
    """Reads an arm's state from topics; subclasses publish its commands."""

    fault: ClassVar[str | None] = None  # always None: topics do not report controller faults
    namespace: str  # of the controller's topics
    joint_names: Sequence[str]  # joint names in the arm's JointState
    _: KW_ONLY
    joint_topic: str = "joint_states"  # JointState
    # PoseStamped, measured; empty if the subclass computes it from the joints.
    pose_topic: str = "current_pose"
    # TwistStamped, measured in the base frame; empty if not measured.
    twist_topic: str = "current_twist"
    # WrenchStamped exerted by the environment, in the base frame; empty if not measured.
    wrench_topic: str = "current_wrench"
    stale_after_s: float = 0.1  # largest age of a measurement [s]
    timeout_s: float = 5.0  # for the first messages [s]
    # `frame_id` of the base frame, required of measurements and set on targets; empty: the most
    # common one among the measurements.
    frame: str = ""

    def __post_init__(self) -> None:
        check_ranges("arm on topics", self, stale_after_s=(0.005, 5.0), timeout_s=(0.1, 60.0))
        require("rclpy", "ros")
        self.joint_limits: JointLimits = ((), ())
        self._sensors: dict[str, Sensor] = {}
        self._publisher: Any = None
        self._kinematics: Any = None  # set by subclasses that compute the pose from the joints

    def examine(self) -> str:
        """List the controller's topics, sending nothing; `DriverError` if one is not published."""
        return self.published(
            self.joint_topic, self.pose_topic, self.twist_topic, self.wrench_topic
        )

    def connect(self) -> None:
        """Subscribe and wait for the first message on each topic, or raise `RobotInterrupted`."""
        from robot_rl.ros import conversions, qos
        from robot_rl.ros.ros_client import message_type
        from robot_rl.ros.sensors import Sensor, wait_for_all

        client = self.listen("arm_driver")
        joints = partial(conversions.joint_states, names=self.joint_names)
        topics: dict[str, tuple[str, str, Any]] = {
            "joints": (self.joint_topic, "sensor_msgs/msg/JointState", joints),
            "pose": (self.pose_topic, _POSE, conversions.pose_array),
            "twist": (self.twist_topic, "geometry_msgs/msg/TwistStamped", conversions.twist_array),
            "wrench": (self.wrench_topic, _WRENCH, conversions.wrench_array),
        }
        # Several controllers may publish JointState, each for its own joints.
        own = lambda message: bool(set(self.joint_names) & set(message.name))  # noqa: E731
        # A force given in the tool frame would be read in the wrong direction.
        frames = dict.fromkeys(["pose", "twist", "wrench"], self._named)
        self._sensors = {
            name: Sensor(
                client,
                message_type(kind),
                topic,
                self.stale_after_s,
                decode,
                accepts=own if name == "joints" else None,
                in_frame=frames.get(name, str),
                setting="nodes.arm.parameters.driver.stale_after_s",
            )
            for name, (topic, kind, decode) in topics.items()
            if topic
        }
        kind, topic = self._commands()
        profile = qos.command_publisher(_COMMAND_RATE_HZ)
        self._publisher = client.node.create_publisher(message_type(kind), topic, profile)
        wait_for_all(self._sensors.values(), 1, self.timeout_s)

    def read(self) -> ArmState:
        """Return the latest measurements taken together; velocity and wrench NaN without a topic.

        Raises `DriverError` if not connected, otherwise `RobotInterrupted`.
        """
        from robot_rl.ros.sensors import check_all, together

        self.check_connected("the arm on topics")
        check_all(self._sensors.values())
        where = self._sensors["pose" if "pose" in self._sensors else "joints"]
        taken = together([where], self._sensors.values(), self.stale_after_s)
        seen = {name: sensor.value(taken[sensor]) for name, sensor in self._sensors.items()}
        joints, velocities = seen["joints"]
        pose = seen["pose"] if "pose" in seen else self._kinematics.pose(joints)
        unknown = np.full(6, np.nan)
        return ArmState(
            taken[where].stamp_ns,
            joints,
            velocities,
            pose,
            seen.get("twist", unknown),
            seen.get("wrench", unknown),
            self._base_frame(),
        )

    @abstractmethod
    def command(self, target_pose: Vector) -> None:
        """Publish the command for a target pose (7,), or raise `DriverFault` without publishing."""

    def hold(self) -> None:
        """Do nothing: the controller keeps its last target, a bounded distance ahead of the arm."""

    def stop(self) -> None:
        """Do nothing: topics have no stop. The guard sends a halting target, then no more."""

    def clear_errors(self) -> None:
        """Do nothing: the controller handles its own faults."""

    @abstractmethod
    def _commands(self) -> tuple[str, str]:
        """Message type and topic of the commands."""

    def _base_frame(self) -> str:
        """Return the configured frame name, else the measured one, else robot_rl's default."""
        return self._named() or "base"

    def _named(self) -> str:
        from robot_rl.ros.sensors import common_frame

        measured = (self._sensors.get(name) for name in ("pose", "twist", "wrench"))
        return self.frame or common_frame(measured)


@dataclass(eq=False)
class PoseTopicArm(TopicArm):
    """An arm whose controller takes target poses, such as a Cartesian impedance controller.

    If this process is killed, the controller decides what the arm does: without a watchdog it keeps
    its last target, which is a bounded distance ahead of the arm.
    """

    _: KW_ONLY
    target_topic: str = "target_pose"  # PoseStamped, for commands
    compliance: Compliance = "impedance"  # of the controller

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.pose_topic:
            raise DriverError(
                "this arm's pose is not measured",
                got="an empty pose_topic",
                expected="a topic of PoseStamped",
                hint="name it, or take TrajectoryTopicArm, which tells the pose from the joints",
            )

    def command(self, target_pose: Vector) -> None:
        """Publish a target pose (7,)."""
        from robot_rl.ros.conversions import pose_message

        self._publisher.publish(pose_message(target_pose, time.time_ns(), self._base_frame()))

    def _commands(self) -> tuple[str, str]:
        return _POSE, self.target_topic


@dataclass(eq=False)
class TrajectoryTopicArm(TopicArm):
    """Converts target poses to joint angles by inverse kinematics and publishes trajectories.

    The arm is position controlled. Each command is a one-point trajectory, `horizon_s` ahead: if
    this process is killed, the controller finishes it and holds. Without a `pose_topic`, the pose
    is computed from the joints, which must have the same names in the model.
    """

    compliance: ClassVar[Compliance] = "position"

    model: str  # MJCF of the arm: a path, or a resource that starts with `hardware/`
    _: KW_ONLY
    tcp_site: str = "tcp"  # the model's TCP site; the model's world is the base frame
    command_topic: str = "joint_trajectory_controller/joint_trajectory"  # JointTrajectory
    pose_topic: str = ""
    twist_topic: str = ""
    wrench_topic: str = ""
    horizon_s: float = 0.1  # time until the trajectory's point [s]
    max_joint_step: float = 0.3  # largest joint motion of one command [rad]

    def __post_init__(self) -> None:
        import mujoco

        from robot_rl.env.sim.kinematics import Kinematics

        super().__post_init__()
        check_ranges("arm on topics", self, horizon_s=(0.01, 1.0), max_joint_step=(0.01, 1.0))
        own = self.model.startswith("hardware/")
        path = find_resource(self.model) if own else self.model
        try:
            model = mujoco.MjModel.from_xml_path(str(path))
            joints = [model.joint(name).id for name in self.joint_names]
            site = model.site(self.tcp_site).id
        except (ValueError, KeyError) as error:
            raise DriverError(
                f"the model {self.model} does not describe the arm",
                got=error,
                expected=f"joints {', '.join(self.joint_names)} and the site {self.tcp_site!r}",
            ) from error
        self._kinematics = arm = Kinematics(model, site, joints)
        self.joint_limits = tuple(arm.low.tolist()), tuple(arm.high.tolist())

    def command(self, target_pose: Vector) -> None:
        """Publish a one-point trajectory to the joint angles of a target pose (7,).

        Raises `DriverFault` and sends nothing if the pose is unreachable or a joint would jump.
        """
        from builtin_interfaces.msg import Duration
        from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

        measured = self.read().joint_positions
        try:
            joints = self._kinematics.solve(target_pose, measured, 1e-4)
        except RobotRLError as error:
            raise DriverFault(str(error), hint="move the arm away, then clear_errors") from error
        step = float(np.abs(joints - measured).max())
        if step > self.max_joint_step:
            raise DriverFault(
                "a joint would jump",
                got=f"{step:.2f} rad",
                expected=f"at most {self.max_joint_step} rad in one command",
                hint="the arm is near a singularity: move it away, then clear_errors",
            )
        seconds = int(self.horizon_s)
        ahead = Duration(sec=seconds, nanosec=round((self.horizon_s - seconds) * 1e9))
        point = JointTrajectoryPoint(positions=joints.tolist(), time_from_start=ahead)
        self._publisher.publish(JointTrajectory(joint_names=list(self.joint_names), points=[point]))

    def forward_kinematics(self, joints: Vector) -> Vector:
        """Return the pose (7,) of the TCP, base frame, at joint positions (n,) [rad]."""
        return np.asarray(self._kinematics.pose(joints))

    def _commands(self) -> tuple[str, str]:
        return "trajectory_msgs/msg/JointTrajectory", self.command_topic
