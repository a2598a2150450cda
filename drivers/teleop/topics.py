"""Teleoperation over ROS 2 topics: `sensor_msgs/Joy`, or `geometry_msgs/TwistStamped`.

Joy comes from `joy_node`, `spacenav_node` and VR bridges; a twist from another program, a leader
arm, or `teleop_node`.
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

_HEARD_SECONDS = 2.0  # in which a new subscription gets its first message


@dataclass
class TopicDevice(TopicDriver, TeleopDevice):
    """Moves with the messages of a topic, which must repeat themselves.

    Silence after a message that moved something, a topic without a publisher, or a number that is
    not finite count as a lost device, as if it were unplugged.
    """

    kind: ClassVar[str]  # type of the messages, as ROS names it
    must_be_stamped: ClassVar[bool] = False  # whether a message without a stamp is refused
    topic: str = ""  # name of the topic
    namespace: str = ""  # below which it is, unless it begins with a slash
    # A message that was received longer ago moves nothing, and one that is so old by its stamp, or
    # ahead of this machine's clock, is refused [s].
    timeout_s: float = 0.25
    # Axes, time of receipt on the steady clock [s], and frame; the ROS thread replaces all at once.
    _heard: tuple[Vector, float, str] = field(
        default=(np.zeros(6), -1e9, ""), init=False, repr=False
    )
    _frame: str = field(default="", init=False, repr=False)  # of the axes that were read last
    # Error of the newest message.
    _unusable: RobotRLError | None = field(default=None, init=False, repr=False)
    _lost: bool = field(default=False, init=False, repr=False)  # until it speaks again
    _subscription: Any = field(default=None, init=False, repr=False)
    _pressed: list[str] = field(default_factory=list, init=False, repr=False)

    @abstractmethod
    def take(self, message: Any) -> Vector:
        """The axes (6,) of a message, in the thread of ROS, or `RobotRLError`."""

    def connect(self) -> None:
        """Subscribe. Nobody has to publish yet: until then nothing moves.

        Raises `DriverError` where the device was lost, and has not spoken since, and
        `MeasuredTwice` where several nodes publish the topic.
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
        """The newest message; at rest where that did not move anything and is too old.

        Raises `DriverError` where the topic is not subscribed to, or the device is lost, and
        `MeasuredTwice` as `connect`.
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
                f"what comes on {self.topic} was not sent just now",
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
        # Any orientation will do to tell whether the operator moved.
        moved = self.shaping.motion(np.clip(axes, -1.0, 1.0), rotations.DOWNWARD).any()
        subscription = self._subscription if seconds > 0.0 else None
        # Else this silence is that of a device that was let go of, or has not spoken yet.
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
    """Moves with the velocity of a TwistStamped message, in the frame that it names."""

    kind: ClassVar[str] = "geometry_msgs/msg/TwistStamped"
    must_be_stamped: ClassVar[bool] = True
    topic: str = "teleop/command"  # the topic of `teleop_node`
    full_translation: float = 0.1  # velocity that is the largest action [m/s]
    full_rotation: float = 0.5  # the same for turns [rad/s]
    base_frame: str = "base"  # `frame_id` of velocities in the base frame, as are those without one
    tool_frame: str = "tcp"  # of velocities along the axes of the tool as it is measured

    def __post_init__(self) -> None:
        if self.shaping.frame != "base":
            raise DriverError(
                "a twist's own frame_id says in which frame it is",
                got=f"shaping.frame={self.shaping.frame}",
                expected="base",
                hint=f"let its node name {self.tool_frame}, or set tool_frame",
            )

    def motion(self, axes: Vector, tool_orientation: Vector | None) -> Vector:
        """As of any device; along the tool's axes the operator's view does not count."""
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
        """Linear and angular velocity, as shares of the largest action; see `TopicDevice`."""
        from robot_rl.ros.conversions import check_frame

        check_frame(message, self.base_frame, self.tool_frame)
        linear, angular = message.twist.linear, message.twist.angular
        velocity = np.array([linear.x, linear.y, linear.z, angular.x, angular.y, angular.z])
        full = np.repeat([self.full_translation, self.full_rotation], 3)
        return np.asarray(velocity / full)
