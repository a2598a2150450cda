"""Arms that already have a controller on ROS 2 topics, for example one of Cartesian impedance.

The controller's topics must be in another namespace than the arm's node, or have other names.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from drivers.arm.base import ArmState, Vector
from drivers.errors import DriverError, DriverTimeout, Stale, check_ranges, require
from robot_rl.safety import Compliance

if TYPE_CHECKING:
    from robot_rl.ros.client import RosClient

COMMAND_RATE_HZ = 100.0


class TopicArm(ABC):
    """Reads an arm's state from topics; a subclass publishes its commands.

    Args:
        namespace: Of the controller's topics.
        joint_names: Names of the arm's joints in its JointState.
        topics: `joints`, and whichever there are of `pose`, `twist` and `wrench` → topic.
        stale_after_s: Age at which a measurement is too old [s].
        timeout_s: For the first messages [s].

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
        """See the class."""
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
        self._subscriptions: dict[str, Any] = {}
        # Each controller may publish the states of its own joints, which nothing is derived from
        # where the pose is measured.
        self._sole = set(topics) - ({"joints"} if "pose" in topics else set())

    def connect(self) -> None:
        """Subscribe, and wait for the first message of each topic.

        Raises:
            DriverTimeout: Names the topic that is silent.
            DriverError: Two publishers measure the same.
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
        self._newest, self._subscriptions = {}, {}
        client = self._client = RosClient("arm_controller", self._namespace)
        for name, topic in self._topics.items():
            take = lambda message, name=name: self._take(name, message)  # noqa: E731
            profile = qos.sensor_subscription(1)
            made = client.node.create_subscription(kinds[name], topic, take, profile)
            self._subscriptions[name] = made
        self._advertise(client)
        with self._arrived:
            self._arrived.wait_for(
                lambda: self._topics.keys() <= self._newest.keys(), self._timeout
            )
        self._check_sole_publishers()
        silent = [topic for name, topic in self._topics.items() if name not in self._newest]
        if silent:
            name = client.topic(silent[0])
            raise DriverTimeout(
                f"no message on {name}",
                got=f"none within {self._timeout:g} s",
                hint="does the arm's controller run? Its topics are arguments of the driver",
            )

    def read(self) -> ArmState:
        """The newest messages; velocity and wrench NaN without a topic.

        Raises:
            Stale: A topic has become silent.
            DriverError: A message that cannot be used, for example without one of the joints, or
                two publishers measure the same.
        """
        from robot_rl.ros import messages

        self._connected().check()
        self._check_sole_publishers()
        found = {name: self._fresh(name) for name in self._topics}
        self._check_stamps(found)
        try:
            wrench = messages.wrench_array(found["wrench"]) if "wrench" in found else _unknown()
            joints = messages.joint_positions(found["joints"], self.joint_names)
            pose, stamp_ns = self._pose(found, joints)
            return ArmState(
                stamp_ns,
                joints,
                messages.joint_velocities(found["joints"], self.joint_names),
                pose,
                messages.twist_array(found["twist"]) if "twist" in found else _unknown(),
                wrench,
            )
        except messages.MessageError as error:
            raise DriverError(f"the arm on {self._namespace}: {error}") from error

    def command(self, target_pose: Vector) -> None:
        """Publish a target.

        Raises:
            DriverFault: The pose cannot be reached; nothing was sent.
        """
        self._connected()
        self._send(target_pose)

    def hold(self) -> None:  # noqa: B027 - nothing to do is an answer
        """Nothing: the controller keeps its last target, which leads the arm by a bounded way."""

    def stop(self) -> None:  # noqa: B027 - nothing to do is an answer
        """Nothing: topics have no stop. The guard sends what leads to a halt, and then no more."""

    def clear_errors(self) -> None:  # noqa: B027 - nothing to do is an answer
        """Nothing: the controller's faults are its own business."""

    def close(self) -> None:
        """Leave ROS; the controller keeps its last target."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _pose(self, found: Mapping[str, Any], joints: Vector) -> tuple[Vector, int]:
        """The TCP's pose (7,) and its stamp [ns], from the newest messages."""
        from robot_rl.ros.messages import pose_array
        from robot_rl.ros.stamps import to_nanoseconds

        return pose_array(found["pose"]), to_nanoseconds(found["pose"].header.stamp)

    def _check_stamps(self, found: Mapping[str, Any]) -> None:
        from robot_rl.ros.stamps import to_nanoseconds

        stamps = {name: to_nanoseconds(message.header.stamp) for name, message in found.items()}
        oldest, newest = min(stamps, key=stamps.__getitem__), max(stamps, key=stamps.__getitem__)
        apart = 1e-9 * (stamps[newest] - stamps[oldest])
        if apart > self._stale_after:
            raise DriverError(
                f"{self._topics[oldest]} and {self._topics[newest]} were not measured together",
                got=f"{apart:.3f} s apart by their stamps",
                expected=f"at most {self._stale_after:g} s",
                hint="does the controller stamp all of them, by one clock?",
            )

    def _is_doubtful(self, name: str) -> bool:
        made = self._subscriptions.get(name)  # None: the first message is earlier than `connect`
        return name in self._sole and made is not None and made.get_publisher_count() > 1

    def _check_sole_publishers(self) -> None:
        from robot_rl.ros.client import publisher_names

        for name in self._subscriptions:
            if self._is_doubtful(name):
                client = self._connected()
                topic = client.topic(self._topics[name])
                raise DriverError(
                    f"several publishers measure {topic}",
                    got=", ".join(publisher_names(client.node, topic)),
                    expected="one",
                    hint="end the others; one that was killed is listed for up to 20 s",
                )

    @abstractmethod
    def _advertise(self, client: RosClient) -> None:
        """Make the publisher of commands."""

    @abstractmethod
    def _send(self, target_pose: Vector) -> None:
        """Publish what leads to a target pose (7,)."""

    def _take(self, name: str, message: Any) -> None:
        if name == "joints" and not set(self.joint_names) & set(message.name):
            return  # joint_states may come from several controllers, each with its own joints
        if self._is_doubtful(name):
            return  # `read` says so; what is kept is of before
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


class PoseTopicArm(TopicArm):
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
        topics = named(joint_topic, pose_topic, twist_topic, wrench_topic)
        super().__init__(namespace, joint_names, topics, stale_after_s, timeout_s)
        self.compliance = compliance
        self._target_topic, self._frame = target_topic, frame

    def _advertise(self, client: RosClient) -> None:
        from geometry_msgs.msg import PoseStamped

        from robot_rl.ros import qos

        profile = qos.command_publisher(COMMAND_RATE_HZ)
        self._publisher = client.node.create_publisher(PoseStamped, self._target_topic, profile)

    def _send(self, target_pose: Vector) -> None:
        from robot_rl.ros.messages import pose_message

        self._publisher.publish(pose_message(target_pose, time.time_ns(), self._frame))


def named(joints: str, pose: str, twist: str, wrench: str) -> dict[str, str]:
    """The topics that there are."""
    topics = {"joints": joints, "pose": pose, "twist": twist, "wrench": wrench}
    return {name: topic for name, topic in topics.items() if topic}


def _unknown() -> Vector:
    return np.full(6, np.nan)
