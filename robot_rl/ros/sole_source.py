"""Subscriptions to what must have one source: a command, or a measurement.

Two publishers of one topic are noticed in two ways. The graph names them: nodes with different
names are a conflict as soon as one of them is heard. Nodes of one name may be one that was killed
and started again, since the killed one stays in the graph for up to 20 s: there the numbers that
middleware gives to the messages of each publisher tell whether both still send.
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

# Messages in a row that a busy machine may lose, and more of them per second.
_LOST, _LOST_HZ = 20, 2000.0
# A killed publisher has been silent for this long before its replacement sends [s].
_RESTART_S = 0.3
# The number from middleware that does not number messages, such as Cyclone DDS
# (RMW_MESSAGE_INFO_SEQUENCE_NUMBER_UNSUPPORTED).
UNNUMBERED = 2**64 - 1
_NAMES_S = 0.1  # names are asked for at a change, and so often: it takes 60 us


class _Heard(NamedTuple):
    number: int  # counts the messages of its publisher
    sent: float  # by the publisher's clock [s]
    at: float  # when it was received, on the steady clock [s]

    def follows(self, last: _Heard) -> bool:
        """Whether it may be the next one that was heard of the publisher of `last`."""
        missed = self.number - last.number - 1
        return 0 <= missed <= _LOST + _LOST_HZ * max(0.0, self.at - last.at)


class SequenceNumbers:
    """Tells by their numbers whether messages come from one publisher, or one that replaced it."""

    def __init__(self) -> None:
        self._last: _Heard | None = None
        self._replaced: _Heard | None = None

    def accepts(self, number: int, sent: float, now: float) -> bool:
        """Whether a message is no sign of a second publisher that sends too.

        It bears this number within its publisher, was sent at `sent` by that one's clock and
        received at `now` on the steady clock [s].
        """
        new, last, replaced = _Heard(number, sent, now), self._last, self._replaced
        back = replaced is not None and new.follows(replaced)
        if last is None or (new.follows(last) and not (back and number - last.number > _LOST)):
            self._last = new
            return True
        # By both clocks: messages of both may wait at a receiver that was held up.
        if back or max(now - last.at, sent - last.sent) < _RESTART_S:
            return False
        self._replaced, self._last = last, new
        return True


class SoleSubscription:
    """A subscription to a topic that must have one publisher; a second one is a lasting conflict.

    Args:
        node: Who subscribes.
        kind: Type of the messages.
        topic: Name of the topic.
        take: Takes each message of a sole publisher, in the thread of the callbacks.
        profile: Quality of service.
        accepts: Which messages count, of a topic that several nodes have a share in: then only the
            numbers of these are compared. None: of a topic of one node.
        refused: Called with the reason for each message that is not taken.

    Attributes:
        topic: The full name.
        rivals: Names of all publishers once there were several; empty while there were not.
        heard_at: When a message came last, on the steady clock [s], also one that was not taken.
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
        self._subscription: Any = None  # while a first message may come already
        self.topic = str(node.resolve_topic_name(topic))
        self._subscription = node.create_subscription(
            kind, topic, _with_info(self._receive), profile
        )

    @property
    def publishers(self) -> int:
        """How many publishers are known; one that was killed counts for up to 20 s."""
        made = self._subscription
        return 0 if made is None else int(made.get_publisher_count())

    def problem(self) -> str:
        """The names of several publishers, once there were any; else empty."""
        with self._lock:
            self._look(time.monotonic())
            rivals = ", ".join(self.rivals)
        return f"{self.topic} has several publishers: {rivals}" if rivals else ""

    def forget(self) -> None:
        """Accept the topic again from a sole publisher, after a person has looked or at a reset."""
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
        """Ask the graph who publishes."""
        count = self.publishers
        if count == self._count and now < self._ask_at:
            return
        self._count, self._ask_at = count, now + _NAMES_S
        if UNNAMED in self.rivals:  # a name comes a little later than its publisher
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
    """A callback that every executor gives a message's info to.

    `EventsExecutor` of rclpy 7.1.6 passes both as one pair.
    """

    def received(*said: Any) -> None:
        take(*(said if len(said) == 2 else said[0]))

    received.__signature__ = inspect.signature(take)  # type: ignore[attr-defined]
    return received
