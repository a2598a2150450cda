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
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self, cast

import msgspec
import numpy as np
import zmq

from robot_rl.data.schema import DTYPES, Array, SchemaMismatch
from robot_rl.replay.client import ReplayClient
from robot_rl.replay.errors import ClientFailed, ReplayError, ServerBusy, WireError
from robot_rl.replay.log_limit import LogLimit
from robot_rl.replay.messages import error_header
from robot_rl.replay.replay_sampler import ReplaySampler
from robot_rl.replay.rows import TableRows
from robot_rl.replay.sample_spec import Batch, Layout, SampleSpec, size_of
from robot_rl.replay.sampler import Sampler, Visible
from robot_rl.replay.wire import Frame, Kind, Message, encode, split

logger = logging.getLogger(__name__)
logger.addFilter(LogLimit())

PATIENCE_SECONDS = 60.0
# The server may be indexing a large store after its restart.
_HELD_BACK_SECONDS = 30.0
# A learner that waits for data looks again and again; each look is a message.
_LOOK_SECONDS = 0.02
MAXIMUM_DRAWS = 1 << 10
MAXIMUM_SAMPLERS = 4
MAXIMUM_WAITING = 64
_IN_ORDER_EVERY = 4
_ANSWERS = "inproc://sampled"


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
        self._about = {"table": table, "spec": asdict(spec)}
        self._next_look = 0.0
        self.refresh(None)

    def transitions_available(self) -> int:
        """See `Sampler`."""
        time.sleep(max(0.0, self._next_look - time.monotonic()))
        self._next_look = time.monotonic() + _LOOK_SECONDS
        return _visible(self._ask(Kind.COUNT_WINDOWS, 0)).available

    def refresh(self, environment_steps: int | None = None) -> None:
        """See `Sampler`."""
        answer = self._ask(Kind.COUNT_WINDOWS, environment_steps)
        self._steps, self.visible = environment_steps, _visible(answer)
        # What arrives later stays invisible until the next refresh.
        self._limit = self.visible.available if environment_steps is None else environment_steps
        self.layout, self._identity = _layout(answer), answer.text("store")

    def close(self) -> None:
        """End the connection."""
        self._client.close()

    def _fill(self, count: int, batch: Batch) -> None:
        answer = self._ask(Kind.SAMPLE, self._limit, draws=count)
        _unpack(answer, [batch[name] for name in self.layout])
        state = answer.mapping("state")
        self.rng.bit_generator.state = cast("dict[str, Any]", state["rng"])
        self._given = cast("tuple[int, int]", tuple(cast("list[int]", state["given"])))
        self.visible = _visible(answer)

    def _ask(self, kind: Kind, steps: int | None, **entries: object) -> Message:
        state = {**self.state_dict(), "environment_steps": steps}
        header = {**self._about, "state": state, **entries}
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return self._client.ask(
                    kind, header, PATIENCE_SECONDS, held_back=_HELD_BACK_SECONDS
                )
            except ServerBusy:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_LOOK_SECONDS)


def _layout(answer: Message) -> Layout:
    """Read what the arrays of a batch look like.

    Raises:
        WireError: The answer does not say it.
    """
    layout: Layout = {}
    for name, entry in answer.mapping("layout").items():
        try:
            dtype, shape = cast("tuple[str, list[int]]", entry)
            if dtype not in DTYPES:
                raise ValueError(f"no dtype of a column is {dtype!r}")
            layout[name] = np.dtype(dtype), tuple(map(int, shape))
        except (TypeError, ValueError) as error:
            raise WireError("the layout of a batch cannot be read", got=repr(entry)) from error
    return layout


def _visible(answer: Message) -> Visible:
    try:
        return msgspec.convert(answer.header.get("visible"), Visible)
    except msgspec.ValidationError as error:
        raise WireError("the number of windows cannot be read", got=str(error)) from error


def _unpack(answer: Message, arrays: list[Array]) -> None:
    """Copy the payload into arrays that follow one another; an array may span several frames.

    Raises:
        WireError: The payload has another size.
    """
    frames = iter(answer.payload)
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


@dataclass(frozen=True)
class SamplingRequest:
    """A request, checked as far as it can be without the store.

    Attributes:
        client: Who asks.
        about: Of which table, and what to draw.
        draws: How many batches; 0 only counts what there is.
        state: Of the client's sampler.
        header: The whole header.
    """

    client: bytes
    about: tuple[str, SampleSpec]
    draws: int
    state: Mapping[str, object]
    header: Mapping[str, object]

    @classmethod
    def of(cls, client: bytes, message: Message) -> Self:
        """Read a message.

        Raises:
            WireError: It is malformed.
            ReplayError: What is to be drawn is out of range.
        """
        if message.payload:
            raise WireError("a request to sample has no payload", got=len(message.payload))
        message.request()
        draws = message.integer("draws", MAXIMUM_DRAWS + 1) if message.kind == Kind.SAMPLE else 0
        if message.kind == Kind.SAMPLE and draws == 0:
            raise WireError("a request to sample asks for nothing", got=draws, expected=">= 1")
        try:
            spec = msgspec.convert(message.mapping("spec"), SampleSpec)
        except (msgspec.ValidationError, UnicodeError) as error:
            raise WireError("what to sample cannot be read", got=str(error)) from error
        about = message.text("table", 64), spec
        return cls(client, about, draws, message.mapping("state"), message.header)


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

    def submit(self, client: bytes, message: Message) -> None:
        """Queue a request.

        Raises:
            WireError: It is malformed.
            ServerBusy: Too many clients wait.
        """
        self._queue.put(SamplingRequest.of(client, message))

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
        try:
            respond = self._sample if request.draws else self._count
            return respond(self._sampler(request.about), request)
        except (ReplayError, SchemaMismatch) as error:
            failure: ReplayError | SchemaMismatch = error
        except Exception as error:
            # One request must never end sampling for everybody else.
            self.failures += 1
            logger.exception("a request to sample could not be answered")
            failure = ReplayError("the server failed on this request", got=repr(error))
        return encode(Kind.ERROR, error_header(failure, request.header))

    def _sample(self, sampler: ReplaySampler, request: SamplingRequest) -> list[Frame]:
        size = request.draws * sampler.spec.batch_size * size_of(sampler.layout)
        if size > self._message_bytes:
            raise ReplayError(
                "so many batches are too large for one message",
                got=f"{size} bytes",
                expected=f"<= {self._message_bytes} bytes",
                hint="draw fewer at once, or raise the server's replay.message_bytes",
            )
        sampler.load_state_dict(request.state)
        batch = sampler.sample_many(request.draws)
        header = {
            "request": request.header.get("request"),
            "state": sampler.state_dict(),
            "visible": sampler.visible,
        }
        return encode(Kind.SAMPLED, header, _pack(batch))

    def _count(self, sampler: ReplaySampler, request: SamplingRequest) -> list[Frame]:
        store = sampler.state_dict()["store"]
        # The first question of a client, which cannot know the store yet.
        state = {**request.state, "store": request.state.get("store") or store}
        sampler.load_state_dict(state)
        header = {
            "request": request.header.get("request"),
            "store": store,
            "visible": sampler.visible,
            "layout": {name: [d.name, shape] for name, (d, shape) in sampler.layout.items()},
        }
        return encode(Kind.WINDOWS_COUNTED, header)

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
