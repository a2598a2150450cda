"""Drawing mini-batches ahead in a thread, while the learner computes."""

from __future__ import annotations

import queue
import threading
from typing import Self

from robot_rl.errors import RobotRLError
from robot_rl.replay.batches import Batch
from robot_rl.replay.errors import ClientFailed, ReplayError
from robot_rl.replay.sampling import Sampler


class Prefetcher:
    """Draws a given number of batches ahead, in the sampler's random order.

    The number is given up front, so that nothing is drawn across a refresh: call `start`, then
    `next` exactly so many times, then refresh the sampler, and so on.

    Args:
        sampler: Used by the thread alone between `start` and the last `next`.
        depth: Most batches that are ready and waiting.
        batches_per_draw: 1 gives batches as `Sampler.sample` does, k > 1 as
            `Sampler.sample_many(k)`.
    """

    def __init__(self, sampler: Sampler, *, depth: int = 2, batches_per_draw: int = 1) -> None:
        """Start the thread; it waits for `start`."""
        if depth < 1 or batches_per_draw < 1:
            raise ReplayError(
                "the prefetcher needs room", got=(depth, batches_per_draw), expected=">= 1 each"
            )
        self._sampler = sampler
        self._many = None if batches_per_draw == 1 else batches_per_draw
        # One set of arrays in the caller's hands, the others ready or being filled.
        self._free: queue.Queue[Batch | None] = queue.Queue()
        for _ in range(depth + 1):
            self._free.put(sampler.allocate(self._many))
        self._ready: queue.Queue[Batch | BaseException] = queue.Queue()
        self._orders: queue.Queue[int | None] = queue.Queue()
        self._outstanding = 0
        self._held: Batch | None = None
        self._failure: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="replay-prefetch", daemon=True)
        self._thread.start()

    def start(self, draws: int) -> None:
        """Begin to draw so many batches.

        Raises:
            ReplayError: Batches of the last `start` have not been taken, the number is negative,
                or the thread is gone.
        """
        self._check()
        if draws < 0:
            raise ReplayError("the number of draws is negative", got=draws, expected=">= 0")
        if self._outstanding:
            raise ReplayError(
                "the prefetcher still holds batches of the last start", got=self._outstanding
            )
        self._outstanding = draws
        self._orders.put(draws)

    def next(self) -> Batch:
        """Return the next batch; its arrays are valid until the next call.

        Raises:
            ReplayError: No batch was ordered, or what the thread failed of.
        """
        self._check()
        if self._outstanding == 0:
            raise ReplayError("no batch was ordered", hint="call start(draws) first")
        if self._held is not None:
            self._free.put(self._held)
            self._held = None
        item = self._ready.get()
        if isinstance(item, BaseException):
            self._failure = item
            self._check()
        assert isinstance(item, dict)
        self._held = item
        self._outstanding -= 1
        return item

    def close(self) -> None:
        """End the thread; batches not taken are dropped."""
        self._stop.set()
        self._orders.put(None)
        self._free.put(None)
        self._thread.join()
        self._failure = self._failure or ReplayError("the prefetcher is closed")

    def __enter__(self) -> Self:
        """Return the prefetcher."""
        return self

    def __exit__(self, *error: object) -> None:
        """End the thread."""
        self.close()

    def _check(self) -> None:
        if isinstance(self._failure, RobotRLError):
            raise self._failure
        if self._failure is not None:
            raise ClientFailed(
                "the prefetching thread has died", got=repr(self._failure)
            ) from self._failure

    def _run(self) -> None:
        try:
            while (draws := self._orders.get()) is not None and not self._stop.is_set():
                for _ in range(draws):
                    batch = self._free.get()
                    if batch is None or self._stop.is_set():
                        return
                    if self._many is None:
                        self._sampler.sample(batch)
                    else:
                        self._sampler.sample_many(self._many, batch)
                    self._ready.put(batch)
        except BaseException as failure:
            self._ready.put(failure)
