"""Any `sensor_msgs/Joy` topic, such as those of `joy_node`, `spacenav_node` and VR bridges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from drivers.teleop.base import Axes, Vector
from drivers.teleop.topic import TopicDevice


@dataclass
class JoyTopic(TopicDevice):
    """Moves with the axes of a Joy message; its buttons are `button_0`, `button_1`, ….

    Attributes:
        sticks: For each of the axes front, left, up, and turns about them, the number of the
            message's axis; -1 for none. The default is spacenav's order.
        signs: Direction of each.
    """

    node_name: ClassVar[str] = "teleop_joy"

    topic: str = "joy"
    sticks: Sequence[int] = (0, 1, 2, 3, 4, 5)
    signs: Sequence[float] = (1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
    _buttons: Sequence[int] = field(default=(), init=False, repr=False)
    _pressed: list[str] = field(default_factory=list, init=False, repr=False)

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
        return np.array(message.axes, np.float64)

    def axes(self) -> Axes:
        """The newest message; see `newest` for what it raises."""
        numbers = self.newest()
        values = np.zeros(6)
        if numbers is not None:
            for axis, (number, sign) in enumerate(zip(self.sticks, self.signs, strict=True)):
                if 0 <= number < len(numbers):
                    values[axis] = sign * numbers[number]
        pressed = [self._pressed.pop() for _ in range(len(self._pressed))]
        return Axes(np.clip(np.nan_to_num(values), -1.0, 1.0), frozenset(pressed))
