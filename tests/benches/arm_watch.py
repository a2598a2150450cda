"""Watches a simulated arm's node from outside: what it does, and when it began to hold."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from geometry_msgs.msg import PoseStamped
from std_msgs.msg import String

from robot_rl.processes.waiting import wait_until
from robot_rl.ros import conversions, qos
from robot_rl.ros.ros_client import RosClient

# Who asks the arm to stay sends a pose that was measured: the target is one of the poses until then
# [m], however far the arm has gone since. Pose and command do not come in one order [s].
_SAME = 1e-4
_DISORDER_SECONDS = 0.03
_POSES = 200
_POLL_SECONDS = 0.005

Position = npt.NDArray[np.float64]


class ArmWatch:
    """Listens to `mode`, `applied_pose` and `current_pose` of an arm, by its node `client`.

    `check` raises where waiting has no sense any more.
    """

    def __init__(self, namespace: str) -> None:
        self.client = RosClient("watch", namespace)
        self.check: Callable[[], None] = self.client.check
        self._lock = threading.Lock()
        self._modes: list[tuple[float, str]] = [(0.0, "unknown")]
        self._positions: deque[tuple[float, Position]] = deque(maxlen=_POSES)  # when [s], where
        self._last_command = (0.0, np.full(3, np.nan))
        listen = self.client.node.create_subscription
        listen(String, "mode", self._take_mode, qos.latched())
        listen(PoseStamped, "current_pose", self._take_pose, qos.sensor_subscription(20))
        listen(PoseStamped, "applied_pose", self._take_command, qos.sensor_subscription(20))

    @property
    def mode(self) -> str:
        """What the node said last of what it does."""
        with self._lock:
            return self._modes[-1][1]

    def modes_since(self, moment: float) -> list[tuple[float, str]]:
        """What the node said after a moment, and when (steady clock [s])."""
        with self._lock:
            return [(at, mode) for at, mode in self._modes if at > moment]

    def following_since(self, moment: float, timeout_s: float) -> bool:
        """Wait until the arm has begun to follow commands after a moment (steady clock [s])."""
        return self._wait(lambda: self._first("follow", moment) is not None, timeout_s)

    def held_after(self, moment: float, timeout_s: float, *, told: bool) -> float | None:
        """Wait until the arm holds; returns how long after `moment` (steady clock [s]) it began to.

        With `told` a last command to stay where the arm was measured counts as well. None where it
        does not hold in time.
        """
        if not self._wait(lambda: self._first("hold", moment) is not None, timeout_s):
            return None
        held = self._first("hold", moment)
        assert held is not None
        with self._lock:
            came, target = self._last_command
            positions = tuple(self._positions)
        if told and moment < came < held:
            until_then = (place for at, place in positions if at < came + _DISORDER_SECONDS)
            if any(np.linalg.norm(target - place) < _SAME for place in until_then):
                held = came
        return held - moment

    def follows_for(self, seconds: float, timeout_s: float) -> bool:
        """Wait until the arm has followed commands for some time on end."""

        def long_enough() -> bool:
            with self._lock:
                since, mode = self._modes[-1]
            return mode.startswith("follow") and time.monotonic() - since > seconds

        return self._wait(long_enough, timeout_s)

    def close(self) -> None:
        """Stop listening."""
        self.client.close()

    def _first(self, word: str, moment: float) -> float | None:
        with self._lock:
            return next((at for at, mode in self._modes if at > moment and word in mode), None)

    def _wait(self, found: Callable[[], bool], timeout_s: float) -> bool:
        def asked() -> bool:
            self.check()
            return found()

        return wait_until(asked, timeout_s, every_s=_POLL_SECONDS)

    def _take_mode(self, message: String) -> None:
        with self._lock:
            self._modes = [*self._modes[-99:], (time.monotonic(), str(message.data))]

    def _take_pose(self, message: PoseStamped) -> None:
        with self._lock:
            self._positions.append((time.monotonic(), conversions.pose_array(message)[:3]))

    def _take_command(self, message: PoseStamped) -> None:
        with self._lock:
            self._last_command = (time.monotonic(), conversions.pose_array(message)[:3])
