"""The measurements of a robot on ROS 2 topics, matched by stamp for one observation."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from geometry_msgs.msg import PoseArray, PoseStamped, TwistStamped, WrenchStamped
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Bool

from robot_rl.data.schema import Field, Observation
from robot_rl.env.robot import state_fields
from robot_rl.errors import RobotRLError
from robot_rl.processes.waiting import wait_until
from robot_rl.ros import conversions
from robot_rl.ros.ros_client import RosClient
from robot_rl.ros.sensors import NodeHealth, Sensor, common_frame, together, wait_for_all
from robot_rl.safety import CartesianLimits, JointActionLimits, Plausibility
from robot_rl.safety.limits import check_positive
from robot_rl.safety.rotations import Vector

if TYPE_CHECKING:
    from robot_rl.env.sim.cameras import CameraOptions


# Frame times jitter by milliseconds: a frame this close before a tick may miss the next one.
_UNSURE_S = 0.003
_WRENCH = "state/tcp_wrench"


@dataclass(frozen=True)
class SensorLimits:
    """Largest ages of measurements, since receipt and by their stamp."""

    arm_s: float  # age of the arm's state [s]
    image_s: float  # age of a camera's latest frame [s]
    gripper_s: float  # age of the gripper's state [s]
    tracker_s: float  # age of the object poses and the success signal [s]
    skew_s: float  # largest stamp difference within one observation [s]
    start_timeout_s: float  # longest wait for fresh measurements at an episode's start [s]

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            check_positive(f"robot.sensors.{name}", value)


class Measurements:
    """The sensors of one arm, its gripper and its cameras.

    Args:
        client: The subscribing node.
        limits: Largest ages.
        motion: Limits for pose or joint targets. They also define plausible measurements.
        joint_names: The arm's joints, in the order of the observation.
        pose: Whether the arm measures its TCP pose; required for pose targets.
        twist: Whether it measures its TCP velocity.
        wrench: Whether it measures the environment's wrench on its TCP.
        gripper: Whether there is a gripper, whose position is then observed.
        cameras: Cameras to observe: `images/<name>` from the topic `<name>/color/image_raw`, and
            `images/<name>_depth` if they have depth.
        objects: Expected number of object poses; 0 if there is no such topic.
        success: Whether there is a success signal.

    Attributes:
        limits: As given.
        all_sensors: One sensor for each topic.
        gripper: The gripper's sensor; None without one.
        fields: The observed fields.
        stamps_ns: Topic → stamp of its measurement in the latest observation [ns, system clock].
        tracked: The task's part of the latest observation, as in `robot_rl.env.task`.
    """

    def __init__(
        self,
        client: RosClient,
        limits: SensorLimits,
        motion: CartesianLimits | JointActionLimits,
        joint_names: Sequence[str],
        pose: bool,
        twist: bool,
        wrench: bool,
        gripper: bool,
        cameras: Sequence[CameraOptions],
        objects: int,
        success: bool,
    ) -> None:
        self._client, self.limits = client, limits
        self._health = NodeHealth(client)
        self.tracked: dict[str, Any] = {}
        self.stamps_ns: dict[str, int] = {}
        self._optional: dict[str, Sensor] = {}  # by observation name
        self._motion, by_joints = motion, isinstance(motion, JointActionLimits)
        self._lead = "state/joint_lead" if by_joints else "state/target_lead"
        judged: dict[str, Any] = {"plausibility": Plausibility(motion)}
        in_base: dict[str, Any] = {"in_frame": self.base_frame}
        joints = partial(conversions.joint_states, names=tuple(joint_names))
        more = {**judged, "place": itemgetter(0)} if by_joints else {}
        self.joints = self._placed = self._sensor(
            JointState, "joint_states", "arm_s", joints, **more
        )
        self.pose = None
        if pose or not by_joints:
            more = in_base if by_joints else {**judged, **in_base}
            decode: Any = conversions.pose_array
            self.pose = self._sensor(PoseStamped, "current_pose", "arm_s", decode, **more)
            self._placed = self.joints if by_joints else self.pose
        if twist:
            more = {**in_base, "without": "robot.twist=false, if the arm measures no such velocity"}
            decode = conversions.twist_array
            sensor = self._sensor(TwistStamped, "current_twist", "arm_s", decode, **more)
            self._optional["state/tcp_velocity"] = sensor
        if wrench:
            more = {**in_base, "without": "robot.wrench=false, if the arm measures no forces"}
            decode = conversions.wrench_array
            sensor = self._sensor(WrenchStamped, "current_wrench", "arm_s", decode, **more)
            self._optional[_WRENCH] = sensor
        measured = (self.joints, self.pose, *self._optional.values())
        self._aligned = [sensor for sensor in measured if sensor is not None]
        self.gripper = None
        if gripper:
            jaws = self._sensor(JointState, "gripper/state", "gripper_s", _first_position)
            self.gripper = self._optional["state/gripper_position"] = jaws
        pictures = [picture for camera in cameras for picture in _pictures(camera)]
        self._images = {
            field.name: self._sensor(Image, topic, "image_s", _picture_decoder(field), keep=1)
            for field, topic in pictures
        }
        self.objects = self.success = None
        if objects:
            decode = partial(conversions.poses_array, count=objects)
            self.objects = self._sensor(
                PoseArray, "object_poses", "tracker_s", decode, in_frame=self.base_frame
            )
            self._aligned.append(self.objects)
        if success:
            self.success = self._sensor(
                Bool, "task/success", "tracker_s", lambda m: bool(m.data), stamped=False
            )
        self._newest = [self.gripper] if self.gripper else []
        self._newest += self._images.values()
        signals = [self.success] if self.success else []
        self.all_sensors = (*self._aligned, *self._newest, *signals)
        known = {"pose": self.pose is not None, "velocity": twist, "wrench": wrench}
        own = state_fields(len(joint_names), **known, gripper=gripper, by_joints=by_joints)
        self.fields = (*own, *(field for field, _ in pictures))

    def tcp_pose(self) -> Vector:
        """Return the latest TCP pose (7,), base frame; `RobotInterrupted` without a usable one."""
        assert self.pose is not None, "only an arm that takes joint targets measures no pose"
        return np.asarray(self.pose.value(self.pose.newest()))

    def place(self) -> Vector:
        """The arm's position in target space: the latest pose, or joint positions (n,) [rad]."""
        sensor = self._placed
        return np.asarray(sensor.place(sensor.value(sensor.newest())))

    def contact_force(self) -> Vector | None:
        """Return the latest contact force (3,) [N], None without a wrench; raises as `tcp_pose`."""
        wrench = self._optional.get(_WRENCH)
        return None if wrench is None else np.asarray(wrench.value(wrench.newest())[:3])

    def missing(self) -> list[str]:
        """Describe missing topics: those without a publisher, and those that are silent."""
        gone = [sensor.topic for sensor in self.all_sensors if not sensor.is_published]
        silent = [sensor for sensor in self.all_sensors if sensor.is_published and sensor.is_silent]
        absent = [f"nobody publishes {', '.join(gone)}"] if gone else []
        if silent:
            absent.append(f"nothing comes on {', '.join(sensor.topic for sensor in silent)}")
        return [*absent, *dict.fromkeys(why for sensor in silent if (why := sensor.why()))]

    def wait_until_fresh(self) -> None:
        """Wait for new measurements on every topic. Not for use in the control loop.

        Raises `RobotInterrupted` if a topic stays silent.
        """
        for sensor in self.all_sensors:
            sensor.forget()
        # The first to arrive may already have been in transit.
        wait_for_all(self.all_sensors, 2, self.limits.start_timeout_s)
        # The arm's node needs three consistent measurements before it accepts a reset.
        wait_for_all([self._placed], 4, self.limits.start_timeout_s)

    def wait_for_pictures(self) -> None:
        """Wait for a new frame from each camera, so that the loop starts with recent ones.

        If a camera's rate is a multiple of the loop's, a frame that is old at the first tick is
        equally old at all of them.
        """
        counts = {image: image.count for image in self._images.values()}
        arrived = lambda: all(image.count > count for image, count in counts.items())  # noqa: E731
        wait_until(arrived, self.limits.image_s, every_s=0.001)
        time.sleep(_UNSURE_S)

    def observe(self, target: Vector) -> Observation:
        """Return measurements taken together, including how far the target leads the arm.

        Raises as `tcp_pose`.
        """
        taken = together(self._aligned, self._newest, self.limits.skew_s)
        self.stamps_ns = {sensor.topic: one.stamp_ns for sensor, one in taken.items()}
        positions, velocities = self.joints.value(taken[self.joints])
        pose = None if self.pose is None else self.pose.value(taken[self.pose])
        place = positions if pose is None or self._placed is self.joints else pose
        state = {} if pose is None else {"state/tcp_pose": pose}
        state |= {
            self._lead: self._motion.between(place, target),
            "state/joint_positions": positions,
            "state/joint_velocities": velocities,
        }
        for name, sensor in self._optional.items():
            state[name] = sensor.value(taken[sensor])
        self.tracked = {} if pose is None else {"tcp_pose": pose}
        if self.objects is not None:
            self.tracked["object_poses"] = self.objects.value(taken[self.objects])
        if self.success is not None:
            self.tracked["success"] = self.success.value(self.success.newest())
        seen: Observation = {name: value.astype(np.float32) for name, value in state.items()}
        for name, image in self._images.items():
            seen[name] = image.value(taken[image])
        return seen

    def base_frame(self) -> str:
        """Return the base frame's name, as in most of the arm driver's measurements."""
        return common_frame(
            [self.pose, self._optional.get("state/tcp_velocity"), self._optional.get(_WRENCH)]
        )

    def _sensor(self, kind: Any, topic: str, limit: str, decode: Any, **more: Any) -> Sensor:
        more |= {"health": self._health, "setting": f"robot.sensors.{limit}"}
        return Sensor(self._client, kind, topic, getattr(self.limits, limit), decode, **more)


def _first_position(message: JointState) -> Vector:
    if not message.name:
        raise conversions.MessageError("the gripper's state names no joint", expected="one joint")
    return conversions.joint_positions(message, message.name[:1])


def _pictures(camera: CameraOptions) -> list[tuple[Field, str]]:
    """Return the observed fields of a camera, and their topics."""
    if camera.points:
        raise RobotRLError(
            "a robot on topics has no point clouds",
            got=f"observation.cameras with {camera.points} points of {camera.name!r}",
            hint="take observation=pixels, or robot=sim",
        )
    size, name = (camera.height, camera.width), camera.name
    color = Field(f"images/{name}", "uint8", (*size, 3)), f"{name}/color/image_raw"
    depth = Field(f"images/{name}_depth", "uint16", (*size, 1))
    both = [color, (depth, f"{name}/aligned_depth_to_color/image_raw")]
    return both if camera.depth else [color]


def _picture_decoder(field: Field) -> Callable[[Image], npt.NDArray[Any]]:
    def decode(message: Image) -> npt.NDArray[Any]:
        picture = conversions.image_array(message)
        if picture.shape != field.shape or picture.dtype != field.dtype:
            raise conversions.MessageError(
                "the picture has another size or kind",
                got=f"{message.encoding} {picture.shape}",
                expected=f"{field.dtype} {field.shape}",
                hint="set width and height of observation.cameras, or of the camera's node",
            )
        return picture

    return decode
