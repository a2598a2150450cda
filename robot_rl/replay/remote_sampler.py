"""Mini-batches across the network: a learner's sampler, and the server's thread that answers it.

A request carries everything that its answer depends on: what to draw, how many steps are visible,
and the state of the learner's random generator. So the learner gets, bit for bit, what it would
draw from the rows themselves, and nothing is lost with the server.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import zmq

from robot_rl.data.schema import DTYPES, Array
from robot_rl.errors import RobotRLError
from robot_rl.replay.client import ReplayClient
from robot_rl.replay.errors import ClientFailed, ReplayError, ServerBusy
from robot_rl.replay.messages import CountWindows, Sample, Sampled, WindowsCounted
from robot_rl.replay.reader import TableRows
from robot_rl.replay.replay_sampler import ReplaySampler
from robot_rl.replay.sampler import Batch, Layout, Sampler, SampleSpec, size_of
from robot_rl.wire.errors import WireError
from robot_rl.wire.limits import LogLimit
from robot_rl.wire.messages import Frame, Numbered, Payload, encode, refusal, split

logger = logging.getLogger(__name__)
logger.addFilter(LogLimit())

PATIENCE_SECONDS = 60.0
# The server may be indexing a large store after its restart.
_HELD_BACK_SECONDS = 30.0
# A learner that waits for data looks again and again; each look is a message.
_LOOK_SECONDS = 0.02
MAXIMUM_SAMPLERS = 4
MAXIMUM_WAITING = 64
_IN_ORDER_EVERY = 4
_ANSWERS = "inproc://sampled"
_Answer = TypeVar("_Answer", bound=Numbered)


class RemoteSampler(Sampler):
    """Draws what `ReplaySampler` draws, bit for bit, by asking the server of the store.

    The random stream and what is visible are kept here and travel with each request, so a server
    that is killed and started again takes nothing along.

    Args:
        client: A client of its own; it is closed with the sampler.
        table: Name of the table.
        spec: What to draw.
        rng: Where all randomness comes from; its bit generator must be PCG64, as that of
            `numpy.random.default_rng` is.

    Raises:
        StoreError: No such table.
        ReplayError: Unknown field, a number out of range, or another bit generator.
        ServerUnreachable: No answer; so with all that asks the server.
    """

    def __init__(
        self, client: ReplayClient, table: str, spec: SampleSpec, rng: np.random.Generator
    ) -> None:
        """Ask the server what there is; see the class."""
        super().__init__(spec, rng)
        if not isinstance(rng.bit_generator, np.random.PCG64):
            raise ReplayError(
                "the random stream cannot travel",
                got=type(rng.bit_generator).__name__,
                expected="PCG64, as numpy.random.default_rng makes",
            )
        self._client = client
        self._table = table
        self._next_look = 0.0
        self.refresh(None)

    def transitions_available(self) -> int:
        """See `Sampler`."""
        time.sleep(max(0.0, self._next_look - time.monotonic()))
        self._next_look = time.monotonic() + _LOOK_SECONDS
        return self._count(0).visible.available

    def refresh(self, environment_steps: int | None = None) -> None:
        """See `Sampler`."""
        answer = self._count(environment_steps)
        self._steps, self.visible = environment_steps, answer.visible
        # What arrives later stays invisible until the next refresh.
        self._limit = self.visible.available if environment_steps is None else environment_steps
        self.layout, self._identity = _layout(answer), answer.store

    def close(self) -> None:
        """End the connection."""
        self._client.close()

    def _fill(self, batch: Batch) -> None:
        question = Sample(table=self._table, spec=self.spec, state=self._state(self._limit))
        answer, payload = self._ask(question, Sampled)
        _unpack(payload, [batch[name] for name in self.layout])
        self.rng.bit_generator.state = answer.state["rng"]
        self._given = cast("tuple[int, int]", tuple(answer.state["given"]))
        self.visible = answer.visible

    def _count(self, steps: int | None) -> WindowsCounted:
        question = CountWindows(table=self._table, spec=self.spec, state=self._state(steps))
        return self._ask(question, WindowsCounted)[0]

    def _state(self, steps: int | None) -> dict[str, Any]:
        return {**self.state_dict(), "environment_steps": steps}

    def _ask(self, question: Numbered, expected: type[_Answer]) -> tuple[_Answer, Payload]:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return self._client.ask(
                    question, expected, held_back=_HELD_BACK_SECONDS, timeout=PATIENCE_SECONDS
                )
            except ServerBusy:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_LOOK_SECONDS)


def _layout(answer: WindowsCounted) -> Layout:
    """Read what the arrays of a batch look like.

    Raises:
        WireError: The answer does not say it.
    """
    for dtype, _ in answer.layout.values():
        if dtype not in DTYPES:
            raise WireError("the layout of a batch cannot be read", got=dtype)
    return {name: (np.dtype(dtype), shape) for name, (dtype, shape) in answer.layout.items()}


def _unpack(payload: Payload, arrays: list[Array]) -> None:
    """Copy the payload into arrays that follow one another; an array may span several frames.

    Raises:
        WireError: The payload has another size.
    """
    frames = iter(payload)
    for array in arrays:
        target = array.reshape(-1).view(np.uint8).data
        at = 0
        while at < len(target):
            frame = next(frames, memoryview(b""))
            if not 0 < len(frame) <= len(target) - at:
                raise WireError(
                    "a batch has another size than was asked for",
                    got=f"{len(frame)} bytes",
                    expected=f"{len(target) - at} bytes",
                )
            target[at : at + len(frame)] = frame
            at += len(frame)


def _pack(batch: Batch) -> list[Frame]:
    """Return the bytes of a batch's arrays, one after the other."""
    frames: list[Frame] = []
    for array in batch.values():
        frames += split(array.reshape(-1).view(np.uint8).data)
    return frames


class SamplingRequest(NamedTuple):
    """A request to sample, and who asks."""

    client: bytes
    message: Sample | CountWindows

    @property
    def about(self) -> tuple[str, SampleSpec]:
        """Of which table, and what to draw."""
        return self.message.table, self.message.spec


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
        """Wait for a request and return it, quick ones first; None once the queue is stopped."""
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


class SamplingService:
    """Answers requests to sample, one at a time, in a thread of its own.

    Args:
        store: Folder of the store.
        message_bytes: Most bytes of one answer.

    Attributes:
        socket: Readable when `answer` has something.
        failures: Requests that failed of something else than themselves.
    """

    def __init__(self, store: Path, message_bytes: int) -> None:
        """Start the thread."""
        self._store, self._message_bytes = store, message_bytes
        self.failures = 0
        self._context = zmq.Context(0)  # no connections, so no thread for them
        self.socket = self._context.socket(zmq.PAIR)
        self.socket.setsockopt(zmq.RCVHWM, 0)
        self.socket.bind(_ANSWERS)
        self._queue = SamplingQueue()
        self._samplers: OrderedDict[tuple[str, SampleSpec], ReplaySampler] = OrderedDict()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="replay-sampling", daemon=True)
        self._thread.start()

    def submit(self, client: bytes, message: Sample | CountWindows) -> None:
        """Queue a request.

        Raises:
            ServerBusy: Too many clients wait.
        """
        self._queue.put(SamplingRequest(client, message))

    def answer(self) -> tuple[bytes, list[Frame]] | None:
        """Return a client and the answer to it, or None where there is none yet.

        Raises:
            ClientFailed: The thread has died.
        """
        if self._failure is not None:
            raise ClientFailed(
                "the server's sampling thread has died", got=repr(self._failure)
            ) from self._failure
        try:
            client, *frames = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
        except zmq.Again:
            return None
        return client.bytes, [frame.buffer for frame in frames]

    def close(self) -> None:
        """End the thread; what it has not answered is dropped."""
        self._queue.stop()
        self._thread.join()
        self.socket.close(linger=0)
        self._context.term()

    def _run(self) -> None:
        socket = self._context.socket(zmq.PAIR)
        try:
            socket.setsockopt(zmq.SNDHWM, 0)
            socket.setsockopt(zmq.LINGER, 0)
            socket.connect(_ANSWERS)
            is_open = self._samplers.__contains__
            while (request := self._queue.take(lambda r: is_open(r.about))) is not None:
                socket.send_multipart([request.client, *self._answered(request)], copy=False)
        except BaseException as failure:
            self._failure = failure
            socket.send(b"")
        finally:
            socket.close()
            for sampler in self._samplers.values():
                sampler.close()

    def _answered(self, request: SamplingRequest) -> list[Frame]:
        message = request.message
        try:
            sampler = self._sampler(request.about)
            if isinstance(message, Sample):
                return self._sample(sampler, message)
            return self._count(sampler, message)
        except RobotRLError as error:
            failure = error
        except Exception as error:
            # One request must never end sampling for everybody else.
            self.failures += 1
            logger.exception("a request to sample could not be answered")
            failure = ReplayError("the server failed on this request", got=repr(error))
        return encode(refusal(failure, message))

    def _sample(self, sampler: ReplaySampler, request: Sample) -> list[Frame]:
        size = sampler.spec.batch_size * size_of(sampler.layout)
        if size > self._message_bytes:
            raise ReplayError(
                "such a batch is too large for one message",
                got=f"{size} bytes",
                expected=f"<= {self._message_bytes} bytes",
                hint="raise the server's replay.message_bytes",
            )
        sampler.load_state_dict(request.state)
        batch = sampler.sample()
        answer = Sampled(
            request=request.request, state=sampler.state_dict(), visible=sampler.visible
        )
        return encode(answer, _pack(batch))

    def _count(self, sampler: ReplaySampler, request: CountWindows) -> list[Frame]:
        store = str(sampler.state_dict()["store"])
        # The first question of a client, which cannot know the store yet.
        state = {**request.state, "store": request.state.get("store") or store}
        sampler.load_state_dict(state)
        answer = WindowsCounted(
            request=request.request,
            store=store,
            visible=sampler.visible,
            layout={name: (dtype.name, shape) for name, (dtype, shape) in sampler.layout.items()},
        )
        return encode(answer)

    def _sampler(self, about: tuple[str, SampleSpec]) -> ReplaySampler:
        """Return the sampler for a kind of request; the one unused for longest makes room."""
        sampler = self._samplers.pop(about, None)
        if sampler is None:
            if len(self._samplers) >= MAXIMUM_SAMPLERS:
                self._samplers.popitem(last=False)[1].close()
            table, spec = about
            rows = TableRows(self._store, table)
            sampler = ReplaySampler(rows, spec, np.random.default_rng(0))
        self._samplers[about] = sampler
        return sampler
