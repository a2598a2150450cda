"""The client of the replay server, for actors, learners and tools.

`ReplayClient.append` packs and checks a row in the caller's thread, puts it into the spool and
returns, without a system call; a background thread sends it, and it stays in the spool until the
server has committed it.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Self, TypeVar

import msgspec

from robot_rl.data.schema import Row, RowSchema
from robot_rl.errors import RobotRLError
from robot_rl.processes.signals import StopEvent, Stopped
from robot_rl.replay import ReplayError, RowRefused, ServerBusy, SpoolFull, protocol
from robot_rl.replay.episode_records import (
    Annotations,
    RowFacts,
    RowFlags,
    WeightsRecord,
    check_order,
)
from robot_rl.replay.link import Link, Request
from robot_rl.replay.spool import Spool, metadata_bytes
from robot_rl.wire import ServerUnreachable, WireError
from robot_rl.wire.endpoint import check_protected
from robot_rl.wire.keys import ClientKeys
from robot_rl.wire.messages import Facts, Frame, Numbered, Payload, json_text

LARGE_SECONDS = 30.0  # that weights may be on their way over a connection that stands
_BUSY_SECONDS = 0.05  # between two questions to a server that takes no more
_SLICE_SECONDS = 0.25  # between two looks at a stop event
_Answer = TypeVar("_Answer", bound=Numbered)


class ReplayClient:
    """Appends rows to one session at a time, and moves weights.

    Calls may come from one thread at a time, but for `close`, which also ends a wait of another
    thread for an answer. A failure of the background thread is raised by the next call.

    Args:
        address: ``tcp://HOST:PORT``, or the folder of the store, whose server is then found by its
            ``endpoint.json`` at every connection.
        keys: Folder with the client's keys, see `robot_rl.wire.keys`; without them only a
            server on this machine can be reached.
        spool_bytes: Room for unacknowledged rows; the size of the file.
        spool_path: File in which the unacknowledged rows wait, so that they outlive this process.
            Those that an earlier one left in it are sent before anything else. None: in memory.
        request_seconds: How long a request may stay unanswered before it raises; one for weights
            30 s longer, which they may be on their way.
        batch_rows: Most rows in one message.
        resend_seconds: Silence after which the background thread connects anew and sends again.

    Raises:
        AddressRefused: No address, or one beyond this machine and no keys.
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
        batch_rows: int = 16,
        resend_seconds: float = 0.5,
    ) -> None:
        self._request_seconds = request_seconds
        if isinstance(address, str):
            check_protected(address, keys=keys is not None)
        own = None if keys is None else ClientKeys.load(keys)
        self._spool = Spool(spool_path, spool_bytes)
        self._link = Link(address, self._spool, own, batch_rows, resend_seconds)
        self._schema: RowSchema | None = None
        self._flags: RowFlags | None = None
        self._in_episode = self._ended = False
        self._closed = False

    def open_session(
        self,
        table: str,
        schema: RowSchema,
        actor: int = 0,
        session: int | None = None,
        *,
        owner: str | None = None,
        metadata: Mapping[str, object] | None = None,
    ) -> protocol.Opened:
        """Begin a session in a table, which is created where absent.

        Rows of the session before, also of an earlier process, are sent first.

        Args:
            table: Name of the table.
            schema: Of its rows.
            actor: Number of this writer.
            session: Number of the session, larger than the actor's before; None takes the next.
            owner: Token of a session that is to go on, as `Opened.owner` gave it.
            metadata: Facts about the recording, kept when the table is created.

        Raises:
            SchemaMismatch: The table has another schema; names the field.
            SessionTaken: The session was begun by another writer.
            StoreReplaced: The client, or its spool, has written to another store.
            StoreFull: The store has no room for rows of the session before.
            ServerUnreachable: No answer, or rows of the session before are unacknowledged.
        """
        flags = RowFlags(schema)
        self.flush(self._request_seconds)
        before = self._spool.opened
        opening = protocol.Open(
            table=table,
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

        It is checked here, and sent and acknowledged in the background. With the first row of an
        `episode` come its ``task``, ``seed`` and ``instruction``.

        Raises:
            SchemaMismatch: Wrong field, shape, dtype or value.
            RowRefused: The row cannot follow the one before it.
            SpoolFull: No room; ask `has_room` before an episode begins.
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

        It waits for room, and queues nothing if a row is bad.

        Args:
            rows: All of its rows.
            episode: As in `append`.
            timeout: How long no room may come, seconds.
            stored: How many of its rows an earlier, interrupted try has put into the session.

        Raises:
            SchemaMismatch: A row has a wrong field, shape, dtype or value.
            RowRefused: The rows are not one episode, or another one is open.
            SpoolFull: No room came in time.
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
        """Return whether so many more rows of one episode can be appended without waiting."""
        with self._link.condition:
            self._link.check()
            return self._spool.has_room(rows, begins=True)

    @property
    def unacknowledged(self) -> int:
        """Rows that the server has not committed yet."""
        with self._link.condition:
            self._link.check()
            return self._spool.end - self._spool.first

    @property
    def problem(self) -> RobotRLError | None:
        """Why rows are not getting through at the moment, for example `StoreFull`."""
        with self._link.condition:
            self._link.check()
            return self._link.problem

    def flush(self, timeout: float = 30.0, stop: StopEvent | None = None) -> None:
        """Wait until every row is committed; `timeout` seconds may pass in which none gets through.

        Raises:
            StoreFull: The store has no room; the rows are still here.
            ServerUnreachable: No row got through in time; the rows are still here.
            Stopped: `stop` was set; closing the client still tries for a while.
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
            StoreFull: They do not fit.
            ServerUnreachable: No answer.
        """
        weights = protocol.PutWeights(name=name, version=version, metadata=_facts(metadata))
        self.ask(weights, protocol.Stored, [tensors], held_back=LARGE_SECONDS)

    def get_weights(
        self, name: str, newer_than: int | None = None, wait_seconds: float = 0.0
    ) -> WeightsRecord | None:
        """Return the latest weights; None if none newer than `newer_than` come in `wait_seconds`.

        These are at most 60.

        Raises:
            ServerUnreachable: No answer.
        """
        question = protocol.GetWeights(name=name, newer_than=newer_than, wait=wait_seconds)
        held_back = wait_seconds + LARGE_SECONDS
        answer, tensors = self.ask(question, protocol.Weights, held_back=held_back)
        if answer.version is None:
            return None
        return WeightsRecord(name, answer.version, b"".join(tensors), answer.metadata)

    def annotate(self, new: Annotations) -> int:
        """Store values beside rows, durably, and return how many were new; the same are accepted.

        Readers use the newest version of each row.

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
        """Return the server's counters and the totals of its tables."""
        return self.ask(protocol.GetStatistics(), protocol.Statistics)[0].statistics

    def ask(
        self,
        question: Numbered,
        expected: type[_Answer],
        payload: Sequence[Frame] = (),
        *,
        held_back: float = 0.0,
    ) -> tuple[_Answer, Payload]:
        """Send a request and return its answer; it is sent again until there is one.

        A server that is there may take `held_back` seconds longer than `request_seconds`.

        Raises:
            KeysRefused: The server and this client do not accept each other's keys.
            ServerUnreachable: No answer in time, or before the client was closed.
            ServerBusy: As many others waited all the time.
            RobotRLError: What the server answered.
        """
        patience = held_back + self._request_seconds
        until = time.monotonic() + patience
        while True:
            try:
                answer, content = self._link.ask(Request(question, payload, held_back), patience)
                break
            except ServerBusy:
                if time.monotonic() >= until:
                    raise
                time.sleep(_BUSY_SECONDS)
        if not isinstance(answer, expected):
            raise WireError(
                "the server has answered something else",
                got=type(answer).__name__,
                expected=expected.__name__,
            )
        return answer, content

    def close(self, timeout: float = 5.0) -> None:
        """Wait until every row is committed, then end the background thread.

        Raises:
            ServerUnreachable: Rows are still unacknowledged after `timeout` seconds. Where the
                server has said why, it is that error, for example `StoreFull`.
            RobotRLError: What the thread had failed of.
            In any case the thread has ended, and rows in a file stay there.
        """
        if self._closed:
            return
        self._closed = True
        try:
            if not self._wait_for(self._is_empty, timeout):
                raise self._not_committed(timeout)
        finally:
            self._link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _is_empty(self) -> bool:
        return self._spool.first == self._spool.end

    def _wait_for(self, done: Callable[[], bool], timeout: float) -> bool:
        """Wait until something is so, or closing or time ends that; return whether it is."""
        link = self._link
        with link.condition:
            if not done():
                link.wake()
            link.condition.wait_for(lambda: done() or link.failure or link.closing, timeout)
            link.check()
            return done()

    def _not_committed(self, seconds: float) -> RobotRLError:
        problem, spool = self._link.problem, self._spool
        kind = ServerUnreachable if problem is None else type(problem)
        return kind(
            f"{spool.end - spool.first} rows are not acknowledged after {seconds:g} s",
            got=problem,
            hint=f"they are kept in {spool.place} and sent again; see that the replay server runs",
        )

    def _pack(self, row: Row) -> tuple[bytes, RowFacts]:
        if self._schema is None or self._flags is None:
            raise ReplayError("no session is open", hint="call open_session first")
        packed = self._schema.pack(row)
        return packed, self._flags.read(packed)

    def _push(self, row: bytes, facts: RowFacts, metadata: bytes) -> int:
        check_order(facts, begins=not self._in_episode, ended=self._ended)
        if metadata and self._in_episode:
            raise RowRefused("episode metadata belongs to the first row of an episode")
        link, spool = self._link, self._spool
        with link.condition:
            link.check()
            if not spool.has_room(1, begins=bool(metadata)):
                raise SpoolFull(
                    "the replay client holds as many unacknowledged rows as it may",
                    got=f"{spool.end - spool.first} rows in {spool.place}; {link.problem or ''}",
                    hint="wait until has_room(rows of an episode) before an episode begins",
                )
            # The link looks for rows by itself: waking it would take a system call.
            sequence = spool.push(row, metadata)
        self._in_episode, self._ended = not facts.is_last, facts.ended
        return sequence


def _facts(metadata: Mapping[str, object] | None) -> Facts:
    facts: Facts = msgspec.json.decode(json_text(metadata or {}))
    return facts
