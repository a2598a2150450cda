"""The replay server: the only writer of a store, and the mailbox for weights.

It uses one thread and one socket. The rows of all waiting messages are committed together and only
then acknowledged, so a client may discard acknowledged rows.
"""

from __future__ import annotations

import ctypes
import logging
import resource
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from robot_rl.data.schema import RowSchema
from robot_rl.errors import RobotRLError
from robot_rl.processes.signals import StopEvent, stop_event
from robot_rl.replay import ReplayError, ServerBusy, StoreError, StoreFull, StoreReplaced, protocol
from robot_rl.replay.episode_records import SessionKey
from robot_rl.replay.store import Fsync, RowBatch, StoreWriter
from robot_rl.replay.store_files import read_weights, write_weights
from robot_rl.run import RunDirectory
from robot_rl.wire import WireError
from robot_rl.wire.endpoint import Listener, check_protected
from robot_rl.wire.keys import ServerKeys, is_logged
from robot_rl.wire.messages import (
    DEFAULT_PAYLOAD_BYTES,
    Decoder,
    Frame,
    Message,
    Payload,
    encode,
    refusal,
)

if TYPE_CHECKING:
    from omegaconf import DictConfig

logger = logging.getLogger(__name__)

IDLE_SECONDS = 0.1
LOOK_SECONDS = 1.0  # interval between checks that the store is in place
MAXIMUM_WAITING = 1024  # for weights
DRAIN_MESSAGES = 128
# Most commits stay below 2 MiB. For larger writes Linux allocates 2 MiB page-cache pages, which on
# a virtual machine may cost five times as much as reusing small pages.
DRAIN_BYTES = 1 << 20
# When each commit also waits for the disk, larger batches pay off.
DURABLE_DRAIN_BYTES = 4 << 20
# Limit on the server's own memory, not counting file maps: the largest message while it waits,
# while it is assembled, and while its answer is built and waits; plus the same for the rest, such
# as message parts announced by `MOST_CONNECTIONS`. Above it, connections are closed, well before
# the system refuses memory: ZeroMQ would abort the process there.
_LARGE_MESSAGES = 4
_OTHER_BYTES = 1 << 30
_DESCRIPTORS = 16384


class ReplayServer:
    """Serves one store.

    Args:
        path: Folder of the store; created if absent.
        address: ``tcp://HOST:PORT``. Port 0 reuses the port of a server that was killed on this
            store, so that its clients find it again, or else picks any free port.
        keys: Folder with the server's keys, see `robot_rl.wire.keys`. With keys, every client
            must have keys too; without, only clients on this machine are served.
        fsync: ``"none"``: acknowledged rows survive kill -9 of any process. ``"group"``: they
            survive a power cut too.
        message_bytes: Size of the largest message. Weights are the largest messages.
        capacity_rows: See `StoreWriter`.

    Attributes:
        address: Address for clients on this machine, with the actual port.

    Raises:
        AddressRefused: Not an address of this machine, beyond loopback without keys, or in use.
        KeysError: The keys cannot be read.
        ReplayError: The capacity is out of range.
        StoreError: The store cannot be opened, or another server is writing it.
    """

    def __init__(
        self,
        path: Path,
        address: str = "tcp://127.0.0.1:0",
        *,
        keys: Path | None = None,
        fsync: Fsync = "none",
        message_bytes: int = DEFAULT_PAYLOAD_BYTES,
        capacity_rows: int | None = None,
    ) -> None:
        check_protected(address, keys=keys is not None)
        own = None if keys is None else ServerKeys.load(keys)
        _keep_freed_memory()
        self.path = path
        self._durable = fsync == "group"
        with ExitStack() as opened:
            self._writer = StoreWriter(path, fsync=fsync, capacity_rows=capacity_rows)
            opened.callback(self._writer.close)
            self._listener = Listener(
                address,
                folder=path,
                keys=own,
                held_bytes=message_bytes,
                memory_bytes=_LARGE_MESSAGES * message_bytes + _OTHER_BYTES,
            )
            opened.callback(self._listener.close)
            self.address = self._listener.endpoint.address
            self._opened = opened.pop_all()
        self._waiting: list[tuple[bytes, protocol.GetWeights, float]] = []
        self._pending: list[tuple[bytes, RowBatch]] = []
        self._counters = {"bad_messages": 0, "internal_errors": 0}
        self._handlers: Mapping[type[Message], Callable[[bytes, Any, Payload], None]] = {
            protocol.Open: self._open,
            protocol.Append: self._append,
            protocol.PutWeights: self._put_weights,
            protocol.GetWeights: self._get_weights,
            protocol.GetStatistics: self._get_statistics,
            protocol.Annotate: self._annotate,
            protocol.GetChanges: self._get_changes,
            protocol.GetRows: self._get_rows,
        }
        self._decoder = Decoder(*self._handlers, payload_bytes=message_bytes)

    def run(self, stop: StopEvent) -> None:
        """Serve until `stop` is set, then commit what was received and close.

        Raises:
            StoreError: The store is no longer in place.
        """
        looked_at = time.monotonic()
        try:
            while not stop.is_set():
                if time.monotonic() > looked_at + LOOK_SECONDS:
                    self._writer.check_in_place()
                    looked_at = time.monotonic()
                if self._listener.poll(IDLE_SECONDS):
                    self._drain()
                self._commit()
                self._answer_waiting(None)
            self._listener.withdraw()
        finally:
            self.close()

    def close(self) -> None:
        """Stop listening and release the store; `run` calls it at its end."""
        self._opened.close()

    def _drain(self) -> None:
        """Handle the messages waiting on the socket, up to a bound that keeps commits short."""
        size = 0
        for _ in range(DRAIN_MESSAGES):
            received = self._listener.receive()
            if received is None:
                return
            self._handle(*received)
            size += sum(map(len, received[1]))
            if size > (DURABLE_DRAIN_BYTES if self._durable else DRAIN_BYTES):
                return

    def _handle(self, client: bytes, frames: list[Frame]) -> None:
        message: Message | None = None
        try:
            message, payload = self._decoder.decode(frames)
            self._handlers[type(message)](client, message, payload)
        except Exception as error:  # one message must never stop the server for other clients
            if isinstance(error, WireError):
                self._counters["bad_messages"] += 1
                if is_logged(self._counters["bad_messages"]):
                    logger.warning("bad message %d: %s", self._counters["bad_messages"], error)
            elif not isinstance(error, RobotRLError):
                self._counters["internal_errors"] += 1
                logger.exception("a message could not be handled")
            self._send(client, refusal(error, message))

    def _open(self, client: bytes, message: protocol.Open, _: Payload) -> None:
        self._commit()
        if message.store not in (None, self._writer.identity):  # before a session starts in it
            raise StoreReplaced(
                f"this is another store than the one that the client has written to: {self.path}",
                got=self._writer.identity,
                expected=message.store,
                hint="put the former store back, or start the client again to begin with this one",
            )
        schema = RowSchema.from_json(message.schema)
        key = self._writer.open_session(
            schema, message.actor, message.session, message.owner, message.metadata
        )
        state = self._writer.session(key)
        answer = protocol.Opened.of(
            key,
            request=message.request,
            owner=message.owner,
            store=self._writer.identity,
            next_sequence=state.next_sequence,
            in_episode=state.episode is not None,
            ended=state.ended_by is not None,
        )
        self._send(client, answer)

    def _append(self, client: bytes, message: protocol.Append, payload: Payload) -> None:
        rows = protocol.split_rows(payload, self._writer.schema)
        self._pending.append((client, (message, rows)))

    def _put_weights(self, client: bytes, message: protocol.PutWeights, payload: Payload) -> None:
        record = protocol.WeightsRecord(
            message.name, message.version, bytes(payload[0]), message.metadata
        )
        write_weights(self.path, record, flush=self._durable)
        self._send(client, protocol.Stored(request=message.request))
        self._answer_waiting(record)

    def _get_weights(self, client: bytes, message: protocol.GetWeights, _: Payload) -> None:
        if message.is_answered_by(read_weights(self.path, message.name, tensors=False)):
            self._send_weights(client, message, read_weights(self.path, message.name))
            return
        if len(self._waiting) >= MAXIMUM_WAITING:
            raise ServerBusy("too many clients wait for weights", got=MAXIMUM_WAITING)
        self._waiting.append((client, message, time.monotonic() + message.wait))

    def _answer_waiting(self, new: protocol.WeightsRecord | None) -> None:
        """Answer requests that wait for these weights or whose wait has expired."""
        asked, self._waiting = self._waiting, []
        for client, question, until in asked:
            if question.is_answered_by(new):
                self._send_weights(client, question, new)
            elif until <= time.monotonic():
                self._send_weights(client, question, None)
            else:
                self._waiting.append((client, question, until))

    def _send_weights(
        self, client: bytes, question: protocol.GetWeights, record: protocol.WeightsRecord | None
    ) -> None:
        if record is None:
            self._send(client, protocol.Weights(request=question.request))
            return
        answer = protocol.Weights(
            request=question.request, version=record.version, metadata=dict(record.metadata)
        )
        self._send(client, encode(answer, [record.tensors]))

    def _get_statistics(self, client: bytes, message: protocol.GetStatistics, _: Payload) -> None:
        admission = self._listener.admission
        statistics = {
            **self._writer.statistics(),
            **self._counters,
            "clients_refused": 0 if admission is None else admission.refused,
            "connections_ended": self._listener.peers.ended,
        }
        self._send(client, protocol.Statistics(request=message.request, statistics=statistics))

    def _annotate(self, client: bytes, message: protocol.Annotate, payload: Payload) -> None:
        new = self._writer.annotate(protocol.parse_annotations(message, payload))
        self._send(client, protocol.Stored(request=message.request, new=new))

    def _get_changes(self, client: bytes, message: protocol.GetChanges, _: Payload) -> None:
        self._commit()
        self._send(client, encode(*self._writer.changes(message)))

    def _get_rows(self, client: bytes, message: protocol.GetRows, _: Payload) -> None:
        answer = protocol.SegmentRows.of(message.place, request=message.request)
        self._send(client, encode(answer, [self._writer.rows(message)]))

    def _commit(self) -> None:
        """Commit the pending rows, then acknowledge them; on a full disk answer with the error."""
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        results = self._store([batch for _, batch in pending])
        acknowledged: dict[tuple[bytes, SessionKey], None] = {}  # ordered, without duplicates
        for (client, (message, _)), error in zip(pending, results, strict=True):
            if error is None:
                acknowledged[client, message.place] = None
            else:
                self._send(client, refusal(error, message))
        for client, place in acknowledged:
            following = self._writer.session(place).next_sequence
            self._send(client, protocol.Acknowledged.of(place, next=following))

    def _store(self, batches: Sequence[RowBatch]) -> Sequence[RobotRLError | None]:
        try:
            return self._writer.append(batches)
        except StoreError as failure:
            if not isinstance(failure, StoreFull):
                logger.error("commit failed: %s", failure)
            return [failure] * len(batches)
        except MemoryError:  # one client used it up; the others retry
            return [StoreError("the server has no memory left for these rows")] * len(batches)
        except Exception as error:
            # A batch that fails unexpectedly must not lose the other batches.
            if len(batches) > 1:
                return [self._store([batch])[0] for batch in batches]
            self._counters["internal_errors"] += 1
            logger.exception("rows could not be stored")
            return [ReplayError("the server failed on these rows", got=repr(error))]

    def _send(self, client: bytes, answer: Message | list[Frame]) -> None:
        frames = encode(answer) if isinstance(answer, Message) else answer
        # If the client is gone or does not read, this reply can be dropped: acknowledgements are
        # cumulative, and requests are repeated.
        self._listener.send(client, frames)


def serve(
    path: Path,
    address: str = "tcp://127.0.0.1:0",
    message_bytes: int = DEFAULT_PAYLOAD_BYTES,
    note: Callable[[str], None] = lambda _: None,
    **options: Any,
) -> None:
    """Run a `ReplayServer` as this process's only task until SIGTERM or SIGINT."""
    _allow_descriptors()
    memory_bytes = _LARGE_MESSAGES * message_bytes + 2 * _OTHER_BYTES
    with _limited_memory(memory_bytes), stop_event() as stop:
        server = ReplayServer(path, address, message_bytes=message_bytes, **options)
        protection = "clients with a key" if options.get("keys") else "this machine only"
        note(f"replay: serving {path} at {server.address} to {protection}")
        server.run(stop)
    note("replay: stopped, everything is committed")


def run(config: DictConfig) -> None:
    """Serve the store of the run `config.run` until SIGINT or SIGTERM."""
    settings = config.replay
    serve(
        RunDirectory.open(config.run, config.runs_directory).store,
        settings.address,
        int(settings.message_bytes),
        partial(print, flush=True),
        keys=Path(settings["keys"]) if settings["keys"] else None,
        fsync=settings.fsync,
        capacity_rows=settings.get("capacity_rows"),
    )


@contextmanager
def _limited_memory(size: int) -> Iterator[None]:
    """Limit this process's own memory to `size` bytes inside the context."""
    before = soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limits = [size, *(limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY)]
    resource.setrlimit(resource.RLIMIT_DATA, (min(limits), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _allow_descriptors() -> None:
    """Raise the descriptor limit so that a burst of connections cannot starve the store."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _keep_freed_memory() -> None:
    """Make glibc keep memory freed by rows for the next rows, instead of faulting it in again.

    Without this the kernel spends a third of the server's time clearing pages.
    """
    trim_threshold, mmap_threshold = -1, -3  # from glibc's malloc.h
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # other C libraries keep their defaults
        mallopt(trim_threshold, 256 << 20)
        mallopt(mmap_threshold, 4 << 20)
