"""What devices on ROS 2 topics share: the subscription, and when the newest message came."""

from __future__ import annotations

import time
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from drivers.errors import DriverError
from drivers.teleop.base import AxesDevice, Vector

if TYPE_CHECKING:
    from robot_rl.ros.client import RosClient


@dataclass
class TopicDevice(AxesDevice):
    """Moves with the messages of a topic, which must repeat themselves.

    Attributes:
        node_name: Name of its node.
        topic: Name of the topic.
        namespace: Below which it is, unless it begins with a slash.
        timeout_s: A message older than this moves nothing [s].
    """

    node_name: ClassVar[str]

    topic: str = ""
    namespace: str = ""
    timeout_s: float = 0.25
    _client: RosClient | None = field(default=None, init=False, repr=False)
    # Replaced as a whole by the thread of ROS: numbers, and when they came on the steady clock.
    _heard: tuple[Vector, float] = field(default=(np.zeros(0), -1e9), init=False, repr=False)

    @abstractmethod
    def message_type(self) -> Any:
        """The type of the messages; imported here, since a driver loads without ROS."""

    @abstractmethod
    def take(self, message: Any) -> Vector:
        """The numbers of a message, in the thread of ROS."""

    def connect(self) -> None:
        """Subscribe. Nobody has to publish yet: until then nothing moves."""
        from robot_rl.ros import qos
        from robot_rl.ros.client import RosClient

        self.close()
        self._client = RosClient(self.node_name, self.namespace)
        self._client.node.create_subscription(
            self.message_type(), self.topic, self._hear, qos.sensor_subscription()
        )

    def newest(self) -> Vector | None:
        """The numbers of the newest message, or None where it is too old.

        Raises:
            DriverError: The topic is not subscribed to, or the thread of ROS has ended.
        """
        if self._client is None:
            raise DriverError(f"{self.topic} is not subscribed to", hint="call connect() first")
        self._client.check()
        numbers, seconds = self._heard
        return numbers if time.monotonic() - seconds <= self.timeout_s else None

    def close(self) -> None:
        """End the subscription."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _hear(self, message: Any) -> None:
        self._heard = (self.take(message), time.monotonic())
