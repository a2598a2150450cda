"""The control loop's end of the console: operator input comes in, snapshots go out.

The loop only swaps a reference. A thread beside it listens on loopback, passes what operators say
to the loop's inbox, and sends the newest snapshot to each console that has asked within the last
seconds; while there is none it sleeps.

    console → loop   secret, kind, JSON with "at"   hello | event {"id", "event"}
                                                    | jog {"id", "motion", "gripper"}
    loop → console   kind, frames                   snapshot … | alive | taken {"id"}
                                                    | refused {"id", "problem"}
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import threading
import time
from typing import Any

import zmq

from robot_rl.console.endpoint import ConsoleError, LoopEndpoint, endpoint_file, write_endpoint
from robot_rl.console.snapshot import Snapshot
from robot_rl.env.operator import JOG_TIMEOUT_S, OperatorEvent, OperatorInbox
from robot_rl.errors import RobotRLError
from robot_rl.run import RunDirectory

Frame = bytes | memoryview

HELLO, EVENT, JOG = b"hello", b"event", b"jog"
SNAPSHOT, ALIVE, TAKEN, REFUSED = b"snapshot", b"alive", b"taken", b"refused"
# An event that is older when the loop gets it is not what the operator wants now [s].
MOST_EVENT_AGE_SECONDS = 2.0
# A console that has not said hello for so long is closed [s].
LEASE_SECONDS = 2.0
MOST_SNAPSHOTS_HZ = 15.0
# Without anything new the console hears so often that the loop's process lives [s].
ALIVE_SECONDS = 0.5
_IDLE_SECONDS = 0.5
_LOOK_SECONDS = 0.01
_MOST_MESSAGES = 64
SOURCE = "console"
_WAITING_MESSAGES = 4
_MOST_BYTES = 4096
_MOST_CONSOLES = 16
_FRAMES = 4  # client, secret, kind, content


class ConsoleLink:
    """Connects one control loop to any number of consoles, which come and go.

    Args:
        run: The run directory, in which consoles find the endpoint.
        inbox: Where operator input goes.
        actor: Number of the actor whose loop it is.

    Raises:
        ConsoleError: The run directory cannot be written.
    """

    def __init__(self, run: RunDirectory, inbox: OperatorInbox, actor: int = 1) -> None:
        """Listen; see the class."""
        self._inbox = inbox
        self._newest: Snapshot | None = None
        self._sent: Snapshot | None = None
        self._next_snapshot = self._next_alive = 0.0
        self._leases: dict[bytes, float] = {}
        self._problem: Exception | None = None
        self._ending = threading.Event()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        # A console that does not read misses snapshots; it never makes anybody wait.
        self._socket.setsockopt(zmq.SNDHWM, _WAITING_MESSAGES)
        self._socket.setsockopt(zmq.MAXMSGSIZE, _MOST_BYTES)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind("tcp://127.0.0.1:*")
        address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.endpoint = LoopEndpoint(address, secrets.token_hex(16), os.getpid())
        self._secret = self.endpoint.secret.encode()
        self._file = endpoint_file(run, actor)
        try:
            write_endpoint(self._file, self.endpoint)
        except ConsoleError:
            self._release()
            raise
        self._thread = threading.Thread(target=self._serve, name="console-link", daemon=True)
        self._thread.start()

    @property
    def open_consoles(self) -> int:
        """How many consoles listen at present."""
        return len(self._leases)

    def publish(self, snapshot: Snapshot) -> None:
        """Make this the newest snapshot, which replaces one that was not sent yet.

        Raises:
            ConsoleError: The thread has failed: nobody hears the operator any more.
        """
        self._newest = snapshot
        if self._problem is not None:
            raise ConsoleError(
                "the link to the operator's console has failed", got=repr(self._problem)
            ) from self._problem

    def close(self) -> None:
        """Send the newest snapshot once more, and hang up."""
        self._ending.set()
        self._thread.join()
        with contextlib.suppress(OSError):
            self._file.unlink(missing_ok=True)

    def _serve(self) -> None:
        try:
            while not self._ending.is_set():
                self._socket.poll(round(1000 * self._wait()))
                self._receive()
                self._forget_closed_consoles()
                if self._leases:
                    self._tell()
            self._send_newest()
        except Exception as error:  # surfaces in the loop, at its next snapshot
            self._problem = error
        finally:
            self._release()

    def _wait(self) -> float:
        """Seconds until there may be something to send, unless a message comes."""
        if not self._leases:
            return _IDLE_SECONDS
        if self._newest is self._sent:
            # New ones are looked for: to be told of them would cost the loop a system call.
            return _LOOK_SECONDS
        return max(0.0, self._next_snapshot - time.monotonic())

    def _tell(self) -> None:
        """Send what is due to the consoles that listen."""
        now = time.monotonic()
        if self._newest is not self._sent and now >= self._next_snapshot:
            self._send_newest()
            self._next_snapshot = now + 1.0 / MOST_SNAPSHOTS_HZ
            self._next_alive = now + ALIVE_SECONDS
        elif now >= self._next_alive:
            self._send(list(self._leases), ALIVE)
            self._next_alive = now + ALIVE_SECONDS

    def _send_newest(self) -> None:
        newest = self._newest
        if newest is not None and newest is not self._sent:
            self._send(list(self._leases), SNAPSHOT, *newest.to_frames())
            self._sent = newest

    def _send(self, consoles: list[bytes], *frames: Frame) -> None:
        for console in consoles:
            with contextlib.suppress(zmq.Again):
                self._socket.send_multipart([console, *frames], zmq.NOBLOCK, copy=False)

    def _receive(self) -> None:
        """Take in what has come, at most so much that snapshots still go out."""
        for _ in range(_MOST_MESSAGES):
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if len(frames) == _FRAMES and hmac.compare_digest(frames[1], self._secret):
                self._take(frames[0], frames[2], frames[3])

    def _take(self, console: bytes, kind: bytes, text: bytes) -> None:
        """Do what one message of a console asks for; the console hears of what cannot be done."""
        identifier = None
        try:
            content = json.loads(text)
            identifier = content.get("id")
            if kind == HELLO:
                self._lease(console)
            elif kind == EVENT:
                if content["event"] != OperatorEvent.STOP:  # a stop never comes too late
                    _check_age(content["at"], MOST_EVENT_AGE_SECONDS)
                self._inbox.ask(content["event"])
                self._send([console], TAKEN, _packed({"id": identifier}))
            elif kind == JOG:
                _check_age(content["at"], JOG_TIMEOUT_S)
                self._inbox.jog(content["motion"], content["gripper"], source=SOURCE)
            else:
                raise ConsoleError("a console said something unknown", got=kind)
        except (RobotRLError, ValueError, KeyError, TypeError, AttributeError) as error:
            self._send([console], REFUSED, _packed({"id": identifier, "problem": str(error)}))

    def _lease(self, console: bytes) -> None:
        if console not in self._leases:
            if len(self._leases) >= _MOST_CONSOLES:
                raise ConsoleError(
                    "too many consoles are open", got=len(self._leases) + 1, expected=_MOST_CONSOLES
                )
            self._sent = None  # the new one is told at once where the others are
        self._leases[console] = time.monotonic() + LEASE_SECONDS

    def _forget_closed_consoles(self) -> None:
        now = time.monotonic()
        self._leases = {console: end for console, end in self._leases.items() if end > now}

    def _release(self) -> None:
        self._socket.close(0)
        self._context.term()


def _check_age(at: float, most_seconds: float) -> None:
    """Refuse what lay in a queue while the process hung, or while a connection was made.

    Args:
        at: When it was said, on the steady clock that the machine's processes share [s].
        most_seconds: How old it may be.
    """
    age = time.monotonic() - float(at)
    if age > most_seconds:
        raise ConsoleError(
            "what the operator said came too late",
            got=f"{age:.2f} s",
            expected=f"<= {most_seconds} s",
        )


def _packed(content: dict[str, Any]) -> bytes:
    return json.dumps(content).encode()
