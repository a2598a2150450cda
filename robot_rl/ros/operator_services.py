"""The operator's buttons as ROS services of the process that moves the robot.

`success`, `failure`, `pause`, `take_over` and what else an operator can say are each a
`std_srvs/Trigger` beside the arm's topics. `stop` and `clear_errors` are those of the arm's node,
which halts the arm whatever this process does; from its `mode` this process hears of both, and of
faults that stopped the arm. What keyboard, console or another source say of these two is passed on
to the arm's node. Since `reset` is the arm's too, ending the episode is `episode/reset`.
"""

from __future__ import annotations

import contextlib
from functools import partial

from rclpy.exceptions import InvalidHandle
from rclpy.task import Future
from std_srvs.srv import Trigger

from robot_rl.operator import OperatorError, OperatorEvent, OperatorInbox
from robot_rl.ros.arm_mode import ArmMode
from robot_rl.ros.client import RosClient

_OF_THE_ARM = (OperatorEvent.STOP, OperatorEvent.CLEAR_ERRORS)
_NAMES = {OperatorEvent.RESET: "episode/reset"}


class OperatorServices:
    """Lets ROS clients write to an inbox, and its writers stop and clear the arm.

    Args:
        client: The node that serves, in the arm's namespace.
        inbox: Of the loop that moves the robot.
        mode: Of the arm.
    """

    def __init__(self, client: RosClient, inbox: OperatorInbox, mode: ArmMode) -> None:
        """See the class."""
        self._client = client
        self._inbox = inbox
        self._mode = mode
        for event in OperatorEvent:
            if event not in _OF_THE_ARM:
                name = _NAMES.get(event, str(event))
                client.node.create_service(Trigger, name, partial(self._serve, event))
        self._of_the_arm = {
            event: client.node.create_client(Trigger, str(event)) for event in _OF_THE_ARM
        }
        mode.listen(lambda stopped: inbox.note_stopped(client.namespace, stopped=stopped))
        inbox.listen(self._pass_on)

    def check_stop(self, timeout_s: float) -> None:
        """Wait until a stop that somebody posts reaches the arm: not inside the control loop.

        Raises:
            ServiceFailed: Nobody serves it within `timeout_s` [s].
        """
        self._client.wait_for(self._of_the_arm[OperatorEvent.STOP], timeout_s)

    def _serve(
        self, event: OperatorEvent, request: Trigger.Request, answer: Trigger.Response
    ) -> Trigger.Response:
        try:
            self._inbox.post(event)
        except OperatorError as error:
            answer.success, answer.message = False, str(error)
        else:
            answer.success, answer.message = True, f"the loop was told: {event}"
        return answer

    def _pass_on(self, event: OperatorEvent) -> None:
        """Call the arm's service, in the thread of whoever posts; its answer comes in another."""
        # An arm that is not stopped has nothing to be cleared of, and may be moving.
        if event is OperatorEvent.STOP or (
            event is OperatorEvent.CLEAR_ERRORS and self._mode.stopped
        ):
            with contextlib.suppress(InvalidHandle):  # closed: this process moves nothing any more
                answer = self._of_the_arm[event].call_async(Trigger.Request())
                answer.add_done_callback(partial(self._report, event))

    def _report(self, event: OperatorEvent, future: Future) -> None:
        answer = future.result()
        if not answer.success:
            service = self._client.topic(str(event))
            self._client.node.get_logger().error(f"{service} was refused: {answer.message}")
