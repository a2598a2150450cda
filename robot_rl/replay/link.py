"""The client's background thread: one socket, credit window, go-back after any break."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import zmq

from robot_rl.errors import RobotRLError
from robot_rl.replay import (
    ReplayError,
    SequenceGap,
    SessionTaken,
    StoreError,
    StoreReplaced,
    error_from_wire,
    protocol,
)
from robot_rl.replay.spool import Spool
from robot_rl.wire import KeysRefused, ServerUnreachable, WireError
from robot_rl.wire.endpoint import Connection, why_refused
from robot_rl.wire.keys import ClientKeys
from robot_rl.wire.messages import PIECE_BYTES, Decoder, Frame, Numbered, Payload, Refused, encode

RESYNC = 0  # request number of the link's own OPEN; callers' requests count from 1
MAXIMUM_PATIENCE_SECONDS = 4.0
IDLE_SECONDS = 0.1
ACTIVE_SECONDS = 1.0  # longer than the period of any control loop
# How often the link looks for new rows while they come. Callers do not wake it for a row, as that
# would take a system call in the control loop.
LOOK_SECONDS = 0.005
SPOOL_LOOK_SECONDS = 1.0  # whether the spool is in its place
CREDIT_ROWS = 512  # on their way without acknowledgement, unless their bytes are more than
CREDIT_BYTES = 32 << 20
BATCH_BYTES = PIECE_BYTES - 1  # in one message, unless a single row is larger
_RETRIED = (StoreError, SequenceGap)


@dataclass
class Request:
    """One question to the server."""

    message: Numbered  # without the request number, which the link adds
    payload: Sequence[Frame] = ()
    wait: float = 0.0  # seconds that the answer may take while the connection stands
    answer: Future[tuple[Numbered, Payload]] = field(default_factory=Future)
    sent_at: float | None = None  # steady time


class Link:
    """Sends rows and requests to the server, which may go away and come back, and takes answers.

    The arguments are those of `ReplayClient`, with the spool and the keys opened. The `condition`
    guards what callers and thread share, and is notified of every change that a caller may wait
    for.
    """

    def __init__(
        self,
        address: str | Path,
        spool: Spool,
        keys: ClientKeys | None,
        batch_rows: int,
        resend_seconds: float,
    ) -> None:
        self._address, self._keys = address, keys
        self._batch_rows, self._resend_seconds = batch_rows, resend_seconds
        self.condition = threading.Condition()
        self.spool = spool
        self.failure: RobotRLError | None = None  # what ended the thread
        self.problem: RobotRLError | None = None  # why rows are not getting through at the moment
        self.closing = False
        self._requests: dict[int, Request] = {}
        self._numbers = itertools.count(RESYNC + 1)
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._decoder = Decoder(*protocol.ANSWERS)
        self._connection: Connection | None = None
        self._sent = self._end_seen = 0
        self._synced = False
        self._resync_sent_at: float | None = None
        self._pause_until = self._heard_at = self._connected_at = 0.0
        self._patience = resend_seconds
        self._rows_at = -float("inf")
        self._thread = threading.Thread(target=self._run, name="replay-link", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """End the thread's wait. Call with the condition held."""
        if not self.closing:
            os.eventfd_write(self._wake, 1)

    def ask(self, request: Request, seconds: float) -> tuple[Numbered, Payload]:
        """Wait so long for the answer of the server; raises what `ReplayClient.ask` raises."""
        with self.condition:
            self.check()
            if self.closing:
                raise _closed()
            if isinstance(self.problem, KeysRefused):
                raise KeysRefused(str(self.problem))
            number = next(self._numbers)
            self._requests[number] = request
            self.wake()
        try:
            return request.answer.result(seconds)
        except TimeoutError as error:
            raise ServerUnreachable(
                f"the replay server did not answer within {seconds:g} s",
                got=self.problem,
                hint="see that the replay server runs",
            ) from error
        finally:
            with self.condition:
                self._requests.pop(number, None)

    def check(self) -> None:
        """Raise what ended the thread. Call with the condition held."""
        if self.failure is not None:
            # A new one each time: an error that is raised again keeps the frames of every time.
            raise type(self.failure)(str(self.failure)) from self.failure

    def close(self) -> None:
        """End the thread and close the spool; raises what `Spool.close` raises."""
        with self.condition:
            self.wake()
            self.closing = True
            self._refuse(_closed())
            self.condition.notify_all()
        self._thread.join()
        os.close(self._wake)
        self.spool.close()

    def _run(self) -> None:
        try:
            self._connect()
            looked_at = time.monotonic()
            while not self.closing:
                self._wait()
                if time.monotonic() > looked_at + SPOOL_LOOK_SECONDS:
                    self.spool.check_in_place()
                    looked_at = time.monotonic()
                self._look_at_connection()
                if self._connection is not None:
                    self._receive(self._connection)
                    self._send_requests(self._connection)
                    self._send_rows(self._connection)
                if self._is_overdue(time.monotonic()):
                    self._note(self.problem or _silent(self._patience))
                    self._patience = min(2 * self._patience, MAXIMUM_PATIENCE_SECONDS)
                    self._connect()
        except BaseException as failure:
            with self.condition:
                self.failure = self._explained(failure)
                self._refuse(self.failure)
                self.condition.notify_all()
        finally:
            self._disconnect()

    def _explained(self, failure: BaseException) -> RobotRLError:
        """Add to the server's answer where the rows are that it does not take."""
        if not isinstance(failure, RobotRLError):
            died = ReplayError("the replay client's thread has died", got=repr(failure))
            died.__cause__ = failure
            return died
        spool, rows = self.spool, self.spool.end - self.spool.first
        if spool.left is not None and rows:
            failure.args = (
                f"{failure}; {rows} rows of an earlier process stay"
                f" in {spool.place}; next: serve the store that they are for, or, to go on"
                " without them, move the file away",
            )
        return failure

    def _connect(self) -> None:
        """Open a fresh socket; everything unanswered will be sent again."""
        self._disconnect()
        self._connected_at = time.monotonic()
        self._synced, self._resync_sent_at = False, None
        with self.condition:
            for request in self._requests.values():
                request.sent_at = None
        try:
            self._connection = Connection(self._address, self._keys, self._poller)
        except ServerUnreachable as problem:
            self._note(problem)

    def _disconnect(self) -> None:
        """End the connection; afterwards nothing looks at what was on its way."""
        if self._connection is not None:
            self._connection.close()
        self._connection, self._up = None, False
        self._poller = zmq.Poller()
        self._poller.register(self._wake, zmq.POLLIN)

    def _wait(self) -> None:
        """Wait a while for an answer, a wake-up or rows, which come without one."""
        now = time.monotonic()
        if self.spool.end != self._end_seen:
            self._end_seen, self._rows_at = self.spool.end, now
        active = now < self._rows_at + ACTIVE_SECONDS
        pause = LOOK_SECONDS if active else min(self._resend_seconds / 2, IDLE_SECONDS)
        if self._wake in dict(self._poller.poll(round(1000 * pause))):
            os.eventfd_read(self._wake)

    def _look_at_connection(self) -> None:
        """Note why there is none, and go back at once where it broke."""
        while self._connection is not None and (told := self._connection.event()):
            if told["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._up = True
                self._note_reached()
            elif told["event"] != zmq.EVENT_DISCONNECTED:
                refused = why_refused(told["event"], told["value"], keys=self._keys is not None)
                if refused is not None:
                    self._note(refused)
                if isinstance(refused, KeysRefused):
                    self._disconnect()  # until it is time to try again
            elif self._up:
                self._connect()

    def _receive(self, connection: Connection) -> None:
        while frames := connection.receive():
            self._heard_at = time.monotonic()
            message, payload = self._decoder.decode(frames)
            self._note_reached()
            if isinstance(message, Refused):
                self._on_refused(message)
            elif isinstance(message, protocol.Acknowledged):
                if self.spool.opened is not None and message.place == self.spool.opened.place:
                    self._acknowledge(message.next)
            elif message.request == RESYNC:
                self._on_resync(message)
            else:
                self._settle(message.request, (message, payload))

    def _acknowledge(self, following: int) -> None:
        with self.condition:
            spool = self.spool
            if following > spool.end:
                raise SessionTaken(
                    "the server has rows of this session that this client never sent",
                    got=following,
                    expected=f"<= {spool.end}",
                )
            if spool.acknowledge(following):
                self._patience = self._resend_seconds
                self.problem = None
                self.condition.notify_all()
            self._sent = max(self._sent, spool.first)

    def _settle(self, number: int | None, answer: tuple[Numbered, Payload] | RobotRLError) -> None:
        """Hand a request its answer, unless nobody waits for it any more."""
        with self.condition:
            request = self._requests.get(number or RESYNC)
            if request is None:
                return
            if isinstance(answer, RobotRLError):
                request.answer.set_exception(answer)
            else:
                if isinstance(answer[0], protocol.Opened):  # the session is now the current one
                    assert isinstance(request.message, protocol.Open)
                    self.spool.begin(request.message, answer[0])
                    self._sent, self._synced = answer[0].next_sequence, True
                    self._resync_sent_at = None
                request.answer.set_result(answer)
            del self._requests[number or RESYNC]

    def _refuse(self, error: RobotRLError) -> None:
        """Let all requests fail. Call with the condition held."""
        for number in list(self._requests):
            self._settle(number, error)

    def _on_resync(self, message: protocol.Opened) -> None:
        following, session = message.next_sequence, self.spool.opened
        if session is None or message.owner != session.owner:
            return  # about the session before, which was the current one when this was asked
        if message.place != session.place:
            raise StoreError(
                "the server keeps the session under another key: it serves another store",
                hint="start the server on the store that it served before",
            )
        if following < self.spool.first:
            raise StoreError(
                "the server lacks rows that it had acknowledged: it serves an older copy of the"
                " store",
                got=following,
                expected=f">= {self.spool.first}",
                hint="start the server on the store that it served before",
            )
        if session is self.spool.left:
            # Nothing is added to it any more. After a power cut the spool may be older than the
            # store: what the spool does not know is stored like all that it still holds.
            following = min(following, self.spool.end)
        self._acknowledge(following)
        self._sent, self._synced, self._resync_sent_at = following, True, None

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
        self._pause_until = time.monotonic() + self._resend_seconds
        self._synced, self._resync_sent_at = False, None

    def _note(self, problem: RobotRLError | None) -> None:
        with self.condition:
            self.problem = problem
            if isinstance(problem, KeysRefused):
                self._refuse(problem)
            self.condition.notify_all()

    def _note_reached(self) -> None:
        if isinstance(self.problem, ServerUnreachable):
            self._note(None)

    def _send_requests(self, connection: Connection) -> None:
        with self.condition:
            waiting = [(n, r) for n, r in self._requests.items() if r.sent_at is None]
        for number, request in waiting:
            request.sent_at = time.monotonic()
            message = msgspec.structs.replace(request.message, request=number)
            try:
                connection.send(encode(message, request.payload))
            except WireError as error:  # it is too large to be sent to anybody
                self._settle(number, error)

    def _send_rows(self, connection: Connection) -> None:
        opening, opened, now = self.spool.opening, self.spool.opened, time.monotonic()
        if opening is None or opened is None or now < self._pause_until:
            return
        if self._synced:
            while self._sent_batch(connection, opened):
                pass
        elif self._resync_sent_at is None:
            self._resync_sent_at = now
            again = msgspec.structs.replace(
                opening, request=RESYNC, session=opened.session, store=opened.store
            )
            connection.send(encode(again))

    def _sent_batch(self, connection: Connection, session: protocol.Opened) -> bool:
        spool = self.spool
        with self.condition:
            on_their_way = self._sent - spool.first
            if on_their_way >= CREDIT_ROWS or on_their_way * spool.row_bytes >= CREDIT_BYTES:
                return False
            rows, frames, episodes = spool.rows_from(self._sent, self._batch_rows, BATCH_BYTES)
        if not rows:
            return False
        if on_their_way == 0:
            self._heard_at = time.monotonic()
        # Of a row that is not acknowledged only one message is on its way at a time, so that its
        # place in the spool, which is not copied, is not used anew before it is sent.
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
        with self.condition:
            # Only a server that is there holds answers back.
            waits = [r.sent_at + self._up * r.wait for r in self._requests.values() if r.sent_at]
            if self._synced and self._sent > self.spool.first:
                waits.append(self._heard_at)
        return now > min(waits, default=now) + self._patience


def _silent(seconds: float) -> ServerUnreachable:
    return ServerUnreachable("the replay server does not answer", got=f"nothing in {seconds:g} s")


def _closed() -> ServerUnreachable:
    return ServerUnreachable("the replay client was closed before the answer came")
