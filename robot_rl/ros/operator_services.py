"""The operator's buttons as ROS services of the process that moves the robot.

`success`, `failure`, `pause`, `take_over` and the other operator events are each a
`std_srvs/Trigger` among the arm's topics. `stop` and `clear_errors` are services of the arm's node,
which halts the arm whatever this process does. Its `mode` reports both, and faults that stopped the
arm. Both events, if they come from a keyboard or console, are forwarded to the arm's node: a stop
is repeated until the node answers, even after a restart. `reset` is also a service of the arm, so
the episode's reset is `episode/reset`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.client import Client
from rclpy.exceptions import InvalidHandle
from rclpy.node import Node
from rclpy.task import Future
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool, Float64, String
from std_srvs.srv import Trigger

from robot_rl.env.operator import OperatorError, OperatorEvent, OperatorInbox
from robot_rl.env.robot import Action
from robot_rl.ros import qos
from robot_rl.ros.conversions import joint_state_message
from robot_rl.ros.faults import ArmStopped
from robot_rl.ros.ros_client import RosClient

_OF_THE_ARM = (OperatorEvent.STOP, OperatorEvent.CLEAR_ERRORS)
_AGAIN_SECONDS = 0.5
_COUNTERS_SECONDS = 1.0
_WAITING = 100  # queue depth for a slow subscriber
# Depth of the `mode` queue: a stop and its quick end must both be seen.
_KEPT = 10


def service_of(event: str) -> str:
    """Name of the service for an `OperatorEvent`."""
    return "episode/reset" if event == OperatorEvent.RESET else str(event)


class ArmMode:
    """Listens to `mode`, which the arm's node publishes on each change.

    Attributes:
        stopped: Whether the arm is stopped.
        stops: Number of stops seen.
    """

    def __init__(self, client: RosClient) -> None:
        self._topic, self._clear = client.topic("mode"), client.topic("clear_errors")
        self.stops = 0
        self.stopped = False
        self._last_reason = ""  # reason for the last stop
        self._listener: Callable[[str | None], None] = lambda why: None
        self._lock = threading.Lock()  # no change is missed while setting a listener
        client.node.create_subscription(String, "mode", self._take, qos.latched(_KEPT))

    def listen(self, listener: Callable[[str | None], None]) -> None:
        """Call `listener` at each start and end of a stop, in the callback thread.

        It gets the reason for the stop, or None at its end. If the arm is already stopped, it is
        called at once.
        """
        with self._lock:
            self._listener = listener
            if self.stopped:
                listener(self._why())

    def check(self, stops: int | None = None) -> None:
        """Raise `ArmStopped` if the arm may not move.

        Any stop since the count was `stops` ends a motion, even if it has been cleared.
        """
        if self.stopped:
            raise ArmStopped(
                "the arm is stopped",
                got=self._why(),
                hint="look at the arm, then say clear_errors, as with"
                f" robot-rl doctor call={self._clear}",
            )
        if stops is not None and self.stops != stops:
            raise ArmStopped(
                "the arm was stopped while it was brought to a start",
                got=self._why(),
                hint="it was cleared: the motion can start again",
            )

    def _take(self, message: String) -> None:
        mode, _, reason = message.data.partition(": ")
        stopped = mode == "stopped"
        with self._lock:
            if stopped:
                self._last_reason = reason
            if stopped != self.stopped:
                self.stops += stopped
                self.stopped = stopped
                self._listener(self._why() if stopped else None)

    def _why(self) -> str:
        return f"{self._topic}: {self._last_reason}"


class OperatorServices:
    """Lets ROS clients post events to an inbox, and inbox events stop and clear the arm.

    Attributes:
        stop: Calls the arm's stop service.
    """

    def __init__(self, client: RosClient, inbox: OperatorInbox, mode: ArmMode) -> None:
        self._client = client
        self._inbox = inbox
        self._mode = mode
        for event in OperatorEvent:
            if event not in _OF_THE_ARM:
                client.node.create_service(Trigger, service_of(event), partial(self._serve, event))
        self.stop = StopCall(client.node)
        self._clear = client.node.create_client(Trigger, service_of(OperatorEvent.CLEAR_ERRORS))
        mode.listen(lambda why: inbox.note_stopped(client.namespace, why))
        inbox.listen(self._pass_on)

    def _serve(
        self, event: OperatorEvent, request: Trigger.Request, answer: Trigger.Response
    ) -> Trigger.Response:
        try:
            self._inbox.ask(event)
        except OperatorError as error:
            answer.success, answer.message = False, str(error)
        else:
            answer.success, answer.message = True, f"the loop heard: {event}"
        return answer

    def _pass_on(self, event: OperatorEvent) -> None:
        """Call the arm's service in the posting thread; the answer arrives in another."""
        if event is OperatorEvent.STOP:
            self.stop.begin()
        elif event is OperatorEvent.CLEAR_ERRORS:
            self.stop.give_up()
            # An arm that is not stopped has nothing to clear, and may be moving.
            if self._mode.stopped:
                with contextlib.suppress(InvalidHandle):  # closed: no motion from here any more
                    self._clear.call_async(Trigger.Request()).add_done_callback(self._report)

    def _report(self, cleared: Future) -> None:
        answer = cleared.result()
        if not answer.success:
            service = self._clear.service_name
            self._client.node.get_logger().error(f"{service} was refused: {answer.message}")


class StopCall:
    """A call of the service `stop` that survives a restart of the arm's node.

    A restarting node is unavailable for seconds, so the call is repeated until answered. Stopping
    twice is harmless. All methods are thread-safe.

    Attributes:
        client: The service client.
        problem: Why the last stop is unconfirmed; empty if confirmed.
    """

    def __init__(self, node: Node) -> None:
        self.client: Client = node.create_client(Trigger, "stop")
        self.problem = ""
        self._log = node.get_logger()
        self._lock = threading.RLock()  # an answer may arrive during the call
        self._wanted = False
        self._calls: list[Future] = []
        node.create_timer(_AGAIN_SECONDS, self._ask)

    def begin(self) -> None:
        """Call now, and repeat until answered."""
        with self._lock:
            self._wanted, self.problem = True, ""
        self._ask()

    def give_up(self) -> None:
        """Stop repeating: the person who requested the stop allows motion again."""
        with self._lock:
            self._conclude("")

    def _ask(self) -> None:
        # InvalidHandle means closed: this process no longer moves the arm.
        with self._lock, contextlib.suppress(InvalidHandle):
            if not self._wanted:
                return
            if self.client.service_is_ready():
                call = self.client.call_async(Trigger.Request())
                self._calls.append(call)
                call.add_done_callback(self._take)
            else:
                self._report(
                    f"nobody serves {self.client.service_name}: the arm stops as soon as its node"
                    " runs; until then use its emergency stop"
                )

    def _take(self, call: Future) -> None:
        with self._lock:
            if call not in self._calls:
                return
            answer = call.result()
            self._conclude("" if answer.success else answer.message)

    def _conclude(self, problem: str) -> None:
        self._wanted = False
        for call in self._calls:
            self.client.remove_pending_request(call)
        self._calls.clear()
        self._report(problem)

    def _report(self, problem: str) -> None:
        if problem and problem != self.problem:
            self._log.error(problem)
        self.problem = problem


class WorkReport:
    """Publishes actions, rewards, events and a deployed policy's counters; it never blocks.

    `action` has the named columns, in [-1, 1], after the safety limits. Counters go to
    `/diagnostics` every second. The outcome of an attempt, `attempt/success`, is latched for late
    subscribers.
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
        node.create_timer(_COUNTERS_SECONDS, self._publish_counters)

    def tell_step(self, names: Sequence[str], action: Action, reward: float) -> None:
        """Publish an action (d,) with these column names, and its reward."""
        stamp = self._client.node.get_clock().now().nanoseconds
        self._action.publish(joint_state_message(names, action, None, stamp))
        self._reward.publish(Float64(data=reward))

    def tell_event(self, words: str) -> None:
        """Publish an episode start or end, an operator event, or a fault."""
        self._events.publish(String(data=words))

    def tell_counters(self, counters: Mapping[str, object], problem: str) -> None:
        """Publish counters, and what the robot is waiting for; empty while it works."""
        status = DiagnosticStatus(name=f"{self._client.namespace}/run".lstrip("/"))
        status.level = DiagnosticStatus.WARN if problem else DiagnosticStatus.OK
        status.message = problem or "at work"
        status.values = [KeyValue(key=key, value=str(value)) for key, value in counters.items()]
        self._status = status
        self._publish_counters()

    def tell_outcome(self, success: bool) -> None:
        """Publish whether the attempt that just ended succeeded."""
        self._outcome.publish(Bool(data=success))

    def _publish_counters(self) -> None:
        if self._status is not None:
            message = DiagnosticArray(status=[self._status])
            message.header.stamp = self._client.node.get_clock().now().to_msg()
            self._diagnostics.publish(message)
