"""The latest measurements of topics, for a control loop that never waits for them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus

from robot_rl.env.robot import RobotInterrupted
from robot_rl.processes.waiting import wait_until
from robot_rl.ros import conversions, qos
from robot_rl.ros.conversions import MessageError, to_nanoseconds
from robot_rl.ros.faults import (
    BadMeasurement,
    MeasuredLate,
    MeasuredTwice,
    SensorLate,
    SensorsApart,
    SensorSlow,
)
from robot_rl.ros.ros_client import RosClient, publisher_names
from robot_rl.ros.sole_source import SoleSubscription
from robot_rl.safety import Plausibility

# Number of messages stored so that fast topics can be matched with slow ones.
_KEPT = 64
_SILENT_S = 1.0  # shorter gaps may just be late messages


class Received(NamedTuple):
    """A message, its measurement time [ns, system clock] and receipt time [s, steady clock]."""

    message: Any
    stamp_ns: int
    received: float


class NodeHealth:
    """Problems of the nodes that publish topics, from `/diagnostics`."""

    def __init__(self, client: RosClient) -> None:
        self._node = client.node
        self._problems: dict[str, str] = {}  # by full node name
        self._node.create_subscription(DiagnosticArray, "/diagnostics", self._take, _KEPT)

    def behind(self, topic: str) -> str:
        """Describe the problems of a topic's publishers; empty if they report none."""
        names = publisher_names(self._node, topic)
        if not names:
            return "nobody publishes it"
        said = [f"{n} says: {self._problems[n]}" for n in names if n in self._problems]
        return "; ".join(said)

    def _take(self, message: DiagnosticArray) -> None:
        for status in message.status:
            name = f"/{status.name}"
            if status.level == DiagnosticStatus.OK:
                self._problems.pop(name, None)
            else:
                self._problems[name] = status.message


@dataclass(eq=False)
class Sensor:
    """One subscribed topic; `count` is the number of new measurements so far.

    A message with the same stamp as the previous one is not a new measurement. An earlier stamp
    means that a clock was set back, so the stored messages are discarded.
    """

    client: RosClient  # client whose node subscribes
    kind: Any  # type of the message
    topic: str  # name relative to the node's namespace; replaced by the full name
    # Largest age of the latest message [s], measured from receipt and, for stamped messages, also
    # from measurement. A stamp this far ahead of the clock counts as late too.
    limit_s: float
    decode: Callable[[Any], Any]  # converts a message to the result of `value`
    _: KW_ONLY
    stamped: bool = True  # whether messages have a header
    keep: int = _KEPT  # messages stored for matching with other topics
    health: NodeHealth | None = None  # explains why the topic is silent
    # Checks `place`, the arm's position in the decoded message. After an implausible one, no
    # measurement is trusted until `forget`.
    plausibility: Plausibility | None = None
    place: Callable[[Any], Any] = lambda value: value
    without: str = ""  # setting that makes this topic optional, reported if no message ever came
    # Selects messages on a topic that several nodes may publish; None: one node, all messages.
    accepts: Callable[[Any], bool] | None = None
    setting: str = ""  # name of the setting for `limit_s`, used in the error
    # The frame that messages must specify; empty for any. A message without a frame is accepted,
    # with a single warning.
    in_frame: Callable[[], str] = str

    def __post_init__(self) -> None:
        self.count = 0
        self._repeated = -float("inf")  # when a message last repeated the previous stamp [s]
        self._doubt: str | None = None
        self._lock = threading.Lock()
        self._kept: deque[Received] = deque(maxlen=self.keep if self.stamped else 1)
        self._warned = False  # about messages without a frame
        self._node = self.client.node
        relative, self.topic = self.topic, self.client.topic(self.topic)
        self._source = SoleSubscription(
            self._node,
            self.kind,
            relative,
            self.receive,
            qos.sensor_subscription(1),
            accepts=self.accepts,
        )

    def conflict(self) -> MeasuredTwice | None:
        """Return the error for multiple publishers, if there are any."""
        if not self._source.problem():
            return None
        return MeasuredTwice(
            f"{self.topic} has several publishers, but it must have one",
            got=", ".join(self._source.rivals),
            expected="one",
            hint="end the others; one that was killed is listed for up to 20 s",
        )

    def trouble(self) -> RobotInterrupted | None:
        """Why the latest measurement is unusable: late, implausible, or from two publishers."""
        with self._lock:
            newest, doubt = self._kept[-1] if self._kept else None, self._doubt
        if (conflict := self.conflict()) is not None:
            return conflict
        if doubt is not None:
            return BadMeasurement(f"{self.topic}: {doubt}")
        age = float("inf") if newest is None else time.monotonic() - newest.received
        if newest is None or age > self.limit_s:
            return SensorLate(self.topic, age, self.limit_s, self.why(), self.without)
        # Another machine's system clock may differ.
        measured = 1e-9 * (time.time_ns() - newest.stamp_ns)
        if self.stamped and abs(measured) > self.limit_s:
            return MeasuredLate(self.topic, measured, self.limit_s, self.why(), self.setting)
        return None

    @property
    def frame(self) -> str:
        """The frame of the latest message; empty if it specifies none."""
        with self._lock:
            return str(self._kept[-1].message.header.frame_id) if self._kept else ""

    @property
    def is_published(self) -> bool:
        """Whether the topic has a known publisher."""
        return bool(self._source.publishers)

    @property
    def is_silent(self) -> bool:
        """Whether the topic has been silent for longer than a message may be late."""
        return time.monotonic() - self._source.heard_at > max(self.limit_s, _SILENT_S)

    def newest(self) -> Received:
        """Return the latest measurement, or raise its `trouble`."""
        check_all([self])
        with self._lock:  # another thread may have discarded the messages
            if self._kept:
                return self._kept[-1]
        raise SensorLate(self.topic, float("inf"), self.limit_s, self.why(), self.without)

    def nearest(self, stamp_ns: int) -> Received:
        """Return the measurement taken closest to a stamp."""
        with self._lock:
            return min(self._kept, key=lambda one: abs(one.stamp_ns - stamp_ns))

    def of_stamp(self, stamp_ns: int) -> Received | None:
        """Return the measurement with exactly this stamp, if still stored."""
        with self._lock:
            return next((one for one in reversed(self._kept) if one.stamp_ns == stamp_ns), None)

    def value(self, received: Received) -> Any:
        """Decode a measurement; `BadMeasurement` if it is invalid or in another frame."""
        message, expected = received.message, self.in_frame()
        try:
            if expected and not conversions.check_frame(message, expected) and not self._warned:
                self._warned = True
                say = self._node.get_logger().warning
                say(f"{self.topic} names no frame_id: it is taken to be in {expected}")
            return self.decode(message)
        except MessageError as error:
            raise BadMeasurement(f"{self.topic}: {error}") from error

    def forget(self) -> None:
        """Discard stored messages, so that only later measurements count."""
        self._source.forget()
        with self._lock:
            self._kept.clear()
            self.count, self._doubt = 0, None
            if self.plausibility is not None:
                self.plausibility.forget()

    def why(self) -> str:
        """The known reason for a late message."""
        if time.monotonic() - self._repeated <= self.limit_s:
            return "messages come, but all bear one and the same stamp"
        return "" if self.health is None else self.health.behind(self.topic)

    def receive(self, message: Any) -> None:
        """Store a message; runs in the callback thread."""
        stamp = to_nanoseconds(message.header.stamp) if self.stamped else time.time_ns()
        with self._lock:
            if self._kept and self.stamped:
                last = self._kept[-1].stamp_ns
                if stamp == last:
                    self._repeated = time.monotonic()
                    return
                if stamp < last:
                    self._kept.clear()
            received = Received(message, stamp, time.monotonic())
            self._kept.append(received)
            self.count += 1
            if self._doubt is None and self.plausibility is not None:
                with suppress(MessageError):  # `value` raises it
                    place = self.place(self.decode(message))
                    self._doubt = self.plausibility.problem(place, stamp, received.received)


def common_frame(sensors: Iterable[Sensor | None]) -> str:
    """Return the most common frame in the sensors' latest messages; on a tie, the first.

    Empty if none specifies a frame. With several sensors, the odd one out is then the one blamed.
    """
    named = [frame for sensor in sensors if sensor is not None and (frame := sensor.frame)]
    return max(named, key=named.count, default="")


def check_all(sensors: Iterable[Sensor]) -> None:
    """Raise the `trouble` of the first unusable topic."""
    for sensor in sensors:
        if (trouble := sensor.trouble()) is not None:
            raise trouble


def together(
    aligned: Iterable[Sensor], newest: Iterable[Sensor], max_skew_s: float
) -> dict[Sensor, Received]:
    """Return the measurements of one observation.

    `aligned` topics are fast: from each, use the measurement closest in time to the latest one of
    the slowest topic. From the others, use the latest. Raises `SensorLate` if a topic is silent,
    and `SensorsApart` if all are current but differ by more than `max_skew_s` [s].
    """
    fast = list(aligned)
    reference = min(sensor.newest().stamp_ns for sensor in fast)
    taken = {sensor: sensor.nearest(reference) for sensor in fast}
    taken |= {sensor: sensor.newest() for sensor in newest}
    first = min(taken, key=lambda sensor: taken[sensor].stamp_ns)
    last = max(taken, key=lambda sensor: taken[sensor].stamp_ns)
    skew = 1e-9 * (taken[last].stamp_ns - taken[first].stamp_ns)
    if skew > max_skew_s:
        silent = time.monotonic() - taken[first].received
        if silent > max_skew_s:
            raise SensorLate(first.topic, silent, max_skew_s, first.why())
        raise SensorsApart(
            f"{first.topic} and {last.topic} were not measured together",
            got=f"{1e3 * skew:.0f} ms apart by their stamps",
            expected=f"at most {1e3 * max_skew_s:.0f} ms",
            hint="do both machines' clocks agree (chrony)? Is one of them slow?",
        )
    return taken


def wait_for_all(sensors: Iterable[Sensor], count: int, timeout_s: float) -> None:
    """Wait until each topic has `count` measurements. Not for use in the control loop.

    Raises `SensorLate` if a topic is silent, and `SensorSlow` if it has delivered fewer.
    """
    waiting = deque(sensors)

    def all_have() -> bool:
        while waiting and waiting[0].count >= count:
            waiting.popleft()
        return not waiting

    if not wait_until(all_have, timeout_s, every_s=0.005):
        first = waiting[0]
        raise first.trouble() or SensorSlow(
            f"{first.topic} gives measurements too slowly, or has only just started",
            got=f"{first.count} in {timeout_s:g} s",
            expected=f"{count}",
            hint="at which rate does its node publish? See /diagnostics",
        )
