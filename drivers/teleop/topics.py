"""Teleoperation over ROS 2 topics: `sensor_msgs/Joy`, or `geometry_msgs/TwistStamped`.

Joy comes from `joy_node`, `spacenav_node` and VR bridges; a twist from another program, a leader
arm, or `teleop_node`.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from drivers.errors import DriverError
from drivers.teleop.base import Axes, TeleopDevice, Vector, chosen
from drivers.topics import OverTopics
from robot_rl.processes.waiting import wait_until
from robot_rl.safety import rotations

_HEARD_SECONDS = 2.0  # within which a new subscription hears who speaks


@dataclass
class TopicDevice(OverTopics, TeleopDevice):
    """Moves with the messages of a topic, which must repeat themselves.

    Silence after a message that moved something, or of a topic that nobody publishes any more, is
    a lost device, as an unplugged one is: nobody has let go of it. So is a number that is none.
    """

    kind: ClassVar[str]  # type of the messages, as ROS names it
    topic: str = ""  # name of the topic
    namespace: str = ""  # below which it is, unless it begins with a slash
    timeout_s: float = 0.25  # a message older than this moves nothing [s]
    # Replaced as a whole by the thread of ROS: axes, and when they came on the steady clock.
    _heard: tuple[Vector, float] = field(default=(np.zeros(6), -1e9), init=False, repr=False)
    _unusable: str = field(default="", init=False, repr=False)  # of the newest message
    _lost: bool = field(default=False, init=False, repr=False)  # until it speaks again
    _subscription: Any = field(default=None, init=False, repr=False)
    _pressed: list[str] = field(default_factory=list, init=False, repr=False)

    @abstractmethod
    def take(self, message: Any) -> Vector:
        """The axes (6,) of a message, in the thread of ROS."""

    def connect(self) -> None:
        """Subscribe. Nobody has to publish yet: until then nothing moves.

        Raises `DriverError` where the device was lost, and has not spoken since.
        """
        from robot_rl.ros import qos
        from robot_rl.ros.client import message_type

        if self._client is None or not self._client.running:
            self._subscription = self.listen("teleop_device").node.create_subscription(
                message_type(self.kind), self.topic, self._hear, qos.sensor_subscription()
            )
            wait_until(lambda: self._problem() is None, _HEARD_SECONDS if self._lost else 0.0)
        problem = self._problem()
        if problem is not None:
            raise problem
        self._lost = False

    def axes(self) -> Axes:
        """The newest message; at rest where that did not move anything and is too old.

        Raises `DriverError` where the topic is not subscribed to, or the device is lost.
        """
        self.check_connected(f"the device of {self.topic}")
        problem = self._problem()
        if problem is not None:
            self._lost = True
            raise problem
        axes, seconds = self._heard
        values = axes if time.monotonic() - seconds <= self.timeout_s else np.zeros(6)
        pressed = [self._pressed.pop() for _ in range(len(self._pressed))]
        return Axes(np.clip(values, -1.0, 1.0), frozenset(pressed))

    def _hear(self, message: Any) -> None:
        axes = self.take(message)
        if np.isfinite(axes).all():
            self._heard, self._unusable = (axes, time.monotonic()), ""
        else:
            self._unusable = str(axes.tolist())

    def _problem(self) -> DriverError | None:
        if self._unusable:
            return DriverError(
                f"{self.topic} gives axes that are not finite",
                got=self._unusable,
                expected="6 finite numbers",
                hint="look at the node that publishes it",
            )
        axes, seconds = self._heard
        if time.monotonic() - seconds <= self.timeout_s:
            return None
        # Any orientation will do to tell whether the operator moved.
        moved = self.shaping.motion(np.clip(axes, -1.0, 1.0), rotations.DOWNWARD).any()
        subscription = self._subscription if seconds > 0.0 else None
        # Else this silence is that of a device that was let go of, or has not spoken yet.
        missed = subscription is not None and (moved or not subscription.get_publisher_count())
        if not (self._lost or missed):
            return None
        return DriverError(
            f"{self.topic} has fallen silent",
            got="no message",
            expected=f"one at least every {1e3 * self.timeout_s:g} ms",
            hint="start its node again and move the device; the node must repeat its messages while"
            " the device is held (joy_node: autorepeat_rate)",
        )


@dataclass
class JoyTopic(TopicDevice):
    """Moves with the axes of a Joy message; its buttons are `button_0`, `button_1`, …."""

    kind: ClassVar[str] = "sensor_msgs/msg/Joy"
    topic: str = "joy"
    still_s: float = 3.0  # a stick at its end may be held so long without a tremble [s]
    # For each of the axes front, left, up, and turns about them, the number of the message's axis;
    # -1 for none. The default is spacenav's order.
    sticks: Sequence[int] = (0, 1, 2, 3, 4, 5)
    signs: Sequence[float] = (1.0, 1.0, 1.0, 1.0, 1.0, 1.0)  # direction of each
    _buttons: Sequence[int] = field(default=(), init=False, repr=False)

    def take(self, message: Any) -> Vector:
        """Its axes; buttons that went down are kept until they are read."""
        before, self._buttons = self._buttons, list(message.buttons)
        for number, down in enumerate(self._buttons):
            if down and not (number < len(before) and before[number]):
                self._pressed.append(f"button_{number}")
        return chosen(message.axes, self.sticks, self.signs)


@dataclass
class TwistTopic(TopicDevice):
    """Moves with the velocity of a TwistStamped message."""

    kind: ClassVar[str] = "geometry_msgs/msg/TwistStamped"
    topic: str = "teleop/command"  # that of `teleop_node`
    full_translation: float = 0.1  # velocity that is the largest action [m/s]
    full_rotation: float = 0.5  # the same for turns [rad/s]

    def take(self, message: Any) -> Vector:
        """Linear and angular velocity, as shares of the largest action."""
        linear, angular = message.twist.linear, message.twist.angular
        velocity = np.array([linear.x, linear.y, linear.z, angular.x, angular.y, angular.z])
        full = np.repeat([self.full_translation, self.full_rotation], 3)
        return np.asarray(velocity / full)
