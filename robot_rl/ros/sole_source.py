"""Subscriptions to topics that must have one source: commands and measurements.

A second publisher is detected in two ways. The ROS graph lists node names: two different names are
a conflict as soon as one of the nodes is heard. Two nodes of the same name may be a killed node and
its replacement, since a killed node stays in the graph for up to 20 s. In that case the sequence
numbers that the middleware gives each publisher's messages show whether both still send.
"""

from __future__ import annotations

import inspect
import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from rclpy.node import Node
from rclpy.qos import QoSProfile

from robot_rl.ros.ros_client import UNNAMED, publisher_names, source_of

# Messages that an overloaded machine may lose in a row, and additional ones per second.
_LOST, _LOST_HZ = 20, 2000.0
# Minimum silence between a killed publisher's last message and its replacement's first [s].
_RESTART_S = 0.3
# Sequence number from middleware without message numbering, such as Cyclone DDS
# (RMW_MESSAGE_INFO_SEQUENCE_NUMBER_UNSUPPORTED).
UNNUMBERED = 2**64 - 1
_NAMES_S = 0.1  # names are queried on a change and at this period: a query takes 60 us


class _Heard(NamedTuple):
    number: int  # its publisher's message count
    sent: float  # by the publisher's clock [s]
    at: float  # receipt time, steady clock [s]

    def follows(self, last: _Heard) -> bool:
        """Whether it may be the next message heard from the publisher of `last`."""
        missed = self.number - last.number - 1
        return 0 <= missed <= _LOST + _LOST_HZ * max(0.0, self.at - last.at)


class SequenceNumbers:
    """Uses sequence numbers to distinguish a restarted publisher from a second one."""

    def __init__(self) -> None:
        self._last: _Heard | None = None
        self._replaced: _Heard | None = None

    def accepts(self, number: int, sent: float, now: float) -> bool:
        """Whether a message is compatible with a single active publisher.

        `number` is its sequence number, `sent` its send time on the publisher's clock [s], and
        `now` its receipt time on the steady clock [s].
        """
        new, last, replaced = _Heard(number, sent, now), self._last, self._replaced
        back = replaced is not None and new.follows(replaced)
        if last is None or (new.follows(last) and not (back and number - last.number > _LOST)):
            self._last = new
            return True
        # Check both clocks: if the receiver was blocked, messages of both publishers may be queued.
        if back or max(now - last.at, sent - last.sent) < _RESTART_S:
            return False
        self._replaced, self._last = last, new
        return True


class SoleSubscription:
    """A subscription to a topic with one allowed publisher; a second one is a lasting conflict.

    Args:
        node: The subscribing node.
        kind: Type of the messages.
        topic: Name of the topic.
        take: Called with each message of a sole publisher, in the callback thread.
        profile: Quality of service.
        accepts: Selects the relevant messages on a topic shared by several nodes; only their
            sequence numbers are compared. None for a topic with one node.
        refused: Called with the reason for each rejected message.

    Attributes:
        topic: The full name.
        rivals: Names of all publishers once a conflict was detected; otherwise empty.
        heard_at: Receipt time of the last message, including rejected ones, steady clock [s].
    """

    def __init__(
        self,
        node: Node,
        kind: Any,
        topic: str,
        take: Callable[[Any], None],
        profile: QoSProfile,
        *,
        accepts: Callable[[Any], bool] | None = None,
        refused: Callable[[str], None] = lambda problem: None,
    ) -> None:
        self._node, self._take, self._accepts, self._refused = node, take, accepts, refused
        self.rivals: tuple[str, ...] = ()
        self.heard_at = -math.inf
        self._lock = threading.Lock()
        self._numbers = SequenceNumbers()
        self._count, self._ask_at = 0, 0.0
        self._subscription: Any = None  # a message may arrive before this is set
        self.topic = str(node.resolve_topic_name(topic))
        self._subscription = node.create_subscription(
            kind, topic, _with_info(self._receive), profile
        )

    @property
    def publishers(self) -> int:
        """Number of known publishers; a killed one counts for up to 20 s."""
        made = self._subscription
        return 0 if made is None else int(made.get_publisher_count())

    def problem(self) -> str:
        """Describe a publisher conflict, including a past one; empty without one."""
        with self._lock:
            self._look(time.monotonic())
            rivals = ", ".join(self.rivals)
        return f"{self.topic} has several publishers: {rivals}" if rivals else ""

    def forget(self) -> None:
        """Accept a sole publisher again, after a person has checked or at a reset."""
        with self._lock:
            self.rivals, self._numbers, self._ask_at = (), SequenceNumbers(), 0.0

    def _receive(self, message: Any, info: Mapping[str, Any]) -> None:
        if self._accepts is not None and not self._accepts(message):
            return
        now, number = time.monotonic(), info["publication_sequence_number"]
        with self._lock:
            self.heard_at = now
            self._look(now)
            if number == UNNUMBERED:
                alone = self._count < 2
            else:
                alone = self._numbers.accepts(number, 1e-9 * info["source_timestamp"], now)
                if not (alone or self.rivals):
                    self._note_rivals()
            alone = alone and not self.rivals
        if alone:
            self._take(message)
        else:
            self._refused(self.problem() or f"{self.topic} has {self._count} publishers")

    def _look(self, now: float) -> None:
        """Query the graph for the publishers."""
        count = self.publishers
        if count == self._count and now < self._ask_at:
            return
        self._count, self._ask_at = count, now + _NAMES_S
        if UNNAMED in self.rivals:  # names are discovered slightly later than publishers
            self._note_rivals()
        elif count > 1 and self._accepts is None and not self.rivals:
            names = publisher_names(self._node, self.topic)
            if len({source_of(name) for name in names} - {UNNAMED}) > 1:
                self._note_rivals()

    def _note_rivals(self) -> None:
        names = publisher_names(self._node, self.topic)
        if len(names) > 1 or not self.rivals:
            self.rivals = (*names, *[UNNAMED] * (2 - len(names)))


def _with_info(take: Callable[[Any, Mapping[str, Any]], None]) -> Callable[..., None]:
    """Make a callback that receives the message info from every executor.

    `EventsExecutor` of rclpy 7.1.6 passes both as one pair.
    """

    def received(*said: Any) -> None:
        take(*(said if len(said) == 2 else said[0]))

    received.__signature__ = inspect.signature(take)  # type: ignore[attr-defined]
    return received
