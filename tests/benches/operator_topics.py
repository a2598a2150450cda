"""An operator on ROS 2 topics, and what another process hears there of the arm."""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from geometry_msgs.msg import PoseStamped, TwistStamped
from std_msgs.msg import String
from std_srvs.srv import Trigger
from topics import BenchFailed

from robot_rl.processes.waiting import wait_until
from robot_rl.ros import conversions, qos
from robot_rl.ros.conversions import to_nanoseconds
from robot_rl.ros.ros_client import RosClient

Vector = npt.NDArray[np.float64]

_PUSH_HZ = 50.0
_WAIT_SECONDS = 60.0
_POLL_SECONDS = 0.005
_KEPT = 10_000
_STILL = 0.01  # m/s
# Of the action before it the command has gone out sooner than this [ns].
_STAMPED_BEFORE_SENT_NS = 50_000_000


class ArmStop(NamedTuple):
    """How the arm's node stopped."""

    heard_ns: int  # when it said so, system clock [ns]
    speed: float  # the largest of the TCP from `settled_s` after the event on [m/s]
    speed_before: float  # of the TCP before the event [m/s]
    still_s: float  # from the event to where the TCP was slower than 10 mm/s for good [s]
    distance: float  # how far from where it was at the event the TCP came [m]


class OperatorTopics:
    """Moves and stops an arm by services and the topic of the device `teleop=twist`."""

    def __init__(self, namespace: str, command_topic: str) -> None:
        self._client = RosClient("operator", namespace)
        node = self._client.node
        self._lock = threading.Lock()
        self._modes: deque[tuple[int, str]] = deque(maxlen=_KEPT)  # with their arrival [ns]
        self._speeds: deque[tuple[int, float]] = deque(maxlen=_KEPT)  # with their stamp [ns]
        self._places: deque[tuple[int, Vector]] = deque(maxlen=_KEPT)  # with their stamp [ns]
        self._applied: deque[tuple[int, int]] = deque(maxlen=_KEPT)  # stamp and arrival [ns]
        self._services = {
            name: node.create_client(Trigger, name)
            for name in ("stop", "clear_errors", "pause", "resume")
        }
        self._push = node.create_publisher(
            TwistStamped, command_topic, qos.command_publisher(_PUSH_HZ)
        )
        node.create_subscription(String, "mode", self._take_mode, qos.latched())
        node.create_subscription(
            TwistStamped, "current_twist", self._take_twist, qos.sensor_subscription(20)
        )
        node.create_subscription(
            PoseStamped, "current_pose", self._take_pose, qos.sensor_subscription(20)
        )
        node.create_subscription(
            PoseStamped, "applied_pose", self._take_applied, qos.sensor_subscription(20)
        )

    def wait(self) -> None:
        """Wait until somebody listens to the device and serves the services, or `BenchFailed`."""
        services = self._services.values()

        def heard() -> bool:
            listened = self._push.get_subscription_count() > 0
            return listened and all(s.service_is_ready() for s in services)

        if not wait_until(heard, _WAIT_SECONDS, every_s=_POLL_SECONDS):
            raise BenchFailed("nobody listens to the operator on topics")

    def push(self, velocity: Vector, seconds: float) -> int:
        """Publish a velocity (6,) [m/s, rad/s] for a while; returns when that began [ns]."""
        began, until = time.time_ns(), time.monotonic() + seconds
        while time.monotonic() < until:
            self._push.publish(conversions.twist_message(velocity, time.time_ns()))
            time.sleep(1.0 / _PUSH_HZ)
        self._push.publish(conversions.twist_message(np.zeros(6), time.time_ns()))  # let go of
        return began

    def call(self, name: str) -> int:
        """Call a service, and wait for its answer; returns when it was called [ns].

        `BenchFailed` where it says no, or nothing.
        """
        called = time.time_ns()
        future: Any = self._services[name].call_async(Trigger.Request())  # rclpy types it in part

        def answered() -> bool:
            self._client.check()
            return bool(future.done())

        if not wait_until(answered, _WAIT_SECONDS, every_s=_POLL_SECONDS):
            raise BenchFailed(f"the service {name} does not answer")
        answer = future.result()
        if not answer.success:
            raise BenchFailed(f"the service {name} was refused", got=answer.message)
        return called

    def arm_took(self, sent_ns: int) -> int | None:
        """When the arm's node said that it follows the command of an action, if that was heard.

        The action's stamp [ns] is taken right after its command is published.
        """
        with self._lock:
            commands = list(self._applied)
        arrivals = [
            arrival
            for stamp, arrival in commands
            if sent_ns - _STAMPED_BEFORE_SENT_NS < stamp <= sent_ns
        ]
        return arrivals[-1] if arrivals else None

    def arm_stop(self, called_ns: int, settled_s: float, until_s: float) -> ArmStop | None:
        """How the arm stopped after a call [ns], if it followed commands then.

        It is to be still after `settled_s`, and is looked at until `until_s` [s].
        """
        with self._lock:
            modes, speeds, places = list(self._modes), list(self._speeds), list(self._places)
        before = [mode for arrival, mode in modes if arrival <= called_ns]
        stopped = [at for at, mode in modes if at > called_ns and mode.startswith("stopped")]
        if not (before and before[-1].startswith("follow") and stopped):
            return None
        ages = [(1e-9 * (stamp - called_ns), speed) for stamp, speed in speeds]
        after = [(age, speed) for age, speed in ages if 0.0 < age < until_s]
        origin = next(place for stamp, place in reversed(places) if stamp <= called_ns)
        return ArmStop(
            heard_ns=stopped[0],
            speed=max(speed for age, speed in after if age > settled_s),
            speed_before=next(speed for age, speed in reversed(ages) if age <= 0.0),
            still_s=max((age for age, speed in after if speed > _STILL), default=0.0),
            distance=max(
                float(np.linalg.norm(place - origin))
                for stamp, place in places
                if 0.0 < 1e-9 * (stamp - called_ns) < until_s
            ),
        )

    def close(self) -> None:
        """Leave ROS."""
        self._client.close()

    def _take_mode(self, message: String) -> None:
        with self._lock:
            self._modes.append((time.time_ns(), str(message.data)))

    def _take_twist(self, message: TwistStamped) -> None:
        speed = float(np.linalg.norm(conversions.twist_array(message)[:3]))
        with self._lock:
            self._speeds.append((to_nanoseconds(message.header.stamp), speed))

    def _take_pose(self, message: PoseStamped) -> None:
        place = conversions.pose_array(message)[:3]
        with self._lock:
            self._places.append((to_nanoseconds(message.header.stamp), place))

    def _take_applied(self, message: PoseStamped) -> None:
        with self._lock:
            self._applied.append((to_nanoseconds(message.header.stamp), time.time_ns()))
