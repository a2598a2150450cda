"""Asks an arm's node to stop, and goes on asking until it has answered."""

from __future__ import annotations

import contextlib
import threading

from rclpy.client import Client
from rclpy.exceptions import InvalidHandle
from rclpy.node import Node
from rclpy.task import Future
from std_srvs.srv import Trigger

_AGAIN_SECONDS = 0.5


class StopCall:
    """A call of the service `stop` that outlasts a restart of the arm's node.

    A node that is being started again serves nobody for seconds, and one that dies answers
    nothing. To stop an arm twice does no harm. Its methods may be called in any thread.

    Args:
        node: Calls, in the namespace of the arm.

    Attributes:
        client: Of the service.
        problem: What a person must know of the stop that was asked for last; empty if nothing.
    """

    def __init__(self, node: Node) -> None:
        """See the class."""
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
