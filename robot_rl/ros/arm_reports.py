"""What an arm's node says of itself: whether the arm is stopped, and what it made of a command.

A foreign arm may say neither.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from geometry_msgs.msg import PoseStamped
from std_msgs.msg import String

from robot_rl.ros import messages, qos
from robot_rl.ros.client import RosClient
from robot_rl.ros.errors import ArmStopped
from robot_rl.ros.sensors import Sensor
from robot_rl.safety import rotations

# A stop and its end that follow each other quickly are both to be seen.
_KEPT = 10
# A tenth of what an action of 1 does. Where both keep the same lead, theirs differs by as much as
# the arm has moved between the two measurements: 0.03 mm at most in a simulated insertion.
_TOLERANCES = np.repeat([1e-3, 5e-3], 3)  # m, rad


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
        self._listeners: list[Callable[[str | None], None]] = []
        self._lock = threading.Lock()  # nobody misses a change while they begin to listen
        client.node.create_subscription(String, "mode", self._take, qos.latched(_KEPT))

    def listen(self, listener: Callable[[str | None], None]) -> None:
        """Have every beginning and end of a stop told, in the thread of the callbacks.

        The listener is told why the arm is stopped, or None when it no longer is; at once if it is
        already.
        """
        with self._lock:
            self._listeners.append(listener)
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
                for listener in self._listeners:
                    listener(self._why() if stopped else None)

    def _why(self) -> str:
        return f"{self._topic}: {self._last_reason}"


class AppliedTarget:
    """Compares the newest command with what the arm's node says that it has applied.

    The node answers every command that it accepts on `applied_pose`: the target after its limits of
    workspace, tilt, step and lead, with the stamp of the command. Its limit of speed is not in it,
    nor that it holds later, which its `mode` says. A command without an answer by now counts as not
    limited.
    """

    def __init__(self, client: RosClient) -> None:
        self._answers = Sensor(client, PoseStamped, "applied_pose", math.inf, messages.pose_array)
        self._stamp_ns = 0
        self._target: npt.NDArray[np.float64] | None = None

    def expect(self, target: npt.NDArray[np.float64], stamp_ns: int) -> None:
        """Note a command: its target pose (7,) and its stamp [ns, system clock]."""
        self._target, self._stamp_ns = target, stamp_ns

    def limited(self) -> bool:
        """Whether the node, as far as it has answered, applied another target than was sent.

        Raises `BadMeasurement` where its answer is no pose.
        """
        answer = self._answers.of_stamp(self._stamp_ns)
        if self._target is None or answer is None:
            return False
        difference = rotations.between(self._target, self._answers.value(answer))
        return bool((np.abs(difference) > _TOLERANCES).any())
