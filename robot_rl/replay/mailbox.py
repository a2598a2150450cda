"""The mailbox of weights: the latest version under a name, and who waits for a newer one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from robot_rl.replay.errors import ReplayError
from robot_rl.replay.records import WeightsRecord
from robot_rl.replay.store import StoreWriter
from robot_rl.replay.wire import Frame, Kind, Message, encode, split

MAXIMUM_WAIT_SECONDS = 60.0
MAXIMUM_WAITING = 1024

Answer = tuple[bytes, list[Frame]]


@dataclass(frozen=True)
class _Waiting:
    client: bytes
    request: int | None
    name: str
    newer_than: int
    deadline: float


class Mailbox:
    """Answers requests for weights, at once or when newer ones arrive; it never blocks.

    Args:
        writer: The store that keeps the latest weights.
    """

    def __init__(self, writer: StoreWriter) -> None:
        """Start with nobody waiting."""
        self._writer = writer
        self._waiting: list[_Waiting] = []

    def put(
        self, name: str, version: int, tensors: bytes, metadata: Mapping[str, object]
    ) -> tuple[WeightsRecord, list[Answer]]:
        """Store weights and return them with the answers to those who waited for them.

        Raises:
            WeightsRefused: The version is not newer than the stored one.
            StoreFull: They do not fit.
        """
        record = WeightsRecord(name, version, tensors, metadata)
        self._writer.put_weights(record)
        served = [w for w in self._waiting if w.name == name and w.newer_than < version]
        self._waiting = [w for w in self._waiting if w not in served]
        return record, [(w.client, _answer(w.request, record)) for w in served]

    def get(self, client: bytes, message: Message, now: float) -> list[Frame] | None:
        """Return the answer to a request, or None where it waits for newer weights.

        Args:
            client: Who asks.
            message: Names the weights, ``newer_than`` (absent: any) and ``wait`` in seconds.
            now: Steady clock, seconds.

        Raises:
            WireError: The request is malformed.
            ReplayError: Too many clients wait.
        """
        name = message.text("name", 64)
        newer_than = -1
        if message.header.get("newer_than") is not None:
            newer_than = message.integer("newer_than")
        wait = message.number("wait", MAXIMUM_WAIT_SECONDS)
        request = message.request()
        version = self._writer.weights_version(name)
        if version is not None and version > newer_than:
            return _answer(request, self._writer.weights(name))
        if wait == 0:
            return _answer(request, None)
        if len(self._waiting) >= MAXIMUM_WAITING:
            raise ReplayError("too many clients wait for weights", got=len(self._waiting))
        self._waiting.append(_Waiting(client, request, name, newer_than, now + wait))
        return None

    def expired(self, now: float) -> list[Answer]:
        """Return the empty answers to those who have waited long enough."""
        over = [w for w in self._waiting if w.deadline <= now]
        if over:
            self._waiting = [w for w in self._waiting if w.deadline > now]
        return [(w.client, _answer(w.request, None)) for w in over]

    def next_deadline(self) -> float:
        """Return when somebody has waited long enough, on the steady clock."""
        return min((w.deadline for w in self._waiting), default=math.inf)


def _answer(request: int | None, record: WeightsRecord | None) -> list[Frame]:
    if record is None:
        return encode(Kind.WEIGHTS, {"request": request, "version": None})
    header = {"request": request, "version": record.version, "metadata": dict(record.metadata)}
    return encode(Kind.WEIGHTS, header, split(record.tensors))
