"""Any `geometry_msgs/TwistStamped` topic: another program or a leader arm that says how to move."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from drivers.errors import DriverError
from drivers.teleop.base import Axes, AxesDevice, Vector

if TYPE_CHECKING:
    from robot_rl.ros.client import RosClient


@dataclass
class TwistTopic(AxesDevice):
    """Moves with the velocity of a TwistStamped message.

    Attributes:
        topic: Name of the topic; the default is that of `teleop_node`.
        namespace: Below which it is, unless it begins with a slash.
        full_translation: Velocity that is the largest action [m/s].
        full_rotation: The same for turns [rad/s].
        timeout_s: A message older than this moves nothing [s].
    """

    topic: str = "teleop/command"
    namespace: str = ""
    full_translation: float = 0.1
    full_rotation: float = 0.5
    timeout_s: float = 0.25
    _client: RosClient | None = field(default=None, init=False, repr=False)
    _heard: tuple[Vector, float] = field(default=(np.zeros(6), -1e9), init=False, repr=False)

    def connect(self) -> None:
        """Subscribe. Nobody has to publish yet: until then nothing moves."""
        from geometry_msgs.msg import TwistStamped

        from robot_rl.ros import qos
        from robot_rl.ros.client import RosClient

        self.close()
        self._client = RosClient("teleop_twist", self.namespace)
        self._client.node.create_subscription(
            TwistStamped, self.topic, self._take, qos.sensor_subscription()
        )

    def axes(self) -> Axes:
        """The newest message.

        Raises:
            DriverError: The topic is not subscribed to, or the thread of ROS has ended.
        """
        if self._client is None:
            raise DriverError(f"{self.topic} is not subscribed to", hint="call connect() first")
        self._client.check()
        velocity, seconds = self._heard
        fresh = time.monotonic() - seconds <= self.timeout_s
        full = np.repeat([self.full_translation, self.full_rotation], 3)
        values = np.clip(velocity / full, -1.0, 1.0) if fresh else np.zeros(6)
        return Axes(values, frozenset())

    def close(self) -> None:
        """End the subscription."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _take(self, message: Any) -> None:
        linear, angular = message.twist.linear, message.twist.angular
        parts = (linear.x, linear.y, linear.z, angular.x, angular.y, angular.z)
        velocity = np.nan_to_num(np.array(parts, np.float64), posinf=0.0, neginf=0.0)
        self._heard = (velocity, time.monotonic())
