"""Messages ↔ NumPy, without a copy if the message allows it.

Units are SI, quaternions xyzw, as in ROS. Messages are checked: a missing joint, a non-finite
number or an unknown encoding raises a `MessageError` that names it. Missing values are never
replaced by zero. Stamps are nanoseconds of the system clock since 1970.
"""

from __future__ import annotations

import array
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from builtin_interfaces.msg import Time
from geometry_msgs.msg import (
    Point,
    Pose,
    PoseArray,
    PoseStamped,
    Quaternion,
    Twist,
    TwistStamped,
    Vector3,
    Wrench,
    WrenchStamped,
)
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Header

from robot_rl.env.robot import ARM_ACTIONS, GRIPPER_ACTION, JOINT_ACTION
from robot_rl.errors import RobotRLError
from robot_rl.safety.rotations import Vector
from robot_rl.safety.state import MeasurementRefused, check_pose

BASE_FRAME = "base"
_SECOND = 1_000_000_000  # ns

# Encoding → dtype, channels, and whether red and blue are swapped.
_ENCODINGS: dict[str, tuple[str, int, bool]] = {
    "rgb8": ("u1", 3, False),
    "bgr8": ("u1", 3, True),
    "16UC1": ("u2", 1, False),
}


class MessageError(RobotRLError):
    """A message whose content does not match its topic's specification."""


def to_nanoseconds(stamp: Time) -> int:
    """Convert a stamp to nanoseconds."""
    return int(stamp.sec) * _SECOND + int(stamp.nanosec)


def header(stamp_ns: int, frame: str = BASE_FRAME) -> Header:
    """Make the header of a measurement taken at `stamp_ns` [ns, system clock] in a frame."""
    seconds, rest = divmod(int(stamp_ns), _SECOND)
    return Header(stamp=Time(sec=seconds, nanosec=rest), frame_id=frame)


def check_frame(message: Any, *names: str) -> bool:
    """Whether a message specifies one of these names as its frame; `MessageError` for another.

    False if it specifies no frame.
    """
    frame = message.header.frame_id
    if frame and frame not in names:
        raise MessageError(
            "the message is in another frame than is needed here",
            got=f"frame_id {frame}",
            expected=" or ".join(names),
            hint="let its publisher transform it, or change the name if both are one frame",
        )
    return bool(frame)


def image_message(image: npt.NDArray[np.generic], stamp_ns: int, frame: str) -> Image:
    """Make the message of an image taken at `stamp_ns`, with the camera's optical frame.

    The image is uint8 (height, width, 3) RGB, or uint16 (height, width) or (height, width, 1)
    depth [mm]. Raises `MessageError` for any other array.
    """
    kind = (image.dtype.name, image.shape[2:] if image.ndim == 3 else ())
    encodings = {("uint8", (3,)): "rgb8", ("uint16", ()): "16UC1", ("uint16", (1,)): "16UC1"}
    if kind not in encodings or image.ndim not in (2, 3):
        raise MessageError(
            "the array is no picture",
            got=f"{image.dtype} {image.shape}",
            expected="uint8 (height, width, 3) or uint16 (height, width)",
        )
    content = array.array("B")
    content.frombytes(np.ascontiguousarray(image).data.cast("B"))
    message = Image(header=header(stamp_ns, frame), encoding=encodings[kind])
    message.height, message.width = image.shape[:2]
    message.step = image.nbytes // image.shape[0]
    message.is_bigendian = 0
    message.data = content
    return message


def image_array(message: Image) -> npt.NDArray[np.generic]:
    """Return the image of a message, sharing memory with it if possible.

    It is uint8 (height, width, 3) RGB, or uint16 (height, width, 1) depth [mm]. Raises
    `MessageError` for an unknown encoding, or if the data length does not match `step`.
    """
    if message.encoding not in _ENCODINGS:
        raise MessageError(
            "the image has an encoding that is not supported",
            got=message.encoding or "none",
            expected=f"one of {', '.join(_ENCODINGS)}",
            hint="set the encoding at the camera's driver",
        )
    code, channels, swapped = _ENCODINGS[message.encoding]
    dtype = np.dtype(code).newbyteorder(">" if message.is_bigendian else "<")
    height, width, step = message.height, message.width, message.step
    row = width * channels * dtype.itemsize
    content = np.frombuffer(message.data, np.uint8)
    if step < row or content.size != height * step or not row:
        raise MessageError(
            "the image's data does not fit its size",
            got=f"{content.size} bytes with step {step} for {width} x {height} {message.encoding}",
            expected=f"step >= {row}, and {height} x step bytes",
        )
    rows = content.reshape(height, step)[:, :row]
    pixels = rows if step == row and dtype.itemsize == 1 else np.ascontiguousarray(rows)
    picture = pixels.view(dtype).reshape(height, width, channels)
    if swapped:
        picture = np.ascontiguousarray(picture[..., ::-1])
    return picture.astype(dtype.newbyteorder("="), copy=False)


def joint_state_message(
    names: Sequence[str], positions: npt.ArrayLike, velocities: npt.ArrayLike | None, stamp_ns: int
) -> JointState:
    """Positions and velocities of named joints, each (n,) [rad, rad/s; a gripper: 0 open … 1]."""
    message = JointState(header=header(stamp_ns), name=list(names))
    message.position = array.array("d", np.asarray(positions, np.float64).ravel())
    if velocities is not None:
        message.velocity = array.array("d", np.asarray(velocities, np.float64).ravel())
    return message


def joint_positions(message: JointState, names: Sequence[str]) -> Vector:
    """Return positions (n,) of the joints `names`, in order; `MessageError` if one is missing."""
    return _finite(joint_numbers(message, names), "the position of joint", names)


def joint_states(message: JointState, names: Sequence[str]) -> tuple[Vector, Vector]:
    """Return positions and velocities, each (n,), of the joints `names`; see `joint_positions`."""
    velocities = joint_numbers(message, names, "velocity")
    return joint_positions(message, names), _finite(velocities, "the velocity of joint", names)


def joint_numbers(message: JointState, names: Sequence[str], what: str = "position") -> Vector:
    """Like `joint_positions`, without the finite check; `what` may also be `velocity`."""
    places = {name: place for place, name in enumerate(message.name)}
    values = getattr(message, what)
    missing = [name for name in names if name not in places]
    if missing:
        raise MessageError(
            f"the joint {missing[0]!r} is missing",
            got=list(message.name),
            expected=list(names),
            hint="name the robot's joints in robot.joint_names as its driver does",
        )
    if len(values) != len(message.name):
        raise MessageError(
            f"the joint state has no {what} of every joint",
            got=f"{len(values)} values for {len(message.name)} joints",
            hint="the joints' driver must publish positions and velocities",
        )
    return np.array([values[places[name]] for name in names])


def to_pose(pose: npt.ArrayLike) -> Pose:
    """Make the message of a pose (7,) = position [m], quaternion xyzw."""
    x, y, z, qx, qy, qz, qw = np.asarray(pose, np.float64).tolist()
    return Pose(position=Point(x=x, y=y, z=z), orientation=Quaternion(x=qx, y=qy, z=qz, w=qw))


def pose_numbers(message: Pose) -> Vector:
    """Return the numbers (7,) of a message as sent, even if they are not a valid pose."""
    p, q = message.position, message.orientation
    return np.array([p.x, p.y, p.z, q.x, q.y, q.z, q.w])


def from_pose(message: Pose) -> Vector:
    """Return a message's pose (7,) with the quaternion normalised, or raise `MessageError`."""
    pose = _finite(pose_numbers(message), "the pose's", "xyz" + "xyzw")
    try:
        check_pose(pose)
    except MeasurementRefused as refusal:
        raise MessageError(str(refusal)) from refusal
    pose[3:] /= math.hypot(*pose[3:])
    return pose


def pose_message(pose: npt.ArrayLike, stamp_ns: int, frame: str = BASE_FRAME) -> PoseStamped:
    """Make a stamped pose (7,) = position [m], quaternion xyzw."""
    return PoseStamped(header=header(stamp_ns, frame), pose=to_pose(pose))


def pose_array(message: PoseStamped) -> Vector:
    """Return the pose (7,) of a stamped pose; see `from_pose`."""
    return from_pose(message.pose)


def poses_message(poses: npt.ArrayLike, stamp_ns: int, frame: str = BASE_FRAME) -> PoseArray:
    """Make stamped poses (k, 7), for example of objects."""
    rows = np.asarray(poses, np.float64).reshape(-1, 7)
    return PoseArray(header=header(stamp_ns, frame), poses=[to_pose(row) for row in rows])


def poses_array(message: PoseArray, count: int) -> Vector:
    """Return a message's poses (count, 7); `MessageError` if their number is not `count`."""
    if len(message.poses) != count:
        raise MessageError(
            "the message has another number of poses", got=len(message.poses), expected=count
        )
    return np.array([from_pose(pose) for pose in message.poses]).reshape(count, 7)


def twist_message(velocity: npt.ArrayLike, stamp_ns: int, frame: str = BASE_FRAME) -> TwistStamped:
    """Make a stamped linear [m/s] and angular [rad/s] velocity (6,)."""
    linear, angular = _two_vectors(velocity)
    return TwistStamped(header=header(stamp_ns, frame), twist=Twist(linear=linear, angular=angular))


def twist_array(message: TwistStamped) -> Vector:
    """Return a message's linear and angular velocity (6,); `MessageError` if not finite."""
    return _six(message.twist.linear, message.twist.angular, "the twist's")


def wrench_message(wrench: npt.ArrayLike, stamp_ns: int, frame: str = BASE_FRAME) -> WrenchStamped:
    """Make a stamped force [N] and torque [Nm] (6,)."""
    force, torque = _two_vectors(wrench)
    return WrenchStamped(header=header(stamp_ns, frame), wrench=Wrench(force=force, torque=torque))


def wrench_array(message: WrenchStamped) -> Vector:
    """Return a message's force and torque (6,); `MessageError` if not finite."""
    return _six(message.wrench.force, message.wrench.torque, "the wrench's")


class PoseTargets:
    """Pose targets (7,) of the TCP, base frame."""

    kind = PoseStamped
    topic, applied_topic = "target_pose", "applied_pose"
    columns: tuple[str, ...] = ARM_ACTIONS  # the action's columns
    # Largest difference between sent and applied target [m, rad]: a tenth of a full action's step.
    # If both sides enforce the same lead, their targets differ by the arm's motion between the two
    # measurements: at most 0.03 mm in a simulated insertion.
    tolerances = np.repeat([1e-3, 5e-3], 3)

    def action_names(self, of_task: tuple[str, ...]) -> tuple[str, ...]:
        """Return the action columns, given the task's."""
        return of_task

    def message(self, target: npt.ArrayLike, stamp_ns: int, frame: str = "") -> PoseStamped:
        """Make the message of a target; `frame` is the arm driver's name of the base frame."""
        return pose_message(target, stamp_ns, frame or BASE_FRAME)

    def numbers(self, message: PoseStamped, frame: str) -> Vector:
        """Return a target's numbers (7,) as sent, unchecked; `MessageError` for another frame."""
        check_frame(message, frame)
        return pose_numbers(message.pose)

    def target(self, message: PoseStamped) -> Vector:
        """Return a target, or raise `MessageError`."""
        return pose_array(message)


@dataclass(frozen=True)
class JointTargets:
    """Joint position targets (n,) [rad]."""

    names: Sequence[str]  # joint names; messages may use another order
    kind = JointState
    topic, applied_topic = "target_joints", "applied_joints"
    tolerances = np.array([5e-3])  # rad

    @property
    def columns(self) -> tuple[str, ...]:
        """The action's columns."""
        return tuple(name + JOINT_ACTION for name in self.names)

    def action_names(self, of_task: tuple[str, ...]) -> tuple[str, ...]:
        """All joints, plus the gripper if the task has it."""
        return (*self.columns, *(name for name in of_task if name == GRIPPER_ACTION))

    def message(self, target: npt.ArrayLike, stamp_ns: int, frame: str = "") -> JointState:
        """Make the message of a target; `frame` is unused."""
        return joint_state_message(self.names, target, None, stamp_ns)

    def numbers(self, message: JointState, frame: str) -> Vector:
        """Return the positions as sent; `MessageError` if a joint is missing."""
        return joint_numbers(message, self.names)

    def target(self, message: JointState) -> Vector:
        """Return a target, or raise `MessageError`."""
        return joint_positions(message, self.names)


def _two_vectors(values: npt.ArrayLike) -> tuple[Vector3, Vector3]:
    a, b, c, d, e, f = np.asarray(values, np.float64).tolist()
    return Vector3(x=a, y=b, z=c), Vector3(x=d, y=e, z=f)


def _six(first: Vector3, second: Vector3, what: str) -> Vector:
    values = np.array([first.x, first.y, first.z, second.x, second.y, second.z])
    return _finite(values, what, "xyz" + "xyz")


def _finite(values: Vector, what: str, names: Sequence[str]) -> Vector:
    good = np.isfinite(values)
    if not good.all():
        place = int(np.argmin(good))
        raise MessageError(
            f"{what} {names[place]!r} is not finite", got=values.tolist(), expected="finite numbers"
        )
    return values
