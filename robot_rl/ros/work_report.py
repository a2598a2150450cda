"""How the work of a deployed policy goes, for whoever watches the robot over ROS."""

from __future__ import annotations

from collections.abc import Mapping

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from std_msgs.msg import Bool

from robot_rl.ros import qos
from robot_rl.ros.client import RosClient

_AGAIN_SECONDS = 1.0


class WorkReport:
    """Publishes counters in `/diagnostics` and each attempt's outcome on `attempt/success`.

    The counters are told again each second, as those who gather diagnostics expect. The outcome is
    latched: who comes later hears that of the last attempt. Nothing is published before the first
    `tell`.
    """

    def __init__(self, client: RosClient) -> None:
        self._client = client
        self._status: DiagnosticStatus | None = None
        node = client.node
        self._diagnostics = node.create_publisher(DiagnosticArray, "/diagnostics", 10)
        self._outcome = node.create_publisher(Bool, "attempt/success", qos.latched())
        node.create_timer(_AGAIN_SECONDS, self._publish)

    def tell(self, counters: Mapping[str, object], problem: str) -> None:
        """Publish counters, and what the robot waits for; empty where it works."""
        status = DiagnosticStatus(name=f"{self._client.namespace}/run".lstrip("/"))
        status.level = DiagnosticStatus.WARN if problem else DiagnosticStatus.OK
        status.message = problem or "at work"
        status.values = [KeyValue(key=key, value=str(value)) for key, value in counters.items()]
        self._status = status
        self._publish()

    def tell_outcome(self, success: bool) -> None:
        """Publish whether the attempt that has just ended has succeeded."""
        self._outcome.publish(Bool(data=success))

    def _publish(self) -> None:
        if self._status is not None:
            message = DiagnosticArray(status=[self._status])
            message.header.stamp = self._client.node.get_clock().now().to_msg()
            self._diagnostics.publish(message)
