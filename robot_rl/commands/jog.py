"""`robot-rl jog`: move an arm by some millimetres, for a first motion or to test limits.

Sends targets along a straight line to the arm's node, one per measured pose. The node's guard holds
the arm as for every client, also if this process dies.
"""

from __future__ import annotations

import math
import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np

from robot_rl.commands.teach import shown
from robot_rl.errors import RobotRLError
from robot_rl.processes.waiting import wait_until

if TYPE_CHECKING:
    from std_msgs.msg import String

    from robot_rl.ros.ros_client import RosClient
    from robot_rl.safety.limits import Vector

_FARTHEST, _FASTEST = 0.05, 0.05  # m, m/s
# Timeout to find the node; settling time at the end of the path, for an arm that lags [s].
_FOUND_SECONDS, _SETTLE_SECONDS = 10.0, 0.5
# Maximum age of a pose; time within which the node must start to follow [s].
_STALE_SECONDS, _ANSWER_SECONDS = 0.5, 1.5
_POLL_SECONDS = 0.002


def run(*, x: float, y: float, z: float, speed: float, namespace: str, yes: bool) -> None:
    """Move the TCP by `x`, `y`, `z` [m] in the base frame, after a person's confirmation.

    Prints the target before the motion and the measured displacement after it. Raises
    `RobotRLError` if the arm's node holds, refuses or limits the motion, if the arm is stopped, or
    if another client moves it.
    """
    way = np.array([x, y, z])
    length = float(np.linalg.norm(way))
    if not 0.0 < length <= _FARTHEST:
        expected = f"x, y and z in m, together more than 0 and at most {_FARTHEST:g}"
        raise RobotRLError("this way is not possible", got=f"{length:g} m", expected=expected)
    if not 0.0 < speed <= _FASTEST:
        expected = f"more than 0 and at most {_FASTEST:g} m/s"
        raise RobotRLError("this speed is not possible", got=f"{speed:g} m/s", expected=expected)
    if not yes and not sys.stdin.isatty():
        raise RobotRLError("nobody can confirm the motion", got="no terminal", hint="add yes=true")
    from robot_rl.ros.environment import prepare_environment
    from robot_rl.ros.ros_client import RosClient

    prepare_environment(None)
    with closing(RosClient("jog", namespace)) as client:
        arm = _Arm(client)
        arm.check()
        start = arm.pose()[:3]
        print(
            f"{client.topic('target_pose')}: from {shown(start)} to {shown(start + way)} m,"
            f" {1e3 * length:g} mm at {1e3 * speed:g} mm/s; Ctrl-C stops it",
            flush=True,
        )
        if not yes:
            print("press Enter, and the arm moves: ", end="", flush=True)
            if not sys.stdin.readline():
                raise RobotRLError(
                    "nothing was moved", got="the end of the input in place of Enter"
                )
            arm.check()
        start = arm.pose()[:3]
        try:
            arm.go(way, speed)
        finally:
            went = 1e3 * (arm.last[:3] - start)
            print(f"asked {shown(1e3 * way)} mm, measured {shown(went)} mm", flush=True)


class _Arm:
    """Client of the arm's node."""

    def __init__(self, client: RosClient) -> None:
        from geometry_msgs.msg import PoseStamped, WrenchStamped
        from std_msgs.msg import String

        from robot_rl.ros import conversions, qos
        from robot_rl.ros.conversions import PoseTargets
        from robot_rl.ros.operator_services import ArmMode
        from robot_rl.ros.sensors import NodeHealth, Sensor

        self._client, self._targets = client, PoseTargets()
        topic, applied = self._targets.topic, self._targets.applied_topic
        decode, node = self._targets.target, client.node
        self._health, self._stop = NodeHealth(client), ArmMode(client)
        self._poses = Sensor(
            client, PoseStamped, "current_pose", _STALE_SECONDS, decode, health=self._health
        )
        self._applied = Sensor(client, PoseStamped, applied, math.inf, decode)
        force = conversions.wrench_array
        self._wrench = Sensor(
            client, WrenchStamped, "current_wrench", _STALE_SECONDS, force,
            in_frame=lambda: self._poses.frame,
        )  # fmt: skip
        self._publisher = node.create_publisher(PoseStamped, topic, qos.command_publisher(100.0))
        self._sent: dict[int, Vector] = {}  # targets by stamp [ns]
        self._modes: list[str] = []  # since the first target
        node.create_subscription(String, "mode", self._take_mode, qos.latched(10))

    def check(self) -> None:
        """Raise `RobotRLError` unless this process alone can move the arm."""
        heard = wait_until(lambda: self._poses.count, _FOUND_SECONDS)
        taken = heard and wait_until(self._publisher.get_subscription_count, _FOUND_SECONDS)
        if not taken:
            topic = self._client.topic(self._targets.topic if heard else "current_pose")
            raise RobotRLError(
                "there is no arm's node that takes poses",
                got=f"nobody takes {topic}" if heard else f"no message on {topic}",
                hint="start it in another terminal: robot-rl nodes cell=lab. An arm that takes"
                " joint targets cannot be moved so",
            )
        self._stop.check()
        self._client.check_alone(self._targets.topic)

    def pose(self) -> Vector:
        """Return the latest measured pose (7,)."""
        self.last = np.asarray(self._poses.value(self._poses.newest()))
        return self.last

    def go(self, way: Vector, speed: float) -> None:
        """Send targets along a displacement (3,) [m] from the current pose, one per new pose."""
        start, began = self.pose(), time.monotonic()
        seconds = float(np.linalg.norm(way)) / speed
        self._modes.clear()
        while (elapsed := time.monotonic() - began) < seconds + _SETTLE_SECONDS:
            target = start.copy()
            target[:3] += way * min(elapsed / seconds, 1.0)
            stamp, count = time.time_ns(), self._poses.count
            self._sent[stamp] = target
            self._client.check_alone(self._targets.topic)
            self._publisher.publish(self._targets.message(target, stamp, self._poses.frame))
            while self._poses.count == count:
                self._poses.newest()  # raises if poses stop arriving
                time.sleep(_POLL_SECONDS)
            self.pose()
            self._stop.check()
            self._check_followed(elapsed)

    def _check_followed(self, elapsed: float) -> None:
        """Raise `RobotRLError` if the node holds, never followed, or applied another target."""
        modes = [*self._modes]
        followed = [mode.startswith("follow") for mode in modes]
        if not any(followed):
            if elapsed > _ANSWER_SECONDS:
                why = self._health.behind(self._poses.topic) or "no word of why"
                raise RobotRLError("the arm's node does not follow", got=why)
            return
        if not all(followed[followed.index(True) :]):
            raise RobotRLError("the arm's node holds", got=modes[-1 - followed[::-1].index(False)])
        answer = self._applied.newest() if self._applied.count else None
        target = None if answer is None else self._sent.get(answer.stamp_ns)
        if answer is None or target is None:
            return
        applied = self._applied.value(answer)
        short = np.abs(target - applied)[:3] > self._targets.tolerances[:3]
        if short.any():
            axes = ", ".join(axis for axis, is_short in zip("xyz", short, strict=True) if is_short)
            raise RobotRLError(
                f"the arm's node limits the target along {axes}",
                got=f"{shown(applied[:3])} m",
                expected=f"{shown(target[:3])} m",
                hint=f"its workspace ends here{self._pressed()}; see limits in the cell",
            )

    def _pressed(self) -> str:
        """Alternative cause of a limited motion: contact, with the measured force if available."""
        try:
            force = self._wrench.value(self._wrench.newest())[:3]
        except RobotRLError:  # not every arm measures force
            return ", or the tool presses on something"
        along = "xyz"[int(np.abs(force).argmax())]
        size = float(np.linalg.norm(force))
        return f", or the tool presses on something: force {size:.1f} N, most along {along}"

    def _take_mode(self, message: String) -> None:
        self._modes.append(str(message.data))
