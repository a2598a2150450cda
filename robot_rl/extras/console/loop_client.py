"""The console's end of the link to a control loop, for asyncio."""

from __future__ import annotations

import asyncio
import itertools
import time
from pathlib import Path

import zmq
import zmq.asyncio

from robot_rl.console.link import (
    ALIVE_SECONDS,
    LEASE_SECONDS,
    MOST_EVENT_AGE_SECONDS,
    Alive,
    ConsoleError,
    Event,
    Hello,
    Jog,
    Snapshot,
    SnapshotMessage,
    Taken,
)
from robot_rl.env.operator import OperatorEvent
from robot_rl.wire import ServerUnreachable
from robot_rl.wire.endpoint import Endpoint, client_socket, read_endpoint
from robot_rl.wire.messages import Decoder, Message, Refused, encode

_HELLO_SECONDS = LEASE_SECONDS / 4
# Silence after which the loop counts as gone [s].
_SILENCE_SECONDS = 3 * ALIVE_SECONDS
_JOG_NUMBER = 0  # for all motions: their answers are ignored; events count from 1


class LoopClient:
    """Follows the control loop of a run, in any process.

    It finds a loop that starts later, or restarts, through the run's `loop_folder`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._decoder = Decoder(SnapshotMessage, Alive, Taken, Refused)
        self._context = zmq.asyncio.Context()
        self._socket: zmq.asyncio.Socket | None = None
        self._endpoint: Endpoint | None = None
        self._heard = -float("inf")
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[None]] = {}
        self._untaken_stop: int | None = None  # number of the last unacknowledged stop
        self._jog_problem = ""
        self._newest: Snapshot | None = None
        self._arrived = asyncio.Event()
        # Of the last event: from sending it to the loop's inbox and back [s].
        self.round_trip_seconds: float | None = None

    @property
    def connected(self) -> bool:
        """Whether a message from the loop's process arrived recently."""
        return time.monotonic() - self._heard < _SILENCE_SECONDS

    async def run(self) -> None:
        """Stay connected to the loop until cancelled; `WireError` if its version differs."""
        try:
            hello_at = 0.0
            while True:
                now = time.monotonic()
                if now >= hello_at:
                    self._find()
                    self._say(Hello())
                    hello_at = now + _HELLO_SECONDS
                await self._listen(hello_at - now)
        finally:
            self._hang_up()
            self._context.term()

    async def next_snapshot(self) -> Snapshot:
        """Wait for the next snapshot; return the latest if several have arrived."""
        await self._arrived.wait()
        self._arrived.clear()
        assert self._newest is not None
        return self._newest

    async def post(self, event: str) -> None:
        """Send an event to the loop and wait for the acknowledgement; `ConsoleError` without one.

        A stop without an acknowledgement is sent again as soon as a loop answers: a restarted
        process must not move a robot that a person has stopped in the meantime.
        """
        number = next(self._numbers)
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        began = time.monotonic()
        try:
            if not self._say(Event(request=number, event=event, at=began)):
                raise TimeoutError
            await asyncio.wait_for(answer, MOST_EVENT_AGE_SECONDS)
        except TimeoutError as error:
            hint = "see whether train, collect or evaluate is running"
            if event == OperatorEvent.STOP:
                self._untaken_stop = number
                hint = f"use the emergency stop; a loop that answers later is told to stop; {hint}"
            problem = f"nobody took {event!r}: no control loop answers"
            raise ConsoleError(problem, hint=hint) from error
        finally:
            del self._answers[number]
        self.round_trip_seconds = time.monotonic() - began

    def jog(self, motion: list[float], gripper: float | None) -> None:
        """Move the robot for a moment; `check_jogged` raises later if the loop refused."""
        now = time.monotonic()
        self._say(Jog(request=_JOG_NUMBER, motion=tuple(motion), gripper=gripper, at=now))

    def check_jogged(self) -> None:
        """Raise `ConsoleError` if the loop has refused a motion since the last call."""
        problem, self._jog_problem = self._jog_problem, ""
        if problem:
            raise ConsoleError(problem)

    def _find(self) -> None:
        try:
            found: Endpoint | None = read_endpoint(self._folder)
        except ServerUnreachable:
            found = None
        if found == self._endpoint:
            return
        self._hang_up()
        self._endpoint = found
        if found is not None:
            self._socket = client_socket(self._context, found)
            self._socket.setsockopt(zmq.RCVHWM, 4)
            self._socket.setsockopt(zmq.SNDHWM, 64)
            self._socket.connect(found.address)

    def _say(self, message: Message) -> bool:
        """Send a message; return False if there is no loop."""
        if self._socket is None:
            return False
        # Use the asynchronous socket: afterwards it reads what has arrived in the meantime.
        sent = asyncio.ensure_future(self._socket.send_multipart(encode(message)))
        if not sent.done():
            sent.cancel()  # send now or drop
        return True

    async def _listen(self, seconds: float) -> None:
        if self._socket is None:
            await asyncio.sleep(max(0.0, seconds))
            return
        if not await self._socket.poll(1000 * max(0.0, seconds)):
            return
        message, payload = self._decoder.decode(await self._socket.recv_multipart())
        self._heard = time.monotonic()
        if isinstance(message, SnapshotMessage):
            self._newest = Snapshot.of(message, payload)
            self._arrived.set()
        elif isinstance(message, Taken | Refused):
            self._settle(message)
        if self._untaken_stop is not None:
            self._say(Event(request=self._untaken_stop, event=OperatorEvent.STOP, at=self._heard))

    def _settle(self, answer: Taken | Refused) -> None:
        """Pass the loop's answer to the waiting call."""
        if answer.request == self._untaken_stop:
            self._untaken_stop = None
        if isinstance(answer, Refused) and answer.request == _JOG_NUMBER:
            self._jog_problem = answer.message
        waiting = self._answers.get(answer.request or 0)
        if waiting is None or waiting.done():
            return
        if isinstance(answer, Refused):
            waiting.set_exception(ConsoleError(answer.message))
        else:
            waiting.set_result(None)

    def _hang_up(self) -> None:
        if self._socket is not None:
            self._socket.close(0)
        self._socket = None
        self._heard = -float("inf")
