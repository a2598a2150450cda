"""Requests to sample that wait for the server's sampling thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from robot_rl.replay.errors import ServerBusy
from robot_rl.replay.messages import CountWindows, Sample

MAXIMUM_WAITING = 64
_IN_ORDER_EVERY = 4


@dataclass(frozen=True)
class SamplingRequest:
    """A request, checked as far as it can be without the store.

    Attributes:
        client: Who asks.
        message: For what.
    """

    client: bytes
    message: Sample | CountWindows


class SamplingQueue:
    """One request of each client; a newer one takes the place of the older.

    Most requests come from learners whose sampler is open already, and are quick. Those that must
    index the table first are let in between, so that they cannot make the others wait for long.
    """

    def __init__(self) -> None:
        """Start empty."""
        self._condition = threading.Condition()
        self._requests: dict[bytes, SamplingRequest] = {}
        self._taken = 0
        self._stopped = False

    def put(self, request: SamplingRequest) -> None:
        """Add a request.

        Raises:
            ServerBusy: Too many clients wait.
        """
        with self._condition:
            if len(self._requests) >= MAXIMUM_WAITING and request.client not in self._requests:
                raise ServerBusy(
                    "too many clients wait for mini-batches",
                    got=len(self._requests),
                    hint="ask again later",
                )
            self._requests[request.client] = request
            self._condition.notify()

    def take(self, is_quick: Callable[[SamplingRequest], bool]) -> SamplingRequest | None:
        """Wait for a request and return it; None once the queue is stopped.

        Args:
            is_quick: Which requests are answered at once.
        """
        with self._condition:
            self._condition.wait_for(lambda: self._requests or self._stopped)
            if self._stopped:
                return None
            self._taken += 1
            first = next(iter(self._requests.values()))
            chosen = first
            if self._taken % _IN_ORDER_EVERY:
                chosen = next(filter(is_quick, self._requests.values()), first)
            return self._requests.pop(chosen.client)

    def stop(self) -> None:
        """Let `take` return None from now on; what waits is dropped."""
        with self._condition:
            self._stopped = True
            self._condition.notify()
