"""The client's background thread: one socket, credit window, go-back after any break."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from robot_rl.errors import RobotRLError
from robot_rl.replay import messages
from robot_rl.replay.errors import (
    SequenceGap,
    SessionTaken,
    StoreError,
    StoreReplaced,
    error_from_wire,
)
from robot_rl.replay.outbox import Outbox
from robot_rl.replay.sessions import OpenSession
from robot_rl.wire.connection import Connection
from robot_rl.wire.endpoint import Endpoint, read_endpoint
from robot_rl.wire.errors import KeysRefused, ServerUnreachable, WireError
from robot_rl.wire.keys import ClientKeys
from robot_rl.wire.messages import Decoder, Message, Numbered, Payload, Refused, encode

RESYNC = 0  # request number of the link's own OPEN; callers' requests count from 1
MAXIMUM_PATIENCE_SECONDS = 4.0
IDLE_SECONDS = 0.1
ACTIVE_SECONDS = 1.0  # longer than the period of any control loop
_DOUBT_SILENCES = 10
_RETRIED = (StoreError, SequenceGap)
_SILENCE = ServerUnreachable("the replay server does not answer")


@dataclass(frozen=True)
class LinkOptions:
    """How the link sends.

    Attributes:
        credit_rows: Most rows on their way without acknowledgement.
        credit_bytes: Most bytes of them.
        batch_rows: Most rows in one message.
        batch_bytes: Most bytes in one message, unless a single row is larger.
        resend_seconds: Silence after which the link connects anew and goes back.
        poll_seconds: How often the link looks for new rows while they come. Callers do not wake
            it for a row, as that would take a system call in the control loop.
    """

    credit_rows: int = 512
    credit_bytes: int = 32 << 20
    batch_rows: int = 16
    batch_bytes: int = 2 << 20
    resend_seconds: float = 0.5
    poll_seconds: float = 0.005


class Link:
    """Moves rows and requests from an outbox to the server and answers back.

    Args:
        address: ``tcp://HOST:PORT``, or the store's folder, whose server is looked up at every
            connection.
        outbox: Shared with the callers.
        options: How to send.
        keys: With them the connection is authenticated and encrypted.
    """

    def __init__(
        self,
        address: str | Path,
        outbox: Outbox,
        options: LinkOptions,
        keys: ClientKeys | None = None,
    ) -> None:
        """Start the thread; see the class."""
        self._address, self._outbox, self._options = address, outbox, options
        doubt = _DOUBT_SILENCES * options.resend_seconds
        self._connection = Connection(self._find_server, outbox.wake_read, keys, doubt)
        self._decoder = Decoder(*messages.ANSWERS)
        self._left_over = outbox.session
        self._sent = 0
        self._synced = False
        self._resync_sent_at: float | None = None
        self._pause_until = 0.0
        self._heard_at = 0.0
        self._connected_at = 0.0
        self._patience = options.resend_seconds
        self._end_seen = 0
        self._rows_at = -float("inf")
        self._thread = threading.Thread(target=self._run, name="replay-link", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait until the thread has ended."""
        self._thread.join()

    def _run(self) -> None:
        try:
            self._connect()
            while not self._outbox.closing:
                self._wait()
                self._look_at_connection()
                self._receive()
                self._send_requests()
                self._send_rows()
                if self._is_overdue(time.monotonic()):
                    if self._outbox.problem is None:
                        self._note(_SILENCE)
                    self._patience = min(2 * self._patience, MAXIMUM_PATIENCE_SECONDS)
                    self._connect()
        except BaseException as failure:
            self._outbox.fail(failure)
        finally:
            self._connection.close()

    def _connect(self) -> None:
        """Open a fresh socket; everything unanswered will be sent again."""
        self._connected_at = time.monotonic()
        self._send_again()
        try:
            self._connection.connect()
        except ServerUnreachable as problem:
            self._note(problem)

    def _find_server(self) -> Endpoint:
        if isinstance(self._address, Path):
            return read_endpoint(self._address)
        return Endpoint(self._address, pid=0)

    def _send_again(self) -> None:
        """Take nothing that is unanswered for being on its way."""
        self._synced, self._resync_sent_at = False, None
        with self._outbox.condition:
            for request in self._outbox.requests.values():
                request.sent_at = None

    def _look_at_connection(self) -> None:
        """Note refused keys, and go back at once where the server has come back."""
        while (found := self._connection.look(time.monotonic())) is not None:
            if isinstance(found, KeysRefused):
                self._note(found)
                self._connection.close()  # until it is time to try again
                return
            if isinstance(self._outbox.problem, KeysRefused):
                self._note(None)
            if found:
                self._connect()

    def _wait(self) -> None:
        """Wait a while for an answer, a wake-up or rows, which come without one."""
        until = time.monotonic() + min(self._options.resend_seconds / 2, IDLE_SECONDS)
        while True:
            now = time.monotonic()
            pause = max(until - now, 0.0)
            if now < self._rows_at + ACTIVE_SECONDS:
                pause = min(pause, self._options.poll_seconds)
            if self._connection.poll(pause) or self._rows_have_come() or now >= until:
                break
        self._outbox.clear_wake()

    def _rows_have_come(self) -> bool:
        end = self._outbox.spool.end
        if end == self._end_seen:
            return False
        self._end_seen, self._rows_at = end, time.monotonic()
        return True

    def _receive(self) -> None:
        while (frames := self._connection.receive()) is not None:
            self._heard_at = time.monotonic()
            message, payload = self._decoder.decode(frames)
            if isinstance(self._outbox.problem, ServerUnreachable):
                self._outbox.problem = None
            session = self._outbox.session
            if isinstance(message, Refused):
                self._on_refused(message)
            elif not isinstance(message, messages.Acknowledged):
                self._on_answer(message, payload)
            elif session is not None and _is_about(message, session):
                self._acknowledge(message.next)

    def _acknowledge(self, following: int) -> None:
        with self._outbox.condition:
            spool = self._outbox.spool
            if following > spool.end:
                raise SessionTaken(
                    "the server has rows of this session that this client never sent",
                    got=following,
                    expected=f"<= {spool.end}",
                )
            if spool.acknowledge(following):
                self._patience = self._options.resend_seconds
                self._outbox.problem = None
                self._outbox.condition.notify_all()
            self._sent = max(self._sent, spool.first)

    def _on_answer(self, message: Numbered, payload: Payload) -> None:
        if message.request == RESYNC and isinstance(message, messages.Opened):
            self._on_resync(message)
            return
        self._settle(message.request or 0, (message, payload))

    def _settle(self, number: int, answer: tuple[Numbered, Payload] | RobotRLError) -> None:
        """Hand a request its answer, unless nobody waits for it any more."""
        with self._outbox.condition:
            request = self._outbox.requests.pop(number, None)
            if request is not None:
                request.answer = answer
                if not isinstance(answer, RobotRLError) and isinstance(answer[0], messages.Opened):
                    self._adopt(answer[0], request.message)
                self._outbox.condition.notify_all()

    def _adopt(self, message: messages.Opened, opening: Message) -> None:
        """Make a session that a caller has opened the current one."""
        session = OpenSession(
            message.table,
            message.actor,
            message.session,
            message.owner,
            message.next,
            message.in_episode,
            message.ended,
            msgspec.structs.asdict(opening),
            message.store,
        )
        self._outbox.spool.begin(session)
        self._outbox.session = session
        self._sent = session.next_sequence
        self._synced, self._resync_sent_at = True, None

    def _on_resync(self, message: messages.Opened) -> None:
        following, session = message.next, self._outbox.session
        if session is None or message.owner != session.owner:
            return  # about the session before, which was the current one when this was asked
        if not _is_about(message, session):
            raise StoreError(
                "the server keeps the session under another key: it serves another store",
                hint="start the server on the store that it served before",
            )
        if following < self._outbox.spool.first:
            raise StoreError(
                "the server lacks rows that it had acknowledged: it serves an older copy of the"
                " store",
                got=following,
                expected=f">= {self._outbox.spool.first}",
                hint="start the server on the store that it served before",
            )
        if session is self._left_over:
            # Nothing is added to it any more. After a power cut the spool may be older than the
            # store: what the spool does not know is stored like all that it still holds.
            following = min(following, self._outbox.spool.end)
        self._acknowledge(following)
        self._sent = following
        self._synced, self._resync_sent_at = True, None

    def _on_refused(self, message: Refused) -> None:
        error = error_from_wire(message.error, message.message)
        if message.request is not None and message.request != RESYNC:
            self._settle(message.request, error)
            return
        if not isinstance(error, _RETRIED) or isinstance(error, StoreReplaced):
            raise error
        # The rows stay here; after a pause the link asks where the session stands and goes back.
        if isinstance(error, StoreError):
            self._note(error)
        self._pause_until = time.monotonic() + self._options.resend_seconds
        self._synced, self._resync_sent_at = False, None

    def _note(self, problem: RobotRLError | None) -> None:
        with self._outbox.condition:
            self._outbox.problem = problem
            self._outbox.condition.notify_all()

    def _send_requests(self) -> None:
        if not self._connection.open:
            return
        with self._outbox.condition:
            waiting = [(n, r) for n, r in self._outbox.requests.items() if r.sent_at is None]
        for number, request in waiting:
            request.sent_at = time.monotonic()
            message = msgspec.structs.replace(request.message, request=number)
            try:
                self._connection.send(encode(message, request.payload))
            except WireError as error:  # it is too large to be sent to anybody
                self._settle(number, error)

    def _send_rows(self) -> None:
        session, now = self._outbox.session, time.monotonic()
        if session is None or not self._connection.open or now < self._pause_until:
            return
        if not self._synced:
            if self._resync_sent_at is None:
                self._resync_sent_at = now
                opening = msgspec.convert(session.header, messages.Open)
                again = msgspec.structs.replace(
                    opening, request=RESYNC, session=session.number, store=session.store or None
                )
                self._connection.send(encode(again))
            return
        while self._sent_batch(session):
            pass

    def _sent_batch(self, session: OpenSession) -> bool:
        options, spool = self._options, self._outbox.spool
        with self._outbox.condition:
            on_their_way = self._sent - spool.first
            count = min(options.batch_rows, options.credit_rows - on_their_way)
            rows = spool.rows_from(self._sent, count, options.batch_bytes) if count > 0 else []
        if not rows or on_their_way * rows[0].row_bytes >= options.credit_bytes:
            return False
        if on_their_way == 0:
            self._heard_at = time.monotonic()
        # Of a row that is not acknowledged only one message is on its way at a time, so that its
        # place in the spool, which is not copied, is not used anew before it is sent.
        self._connection.send(messages.encode_rows(session, self._sent, rows))
        self._sent += sum(stretch.rows for stretch in rows)
        return True

    def _is_overdue(self, now: float) -> bool:
        """Return whether an answer should have come by now."""
        if not self._connection.open:
            return now > self._connected_at + self._patience
        if self._resync_sent_at is not None:
            return now > self._resync_sent_at + self._patience
        held_back = self._connection.up  # only a server that is there holds answers back
        with self._outbox.condition:
            if any(
                r.sent_at is not None and now > r.sent_at + held_back * r.wait + self._patience
                for r in self._outbox.requests.values()
            ):
                return True
            outstanding = self._synced and self._sent > self._outbox.spool.first
        return outstanding and now > self._heard_at + self._patience


def _is_about(message: messages.Acknowledged | messages.Opened, session: OpenSession) -> bool:
    return message.place == (session.table, session.actor, session.number)
