"""The operator's buttons as ROS services of the process that moves the robot.

`success`, `failure`, `pause`, `take_over` and what else an operator can say are each a
`std_srvs/Trigger` beside the arm's topics. `stop` and `clear_errors` are those of the arm's node,
which halts the arm whatever this process does; from its `mode` this process hears of both, and of
faults that stopped the arm. What keyboard, console or another source say of these two is passed on
to the arm's node: a stop until it answers, even if it is just being started again. Since `reset` is
the arm's too, ending the episode is `episode/reset`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from functools import partial

from rclpy.client import Client
from rclpy.exceptions import InvalidHandle
from rclpy.node import Node
from rclpy.task import Future
from std_msgs.msg import String
from std_srvs.srv import Trigger

from robot_rl.env.operator import OperatorError, OperatorEvent, OperatorInbox
from robot_rl.ros import qos
from robot_rl.ros.client import RosClient
from robot_rl.ros.errors import ArmStopped

_OF_THE_ARM = (OperatorEvent.STOP, OperatorEvent.CLEAR_ERRORS)
_AGAIN_SECONDS = 0.5
# Of changes of `mode`: a stop and its end that follow each other quickly are both to be seen.
_KEPT = 10


def service_of(event: str) -> str:
    """Name of the service that an `OperatorEvent` is said to."""
    return "episode/reset" if event == OperatorEvent.RESET else str(event)


class ArmMode:
    """Listens to `mode`, which the arm's node publishes at each change.

    Attributes:
        stopped: Whether the arm is stopped, as far as it has said.
        stops: How often the arm was seen to stop.
    """

    def __init__(self, client: RosClient) -> None:
        self._topic, self._clear = client.topic("mode"), client.topic("clear_errors")
        self.stops = 0
        self.stopped = False
        self._last_reason = ""  # of the stop that lasts, or lasted
        self._tell: Callable[[str | None], None] = lambda why: None
        self._lock = threading.Lock()  # no change is missed while somebody begins to listen
        client.node.create_subscription(String, "mode", self._take, qos.latched(_KEPT))

    def listen(self, listener: Callable[[str | None], None]) -> None:
        """Have every beginning and end of a stop told, in the thread of the callbacks.

        The listener is told why the arm is stopped, or None when it no longer is; at once if it is
        already.
        """
        with self._lock:
            self._tell = listener
            if self.stopped:
                listener(self._why())

    def check(self, stops: int | None = None) -> None:
        """Raise `ArmStopped` where the arm may not move.

        A stop since it had stopped `stops` times ends a motion even if it was cleared meanwhile.
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
                hint="it was cleared: the motion can begin anew",
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
                self._tell(self._why() if stopped else None)

    def _why(self) -> str:
        return f"{self._topic}: {self._last_reason}"


class OperatorServices:
    """Lets ROS clients write to an inbox, and its writers stop and clear the arm.

    Attributes:
        stop: What calls the arm's stop.
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
            answer.success, answer.message = True, f"the loop was told: {event}"
        return answer

    def _pass_on(self, event: OperatorEvent) -> None:
        """Call the arm's service, in the thread of whoever posts; its answer comes in another."""
        if event is OperatorEvent.STOP:
            self.stop.begin()
        elif event is OperatorEvent.CLEAR_ERRORS:
            self.stop.give_up()
            # An arm that is not stopped has nothing to be cleared of, and may be moving.
            if self._mode.stopped:
                with contextlib.suppress(InvalidHandle):  # closed: this process moves nothing
                    self._clear.call_async(Trigger.Request()).add_done_callback(self._report)

    def _report(self, cleared: Future) -> None:
        answer = cleared.result()
        if not answer.success:
            service = self._clear.service_name
            self._client.node.get_logger().error(f"{service} was refused: {answer.message}")


class StopCall:
    """A call of the service `stop` that outlasts a restart of the arm's node.

    A node that is being started again serves nobody for seconds, and one that dies answers nothing.
    To stop an arm twice does no harm. Its methods may be called in any thread.

    Attributes:
        client: Of the service.
        problem: What a person must know of the stop that was asked for last; empty if nothing.
    """

    def __init__(self, node: Node) -> None:
        self.client: Client = node.create_client(Trigger, "stop")
        self.problem = ""
        self._log = node.get_logger()
        self._lock = threading.RLock()  # an answer may come at once
        self._wanted = False
        self._calls: list[Future] = []
        node.create_timer(_AGAIN_SECONDS, self._ask)

    def begin(self) -> None:
        """Ask now, and again until there is an answer."""
        with self._lock:
            self._wanted, self.problem = True, ""
        self._ask()

    def give_up(self) -> None:
        """Ask no longer: the person who wanted the stop lets the arm move again."""
        with self._lock:
            self._conclude("")

    def _ask(self) -> None:
        # Closed: this process moves nothing any more.
        with self._lock, contextlib.suppress(InvalidHandle):
            if not self._wanted:
                return
            if self.client.service_is_ready():
                call = self.client.call_async(Trigger.Request())
                self._calls.append(call)
                call.add_done_callback(self._take)
            else:
                self._report(
                    f"nobody serves {self.client.service_name}: the arm is told to stop as soon as"
                    " its node runs; until then use its emergency stop"
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
