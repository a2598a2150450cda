"""The replay server: the only writer of a store, and the mailbox of weights.

One thread, one socket. Rows of all messages that wait on the socket are committed together, and
only then acknowledged; so a client may forget what was acknowledged.
"""

from __future__ import annotations

import ctypes
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import zmq

from robot_rl.data.schema import RowSchema, SchemaMismatch
from robot_rl.errors import RobotRLError
from robot_rl.replay.endpoint import (
    ENDPOINT_FILE,
    Endpoint,
    parse_address,
    read_endpoint,
    write_endpoint,
)
from robot_rl.replay.errors import (
    AddressInUse,
    ReplayError,
    StoreError,
    StoreFull,
    WireError,
)
from robot_rl.replay.eviction import Capacity
from robot_rl.replay.mailbox import Mailbox
from robot_rl.replay.messages import parse_annotations, parse_episodes, split_rows
from robot_rl.replay.records import ACTOR_LIMIT, SEQUENCE_LIMIT, SESSION_LIMIT, TABLE_LIMIT
from robot_rl.replay.sessions import RowBatch
from robot_rl.replay.store import DEFAULT_MAP_SIZE, NO_LIMIT, Fsync, StoreWriter
from robot_rl.replay.wire import MAXIMUM_FRAME_BYTES, Frame, Kind, Message, decode, encode
from robot_rl.signals import stop_event

logger = logging.getLogger(__name__)

IDLE_SECONDS = 0.1
READER_CHECK_SECONDS = 5.0
DRAIN_MESSAGES = 128
DRAIN_BYTES = 4 << 20


def keep_freed_memory() -> None:
    """Let glibc keep what rows free for the next rows, instead of faulting it in again.

    Without this a third of the server's time goes into the kernel's clearing of pages. What is
    kept is bounded by the most that ever waited at a time. Other C libraries are left alone.
    """
    trim_threshold, mmap_threshold = -1, -3  # from glibc's malloc.h
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(trim_threshold, 256 << 20)
        mallopt(mmap_threshold, 4 << 20)


class ReplayServer:
    """Serves one store.

    Args:
        path: Folder of the store; created where absent.
        address: ``tcp://127.0.0.1:PORT``. Port 0 takes the port of the server that was killed on
            this store, so that its clients find it again, or else any free one.
        fsync: ``"none"``: acknowledged rows survive kill -9 of any process. ``"group"``: they
            survive a power cut too.
        group_rows: With ``"group"``, commit after so many rows ...
        group_seconds: ... or after so many seconds, whichever comes first.
        map_size_bytes: Largest size of the store's sparse file.
        capacity: How much is kept before the oldest episodes are evicted.

    Attributes:
        address: Where it listens, with the port it really got.

    Raises:
        AddressRefused: Not a loopback address.
        AddressInUse: The port is taken.
        CapacityRefused: The capacity does not fit `map_size_bytes`.
        StoreInUse: Another server writes this store.
        StoreError: The store cannot be opened.
    """

    def __init__(
        self,
        path: Path,
        address: str = "tcp://127.0.0.1:0",
        *,
        fsync: Fsync = "none",
        group_rows: int = 32,
        group_seconds: float = 0.02,
        map_size_bytes: int = DEFAULT_MAP_SIZE,
        capacity: Capacity = NO_LIMIT,
    ) -> None:
        """Open the store and listen; see the class."""
        host, port = parse_address(address)
        keep_freed_memory()
        self.path = path
        self._group = fsync == "group"
        self._group_rows, self._group_seconds = group_rows, group_seconds
        self._writer = StoreWriter(
            path, fsync=fsync, map_size_bytes=map_size_bytes, capacity=capacity
        )
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        try:
            self.address = self._bind(host, port)
            write_endpoint(path, Endpoint(self.address, os.getpid()))
        except BaseException:
            self._close()
            raise
        self._mailbox = Mailbox(self._writer)
        self._pending: list[tuple[bytes, RowBatch]] = []
        self._pending_rows = 0
        self._pending_since = 0.0
        self._counters = dict.fromkeys(
            (
                "messages",
                "bad_messages",
                "internal_errors",
                "commits",
                "rows_received",
                "replies_dropped",
            ),
            0,
        )
        self._started = time.monotonic()
        self._handlers: Mapping[Kind, Callable[[bytes, Message], None]] = {
            Kind.OPEN: self._open,
            Kind.APPEND: self._append,
            Kind.PUT_WEIGHTS: self._put_weights,
            Kind.GET_WEIGHTS: self._get_weights,
            Kind.GET_STATISTICS: self._get_statistics,
            Kind.ANNOTATE: self._annotate,
        }

    def run(self, stop: threading.Event) -> None:
        """Serve until `stop` is set; then commit what was received and close."""
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        next_reader_check = time.monotonic()
        try:
            while not stop.is_set():
                if poller.poll(math.ceil(1000 * self._wait_seconds())):
                    self._drain()
                if self._commit_is_due():
                    self._commit()
                now = time.monotonic()
                for client, message in self._mailbox.expired(now):
                    self._send(client, message)
                if now >= next_reader_check:
                    self._writer.check_readers()
                    next_reader_check = now + READER_CHECK_SECONDS
            self._commit()
            (self.path / ENDPOINT_FILE).unlink(missing_ok=True)
        finally:
            self._close()

    def _bind(self, host: str, port: int) -> str:
        self._socket.setsockopt(zmq.LINGER, 200)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAXIMUM_FRAME_BYTES)
        self._socket.setsockopt(zmq.RCVHWM, DRAIN_MESSAGES)
        ports = [port]
        if port == 0:
            try:
                ports = [parse_address(read_endpoint(self.path).address)[1], 0]
            except ReplayError:
                ports = [0]
        for candidate in ports:
            try:
                self._socket.bind(f"tcp://{host}:{candidate or '*'}")
                return self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
            except zmq.ZMQError as error:
                reason = error
        raise AddressInUse(
            f"the replay server cannot listen on tcp://{host}:{port}",
            got=reason.strerror,
            hint="stop the program that uses the port, or choose another, or port 0",
        )

    def _close(self) -> None:
        self._socket.close()
        self._context.term()
        self._writer.close()

    def _wait_seconds(self) -> float:
        until = time.monotonic() + IDLE_SECONDS
        if self._pending:
            until = min(until, self._pending_since + self._group_seconds)
        until = min(until, self._mailbox.next_deadline())
        return max(until - time.monotonic(), 0.0)

    def _drain(self) -> None:
        """Handle what waits on the socket, up to a bound that keeps commits short."""
        size = 0
        for _ in range(DRAIN_MESSAGES):
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            client = frames[0].bytes
            self._handle(client, [frame.buffer for frame in frames[1:]])
            size += sum(len(frame) for frame in frames)
            if size > DRAIN_BYTES or (self._group and self._pending_rows >= self._group_rows):
                return

    def _handle(self, client: bytes, frames: list[Frame]) -> None:
        self._counters["messages"] += 1
        header: Mapping[str, object] = {}
        try:
            message = decode(frames)
            header = message.header
            handler = self._handlers.get(message.kind)
            if handler is None:
                raise WireError("a server does not accept this message", got=message.kind.name)
            handler(client, message)
        except (ReplayError, SchemaMismatch) as error:
            if isinstance(error, WireError):
                self._counters["bad_messages"] += 1
                logger.warning("bad message: %s", error)
            self._send_error(client, error, header)
        except Exception as error:
            # One message must never end the server for everybody else.
            self._counters["internal_errors"] += 1
            logger.exception("a message could not be handled")
            failure = ReplayError("the server failed on this message", got=repr(error))
            self._send_error(client, failure, header)

    def _open(self, client: bytes, message: Message) -> None:
        """Create or check the table and begin or resume the session."""
        self._commit()
        schema = RowSchema.from_json(message.text("schema", 1 << 20))
        owner = message.text("owner", 64)
        table = self._writer.open_table(
            message.text("table", 64), schema, message.mapping("metadata")
        )
        number = None
        if message.header.get("session") is not None:
            number = message.integer("session", SESSION_LIMIT)
        key = self._writer.open_session(
            table.identifier, message.integer("actor", ACTOR_LIMIT), number, owner
        )
        state = self._writer.session(key)
        self._reply(
            client,
            message,
            Kind.OPENED,
            table=key[0],
            actor=key[1],
            session=key[2],
            owner=owner,
            next=state.next_sequence,
            in_episode=state.episode is not None,
            ended=state.ended_by is not None,
        )

    def _append(self, client: bytes, message: Message) -> None:
        session = (
            message.integer("table", TABLE_LIMIT),
            message.integer("actor", ACTOR_LIMIT),
            message.integer("session", SESSION_LIMIT),
        )
        batch = RowBatch(
            session,
            message.text("owner", 64),
            message.integer("first", SEQUENCE_LIMIT),
            split_rows(message, self._writer.row_size(session[0])),
            parse_episodes(message),
        )
        if not self._pending:
            self._pending_since = time.monotonic()
        self._pending.append((client, batch))
        self._pending_rows += len(batch.rows)
        self._counters["rows_received"] += len(batch.rows)

    def _put_weights(self, client: bytes, message: Message) -> None:
        if len(message.payload) != 1:
            raise WireError(
                "weights come as one payload frame", got=len(message.payload), expected=1
            )
        record, answers = self._mailbox.put(
            message.text("name", 64),
            message.integer("version"),
            bytes(message.payload[0]),
            message.mapping("metadata"),
        )
        self._reply(client, message, Kind.WEIGHTS_STORED, version=record.version)
        for waiting, answer in answers:
            self._send(waiting, answer)

    def _get_weights(self, client: bytes, message: Message) -> None:
        answer = self._mailbox.get(client, message, time.monotonic())
        if answer is not None:
            self._send(client, answer)

    def _get_statistics(self, client: bytes, message: Message) -> None:
        statistics = {
            **self._writer.statistics(),
            **self._counters,
            "uptime_seconds": time.monotonic() - self._started,
        }
        self._reply(client, message, Kind.STATISTICS, statistics=statistics)

    def _annotate(self, client: bytes, message: Message) -> None:
        stored = self._writer.annotate(parse_annotations(message))
        self._reply(client, message, Kind.ANNOTATED, stored=stored)

    def _commit_is_due(self) -> bool:
        if not self._pending or not self._group:
            return bool(self._pending)
        age = time.monotonic() - self._pending_since
        return self._pending_rows >= self._group_rows or age >= self._group_seconds

    def _commit(self) -> None:
        """Commit the pending rows, then acknowledge them; on a full disk answer with the error."""
        if not self._pending:
            return
        pending, self._pending, self._pending_rows = self._pending, [], 0
        try:
            results = self._writer.append([batch for _, batch in pending])
        except StoreError as failure:
            if not isinstance(failure, StoreFull):
                logger.error("commit failed: %s", failure)
            results = [failure] * len(pending)
        self._counters["commits"] += 1
        acknowledged = {}
        for (client, batch), error in zip(pending, results, strict=True):
            table, actor, session = batch.session
            place = {"table": table, "actor": actor, "session": session}
            if error is not None:
                self._send_error(client, error, place)
            else:
                acknowledged[client, batch.session] = place
        for (client, key), place in acknowledged.items():
            following = self._writer.session(key).next_sequence
            self._send(client, encode(Kind.ACKNOWLEDGED, {**place, "next": following}))

    def _reply(self, client: bytes, message: Message, kind: Kind, **entries: object) -> None:
        self._send(client, encode(kind, {"request": message.header.get("request"), **entries}))

    def _send_error(self, client: bytes, error: RobotRLError, header: Mapping[str, object]) -> None:
        about = {
            name: header[name]
            for name in ("request", "table", "actor", "session")
            if isinstance(header.get(name), int)
        }
        content = {**about, "error": type(error).__name__, "message": str(error)[:4000]}
        self._send(client, encode(Kind.ERROR, content))

    def _send(self, client: bytes, frames: list[Frame]) -> None:
        try:
            self._socket.send_multipart([client, *frames], zmq.NOBLOCK)
        except zmq.ZMQError:
            # The client is gone or does not read; acknowledgements are cumulative and requests
            # are repeated, so nothing depends on this one reply.
            self._counters["replies_dropped"] += 1


def serve(
    path: Path,
    address: str = "tcp://127.0.0.1:0",
    *,
    fsync: Fsync = "none",
    map_size_bytes: int = DEFAULT_MAP_SIZE,
    capacity: Capacity = NO_LIMIT,
) -> None:
    """Run a server as the whole business of this process, until SIGTERM or SIGINT.

    Call it from the main thread. Takes the arguments of `ReplayServer` and raises what it raises.
    """
    with stop_event() as stop:
        server = ReplayServer(
            path, address, fsync=fsync, map_size_bytes=map_size_bytes, capacity=capacity
        )
        server.run(stop)
