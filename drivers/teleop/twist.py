"""Any `geometry_msgs/TwistStamped` topic: another program or a leader arm that says how to move."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from drivers.teleop.base import Axes, Vector
from drivers.teleop.topic import TopicDevice


@dataclass
class TwistTopic(TopicDevice):
    """Moves with the velocity of a TwistStamped message.

    Attributes:
        full_translation: Velocity that is the largest action [m/s].
        full_rotation: The same for turns [rad/s].
    """

    node_name: ClassVar[str] = "teleop_twist"

    topic: str = "teleop/command"  # that of `teleop_node`
    full_translation: float = 0.1
    full_rotation: float = 0.5

    def message_type(self) -> Any:
        """geometry_msgs/TwistStamped."""
        from geometry_msgs.msg import TwistStamped

        return TwistStamped

    def take(self, message: Any) -> Vector:
        """Linear and angular velocity (6,) [m/s, rad/s]."""
        linear, angular = message.twist.linear, message.twist.angular
        parts = (linear.x, linear.y, linear.z, angular.x, angular.y, angular.z)
        return np.nan_to_num(np.array(parts, np.float64), posinf=0.0, neginf=0.0)

    def axes(self) -> Axes:
        """The newest message; see `newest` for what it raises."""
        velocity = self.newest()
        if velocity is None:
            return Axes(np.zeros(6), frozenset())
        full = np.repeat([self.full_translation, self.full_rotation], 3)
        return Axes(np.clip(velocity / full, -1.0, 1.0), frozenset())
