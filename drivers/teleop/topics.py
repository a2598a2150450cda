"""Teleoperation over ROS 2 topics: `sensor_msgs/Joy`, or `geometry_msgs/TwistStamped`.

Joy comes from `joy_node`, `spacenav_node` and VR bridges; a twist from another program, a leader
arm, or `teleop_node`.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from drivers.errors import DriverError
from drivers.teleop.base import Axes, TeleopDevice, Vector

if TYPE_CHECKING:
    from robot_rl.ros.client import RosClient


@dataclass
class TopicDevice(TeleopDevice):
    """Moves with the messages of a topic, which must repeat themselves.

    Attributes:
        topic: Name of the topic.
        namespace: Below which it is, unless it begins with a slash.
        timeout_s: A message older than this moves nothing [s].
    """

    topic: str = ""
    namespace: str = ""
    timeout_s: float = 0.25
    _client: RosClient | None = field(default=None, init=False, repr=False)
    # Replaced as a whole by the thread of ROS: axes, and when they came on the steady clock.
    _heard: tuple[Vector, float] = field(default=(np.zeros(6), -1e9), init=False, repr=False)
    _pressed: list[str] = field(default_factory=list, init=False, repr=False)

    @abstractmethod
    def message_type(self) -> Any:
        """The type of the messages; imported here, since a driver loads without ROS."""

    @abstractmethod
    def take(self, message: Any) -> Vector:
        """The axes (6,) of a message, in the thread of ROS."""

    def connect(self) -> None:
        """Subscribe. Nobody has to publish yet: until then nothing moves."""
        from robot_rl.ros import qos
        from robot_rl.ros.client import RosClient

        self.close()
        self._client = RosClient("teleop_device", self.namespace)
        self._client.node.create_subscription(
            self.message_type(), self.topic, self._hear, qos.sensor_subscription()
        )

    def axes(self) -> Axes:
        """The newest message; at rest where it is too old.

        Raises:
            DriverError: The topic is not subscribed to.
            RosUnavailable: The thread of ROS has ended.
        """
        if self._client is None:
            raise DriverError(f"{self.topic} is not subscribed to", hint="call connect() first")
        self._client.check()
        axes, seconds = self._heard
        values = axes if time.monotonic() - seconds <= self.timeout_s else np.zeros(6)
        pressed = [self._pressed.pop() for _ in range(len(self._pressed))]
        return Axes(np.clip(values, -1.0, 1.0), frozenset(pressed))

    def close(self) -> None:
        """End the subscription."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _hear(self, message: Any) -> None:
        self._heard = np.nan_to_num(self.take(message), posinf=0.0, neginf=0.0), time.monotonic()


@dataclass
class JoyTopic(TopicDevice):
    """Moves with the axes of a Joy message; its buttons are `button_0`, `button_1`, ….

    Attributes:
        sticks: For each of the axes front, left, up, and turns about them, the number of the
            message's axis; -1 for none. The default is spacenav's order.
        signs: Direction of each.
    """

    topic: str = "joy"
    sticks: Sequence[int] = (0, 1, 2, 3, 4, 5)
    signs: Sequence[float] = (1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
    _buttons: Sequence[int] = field(default=(), init=False, repr=False)

    def message_type(self) -> Any:
        """sensor_msgs/Joy."""
        from sensor_msgs.msg import Joy

        return Joy

    def take(self, message: Any) -> Vector:
        """Its axes; buttons that went down are kept until they are read."""
        before, self._buttons = self._buttons, list(message.buttons)
        for number, down in enumerate(self._buttons):
            if down and not (number < len(before) and before[number]):
                self._pressed.append(f"button_{number}")
        numbers = message.axes
        taken = [numbers[n] if 0 <= n < len(numbers) else 0.0 for n in self.sticks]
        return np.asarray(np.array(taken) * np.array(self.signs))


@dataclass
class TwistTopic(TopicDevice):
    """Moves with the velocity of a TwistStamped message.

    Attributes:
        full_translation: Velocity that is the largest action [m/s].
        full_rotation: The same for turns [rad/s].
    """

    topic: str = "teleop/command"  # that of `teleop_node`
    full_translation: float = 0.1
    full_rotation: float = 0.5

    def message_type(self) -> Any:
        """geometry_msgs/TwistStamped."""
        from geometry_msgs.msg import TwistStamped

        return TwistStamped

    def take(self, message: Any) -> Vector:
        """Linear and angular velocity, as shares of the largest action."""
        linear, angular = message.twist.linear, message.twist.angular
        velocity = np.array([linear.x, linear.y, linear.z, angular.x, angular.y, angular.z])
        full = np.repeat([self.full_translation, self.full_rotation], 3)
        return np.asarray(velocity / full)
