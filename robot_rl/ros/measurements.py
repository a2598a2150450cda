"""What a robot on ROS 2 topics measures, put together by stamp for one observation."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from geometry_msgs.msg import PoseArray, PoseStamped, TwistStamped, WrenchStamped
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Bool

from robot_rl.data.schema import Field, Observation
from robot_rl.env.robot import state_fields
from robot_rl.errors import RobotRLError
from robot_rl.ros import messages
from robot_rl.ros.client import RosClient
from robot_rl.ros.phase import best_moment
from robot_rl.ros.sensors import NodeHealth, Received, Sensor, together, wait_for_all
from robot_rl.safety import Plausibility, rotations

Vector = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SensorLimits:
    """How fresh measurements must be.

    Attributes:
        arm_s: Age of the arm's state since its receipt [s].
        image_s: Age of a camera's newest frame [s].
        gripper_s: Age of the gripper's state [s].
        tracker_s: Age of the poses of objects and of the success signal [s].
        skew_s: Largest difference between the stamps of one observation [s].
        start_timeout_s: How long an episode's start waits for fresh measurements [s].
    """

    arm_s: float
    image_s: float
    gripper_s: float
    tracker_s: float
    skew_s: float
    start_timeout_s: float

    def __post_init__(self) -> None:
        """Check the numbers."""
        for name, value in vars(self).items():
            if not (math.isfinite(value) and value > 0.0):
                raise RobotRLError(
                    f"robot.sensors.{name} is not a positive number", got=value, expected="> 0 s"
                )


@dataclass(frozen=True)
class CameraTopic:
    """One camera.

    Attributes:
        name: Of the observation `images/<name>`, and of the topic `<name>/color/image_raw`.
        width: Pixels.
        height: Pixels.
        depth: Whether `images/<name>_depth` is observed as well.
    """

    name: str
    width: int
    height: int
    depth: bool


@dataclass(frozen=True)
class ArmTopics:
    """What an arm tells of itself, beside its pose.

    Attributes:
        joint_names: Its joints, in the order of the observation.
        twist: Whether it measures the velocity of its TCP.
        wrench: Whether it measures what the environment exerts on its TCP.
    """

    joint_names: tuple[str, ...]
    twist: bool
    wrench: bool


class Measurements:
    """The sensors of one arm, its gripper and its cameras.

    Args:
        client: The node that subscribes.
        limits: How fresh they must be.
        arm: What the arm measures.
        gripper: See `RosRobot`.
        cameras: See `RosRobot`.
        objects: How many poses of objects are expected; 0: there is no such topic.
        success: Whether there is a success signal.
        plausibility: Judges the measured poses.

    Attributes:
        all_sensors: Each of the topics.
        stamps_ns: Topic → stamp of what the newest observation has of it [ns, system clock].
        tracked: What the newest observation says of the task; see `robot_rl.env.task`.
    """

    def __init__(
        self,
        client: RosClient,
        limits: SensorLimits,
        arm: ArmTopics,
        gripper: bool,
        cameras: Sequence[CameraTopic],
        objects: int,
        success: bool,
        plausibility: Plausibility,
    ) -> None:
        """See the class."""
        self._client = client
        self._plausibility = plausibility
        self._limits = limits
        self.tracked: dict[str, Any] = {}
        self.stamps_ns: dict[str, int] = {}
        self._subscribe(arm, gripper, cameras, objects, success)
        self.fields = self._fields(arm, gripper, cameras)

    def tcp_pose(self) -> Vector:
        """The newest measured pose (7,) of the TCP, base frame.

        Raises:
            RobotInterrupted: It is late, or cannot be used.
        """
        pose: Vector = self.pose.value(self.pose.newest())
        return pose

    def contact_force(self) -> Vector | None:
        """The newest contact force (3,) [N], None without a wrench; raises as `tcp_pose`."""
        if self.wrench is None:
            return None
        force: Vector = self.wrench.value(self.wrench.newest())[:3]
        return force

    def wait_until_fresh(self) -> None:
        """Wait until every topic has given new measurements: not inside the control loop.

        Raises:
            RobotInterrupted: A topic stays silent.
        """
        for sensor in self.all_sensors:
            sensor.forget()
        # The first to arrive may have been on its way already.
        wait_for_all(self.all_sensors, 2, self._limits.start_timeout_s)
        # The arm's node believes three that agree, and refuses a reset before.
        wait_for_all([self.pose], 4, self._limits.start_timeout_s)

    def wait_for_phase(self, period: float) -> None:
        """Wait until a loop that begins now will see young measurements at its ticks.

        After `wait_until_fresh`, before the loop begins; it takes two of its periods at most.

        Args:
            period: Of the loop [s].
        """
        start = time.monotonic()
        time.sleep(period)
        streams = [sensor.arrivals() for sensor in (self.pose, *self._newest)]
        begin = best_moment(streams, start, period) + period
        time.sleep(max(0.0, begin - time.monotonic()))

    def observe(self, target: Vector) -> Observation:
        """The measurements that were taken together.

        Args:
            target: Of the arm (7,), whose lead over the measured pose is observed.

        Raises:
            RobotInterrupted: One of them is late or cannot be used.
        """
        taken = together(self._aligned, self._newest, self._limits.skew_s)
        self.stamps_ns = {sensor.topic: one.stamp_ns for sensor, one in taken.items()}
        pose = self.pose.value(taken[self.pose])
        positions, velocities = self.joints.value(taken[self.joints])
        state = {
            "state/tcp_pose": pose,
            "state/target_lead": rotations.between(pose, target),
            "state/joint_positions": positions,
            "state/joint_velocities": velocities,
        }
        for name, sensor in self._optional.items():
            state[name] = sensor.value(taken[sensor])
        self.tracked = {"tcp_pose": pose, **self._tracked_values(taken)}
        seen: Observation = {name: value.astype(np.float32) for name, value in state.items()}
        for name, image in self._images.items():
            seen[name] = image.value(taken[image])
        return seen

    def _subscribe(
        self,
        arm: ArmTopics,
        gripper: bool,
        cameras: Sequence[CameraTopic],
        objects: int,
        success: bool,
    ) -> None:
        names, limits = arm.joint_names, self._limits
        health = NodeHealth(self._client)

        def sensor(kind: Any, topic: str, limit: float, decode: Any, **more: Any) -> Sensor:
            return Sensor(self._client, kind, topic, limit, decode, health=health, **more)

        def joints(message: JointState) -> tuple[Vector, Vector]:
            positions = messages.joint_positions(message, names)
            return positions, messages.joint_velocities(message, names)

        self.joints = sensor(JointState, "joint_states", limits.arm_s, joints)
        self.pose = sensor(
            PoseStamped,
            "current_pose",
            limits.arm_s,
            messages.pose_array,
            sole=True,
            plausibility=self._plausibility,
        )
        self._aligned = [self.joints, self.pose]
        self._newest: list[Sensor] = []
        self._optional: dict[str, Sensor] = {}  # by the name of what is observed of them
        self.twist: Sensor | None = None
        if arm.twist:
            self.twist = sensor(
                TwistStamped,
                "current_twist",
                limits.arm_s,
                messages.twist_array,
                sole=True,
                without="robot.twist=false, if the arm measures no velocity of its TCP",
            )
            self._optional["state/tcp_velocity"] = self.twist
            self._aligned.append(self.twist)
        self.wrench: Sensor | None = None
        if arm.wrench:
            self.wrench = sensor(
                WrenchStamped,
                "current_wrench",
                limits.arm_s,
                messages.wrench_array,
                sole=True,
                without="robot.wrench=false, if the arm measures no forces",
            )
            self._optional["state/tcp_wrench"] = self.wrench
            self._aligned.append(self.wrench)
        if gripper:
            jaws = sensor(JointState, "gripper/state", limits.gripper_s, _first_position)
            self._optional["state/gripper_position"] = jaws
            self._newest.append(jaws)
        self._images: dict[str, Sensor] = {}
        for camera in cameras:
            for name, topic, shape, dtype in _pictures(camera):
                decode = _picture_decoder(shape, dtype)
                self._images[name] = sensor(Image, topic, limits.image_s, decode, keep=1)
        self._newest += self._images.values()
        self.objects: Sensor | None = None
        if objects:
            decode = lambda message: messages.poses_array(message, objects)  # noqa: E731
            self.objects = sensor(PoseArray, "object_poses", limits.tracker_s, decode)
            self._aligned.append(self.objects)
        self.success: Sensor | None = None
        if success:
            self.success = sensor(
                Bool, "task/success", limits.tracker_s, lambda m: bool(m.data), stamped=False
            )
        signals = [] if self.success is None else [self.success]
        self.all_sensors = (*self._aligned, *self._newest, *signals)

    def _fields(
        self, arm: ArmTopics, gripper: bool, cameras: Sequence[CameraTopic]
    ) -> tuple[Field, ...]:
        count = len(arm.joint_names)
        own = state_fields(count, velocity=arm.twist, wrench=arm.wrench, gripper=gripper)
        seen = (picture for camera in cameras for picture in _pictures(camera))
        return (*own, *(Field(name, dtype, shape) for name, _, shape, dtype in seen))

    def _tracked_values(self, taken: dict[Sensor, Received]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        if self.objects is not None:
            values["object_poses"] = self.objects.value(taken[self.objects])
        if self.success is not None:
            values["success"] = self.success.value(self.success.newest())
        return values


def _first_position(message: JointState) -> Vector:
    """Position (1,) of a gripper's first joint, 0 open to 1 closed."""
    if not message.name:
        raise messages.MessageError("the gripper's state names no joint", expected="one joint")
    return messages.joint_positions(message, message.name[:1])


def _pictures(camera: CameraTopic) -> list[tuple[str, str, tuple[int, int, int], str]]:
    """Observation, topic, shape and dtype of what a camera gives."""
    size, name = (camera.height, camera.width), camera.name
    color = (f"images/{name}", f"{name}/color/image_raw", (*size, 3), "uint8")
    depth_topic = f"{name}/aligned_depth_to_color/image_raw"
    depth = (f"images/{name}_depth", depth_topic, (*size, 1), "uint16")
    return [color, depth] if camera.depth else [color]


def _picture_decoder(shape: tuple[int, int, int], dtype: str) -> Any:
    def decode(message: Image) -> npt.NDArray[Any]:
        picture = messages.image_array(message)
        if picture.shape != shape or picture.dtype != dtype:
            raise messages.MessageError(
                "the picture has another size or kind",
                got=f"{message.encoding} {picture.shape}",
                expected=f"{dtype} {shape}",
                hint="set width and height of observation.cameras, or of the camera's node",
            )
        return picture

    return decode
