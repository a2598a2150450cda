"""Any `sensor_msgs/Joy` topic, such as those of `joy_node`, `spacenav_node` and VR bridges."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from drivers.errors import DriverError
from drivers.teleop.base import Axes, AxesDevice

if TYPE_CHECKING:
    from robot_rl.ros.client import RosClient


@dataclass
class JoyTopic(AxesDevice):
    """Moves with the axes of a Joy message; its buttons are `button_0`, `button_1`, ….

    Attributes:
        topic: Name of the topic.
        namespace: Below which it is, unless it begins with a slash.
        sticks: For each of the axes front, left, up, and turns about them, the number of the
            message's axis; -1 for none. The default is spacenav's order.
        signs: Direction of each.
        timeout_s: A message older than this moves nothing [s]; the publisher must repeat itself.
    """

    topic: str = "joy"
    namespace: str = ""
    sticks: Sequence[int] = (0, 1, 2, 3, 4, 5)
    signs: Sequence[float] = (1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
    timeout_s: float = 0.25
    _client: RosClient | None = field(default=None, init=False, repr=False)
    # Replaced as a whole by the thread of ROS: the axes, and when they came on the steady clock.
    _heard: tuple[Sequence[float], float] = field(default=((), -1e9), init=False, repr=False)
    _buttons: Sequence[int] = field(default=(), init=False, repr=False)
    _pressed: list[str] = field(default_factory=list, init=False, repr=False)

    def connect(self) -> None:
        """Subscribe. Nobody has to publish yet: until then nothing moves."""
        from sensor_msgs.msg import Joy

        from robot_rl.ros import qos
        from robot_rl.ros.client import RosClient

        self.close()
        self._client = RosClient("teleop_joy", self.namespace)
        self._client.node.create_subscription(
            Joy, self.topic, self._take, qos.sensor_subscription()
        )

    def axes(self) -> Axes:
        """The newest message.

        Raises:
            DriverError: The topic is not subscribed to, or the thread of ROS has ended.
        """
        if self._client is None:
            raise DriverError(f"{self.topic} is not subscribed to", hint="call connect() first")
        self._client.check()
        numbers, seconds = self._heard
        values = np.zeros(6)
        if time.monotonic() - seconds <= self.timeout_s:
            for axis, (number, sign) in enumerate(zip(self.sticks, self.signs, strict=True)):
                if 0 <= number < len(numbers):
                    values[axis] = sign * numbers[number]
        pressed = [self._pressed.pop() for _ in range(len(self._pressed))]
        return Axes(np.clip(np.nan_to_num(values), -1.0, 1.0), frozenset(pressed))

    def close(self) -> None:
        """End the subscription."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _take(self, message: Any) -> None:
        before, self._buttons = self._buttons, list(message.buttons)
        for number, down in enumerate(self._buttons):
            if down and not (number < len(before) and before[number]):
                self._pressed.append(f"button_{number}")
        self._heard = (list(message.axes), time.monotonic())
