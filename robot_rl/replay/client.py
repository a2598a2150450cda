"""The client of the replay server, for actors, learners and tools.

`ReplayClient.append` checks and packs a row in the caller's thread, puts it into the spool and
returns without a system call. A background thread sends the row, which stays in the spool until the
server has committed it. The server may go away and come back: after any break the thread asks for
the session's position and resends from there.
"""

from __future__ import annotations

import itertools
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Self, TypeVar

import msgspec
import zmq

from robot_rl.data.schema import Row, RowSchema
from robot_rl.errors import RobotRLError
from robot_rl.processes.signals import StopEvent, Stopped
from robot_rl.replay import (
    ReplayError,
    RowRefused,
    SequenceGap,
    ServerBusy,
    SessionTaken,
    SpoolError,
    StoreError,
    StoreReplaced,
    error_from_wire,
    protocol,
)
from robot_rl.replay.episode_records import RowFacts, RowFlags, check_order
from robot_rl.replay.spool import Spool, metadata_bytes
from robot_rl.wire import KeysRefused, ServerUnreachable, WireError
from robot_rl.wire.endpoint import ServerConnection, check_protected, why_refused
from robot_rl.wire.keys import ClientKeys
from robot_rl.wire.messages import (
    PIECE_BYTES,
    Decoder,
    Facts,
    Frame,
    Numbered,
    Payload,
    Refused,
    encode,
    json_text,
)

_BUSY_SECONDS = 0.05  # between two requests to a busy server
_SLICE_SECONDS = 0.25  # between two checks of a stop event
_RESYNC = 0  # request number of the thread's own request; callers' requests count from 1
_MAXIMUM_PATIENCE_SECONDS = 4.0
_IDLE_SECONDS = 0.1
_ACTIVE_SECONDS = 1.0  # longer than the period of any control loop
# How often the thread polls for new rows while they arrive. Callers do not wake it for a row: that
# would take a system call in the control loop.
_LOOK_SECONDS = 0.005
_SPOOL_LOOK_SECONDS = 1.0  # interval between checks that the spool is in place
_CREDIT_BYTES = 32 << 20  # in flight without acknowledgement
_BATCH_BYTES = PIECE_BYTES - 1  # in one message, unless a single row is larger
_Answer = TypeVar("_Answer", bound=Numbered)


@dataclass
class _Question:
    """A request waiting for its answer."""

    message: Numbered  # without its number, which the thread adds
    payload: Sequence[Frame]
    held_back: float  # seconds that a reachable server may delay the answer
    answer: Future[tuple[Numbered, Payload]] = field(default_factory=Future)
    sent_at: float | None = None  # steady time


class ReplayClient:
    """Appends rows to one session at a time, and transfers weights.

    Only one thread at a time may call it, except for `close`, which also interrupts another
    thread's wait for an answer. The next call raises any failure of the background thread.

    Args:
        address: ``tcp://HOST:PORT``, or the folder of the store. For a folder, each connection
            looks up the server in its ``endpoint.json``.
        keys: Folder with the client's keys, see `robot_rl.wire.keys`. Without keys only a
            server on this machine can be reached.
        spool_bytes: Room for unacknowledged rows; the size of the file.
        spool_path: File for unacknowledged rows, so that they outlive this process. Rows left by
            an earlier process are sent first. None: in memory.
        request_seconds: How long a request may stay unanswered before it raises.
        large_seconds: Extra time for requests that transfer weights.
        batch_rows: Most rows in one message.
        credit_rows: Most rows in flight without acknowledgement.
        resend_seconds: Silence after which the background thread reconnects and resends.

    Raises:
        AddressRefused: Not an address, or one beyond this machine without keys.
        KeysError: The keys cannot be read.
        SpoolError: The file cannot be used; see `Spool`.
    """

    def __init__(
        self,
        address: str | Path,
        *,
        keys: Path | None = None,
        spool_bytes: int = 256 << 20,
        spool_path: Path | None = None,
        request_seconds: float = 10.0,
        large_seconds: float = 30.0,
        batch_rows: int = 16,
        credit_rows: int = 512,
        resend_seconds: float = 0.5,
    ) -> None:
        if isinstance(address, str):
            check_protected(address, keys=keys is not None)
        self._address, self._keys = address, None if keys is None else ClientKeys.load(keys)
        self._request_seconds, self._large_seconds = request_seconds, large_seconds
        self._batch_rows, self._credit_rows = batch_rows, credit_rows
        self._resend_seconds = resend_seconds
        self._schema: RowSchema | None = None
        self._in_episode = self._ended = self._closed = False
        self._spool = Spool(spool_path, spool_bytes)
        # Guards the state shared by callers and the thread; notified of all that callers wait for.
        self._changed = threading.Condition()
        self._failure: RobotRLError | None = None  # error that ended the thread
        self._problem: RobotRLError | None = None  # why rows do not get through at the moment
        self._closing = False
        self._questions: dict[int, _Question] = {}
        self._numbers = itertools.count(_RESYNC + 1)
        self._wake_up = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # Used only by the thread.
        self._decoder = Decoder(*protocol.ANSWERS)
        self._connection: ServerConnection | None = None
        self._sent = self._end_seen = 0
        self._synced = False
        self._resync_sent_at: float | None = None
        self._pause_until = self._heard_at = self._connected_at = 0.0
        self._patience = resend_seconds
        self._rows_at = -float("inf")
        self._thread = threading.Thread(target=self._run, name="replay-client", daemon=True)
        self._thread.start()

    def open_session(
        self,
        schema: RowSchema,
        actor: int = 0,
        session: int | None = None,
        *,
        owner: str | None = None,
        metadata: Mapping[str, object] | None = None,
    ) -> protocol.Opened:
        """Start a session of an actor, or resume one.

        Rows of the previous session, also of an earlier process, are sent first.

        Args:
            schema: Schema of the rows. The first session of a store sets the store's schema.
            actor: Number of this writer.
            session: Number of the session, above the actor's earlier ones; None: the next.
            owner: Token of a session to resume, from `Opened.owner`.
            metadata: Facts about the recording, stored with the schema.

        Raises:
            SchemaMismatch: The store has another schema; names the field.
            SessionTaken: Another writer started the session.
            StoreReplaced: The client, or its spool, has written to another store.
            StoreFull: The store has no room for rows of the previous session.
            ServerUnreachable: No answer, or rows of the previous session are unacknowledged.
        """
        flags = RowFlags(schema)
        self.flush(self._request_seconds)
        before = self._spool.opened
        opening = protocol.Open(
            schema=schema.to_json(),
            actor=actor,
            session=session,
            owner=owner or secrets.token_hex(16),
            metadata=_facts(metadata),
            store=None if before is None else before.store,
        )
        opened, _ = self.ask(opening, protocol.Opened)
        self._schema, self._flags = schema, flags
        self._in_episode, self._ended = opened.in_episode, opened.ended
        return opened

    def append(self, row: Row, episode: Mapping[str, object] | None = None) -> int:
        """Queue one row and return its sequence in the session.

        The row is checked here, then sent and acknowledged in the background. Pass `episode` with
        an episode's first row: its ``task``, ``seed`` and ``instruction``.

        Raises:
            SchemaMismatch: Wrong field, shape, dtype or value.
            RowRefused: The row cannot follow the one before it.
            SpoolError: No room; check `has_room` before an episode starts.
        """
        return self._push(*self._pack(row), metadata_bytes(episode))

    def append_episode(
        self,
        rows: Sequence[Row],
        episode: Mapping[str, object] | None = None,
        timeout: float = 60.0,
        *,
        stored: int = 0,
    ) -> int:
        """Queue a whole episode (T + 1 rows) and return the sequence of its first row.

        Waits for room. Queues no rows if one of them is bad.

        Args:
            rows: All rows of the episode.
            episode: As in `append`.
            timeout: How long to wait without any room becoming free [s].
            stored: How many of its rows an earlier, interrupted try has already stored.

        Raises:
            SchemaMismatch: A row has a wrong field, shape, dtype or value.
            RowRefused: The rows are not one episode, or another one is open.
            SpoolError: No room became free in time.
        """
        packed = [self._pack(row) for row in rows]
        closing = [facts.is_last for _, facts in packed]
        whole = sum(closing) == 1 and closing[-1]
        if not whole or self._in_episode != (stored > 0):
            raise RowRefused(
                "these rows are not one whole episode",
                got=f"{len(rows)} rows, {sum(closing)} with is_last",
                expected="exactly the last row has is_last, and no other episode is open",
            )
        metadata = b"" if stored else metadata_bytes(episode)
        sequence = 0
        for row, facts in packed[stored:]:
            self._wait_for(partial(self._spool.has_room, 1, begins=bool(metadata)), timeout)
            sequence, metadata = self._push(row, facts, metadata), b""
        return sequence - len(rows) + 1

    def has_room(self, rows: int) -> bool:
        """Return whether `rows` more rows of one episode can be appended without waiting."""
        with self._changed:
            self._check()
            return self._spool.has_room(rows, begins=True)

    @property
    def unacknowledged(self) -> int:
        """Rows that the server has not committed yet."""
        with self._changed:
            self._check()
            return self._spool.end - self._spool.first

    @property
    def problem(self) -> RobotRLError | None:
        """Why rows are not getting through at the moment, for example `StoreFull`."""
        with self._changed:
            self._check()
            return self._problem

    def flush(self, timeout: float = 30.0, stop: StopEvent | None = None) -> None:
        """Wait until every row is committed, at most `timeout` seconds without progress.

        Raises:
            StoreFull: The store has no room; the rows stay in the spool.
            ServerUnreachable: No row got through in time; the rows stay in the spool.
            Stopped: `stop` was set; `close` still tries for a while.
        """
        pause = timeout if stop is None else min(_SLICE_SECONDS, timeout)
        first, deadline = self._spool.first, time.monotonic() + timeout
        while not self._wait_for(self._is_empty, pause):
            if stop is not None and stop.is_set():
                raise Stopped
            if self._spool.first != first:
                first, deadline = self._spool.first, time.monotonic() + timeout
            elif time.monotonic() >= deadline:
                raise self._not_committed(timeout)

    def put_weights(
        self, name: str, version: int, tensors: bytes, metadata: Mapping[str, object] | None = None
    ) -> None:
        """Publish weights: a safetensors file as bytes, durable when this returns.

        Raises:
            WeightsRefused: The version is not newer than the stored one.
            StoreFull: The disk has no room for them.
            ServerUnreachable: No answer.
        """
        weights = protocol.PutWeights(name=name, version=version, metadata=_facts(metadata))
        self.ask(weights, protocol.Stored, [tensors], held_back=self._large_seconds)

    def get_weights(
        self, name: str, newer_than: int | None = None, wait_seconds: float = 0.0
    ) -> protocol.WeightsRecord | None:
        """Return the latest weights; None if no version above `newer_than` comes in `wait_seconds`.

        `wait_seconds` is at most 60.

        Raises:
            ServerUnreachable: No answer.
        """
        question = protocol.GetWeights(name=name, newer_than=newer_than, wait=wait_seconds)
        held_back = wait_seconds + self._large_seconds
        answer, tensors = self.ask(question, protocol.Weights, held_back=held_back)
        if answer.version is None:
            return None
        return protocol.WeightsRecord(name, answer.version, b"".join(tensors), answer.metadata)

    def annotate(self, new: protocol.Annotations) -> int:
        """Store annotations of rows durably; return how many were new. Repeats are accepted.

        Readers use the latest version for each row.

        Raises:
            AnnotationRefused: A row is absent, or the version is stored with another value.
            StoreError: They cannot be written.
            ServerUnreachable: No answer.
        """
        return sum(
            self.ask(question, protocol.Stored, frames)[0].new
            for question, frames in protocol.annotate_requests(new)
        )

    def statistics(self) -> dict[str, object]:
        """Return the server's counters and the totals of its store."""
        return self.ask(protocol.GetStatistics(), protocol.Statistics)[0].statistics

    def ask(
        self,
        message: Numbered,
        expected: type[_Answer],
        payload: Sequence[Frame] = (),
        *,
        held_back: float = 0.0,
    ) -> tuple[_Answer, Payload]:
        """Send a request, again if needed, and return its answer.

        A reachable server may take `held_back` seconds longer than `request_seconds`.

        Raises:
            KeysRefused: The server and this client do not accept each other's keys.
            ServerUnreachable: No answer in time, or before the client was closed.
            ServerBusy: The server's queue of waiting requests stayed full.
            RobotRLError: The error that the server answered.
        """
        patience = held_back + self._request_seconds
        until = time.monotonic() + patience
        while True:
            question = _Question(message, payload, held_back)
            with self._changed:
                self._check()
                if self._closing:
                    raise _was_closed()
                if isinstance(self._problem, KeysRefused):
                    raise KeysRefused(str(self._problem))
                number = next(self._numbers)
                self._questions[number] = question
                self._wake()
            try:
                answer, content = question.answer.result(patience)
                break
            except ServerBusy:
                if time.monotonic() >= until:
                    raise
                time.sleep(_BUSY_SECONDS)
            except TimeoutError as error:
                raise ServerUnreachable(
                    f"the replay server did not answer within {patience:g} s",
                    got=self._problem,
                    hint="see that the replay server runs",
                ) from error
            finally:
                with self._changed:
                    self._questions.pop(number, None)
        if not isinstance(answer, expected):
            raise WireError(
                "the server has answered something else",
                got=type(answer).__name__,
                expected=expected.__name__,
            )
        return answer, content

    def close(self, timeout: float = 5.0) -> None:
        """Wait until every row is committed, then end the background thread, even on an error.

        Raises:
            ServerUnreachable: Rows are still unacknowledged after `timeout` seconds; rows in a
                file stay there. If the server gave a reason, that error instead, as `StoreFull`.
            RobotRLError: The background thread's failure.
        """
        if self._closed:
            return
        self._closed = True
        try:
            if not self._wait_for(self._is_empty, timeout):
                raise self._not_committed(timeout)
        finally:
            with self._changed:
                self._wake()
                self._closing = True
                self._refuse_all(_was_closed())
                self._changed.notify_all()
            self._thread.join()
            os.close(self._wake_up)
            self._spool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # Called by callers' threads.

    def _is_empty(self) -> bool:
        return self._spool.first == self._spool.end

    def _check(self) -> None:
        """Raise the error that ended the thread. Call with the condition held."""
        if self._failure is not None:
            # A new one each time: re-raising the same error adds a traceback each time.
            raise type(self._failure)(str(self._failure)) from self._failure

    def _wake(self) -> None:
        """Wake the thread. Call with the condition held."""
        if not self._closing:
            os.eventfd_write(self._wake_up, 1)

    def _wait_for(self, done: Callable[[], bool], timeout: float) -> bool:
        """Wait until `done`, closed or timed out; return whether it is done."""
        with self._changed:
            if not done():
                self._wake()
            self._changed.wait_for(lambda: done() or self._failure or self._closing, timeout)
            self._check()
            return done()

    def _not_committed(self, seconds: float) -> RobotRLError:
        problem, spool = self._problem, self._spool
        kind = ServerUnreachable if problem is None else type(problem)
        return kind(
            f"{spool.end - spool.first} rows are not acknowledged after {seconds:g} s",
            got=problem,
            hint=f"they are kept in {spool.place} and sent again; see that the replay server runs",
        )

    def _pack(self, row: Row) -> tuple[bytes, RowFacts]:
        if self._schema is None:
            raise ReplayError("no session is open", hint="call open_session first")
        packed = self._schema.pack(row)
        return packed, self._flags.read(packed)

    def _push(self, row: bytes, facts: RowFacts, metadata: bytes) -> int:
        check_order(facts, begins=not self._in_episode, ended=self._ended)
        if metadata and self._in_episode:
            raise RowRefused("episode metadata belongs to the first row of an episode")
        spool = self._spool
        with self._changed:
            self._check()
            if not spool.has_room(1, begins=bool(metadata)):
                raise SpoolError(
                    "the replay client holds as many unacknowledged rows as it may",
                    got=f"{spool.end - spool.first} rows in {spool.place}; {self._problem or ''}",
                    hint="wait until has_room(rows of an episode) before an episode begins",
                )
            # The thread polls for rows: waking it would take a system call.
            sequence = spool.push(row, metadata)
        self._in_episode, self._ended = not facts.is_last, facts.ended
        return sequence

    # Called by the background thread.

    def _run(self) -> None:
        try:
            self._connect()
            looked_at = time.monotonic()
            while not self._closing:
                self._wait()
                if time.monotonic() > looked_at + _SPOOL_LOOK_SECONDS:
                    self._spool.check_in_place()
                    looked_at = time.monotonic()
                self._look_at_connection()
                if self._connection is not None:
                    self._receive(self._connection)
                    self._send_questions(self._connection)
                    self._send_rows(self._connection)
                if self._is_overdue(time.monotonic()):
                    silence = f"nothing in {self._patience:g} s"
                    silent = ServerUnreachable("the replay server does not answer", got=silence)
                    self._note(self._problem or silent)
                    self._patience = min(2 * self._patience, _MAXIMUM_PATIENCE_SECONDS)
                    self._connect()
        except BaseException as failure:
            with self._changed:
                self._failure = self._explained(failure)
                self._refuse_all(self._failure)
                self._changed.notify_all()
        finally:
            self._disconnect()

    def _explained(self, failure: BaseException) -> RobotRLError:
        """Add the location of the refused rows to the server's error."""
        if not isinstance(failure, RobotRLError):
            died = ReplayError("the replay client's thread has died", got=repr(failure))
            died.__cause__ = failure
            return died
        spool, rows = self._spool, self._spool.end - self._spool.first
        if spool.left is not None and rows:
            failure.args = (
                f"{failure}; {rows} rows of an earlier process stay"
                f" in {spool.place}; next: serve the store that they are for, or, to go on"
                " without them, move the file away",
            )
        return failure

    def _connect(self) -> None:
        """Open a fresh socket; all unanswered messages will be sent again."""
        self._disconnect()
        self._connected_at = time.monotonic()
        self._synced, self._resync_sent_at = False, None
        with self._changed:
            for question in self._questions.values():
                question.sent_at = None
        try:
            self._connection = ServerConnection(self._address, self._keys, self._poller)
        except ServerUnreachable as problem:
            self._note(problem)

    def _disconnect(self) -> None:
        """Close the connection; answers in flight are dropped."""
        if self._connection is not None:
            self._connection.close()
        self._connection, self._up = None, False
        self._poller = zmq.Poller()
        self._poller.register(self._wake_up, zmq.POLLIN)

    def _wait(self) -> None:
        """Wait a while for an answer, a wake-up, or rows, which come without a wake-up."""
        now = time.monotonic()
        if self._spool.end != self._end_seen:
            self._end_seen, self._rows_at = self._spool.end, now
        active = now < self._rows_at + _ACTIVE_SECONDS
        pause = _LOOK_SECONDS if active else min(self._resend_seconds / 2, _IDLE_SECONDS)
        if self._wake_up in dict(self._poller.poll(round(1000 * pause))):
            os.eventfd_read(self._wake_up)

    def _look_at_connection(self) -> None:
        """Note why there is no connection; reconnect at once if it broke."""
        while self._connection is not None and (event := self._connection.event()):
            if event["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._up = True
                self._note_reached()
            elif event["event"] != zmq.EVENT_DISCONNECTED:
                refused = why_refused(event["event"], event["value"], keys=self._keys is not None)
                if refused is not None:
                    self._note(refused)
                if isinstance(refused, KeysRefused):
                    self._disconnect()  # until the next try is due
            elif self._up:
                self._connect()

    def _receive(self, connection: ServerConnection) -> None:
        while frames := connection.receive():
            self._heard_at = time.monotonic()
            message, payload = self._decoder.decode(frames)
            self._note_reached()
            if isinstance(message, Refused):
                self._on_refused(message)
            elif isinstance(message, protocol.Acknowledged):
                if self._spool.opened is not None and message.place == self._spool.opened.place:
                    self._acknowledge(message.next)
            elif message.request == _RESYNC:
                self._on_resync(message)
            else:
                self._settle(message.request, (message, payload))

    def _acknowledge(self, following: int) -> None:
        with self._changed:
            spool = self._spool
            if following > spool.end:
                raise SessionTaken(
                    "the server has rows of this session that this client never sent",
                    got=following,
                    expected=f"<= {spool.end}",
                )
            if spool.acknowledge(following):
                self._patience = self._resend_seconds
                self._problem = None
                self._changed.notify_all()
            self._sent = max(self._sent, spool.first)

    def _settle(self, number: int | None, answer: tuple[Numbered, Payload] | RobotRLError) -> None:
        """Hand a request its answer, unless the caller has stopped waiting."""
        with self._changed:
            question = self._questions.pop(number or _RESYNC, None)
            if question is None:
                return
            if isinstance(answer, RobotRLError):
                question.answer.set_exception(answer)
                return
            if isinstance(answer[0], protocol.Opened):  # the session is now the current one
                assert isinstance(question.message, protocol.Open)
                self._spool.begin(question.message, answer[0])
                self._sent, self._synced = answer[0].next_sequence, True
                self._resync_sent_at = None
            question.answer.set_result(answer)

    def _refuse_all(self, error: RobotRLError) -> None:
        """Fail all requests. Call with the condition held."""
        for number in list(self._questions):
            self._settle(number, error)

    def _on_resync(self, message: protocol.Opened) -> None:
        following, session = message.next_sequence, self._spool.opened
        if session is None or message.owner != session.owner:
            return  # about the previous session, current when this was asked
        if message.place != session.place:
            raise StoreError(
                "the server keeps the session under another key: it serves another store",
                hint="start the server on the store that it served before",
            )
        if following < self._spool.first:
            raise StoreError(
                "the server lacks rows that it had acknowledged: it serves an older copy of the"
                " store",
                got=following,
                expected=f">= {self._spool.first}",
                hint="start the server on the store that it served before",
            )
        if session is self._spool.left:
            # This session gets no more rows. After a power cut the spool may be older than the
            # store: rows that the spool does not know count as stored, like all that it holds.
            following = min(following, self._spool.end)
        self._acknowledge(following)
        self._sent, self._synced, self._resync_sent_at = following, True, None

    def _on_refused(self, message: Refused) -> None:
        error = error_from_wire(message.error, message.message)
        if message.request is not None and message.request != _RESYNC:
            self._settle(message.request, error)
            return
        if not isinstance(error, StoreError | SequenceGap) or isinstance(error, StoreReplaced):
            raise error
        # The rows stay here. After a pause the thread asks for the session's position and rewinds.
        if isinstance(error, StoreError):
            self._note(error)
        self._pause_until = time.monotonic() + self._resend_seconds
        self._synced, self._resync_sent_at = False, None

    def _note(self, problem: RobotRLError | None) -> None:
        with self._changed:
            self._problem = problem
            if isinstance(problem, KeysRefused):
                self._refuse_all(problem)
            self._changed.notify_all()

    def _note_reached(self) -> None:
        if isinstance(self._problem, ServerUnreachable):
            self._note(None)

    def _send_questions(self, connection: ServerConnection) -> None:
        with self._changed:
            waiting = [(n, q) for n, q in self._questions.items() if q.sent_at is None]
        for number, question in waiting:
            question.sent_at = time.monotonic()
            message = msgspec.structs.replace(question.message, request=number)
            try:
                connection.send(encode(message, question.payload))
            except WireError as error:  # too large to send at all
                self._settle(number, error)

    def _send_rows(self, connection: ServerConnection) -> None:
        opening, opened, now = self._spool.opening, self._spool.opened, time.monotonic()
        if opening is None or opened is None or now < self._pause_until:
            return
        if self._synced:
            while self._sent_batch(connection, opened):
                pass
        elif self._resync_sent_at is None:
            self._resync_sent_at = now
            again = msgspec.structs.replace(
                opening, request=_RESYNC, session=opened.session, store=opened.store
            )
            connection.send(encode(again))

    def _sent_batch(self, connection: ServerConnection, session: protocol.Opened) -> bool:
        spool = self._spool
        with self._changed:
            on_their_way = self._sent - spool.first
            if on_their_way >= self._credit_rows or on_their_way * spool.row_bytes >= _CREDIT_BYTES:
                return False
            rows, frames, episodes = spool.rows_from(self._sent, self._batch_rows, _BATCH_BYTES)
        if not rows:
            return False
        if on_their_way == 0:
            self._heard_at = time.monotonic()
            # An unacknowledged row is in only one message at a time. The message does not copy its
            # slot in the spool, so the slot must not be reused before it is sent.
        texts = {at: msgspec.Raw(text) for at, text in episodes.items()}
        append = protocol.Append.of(
            session.place, owner=session.owner, first=self._sent, episodes=texts
        )
        connection.send(encode(append, frames))
        self._sent += rows
        return True

    def _is_overdue(self, now: float) -> bool:
        if self._connection is None:
            return now > self._connected_at + self._patience
        if self._resync_sent_at is not None:
            return now > self._resync_sent_at + self._patience
        with self._changed:
            # Only a reachable server delays answers.
            sent = [q for q in self._questions.values() if q.sent_at is not None]
            waits = [(q.sent_at or 0.0) + self._up * q.held_back for q in sent]
            if self._synced and self._sent > self._spool.first:
                waits.append(self._heard_at)
        return now > min(waits, default=now) + self._patience


def _was_closed() -> ServerUnreachable:
    return ServerUnreachable("the replay client was closed before the answer came")


def _facts(metadata: Mapping[str, object] | None) -> Facts:
    facts: Facts = msgspec.json.decode(json_text(metadata or {}))
    return facts
