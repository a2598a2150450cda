"""What the process that moves a robot does, for whoever watches or records it over ROS."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool, Float64, String

from robot_rl.env.robot import Action
from robot_rl.ros import qos
from robot_rl.ros.client import RosClient
from robot_rl.ros.messages import joint_state_message

_AGAIN_SECONDS = 1.0
_WAITING = 100  # of messages that wait for a subscriber that is slow


class WorkReport:
    """Publishes actions, rewards, events and the counters of a deployed policy; waits for nobody.

    `action` names the columns, in [-1, 1], as sent after safety. Counters are in `/diagnostics`,
    again each second as those who gather them expect. The outcome of an attempt,
    `attempt/success`, is latched: who comes later hears that of the last one.
    """

    def __init__(self, client: RosClient) -> None:
        self._client = client
        self._status: DiagnosticStatus | None = None
        node = client.node
        self._action = node.create_publisher(JointState, "action", _WAITING)
        self._reward = node.create_publisher(Float64, "reward", _WAITING)
        self._events = node.create_publisher(String, "events", qos.latched(_WAITING))
        self._outcome = node.create_publisher(Bool, "attempt/success", qos.latched())
        self._diagnostics = node.create_publisher(DiagnosticArray, "/diagnostics", 10)
        node.create_timer(_AGAIN_SECONDS, self._publish_counters)

    def tell_step(self, names: Sequence[str], action: Action, reward: float) -> None:
        """Publish an action (d,), whose columns have these names, and its reward."""
        stamp = self._client.node.get_clock().now().nanoseconds
        self._action.publish(joint_state_message(names, action, None, stamp))
        self._reward.publish(Float64(data=reward))

    def tell_event(self, words: str) -> None:
        """Publish that an episode began or ended, or what an operator said, or a fault."""
        self._events.publish(String(data=words))

    def tell_counters(self, counters: Mapping[str, object], problem: str) -> None:
        """Publish counters, and what the robot waits for; empty where it works."""
        status = DiagnosticStatus(name=f"{self._client.namespace}/run".lstrip("/"))
        status.level = DiagnosticStatus.WARN if problem else DiagnosticStatus.OK
        status.message = problem or "at work"
        status.values = [KeyValue(key=key, value=str(value)) for key, value in counters.items()]
        self._status = status
        self._publish_counters()

    def tell_outcome(self, success: bool) -> None:
        """Publish whether the attempt that has just ended has succeeded."""
        self._outcome.publish(Bool(data=success))

    def _publish_counters(self) -> None:
        if self._status is not None:
            message = DiagnosticArray(status=[self._status])
            message.header.stamp = self._client.node.get_clock().now().to_msg()
            self._diagnostics.publish(message)
