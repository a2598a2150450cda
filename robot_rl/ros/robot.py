"""`RosRobot`: an arm, its gripper and its cameras on ROS 2 topics.

Names and units of the topics are those of docs/topics.md. What is measured arrives in a
thread of its own; the control loop takes what is there, and never waits.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from geometry_msgs.msg import PoseArray, PoseStamped, TwistStamped, WrenchStamped
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Bool, Float64

from robot_rl.data.schema import Field, Observation
from robot_rl.env import rotations
from robot_rl.env.robot import ARM_ACTIONS, GRIPPER_ACTION, Action, Applied, RobotInterrupted
from robot_rl.env.sim.task import SimTask
from robot_rl.env.tracked import Tracked
from robot_rl.errors import RobotRLError
from robot_rl.operator import OperatorInbox
from robot_rl.ros import messages, qos
from robot_rl.ros.client import RosClient
from robot_rl.ros.errors import CommandConflict
from robot_rl.ros.mirror import SceneMirror
from robot_rl.ros.monitor import SensorMonitor
from robot_rl.ros.operator_services import OperatorServices
from robot_rl.ros.sensors import Received, Sensor, together, wait_for_all
from robot_rl.safety import CartesianLimiter

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


class RosRobot:
    """One arm on topics.

    `apply` integrates actions into a target as every robot of robot_rl does and publishes it;
    whatever the arm's node then makes of it, is that node's business. `observe` assembles
    the measurements that were taken together. Where one is late, or cannot be used, the robot
    holds, and both raise `RobotInterrupted` until the next reset. A thread of its own watches the
    ages, so that the arm holds even when nobody asks for an observation.

    Args:
        client: Its node.
        task: The task, which may need poses of objects and the success signal.
        limiter: Makes targets of actions.
        joint_names: Joints of the arm, in the order of the observation.
        gripper: Whether there is a gripper, whose position is then observed.
        cameras: What it sees with.
        sensors: How fresh measurements must be.
        episodes: Brings the arm to where an episode starts.
        control_rate_hz: At which commands are published.
        track_objects: Whether poses of objects are observed.
        mirror: The simulated world, for scripted experts; None for a real robot.

    Attributes:
        measured_ns: Topic → stamp of what the newest observation has of it [ns, system clock].
    """

    def __init__(
        self,
        client: RosClient,
        task: Tracked,
        limiter: CartesianLimiter,
        joint_names: Sequence[str],
        gripper: bool,
        cameras: Sequence[CameraTopic],
        sensors: SensorLimits,
        episodes: Any,
        control_rate_hz: float,
        track_objects: bool,
        mirror: SceneMirror | None = None,
    ) -> None:
        """See the class."""
        self.mirror = mirror
        self.client = client
        self.limiter = limiter
        self.action_names = task.action_names
        self.limits = sensors
        self._episodes = episodes
        self._joint_names = tuple(joint_names)
        self._columns = [ARM_ACTIONS.index(n) for n in self.action_names if n != GRIPPER_ACTION]
        self._gripper_column = GRIPPER_ACTION in self.action_names
        self._lock = threading.Lock()  # what is published, and why no more
        self._problem: RobotInterrupted | None = None
        self._tracking: dict[str, Any] = {}
        self.measured_ns: dict[str, int] = {}
        command = qos.command_publisher(control_rate_hz)
        self._target = client.node.create_publisher(PoseStamped, "target_pose", command)
        self._grip = client.node.create_publisher(Float64, "gripper/command", command)
        self._subscribe(task, gripper, cameras, track_objects)
        self.observation_fields = self._fields(gripper, cameras)
        task.attach(self)
        self._monitor = SensorMonitor(self.all_sensors, self._interrupt)

    # -- Robot ------------------------------------------------------------------------------------

    def reset(self, start_pose: Vector, rng: np.random.Generator) -> None:
        """Bring the arm to where the episode starts, and wait for fresh measurements.

        Raises:
            RobotInterrupted: Something is missing; it may be tried again.
            ResetFailed: The arm does not arrive; a person has to look.
        """
        self._monitor.disarm()
        with self._lock:
            self._problem = None
        self.client.check()
        self._check_alone()
        self.wait_until_fresh()
        self._episodes.perform(self, start_pose, rng)
        self.wait_until_fresh()
        self.limiter.reset(self.tcp_pose())
        self._monitor.arm()

    def apply(self, action: Action) -> Applied:
        """Publish the target that an action (d,) in [-1, 1] leads to, and the gripper's.

        Raises:
            RobotInterrupted: The robot holds; nothing was published.
        """
        motion = np.zeros(len(ARM_ACTIONS))
        motion[self._columns] = action[: len(self._columns)]
        try:
            pose, force = self.tcp_pose(), self._contact_force()
        except RobotInterrupted as problem:
            self._interrupt(problem)
            raise
        target, clamped = self.limiter.advance(motion, pose, force)
        with self._lock:
            if self._problem is not None:
                raise self._problem
            self._target.publish(messages.pose_message(target, time.time_ns()))
            if self._gripper_column:
                self._grip.publish(Float64(data=0.5 * (1.0 + float(action[-1]))))
        return Applied(action, clamped)

    def advance(self, period: float) -> None:
        """Time passes by itself."""

    def observe(self) -> Observation:
        """The measurements that were taken together.

        Raises:
            RobotInterrupted: The robot holds, since one of them is late or cannot be used.
        """
        self.client.check()
        self._monitor.check()
        try:
            with self._lock:
                if self._problem is not None:
                    raise self._problem
            return self._assembled()
        except RobotInterrupted as problem:
            self._interrupt(problem)
            raise

    def hold(self) -> None:
        """Let the target be the newest measured pose; without a fresh one nothing is sent.

        The arm's node holds by itself when no commands come.
        """
        self._monitor.disarm()
        with self._lock:
            self._publish_hold()

    def close(self) -> None:
        """Leave ROS."""
        self._monitor.close()
        self.client.close()

    def serve_operator(self, inbox: OperatorInbox) -> None:
        """Let ROS clients say what an operator can say; see `robot_rl.ros.operator_services`."""
        OperatorServices(self.client, inbox)

    # -- for tasks, and for what brings the arm to its start --------------------------------------

    @property
    def tracked(self) -> dict[str, Any]:
        """What the newest observation says of the task; see `robot_rl.env.tracked`."""
        return self._tracking

    @property
    def simulated_task(self) -> SimTask | None:
        """The task with its true state, kept as new as observations are; None on a real robot."""
        if self.mirror is None:
            return None
        self.mirror.listen(self.client, self.limits.tracker_s)
        return self.mirror.task

    def tcp_pose(self) -> Vector:
        """The newest measured pose (7,) of the TCP, base frame.

        Raises:
            RobotInterrupted: It is late, or cannot be used.
        """
        pose: Vector = self.pose.value(self.pose.newest())
        return pose

    def move_target(self, target: Vector) -> None:
        """Publish a target (7,): for motion outside of episodes."""
        with self._lock:
            self._target.publish(messages.pose_message(target, time.time_ns()))

    def wait_until_fresh(self) -> None:
        """Wait until every topic has given new measurements: not inside the control loop.

        Raises:
            RobotInterrupted: A topic stays silent, or its messages cannot be used.
        """
        for sensor in self.all_sensors:
            sensor.forget()
        # The first to arrive may have been on its way already.
        wait_for_all(self.all_sensors, 2, self.limits.start_timeout_s)
        self._assembled()

    # -- how --------------------------------------------------------------------------------------

    def _subscribe(
        self, task: Tracked, gripper: bool, cameras: Sequence[CameraTopic], track_objects: bool
    ) -> None:
        names, limits = self._joint_names, self.limits

        def sensor(kind: Any, topic: str, limit: float, decode: Any, **more: Any) -> Sensor:
            return Sensor(self.client, kind, topic, limit, decode, **more)

        def joints(message: JointState) -> tuple[Vector, Vector]:
            positions = messages.joint_positions(message, names)
            return positions, messages.joint_velocities(message, names)

        self.joints = sensor(JointState, "joint_states", limits.arm_s, joints)
        self.pose = sensor(PoseStamped, "current_pose", limits.arm_s, messages.pose_array)
        self.twist = sensor(TwistStamped, "current_twist", limits.arm_s, messages.twist_array)
        self.wrench = sensor(WrenchStamped, "current_wrench", limits.arm_s, messages.wrench_array)
        self._aligned = [self.joints, self.pose, self.twist, self.wrench]
        self._newest: list[Sensor] = []
        self.gripper: Sensor | None = None
        if gripper:
            self.gripper = sensor(JointState, "gripper/state", limits.gripper_s, _first_position)
            self._newest.append(self.gripper)
        self._images: dict[str, Sensor] = {}
        for camera in cameras:
            for name, topic, shape, dtype in _pictures(camera):
                decode = _picture_decoder(shape, dtype)
                self._images[name] = sensor(Image, topic, limits.image_s, decode)
        self._newest += self._images.values()
        self.objects: Sensor | None = None
        if track_objects and task.objects:
            decode = lambda message: messages.poses_array(message, task.objects)  # noqa: E731
            self.objects = sensor(PoseArray, "object_poses", limits.tracker_s, decode)
            self._aligned.append(self.objects)
        self.success: Sensor | None = None
        if task.reports_success:
            self.success = sensor(
                Bool, "task/success", limits.tracker_s, lambda m: bool(m.data), stamped=False
            )
        success = [] if self.success is None else [self.success]
        self.all_sensors = (*self._aligned, *self._newest, *success)

    def _fields(self, gripper: bool, cameras: Sequence[CameraTopic]) -> tuple[Field, ...]:
        joints = len(self._joint_names)
        fields = [
            Field("state/tcp_pose", "float32", (7,)),
            Field("state/tcp_velocity", "float32", (6,)),
            Field("state/tcp_wrench", "float32", (6,)),
            Field("state/target_lead", "float32", (6,)),
            Field("state/joint_positions", "float32", (joints,)),
            Field("state/joint_velocities", "float32", (joints,)),
        ]
        if gripper:
            fields.append(Field("state/gripper_position", "float32", (1,)))
        for camera in cameras:
            fields += [Field(name, dtype, shape) for name, _, shape, dtype in _pictures(camera)]
        return tuple(fields)

    def _assembled(self) -> Observation:
        taken = together(self._aligned, self._newest, self.limits.skew_s)
        self.measured_ns = {sensor.topic: one.stamp_ns for sensor, one in taken.items()}
        pose = self.pose.value(taken[self.pose])
        positions, velocities = self.joints.value(taken[self.joints])
        state = {
            "state/tcp_pose": pose,
            "state/tcp_velocity": self.twist.value(taken[self.twist]),
            "state/tcp_wrench": self.wrench.value(taken[self.wrench]),
            "state/target_lead": _lead(self.limiter.target, pose),
            "state/joint_positions": positions,
            "state/joint_velocities": velocities,
        }
        if self.gripper is not None:
            state["state/gripper_position"] = self.gripper.value(taken[self.gripper])
        self._tracking = {"tcp_pose": pose, **self._tracked_values(taken)}
        seen: Observation = {name: value.astype(np.float32) for name, value in state.items()}
        for name, image in self._images.items():
            seen[name] = image.value(taken[image])
        if self.mirror is not None:
            self.mirror.update()
        return seen

    def _tracked_values(self, taken: dict[Sensor, Received]) -> dict[str, Any]:
        values: dict[str, Any] = {}
        if self.objects is not None:
            values["object_poses"] = self.objects.value(taken[self.objects])
        if self.success is not None:
            values["success"] = self.success.value(self.success.newest())
        return values

    def _contact_force(self) -> float:
        wrench = self.wrench.value(self.wrench.newest())
        return math.sqrt(float(np.square(wrench[:3]).sum()))

    def _check_alone(self) -> None:
        topic = self.client.topic("target_pose")
        publishers = self.client.node.get_publishers_info_by_topic(topic)
        mine = self.client.node.get_fully_qualified_name()
        names = [f"{p.node_namespace.rstrip('/')}/{p.node_name}" for p in publishers]
        others = [name for name in names if name != mine]
        if others:
            raise CommandConflict(topic, others)

    def _interrupt(self, problem: RobotInterrupted) -> None:
        """Hold at once, and let nothing move until the next reset; from any thread."""
        with self._lock:
            if self._problem is None:
                self._problem = problem
                self._publish_hold()

    def _publish_hold(self) -> None:
        try:
            pose = self.tcp_pose()
        except RobotInterrupted:
            return  # where the arm is, is not known: its node holds by itself, without commands
        self.limiter.reset(pose)
        self._target.publish(messages.pose_message(pose, time.time_ns()))


def _lead(target: Vector, pose: Vector) -> Vector:
    turn = rotations.multiply(target[3:], rotations.conjugate(pose[3:]))
    return np.concatenate([target[:3] - pose[:3], rotations.to_rotation_vector(turn)])


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
