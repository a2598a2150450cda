"""Teleoperation over ROS 2 topics: `sensor_msgs/Joy` or `geometry_msgs/TwistStamped`.

Joy comes from `joy_node`, `spacenav_node` and VR bridges; twists come from another program, a
leader arm, or `teleop_node`.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from drivers.base import DriverError, TopicDriver
from drivers.teleop.base import Axes, TeleopDevice, Vector, chosen
from robot_rl.errors import RobotRLError
from robot_rl.processes.waiting import wait_until
from robot_rl.safety import rotations

_HEARD_SECONDS = 2.0  # time in which a new subscription must get its first message


@dataclass
class TopicDevice(TopicDriver, TeleopDevice):
    """Moves with a topic's messages, which must be repeated continuously.

    The device counts as lost, as if unplugged, after silence following a motion, without a
    publisher, or if a value is not finite.
    """

    kind: ClassVar[str]  # ROS message type
    must_be_stamped: ClassVar[bool] = False  # whether to refuse a message without a stamp
    topic: str = ""  # topic name
    namespace: str = ""  # prefix of the topic, unless it starts with a slash
    # A message received longer ago than this moves nothing. A message whose stamp is this old, or
    # this far ahead of this machine's clock, is refused [s].
    timeout_s: float = 0.25
    # Axes, time of receipt on the steady clock [s], and frame; the ROS thread replaces the tuple.
    _heard: tuple[Vector, float, str] = field(
        default=(np.zeros(6), -1e9, ""), init=False, repr=False
    )
    _frame: str = field(default="", init=False, repr=False)  # frame of the axes read last
    # Error in the latest message.
    _unusable: RobotRLError | None = field(default=None, init=False, repr=False)
    _lost: bool = field(default=False, init=False, repr=False)  # until the next message
    _subscription: Any = field(default=None, init=False, repr=False)
    _pressed: list[str] = field(default_factory=list, init=False, repr=False)

    @abstractmethod
    def take(self, message: Any) -> Vector:
        """Return the axes (6,) of a message, or raise `RobotRLError`; runs in the ROS thread."""

    def connect(self) -> None:
        """Subscribe. A publisher is not required yet: until there is one, nothing moves.

        Raises `DriverError` if the device was lost and has sent no message since, and
        `MeasuredTwice` if several nodes publish the topic.
        """
        from robot_rl.ros import qos
        from robot_rl.ros.ros_client import message_type
        from robot_rl.ros.sole_source import SoleSubscription

        if self._client is None or not self._client.running:
            self._subscription = SoleSubscription(
                self.listen("teleop_device").node,
                message_type(self.kind),
                self.topic,
                self._hear,
                qos.sensor_subscription(),
            )
            wait_until(lambda: self._problem() is None, _HEARD_SECONDS if self._lost else 0.0)
        self._subscription.forget()
        problem = self._problem()
        if problem is not None:
            raise problem
        self._lost = False

    def axes(self) -> Axes:
        """Return the latest axes; zeros if the latest message is too old and did not move anything.

        Raises `DriverError` if the topic is not subscribed or the device is lost, and
        `MeasuredTwice` like `connect`.
        """
        self.check_connected(f"the device of {self.topic}")
        problem = self._problem()
        if problem is not None:
            self._lost = True
            raise problem
        axes, seconds, self._frame = self._heard
        values = axes if time.monotonic() - seconds <= self.timeout_s else np.zeros(6)
        pressed = [self._pressed.pop() for _ in range(len(self._pressed))]
        return Axes(np.clip(values, -1.0, 1.0), frozenset(pressed))

    def _hear(self, message: Any) -> None:
        try:
            self._check_stamp(message)
            axes = self.take(message)
            if not np.isfinite(axes).all():
                raise DriverError(
                    f"{self.topic} gives axes that are not finite",
                    got=axes.tolist(),
                    expected="6 finite numbers",
                    hint="look at the node that publishes it",
                )
        except RobotRLError as problem:
            own = isinstance(problem, DriverError)
            self._unusable = problem if own else DriverError(f"{self.topic}: {problem}")
        else:
            frame = message.header.frame_id
            self._heard, self._unusable = (axes, time.monotonic(), frame), None

    def _check_stamp(self, message: Any) -> None:
        from robot_rl.ros.conversions import to_nanoseconds

        stamp = to_nanoseconds(message.header.stamp)
        age = 1e-9 * (time.time_ns() - stamp)
        if (stamp or self.must_be_stamped) and abs(age) > self.timeout_s:
            raise DriverError(
                f"the message on {self.topic} has no current stamp",
                got=f"{age:.3f} s before this machine's clock" if stamp else "no stamp",
                expected=f"at most {1e3 * self.timeout_s:g} ms",
                hint="let its node set header.stamp; the clocks of two machines may differ:"
                " synchronise them (chrony, PTP)",
            )

    def _problem(self) -> RobotRLError | None:
        if self._subscription is not None and (several := self._subscription.problem()):
            from robot_rl.ros.faults import MeasuredTwice

            return MeasuredTwice(several, hint="end the other one, then move the device")
        if self._unusable is not None:
            return self._unusable
        axes, seconds, _ = self._heard
        heard_at = seconds if self._subscription is None else self._subscription.heard_at
        if time.monotonic() - max(seconds, heard_at) <= self.timeout_s:
            return None
        # Any orientation works for checking whether the operator moved.
        moved = self.shaping.motion(np.clip(axes, -1.0, 1.0), rotations.DOWNWARD).any()
        subscription = self._subscription if seconds > 0.0 else None
        # Otherwise the device is silent because it was released, or has not published yet.
        missed = subscription is not None and (moved or not subscription.publishers)
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
    still_s: float = 3.0  # how long a stick may rest at its end stop without a tremble [s]
    # Message axis for each of front, left, up, and the rotations about them; -1 for none. The
    # default is spacenav's order.
    sticks: Sequence[int] = (0, 1, 2, 3, 4, 5)
    signs: Sequence[float] = (1.0, 1.0, 1.0, 1.0, 1.0, 1.0)  # sign of each axis
    _buttons: Sequence[int] = field(default=(), init=False, repr=False)

    def take(self, message: Any) -> Vector:
        """Return the axes; stores pressed buttons until they are read."""
        before, self._buttons = self._buttons, list(message.buttons)
        for number, down in enumerate(self._buttons):
            if down and not (number < len(before) and before[number]):
                self._pressed.append(f"button_{number}")
        return chosen(message.axes, self.sticks, self.signs)


@dataclass
class TwistTopic(TopicDevice):
    """Moves with the velocity of a TwistStamped message, in the frame that it names."""

    kind: ClassVar[str] = "geometry_msgs/msg/TwistStamped"
    must_be_stamped: ClassVar[bool] = True
    topic: str = "teleop/command"  # topic of `teleop_node`
    full_translation: float = 0.1  # velocity of the largest action [m/s]
    full_rotation: float = 0.5  # angular velocity of the largest action [rad/s]
    # `frame_id` of the base frame; also the default for messages without one
    base_frame: str = "base"
    tool_frame: str = "tcp"  # `frame_id` of velocities along the measured tool axes

    def __post_init__(self) -> None:
        if self.shaping.frame != "base":
            raise DriverError(
                "a twist's own frame_id says in which frame it is",
                got=f"shaping.frame={self.shaping.frame}",
                expected="base",
                hint=f"let its node name {self.tool_frame}, or set tool_frame",
            )

    def motion(self, axes: Vector, tool_orientation: Vector | None) -> Vector:
        """Convert axes to a motion; in the tool frame the operator's heading is ignored."""
        if self._frame != self.tool_frame:
            return super().motion(axes, tool_orientation)
        motion = replace(self.shaping, rotation=0.0).motion(axes, None)
        if not motion.any():
            return motion
        if tool_orientation is None:
            raise DriverError(
                f"{self.topic} is in the tool's frame, which is not known here",
                got=f"frame_id {self._frame} without an orientation",
                hint=f"send it in the frame {self.base_frame}, or give the tool's pose",
            )
        parts = [rotations.rotate(tool_orientation, part) for part in (motion[:3], motion[3:])]
        return np.clip(np.concatenate(parts), -1.0, 1.0)

    def take(self, message: Any) -> Vector:
        """Return linear and angular velocity as fractions of the largest action."""
        from robot_rl.ros.conversions import check_frame

        check_frame(message, self.base_frame, self.tool_frame)
        linear, angular = message.twist.linear, message.twist.angular
        velocity = np.array([linear.x, linear.y, linear.z, angular.x, angular.y, angular.z])
        full = np.repeat([self.full_translation, self.full_rotation], 3)
        return np.asarray(velocity / full)
