"""How the processes of a run reach its replay server, and how one on another machine samples."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
from omegaconf import DictConfig

from robot_rl.errors import RobotRLError
from robot_rl.processes.signals import StopEvent, Stopped
from robot_rl.replay import ReplayError, ServerBusy
from robot_rl.replay.client import ReplayClient
from robot_rl.replay.protocol import Sample, Sampled
from robot_rl.replay.replay_sampler import ReplaySampler
from robot_rl.replay.row_sources import TableRows
from robot_rl.replay.sampler import Batch, Sampler, SampleSpec, size_of
from robot_rl.run import RunDirectory
from robot_rl.wire import KeysRefused, ServerUnreachable, WireError
from robot_rl.wire.messages import Frame, Payload, encode, refusal

logger = logging.getLogger(__name__)

_STARTUP_SECONDS = 60.0
_SLICE_SECONDS = 0.25
# The server may be indexing a large store after its restart.
_SAMPLING_SECONDS = 30.0
# A learner that waits for data looks again and again; each look is a message.
_LOOK_SECONDS = 0.02
MAXIMUM_SAMPLERS = 4
MAXIMUM_WAITING = 64
MAXIMUM_REGULARS = 1024
_START_HERE = "start it with: robot-rl replay RUN"
_START_THERE = (
    "on that machine start it with: robot-rl replay RUN replay=network replay.keys=FOLDER,"
    " and see that no firewall closes the port"
)


@dataclass(frozen=True)
class ServerPlace:
    """Where the replay server of a run is."""

    store: Path  # folder of the store, for a server on this machine
    # ``tcp://HOST:PORT`` of one on another machine, whose store is not read from here even if there
    # is such a folder: it would be a copy.
    address: str | None = None
    keys: Path | None = None  # folder of this machine's keys

    @classmethod
    def of(cls, config: DictConfig, run: RunDirectory) -> Self:
        """Take it from ``replay.connect`` and ``replay.keys``."""
        settings = config.replay
        keys = Path(settings["keys"]) if settings["keys"] else None
        return cls(run.store, settings.connect, keys)

    def client(self, **options: Any) -> ReplayClient:
        """Make a client of the server, with further arguments of `ReplayClient`."""
        return ReplayClient(self.address or self.store, keys=self.keys, **options)

    def sampler(self, table: str, spec: SampleSpec, rng: np.random.Generator) -> Sampler:
        """Make a `ReplaySampler`, or a `RemoteSampler` where the server is elsewhere."""
        if self.address is None:
            return ReplaySampler(TableRows(self.store, table), spec, rng)
        client = self.client(request_seconds=_SAMPLING_SECONDS)
        try:
            return RemoteSampler(client, table, spec, rng)
        except BaseException:
            client.close()
            raise

    def wait(self, stop: StopEvent) -> None:
        """Wait a minute until the server answers.

        Raises:
            ServerUnreachable: It did not come in time, or refuses this machine's keys.
            Stopped: `stop` was set.
        """
        deadline = time.monotonic() + _STARTUP_SECONDS
        with self.client(request_seconds=_SLICE_SECONDS) as client:
            while not stop.is_set():
                try:
                    client.statistics()
                    return
                except KeysRefused:
                    raise
                except ServerUnreachable as error:
                    if time.monotonic() > deadline:
                        raise ServerUnreachable(
                            f"no replay server answers at {self.address or self.store}",
                            got=f"none within {_STARTUP_SECONDS:g} s: {error}",
                            hint=_START_HERE if self.address is None else _START_THERE,
                        ) from error
        raise Stopped


class RemoteSampler(Sampler):
    """Draws what `ReplaySampler` draws, bit for bit, by asking the server of the store.

    The random stream, PCG64's, and what is visible are kept here and travel with each request, so a
    server that is killed and started again takes nothing along. The client is closed with this.

    Raises:
        StoreError: No such table.
        ReplayError: Unknown field, a number out of range, or another bit generator.
        ServerUnreachable: No answer; so with all that asks the server.
    """

    def __init__(
        self, client: ReplayClient, table: str, spec: SampleSpec, rng: np.random.Generator
    ) -> None:
        super().__init__(spec, rng)
        if not isinstance(rng.bit_generator, np.random.PCG64):
            raise ReplayError(
                "the random stream cannot travel",
                got=type(rng.bit_generator).__name__,
                expected="PCG64, as numpy.random.default_rng makes",
            )
        self._client, self._table = client, table
        self._next_look = 0.0
        self.refresh(None)

    def transitions_available(self) -> int:
        """See `Sampler`."""
        time.sleep(max(0.0, self._next_look - time.monotonic()))
        self._next_look = time.monotonic() + _LOOK_SECONDS
        return self._ask(draw=False, steps=0)[0].visible.available

    def refresh(self, environment_steps: int | None = None) -> None:
        """See `Sampler`."""
        answer, _ = self._ask(draw=False, steps=environment_steps)
        self._steps, self.visible = environment_steps, answer.visible
        # What arrives later stays invisible until the next refresh.
        self._limit = self.visible.available if environment_steps is None else environment_steps
        self.layout = {n: (np.dtype(dtype), shape) for n, (dtype, shape) in answer.layout.items()}
        self._identity = answer.state["store"]

    def close(self) -> None:
        """End the connection."""
        self._client.close()

    def _fill(self, batch: Batch) -> None:
        answer, payload = self._ask(draw=True, steps=self._limit)
        _unpack(payload, batch, list(self.layout))
        self.rng.bit_generator.state = answer.state["rng"]
        self._given = cast("tuple[int, int]", tuple(answer.state["given"]))
        self.visible = answer.visible

    def _ask(self, *, draw: bool, steps: int | None) -> tuple[Sampled, Payload]:
        state = {**self.state_dict(), "environment_steps": steps}
        question = Sample(table=self._table, spec=self.spec, draw=draw, state=state)
        return self._client.ask(question, Sampled, held_back=_SAMPLING_SECONDS)


def _unpack(payload: Payload, batch: Batch, names: list[str]) -> None:
    """Copy the payload into arrays, a frame into each."""
    targets = [batch[name].reshape(-1).view(np.uint8).data for name in names]
    got, expected = list(map(len, payload)), list(map(len, targets))
    if got != expected:
        raise WireError(
            "a batch has another size than was asked for",
            got=f"{got} bytes",
            expected=f"{expected} bytes",
        )
    for target, frame in zip(targets, payload, strict=True):
        target[:] = frame


_Kind = tuple[str, SampleSpec]  # a table, and what is drawn from it


class Sampling:
    """Answers requests to sample, one at a time, in a thread of its own.

    Of each client the newest request counts. The first request of a kind has the table indexed,
    which can take seconds. So every second turn goes to a client that was answered before, and such
    a client is always let in: peers that come and ask for ever new kinds cannot keep a learner from
    its batches. An answer has at most `message_bytes`.

    Attributes:
        ready: Descriptor that is readable when `answers` has something.
        failures: Requests that failed of something else than themselves.
    """

    def __init__(self, store: Path, message_bytes: int) -> None:
        self._store, self._message_bytes = store, message_bytes
        self.failures = 0
        self.ready = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        self._waiting: dict[bytes, Sample] = {}
        self._answers: deque[tuple[bytes, list[Frame]]] = deque()
        self._samplers: dict[_Kind, ReplaySampler] = {}
        self._uses: Counter[_Kind] = Counter()
        self._regulars: dict[bytes, None] = {}  # clients, the one answered last at the end
        self._turn = 0
        self._thread = ThreadPoolExecutor(1, "replay-sampling")

    def submit(self, client: bytes, message: Sample) -> None:
        """Queue a request.

        Raises:
            ServerBusy: Too many clients wait, and this one is new.
        """
        with self._lock:
            if client not in self._waiting:
                if len(self._waiting) >= MAXIMUM_WAITING and client not in self._regulars:
                    raise ServerBusy("too many clients wait for mini-batches", got=MAXIMUM_WAITING)
                self._thread.submit(self._serve)
            self._waiting[client] = message

    def answers(self) -> Iterator[tuple[bytes, list[Frame]]]:
        """Yield clients and the answers to them, as far as there are some."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.ready)
        while self._answers:
            yield self._answers.popleft()

    def close(self) -> None:
        """End the thread; what it has not answered is dropped."""
        self._thread.shutdown(cancel_futures=True)
        for sampler in self._samplers.values():
            sampler.close()
        os.close(self.ready)

    def _next(self) -> tuple[bytes, Sample]:
        """Take the oldest request; in every second turn the oldest of a client of before."""
        with self._lock:
            self._turn += 1
            oldest = next(iter(self._waiting))
            regular = next((client for client in self._waiting if client in self._regulars), oldest)
            client = regular if self._turn % 2 else oldest
            self._regulars.pop(client, None)
            self._regulars[client] = None
            if len(self._regulars) > MAXIMUM_REGULARS:
                del self._regulars[next(iter(self._regulars))]
            return client, self._waiting.pop(client)

    def _serve(self) -> None:
        client, message = self._next()
        try:
            answer = self._drawn(self._sampler(message.table, message.spec), message)
        except Exception as error:  # one request must never end sampling for everybody else
            if not isinstance(error, RobotRLError):
                self.failures += 1
                logger.exception("a request to sample could not be answered")
            answer = encode(refusal(error, message))
        self._answers.append((client, answer))
        os.eventfd_write(self.ready, 1)

    def _drawn(self, sampler: ReplaySampler, request: Sample) -> list[Frame]:
        size = sampler.spec.batch_size * size_of(sampler.layout)
        if request.draw and size > self._message_bytes:
            raise ReplayError(
                "such a batch is too large for one message",
                got=f"{size} bytes",
                expected=f"<= {self._message_bytes} bytes",
                hint="raise the server's replay.message_bytes",
            )
        # The first question of a client cannot know the store yet.
        store = request.state.get("store") or sampler.state_dict()["store"]
        sampler.load_state_dict({**request.state, "store": store})
        batch = sampler.sample() if request.draw else {}
        answer = Sampled(
            request=request.request,
            state=sampler.state_dict(),
            visible=sampler.visible,
            layout={name: (dtype.name, shape) for name, (dtype, shape) in sampler.layout.items()},
        )
        return encode(answer, [a.reshape(-1).view(np.uint8).data for a in batch.values()])

    def _sampler(self, table: str, spec: SampleSpec) -> ReplaySampler:
        """Return the sampler for a kind of request; the one that was least used makes room."""
        kind = table, spec
        sampler = self._samplers.get(kind)
        if sampler is None:
            if len(self._samplers) >= MAXIMUM_SAMPLERS:
                least = min(self._samplers, key=self._uses.__getitem__)
                self._samplers.pop(least).close()
                del self._uses[least]
            rows = TableRows(self._store, table)
            sampler = ReplaySampler(rows, spec, np.random.default_rng(0))
            self._samplers[kind] = sampler
        self._uses[kind] += 1
        return sampler
