"""The operator's buttons as ROS services of the process that moves the robot.

`success`, `failure`, `pause`, `take_over` and what else an operator can say are each a
`std_srvs/Trigger` beside the arm's topics. `stop` and `clear_errors` are those of the arm's node,
which halts the arm whatever this process does; from its `mode` this process hears of both, and of
faults that stopped the arm. Since `reset` is the arm's too, ending the episode is `episode/reset`.
"""

from __future__ import annotations

from functools import partial

from std_msgs.msg import String
from std_srvs.srv import Trigger

from robot_rl.operator import OperatorError, OperatorEvent, OperatorInbox
from robot_rl.ros import qos
from robot_rl.ros.client import RosClient

_OF_THE_ARM = (OperatorEvent.STOP, OperatorEvent.CLEAR_ERRORS)
_NAMES = {OperatorEvent.RESET: "episode/reset"}


class OperatorServices:
    """Lets ROS clients write to an inbox.

    Args:
        client: The node that serves, in the arm's namespace.
        inbox: Of the loop that moves the robot.
    """

    def __init__(self, client: RosClient, inbox: OperatorInbox) -> None:
        """See the class."""
        self._inbox = inbox
        self._stopped = False
        for event in OperatorEvent:
            if event not in _OF_THE_ARM:
                name = _NAMES.get(event, str(event))
                client.node.create_service(Trigger, name, partial(self._serve, event))
        client.node.create_subscription(String, "mode", self._take_mode, qos.latched())

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

    def _take_mode(self, message: String) -> None:
        stopped = message.data.startswith("stopped")
        if stopped != self._stopped:
            self._stopped = stopped
            self._inbox.post(OperatorEvent.STOP if stopped else OperatorEvent.CLEAR_ERRORS)
