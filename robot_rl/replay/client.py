"""The client of the replay server, for actors, learners and tools.

`ReplayClient.append` packs and checks a row in the caller's thread, puts it into the spool and
returns, without a system call; a background thread sends it, and it stays in the spool until the
server has committed it.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self, TypeVar

import msgspec

from robot_rl.data.schema import Array, Row, RowSchema
from robot_rl.errors import RobotRLError
from robot_rl.replay import messages
from robot_rl.replay.errors import ReplayError, RowRefused, SpoolFull, StoreFull
from robot_rl.replay.link import Link, LinkOptions
from robot_rl.replay.outbox import Outbox, Request
from robot_rl.replay.records import RowFacts, WeightsRecord
from robot_rl.replay.sessions import OpenSession, RowFlags, check_order
from robot_rl.replay.spool import Spool, metadata_bytes
from robot_rl.wire.endpoint import check_protected
from robot_rl.wire.errors import ServerUnreachable
from robot_rl.wire.keys import ClientKeys
from robot_rl.wire.messages import (
    Facts,
    Frame,
    Numbered,
    Payload,
    json_text,
    split,
)

LONG_POLL_SECONDS = 2.0
LARGE_SECONDS = 30.0  # that weights may be on their way over a connection that stands
_Answer = TypeVar("_Answer", bound=Numbered)


class ReplayClient:
    """Appends rows to one session at a time, and moves weights.

    Calls may come from one thread at a time, but for `close`, which also ends a wait of another
    thread for an answer. A failure of the background thread is raised by the next call.

    Args:
        address: ``tcp://HOST:PORT``, or the folder of the store, whose server is then found by its
            ``endpoint.json`` again and again.
        keys: Folder with the client's keys, see `robot_rl.wire.keys`; without them only a
            server on this machine can be reached.
        spool_bytes: Room for unacknowledged rows; the size of the file.
        spool_path: File in which the unacknowledged rows wait, so that they outlive this process.
            Those that an earlier one left in it are sent before anything else. None: in memory.
        request_seconds: How long a request may stay unanswered before it raises; one for weights
            30 s longer, which they may be on their way.
        options: Batch size, credit window and resend time of the background thread.

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
        options: LinkOptions | None = None,
    ) -> None:
        """Start the background thread; the server need not be there yet."""
        self._request_seconds = request_seconds
        if isinstance(address, str):
            check_protected(address, keys=keys is not None)
        own = None if keys is None else ClientKeys.load(keys)
        self._outbox = Outbox(Spool(spool_path, spool_bytes))
        self._link = Link(address, self._outbox, options or LinkOptions(), own)
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
    ) -> OpenSession:
        """Begin a session in a table, which is created where absent.

        Rows of the session before, also of an earlier process, are sent first.

        Args:
            table: Name of the table.
            schema: What its rows look like.
            actor: Number of this writer.
            session: Number of the session; None takes the actor's next one. Later sessions of
                an actor have larger numbers.
            owner: Token of a session that is to go on, as `OpenSession.owner` gave it.
            metadata: Facts about the recording, kept when the table is created.

        Raises:
            SchemaMismatch: The table has another schema; names the field.
            SessionTaken: The session was begun by another writer.
            StoreReplaced: Another store has taken the place of the one that this client, or an
                earlier process with its spool, has written to.
            StoreFull: The store has no room for rows of the session before.
            ServerUnreachable: No answer, or rows of the session before are unacknowledged.
        """
        flags = RowFlags.of(schema)
        self._drain(self._request_seconds)
        before = self._outbox.session
        opening = messages.Open(
            table=table,
            schema=schema.to_json(),
            actor=actor,
            session=session,
            owner=owner or secrets.token_hex(16),
            metadata=_facts(metadata),
            store=before.store or None if before else None,
        )
        self.ask(opening, messages.Opened)
        self._schema, self._flags = schema, flags
        opened = self._outbox.session
        assert opened is not None
        self._in_episode, self._ended = opened.in_episode, opened.ended
        return opened

    def append(self, row: Row, episode: Mapping[str, object] | None = None) -> int:
        """Queue one row; it is checked here, and sent and acknowledged in the background.

        Args:
            row: All fields of the schema.
            episode: With the first row of an episode: its ``task``, ``seed``, ``instruction``.

        Returns:
            The row's sequence in the session.

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
    ) -> int:
        """Queue a whole episode (T + 1 rows), waiting for room; nothing is queued if a row is bad.

        Returns:
            The sequence of its first row.

        Raises:
            SchemaMismatch: A row has a wrong field, shape, dtype or value.
            RowRefused: The rows are not one episode, or another one is open.
            SpoolFull: No room came within `timeout` seconds.
        """
        packed = [self._pack(row) for row in rows]
        closing = [facts.is_last for _, facts in packed]
        if self._in_episode or not any(closing) or closing.index(True) != len(rows) - 1:
            raise RowRefused(
                "these rows are not one whole episode",
                got=f"{len(rows)} rows, {sum(closing)} with is_last",
                expected="exactly the last row has is_last, and no other episode is open",
            )
        metadata = metadata_bytes(episode)
        first = 0
        for index, (parts, facts) in enumerate(packed):
            text = metadata if index == 0 else b""
            self._wait_for_room(bool(text), timeout)
            sequence = self._push(parts, facts, text)
            first = sequence if index == 0 else first
        return first

    def has_room(self, rows: int) -> bool:
        """Return whether so many more rows of one episode can be appended without waiting."""
        with self._outbox.condition:
            self._outbox.check()
            return self._outbox.spool.has_room(rows, begins=True)

    @property
    def unacknowledged(self) -> int:
        """Rows that the server has not committed yet."""
        with self._outbox.condition:
            self._outbox.check()
            return self._outbox.spool.end - self._outbox.spool.first

    @property
    def problem(self) -> RobotRLError | None:
        """Why rows are not getting through at the moment, for example `StoreFull`."""
        with self._outbox.condition:
            self._outbox.check()
            return self._outbox.problem

    def flush(self, timeout: float = 30.0) -> None:
        """Wait until every row is committed.

        Raises:
            StoreFull: The store has no room; the rows are still here.
            ServerUnreachable: Not done within `timeout` seconds; the rows are still here.
        """
        spool = self._outbox.spool
        if not self._outbox.wait_for(lambda: spool.first == spool.end, timeout):
            with self._outbox.condition:
                problem = self._outbox.problem
                kind = ServerUnreachable if problem is None else type(problem)
                raise kind(
                    f"{spool.end - spool.first} rows are not acknowledged after {timeout:g} s",
                    got=problem,
                    hint=f"they are kept in {spool.place} and sent again; see that the replay"
                    " server runs",
                ) from problem

    def put_weights(
        self, name: str, version: int, tensors: bytes, metadata: Mapping[str, object] | None = None
    ) -> None:
        """Publish weights: a safetensors file as bytes, durable when this returns.

        Raises:
            WeightsRefused: The version is not newer than the stored one.
            StoreFull: They do not fit.
            ServerUnreachable: No answer.
        """
        weights = messages.PutWeights(name=name, version=version, metadata=_facts(metadata))
        self.ask(weights, messages.Stored, split(tensors), held_back=LARGE_SECONDS)

    def get_weights(
        self, name: str, newer_than: int | None = None, wait_seconds: float = 0.0
    ) -> WeightsRecord | None:
        """Return the latest weights, or None where there are none newer than `newer_than`.

        Args:
            name: Whose weights.
            newer_than: Version that the caller has.
            wait_seconds: How long to wait for newer ones.

        Raises:
            ServerUnreachable: No answer.
        """
        deadline = time.monotonic() + wait_seconds
        while True:
            wait = min(max(deadline - time.monotonic(), 0.0), LONG_POLL_SECONDS)
            question = messages.GetWeights(name=name, newer_than=newer_than, wait=wait)
            answer, tensors = self.ask(question, messages.Weights, held_back=wait + LARGE_SECONDS)
            if answer.version is not None:
                return WeightsRecord(name, answer.version, b"".join(tensors), answer.metadata)
            if time.monotonic() >= deadline:
                return None

    def annotate(self, table: str, name: str, version: int, keys: Array, values: Array) -> int:
        """Store values beside rows, durably, and return how many were new; the same are accepted.

        Args:
            table: Name of the table.
            name: Of the annotation; its first use declares dtype and shape in this table.
            version: Of the model that made the values; readers use the newest.
            keys: Shape (n,), of stored rows, from `row_keys(episode)`.
            values: Shape (n, *shape), booleans, integers or floats.

        Raises:
            ReplayError: A row is absent, or the version or name is stored otherwise; no answer.
        """
        requests = messages.annotate_requests(table, name, version, keys, values)
        return sum(
            self.ask(question, messages.Stored, frames)[0].new for question, frames in requests
        )

    def statistics(self) -> dict[str, object]:
        """Return the server's counters and the totals of its tables.

        Raises:
            ServerUnreachable: No answer.
        """
        return self.ask(messages.GetStatistics(), messages.Statistics)[0].statistics

    def ask(
        self,
        question: Numbered,
        expected: type[_Answer],
        payload: Sequence[Frame] = (),
        *,
        held_back: float = 0.0,
        timeout: float | None = None,
    ) -> tuple[_Answer, Payload]:
        """Send a request and return its answer; it is sent again until there is one.

        Args:
            question: What is asked, without a number.
            expected: Kind of the answer.
            payload: What goes with it.
            held_back: How long a server that is there may take, seconds.
            timeout: When to give up, seconds; by default `request_seconds` later than that.

        Raises:
            ServerUnreachable: No answer.
            RobotRLError: What the server answered.
        """
        patience = held_back + self._request_seconds if timeout is None else timeout
        return self._outbox.ask(Request(question, payload, held_back), expected, patience)

    def close(self, timeout: float = 5.0) -> None:
        """Flush, then end the background thread.

        Raises:
            ReplayError: Rows were still unacknowledged after `timeout` seconds, or the thread
                had failed. The thread has ended all the same. Rows in a file stay there.
        """
        if self._closed:
            return
        self._closed = True
        try:
            self.flush(timeout)
        finally:
            with self._outbox.condition:
                self._outbox.finish()
            self._link.join()
            self._outbox.release()

    def __enter__(self) -> Self:
        """Return the client."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close the client."""
        self.close()

    def _drain(self, patience: float) -> None:
        """Wait until every row is committed, as long as rows get through."""
        while True:
            before = self._outbox.spool.first
            try:
                return self.flush(patience)
            except (ServerUnreachable, StoreFull):
                if self._outbox.spool.first == before:
                    raise

    def _pack(self, row: Row) -> tuple[list[Frame], RowFacts]:
        """Check a row; large arrays are copied later, once, into the spool."""
        if self._schema is None or self._flags is None:
            raise ReplayError("no session is open", hint="call open_session first")
        parts = self._schema.pack_parts(row)
        begin = parts[0] if self._flags.end <= len(parts[0]) else b"".join(parts)
        return parts, self._flags.read(begin)

    def _push(self, parts: list[Frame], facts: RowFacts, metadata: bytes) -> int:
        check_order(facts, begins=not self._in_episode, ended=self._ended)
        if metadata and self._in_episode:
            raise RowRefused("episode metadata belongs to the first row of an episode")
        outbox = self._outbox
        with outbox.condition:
            outbox.check()
            spool = outbox.spool
            if not spool.has_room(1, begins=bool(metadata)):
                raise SpoolFull(
                    "the replay client holds as many unacknowledged rows as it may",
                    got=f"{spool.end - spool.first} rows in {spool.place}; {outbox.problem or ''}",
                    hint="wait until has_room(rows of an episode) before an episode begins",
                )
            # The link looks for rows by itself: waking it would take a system call.
            sequence = spool.push(parts, metadata)
        self._in_episode, self._ended = not facts.is_last, facts.ended
        return sequence

    def _wait_for_room(self, begins: bool, timeout: float) -> bool:
        return self._outbox.wait_for(lambda: self._outbox.spool.has_room(1, begins=begins), timeout)


def _facts(metadata: Mapping[str, object] | None) -> Facts:
    """Return what the server will read of metadata.

    Raises:
        WireError: They cannot be sent.
    """
    facts: Facts = msgspec.json.decode(json_text(metadata or {}))
    return facts
