"""What an arm's node says that it does: whether the arm is stopped, and has been."""

from __future__ import annotations

import threading
from collections.abc import Callable

from std_msgs.msg import String

from robot_rl.ros import qos
from robot_rl.ros.client import RosClient
from robot_rl.ros.errors import ArmStopped

_STOPPED = "stopped"
# A stop and its end that follow each other quickly are both to be seen.
_KEPT = 10


class ArmMode:
    """Listens to `mode`, which the arm's node publishes at each change; a foreign arm may not.

    Args:
        client: The node that listens.

    Attributes:
        stops: How often the arm was seen to stop.
    """

    def __init__(self, client: RosClient) -> None:
        """See the class."""
        self._topic, self._clear = client.topic("mode"), client.topic("clear_errors")
        self.stops = 0
        self._stopped = False
        self._last_reason = ""  # of the stop that lasts, or lasted
        self._listeners: list[Callable[[str | None], None]] = []
        self._lock = threading.Lock()  # nobody misses a change while they begin to listen
        client.node.create_subscription(String, "mode", self._take, qos.latched(_KEPT))

    @property
    def stopped(self) -> bool:
        """Whether the arm is stopped, as far as it has said."""
        return self._stopped

    def listen(self, listener: Callable[[str | None], None]) -> None:
        """Have every beginning and end of a stop told, in the thread of the callbacks.

        Args:
            listener: Told why the arm is stopped, or None when it no longer is; at once if it is
                already.
        """
        with self._lock:
            self._listeners.append(listener)
            if self.stopped:
                listener(self._why())

    def check(self, stops: int | None = None) -> None:
        """Look whether the arm may move.

        Args:
            stops: How often it had stopped when the motion began; a stop since then ends the
                motion even if it was cleared meanwhile.

        Raises:
            ArmStopped: The arm is stopped, or has been.
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
        stopped = mode == _STOPPED
        with self._lock:
            if stopped:
                self._last_reason = reason
            changed = stopped != self._stopped
            self.stops += changed and stopped
            self._stopped = stopped
            if changed:
                for listener in self._listeners:
                    listener(self._why() if stopped else None)

    def _why(self) -> str:
        return f"{self._topic}: {self._last_reason}"
