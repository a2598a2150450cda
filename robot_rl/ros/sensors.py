"""The newest measurements of topics, for a control loop that never waits for them."""

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

# Fast topics are matched with slow ones: among so many messages.
_KEPT = 64
_SILENT_S = 1.0  # a message that is late by less may only be late


class Received(NamedTuple):
    """A message and when it was measured [ns, system clock] and received [s, steady clock]."""

    message: Any
    stamp_ns: int
    received: float


class NodeHealth:
    """The problems of the nodes behind topics, from `/diagnostics`."""

    def __init__(self, client: RosClient) -> None:
        self._node = client.node
        self._problems: dict[str, str] = {}  # by the node's full name
        self._node.create_subscription(DiagnosticArray, "/diagnostics", self._take, _KEPT)

    def behind(self, topic: str) -> str:
        """The problems of the publishers of a topic; empty where they report none."""
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

    A message with the stamp of the one before it is no new measurement. One with an earlier stamp
    means that a clock was set back: what was received before is forgotten.
    """

    client: RosClient  # the node
    kind: Any  # type of the message
    topic: str  # name, relative to the node's namespace; then the full name
    # Age at which the newest message is too old [s]: since its receipt and, of stamped messages,
    # since it was measured. A stamp ahead of the clock counts as late too.
    limit_s: float
    decode: Callable[[Any], Any]  # turns a message into what `value` returns
    _: KW_ONLY
    stamped: bool = True  # whether messages have a header
    keep: int = _KEPT  # messages that are kept to be matched with those of other topics
    health: NodeHealth | None = None  # tells why the topic is silent
    # Judges `place`, the arm's place in the decoded message. After an impossible one nothing is
    # believed until `forget`.
    plausibility: Plausibility | None = None
    place: Callable[[Any], Any] = lambda value: value
    without: str = ""  # the setting that makes this topic optional, named if no message ever came
    # Which messages count, where several nodes may publish the topic; None: all, of one node.
    accepts: Callable[[Any], bool] | None = None
    setting: str = ""  # name of the setting of `limit_s`, for the error
    # The frame that messages must name; empty for any. A message that names none is believed, with
    # one warning.
    in_frame: Callable[[], str] = str

    def __post_init__(self) -> None:
        self.count = 0
        self._repeated = -float("inf")  # when a message bore the stamp of the one before [s]
        self._doubt: str | None = None
        self._lock = threading.Lock()
        self._kept: deque[Received] = deque(maxlen=self.keep if self.stamped else 1)
        self._warned = False  # that messages name no frame
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
        """The error of several publishers, if there are."""
        if not self._source.problem():
            return None
        return MeasuredTwice(
            f"{self.topic} has several publishers, but it must have one",
            got=", ".join(self._source.rivals),
            expected="one",
            hint="end the others; one that was killed is listed for up to 20 s",
        )

    def trouble(self) -> RobotInterrupted | None:
        """Why the newest measurement cannot be used: late, doubtful, or of two publishers."""
        with self._lock:
            newest, doubt = self._kept[-1] if self._kept else None, self._doubt
        if (conflict := self.conflict()) is not None:
            return conflict
        if doubt is not None:
            return BadMeasurement(f"{self.topic}: {doubt}")
        age = float("inf") if newest is None else time.monotonic() - newest.received
        if newest is None or age > self.limit_s:
            return SensorLate(self.topic, age, self.limit_s, self.why(), self.without)
        # The system clock of another machine may differ.
        measured = 1e-9 * (time.time_ns() - newest.stamp_ns)
        if self.stamped and abs(measured) > self.limit_s:
            return MeasuredLate(self.topic, measured, self.limit_s, self.why(), self.setting)
        return None

    @property
    def frame(self) -> str:
        """The frame that the newest message names; empty where it names none."""
        with self._lock:
            return str(self._kept[-1].message.header.frame_id) if self._kept else ""

    @property
    def is_published(self) -> bool:
        """Whether a publisher of the topic is known."""
        return bool(self._source.publishers)

    @property
    def is_silent(self) -> bool:
        """Whether nothing came for longer than a message may be late."""
        return time.monotonic() - self._source.heard_at > max(self.limit_s, _SILENT_S)

    def newest(self) -> Received:
        """The newest measurement; raises the `trouble` that there is."""
        check_all([self])
        with self._lock:  # another thread may have forgotten what was received
            if self._kept:
                return self._kept[-1]
        raise SensorLate(self.topic, float("inf"), self.limit_s, self.why(), self.without)

    def nearest(self, stamp_ns: int) -> Received:
        """The measurement that was taken closest to a stamp."""
        with self._lock:
            return min(self._kept, key=lambda one: abs(one.stamp_ns - stamp_ns))

    def of_stamp(self, stamp_ns: int) -> Received | None:
        """The measurement with exactly this stamp, if it is one of the newest."""
        with self._lock:
            return next((one for one in reversed(self._kept) if one.stamp_ns == stamp_ns), None)

    def value(self, received: Received) -> Any:
        """The content of a measurement, or `BadMeasurement`, as for another frame."""
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
        """Forget what was received, so that only later measurements count."""
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
        """Take a message, in the thread of the callbacks."""
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
    """The frame that most of these name in their newest messages; of as many, that of the first.

    It is empty where none names one: so that of several the one is blamed that is in another.
    """
    named = [frame for sensor in sensors if sensor is not None and (frame := sensor.frame)]
    return max(named, key=named.count, default="")


def check_all(sensors: Iterable[Sensor]) -> None:
    """Raise the `trouble` of the first of these topics that cannot be used."""
    for sensor in sensors:
        if (trouble := sensor.trouble()) is not None:
            raise trouble


def together(
    aligned: Iterable[Sensor], newest: Iterable[Sensor], max_skew_s: float
) -> dict[Sensor, Received]:
    """The measurements of one observation.

    Of `aligned` topics, which are fast, those are taken that were measured at the same time: when
    the slowest of them was measured last. Of the others, the newest. Raises `SensorLate` where one
    is silent, and `SensorsApart` where all came just now but are further apart than `max_skew_s`.
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
    """Wait until each topic has given this many measurements: not inside the control loop.

    Raises `SensorLate` where one is silent, and `SensorSlow` where one has given fewer.
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
