"""The mailbox of weights: the latest version under a name, and who waits for a newer one."""

from __future__ import annotations

import math
from dataclasses import dataclass

from robot_rl.replay.errors import ReplayError
from robot_rl.replay.messages import GetWeights, PutWeights, Weights
from robot_rl.replay.records import WeightsRecord
from robot_rl.replay.store import StoreWriter
from robot_rl.wire.messages import Frame, encode, split

MAXIMUM_WAITING = 1024

Answer = tuple[bytes, list[Frame]]


@dataclass(frozen=True)
class _Waiting:
    client: bytes
    question: GetWeights
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

    def put(self, weights: PutWeights, tensors: bytes) -> list[Answer]:
        """Store weights and return the answers to those who waited for them.

        Raises:
            WeightsRefused: The version is not newer than the stored one.
            StoreFull: They do not fit.
        """
        record = WeightsRecord(weights.name, weights.version, tensors, weights.metadata)
        self._writer.put_weights(record)
        served = [w for w in self._waiting if _is_newer(record.version, w.question, record.name)]
        self._waiting = [w for w in self._waiting if w not in served]
        return [(w.client, _answer(w.question, record)) for w in served]

    def get(self, client: bytes, question: GetWeights, now: float) -> list[Frame] | None:
        """Return the answer to a request, or None where it waits for newer weights.

        Args:
            client: Who asks.
            question: Which weights.
            now: Steady clock, seconds.

        Raises:
            ReplayError: Too many clients wait.
        """
        version = self._writer.weights_version(question.name)
        if _is_newer(version, question, question.name):
            return _answer(question, self._writer.weights(question.name))
        if question.wait == 0:
            return _answer(question, None)
        if len(self._waiting) >= MAXIMUM_WAITING:
            raise ReplayError("too many clients wait for weights", got=len(self._waiting))
        self._waiting.append(_Waiting(client, question, now + question.wait))
        return None

    def expired(self, now: float) -> list[Answer]:
        """Return the empty answers to those who have waited long enough."""
        over = [w for w in self._waiting if w.deadline <= now]
        if over:
            self._waiting = [w for w in self._waiting if w.deadline > now]
        return [(w.client, _answer(w.question, None)) for w in over]

    def next_deadline(self) -> float:
        """Return when somebody has waited long enough, on the steady clock."""
        return min((w.deadline for w in self._waiting), default=math.inf)


def _is_newer(version: int | None, question: GetWeights, name: str) -> bool:
    newer_than = -1 if question.newer_than is None else question.newer_than
    return question.name == name and version is not None and version > newer_than


def _answer(question: GetWeights, record: WeightsRecord | None) -> list[Frame]:
    if record is None:
        return encode(Weights(request=question.request))
    metadata = dict(record.metadata)
    answer = Weights(request=question.request, version=record.version, metadata=metadata)
    return encode(answer, split(record.tensors))
