"""The console's end of the link to a control loop, for an asyncio program."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from pathlib import Path
from typing import Any

import zmq
import zmq.asyncio

from robot_rl.console.endpoint import ConsoleError, LoopEndpoint, read_endpoint
from robot_rl.console.link import (
    ALIVE_SECONDS,
    EVENT,
    HELLO,
    JOG,
    LEASE_SECONDS,
    MOST_EVENT_AGE_SECONDS,
    REFUSED,
    SNAPSHOT,
    TAKEN,
)
from robot_rl.console.snapshot import Snapshot
from robot_rl.env.operator import OperatorEvent

_HELLO_SECONDS = LEASE_SECONDS / 4
# After so much silence the loop counts as gone [s].
_SILENCE_SECONDS = 3 * ALIVE_SECONDS
_JOG_NUMBER = 0  # of every motion: nobody waits for their answers; events count from 1


class LoopClient:
    """Follows the control loop of a run, whichever process runs it.

    One that is started later, or again after it was killed, is found by itself.

    Args:
        file: Where the loop says how it is reached, see `endpoint_file`.

    Attributes:
        round_trip_seconds: Of the last event: from sending to the loop's inbox and back [s].
    """

    def __init__(self, file: Path) -> None:
        """See the class; `run` does the work."""
        self._file = file
        self._context = zmq.asyncio.Context()
        self._socket: zmq.asyncio.Socket | None = None
        self._endpoint: LoopEndpoint | None = None
        self._heard = -float("inf")
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[None]] = {}
        self._untaken_stop: int | None = None  # the number of the last stop that nobody answered
        self._jog_problem = ""
        self._newest: Snapshot | None = None
        self._arrived = asyncio.Event()
        self.round_trip_seconds: float | None = None

    @property
    def connected(self) -> bool:
        """Whether the loop's process was heard of lately."""
        return time.monotonic() - self._heard < _SILENCE_SECONDS

    async def run(self) -> None:
        """Keep in touch with the loop until cancelled.

        Raises:
            ConsoleError: The endpoint's file cannot be read.
            BadSnapshot: The loop is of another version of robot_rl.
        """
        try:
            hello_at = 0.0
            while True:
                now = time.monotonic()
                if now >= hello_at:
                    self._find()
                    self._say(HELLO, {})
                    hello_at = now + _HELLO_SECONDS
                await self._listen(hello_at - now)
        finally:
            self._hang_up()
            self._context.term()

    async def next_snapshot(self) -> Snapshot:
        """Wait for a snapshot that was not given before; of several the newest is given."""
        await self._arrived.wait()
        self._arrived.clear()
        assert self._newest is not None
        return self._newest

    async def post(self, event: str) -> None:
        """Say an event to the loop, and wait until it has it.

        A stop that nobody takes is said again as soon as a loop answers: who is started again must
        not move a robot that a person has stopped meanwhile.

        Raises:
            ConsoleError: There is no loop, it did not answer, or it refused the event.
        """
        number = next(self._numbers)
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        began = time.monotonic()
        try:
            if not self._say(EVENT, {"id": number, "event": event}):
                raise self._nobody(number, event)
            await asyncio.wait_for(answer, MOST_EVENT_AGE_SECONDS)
        except TimeoutError as error:
            raise self._nobody(number, event) from error
        finally:
            del self._answers[number]
        self.round_trip_seconds = time.monotonic() - began

    def jog(self, motion: list[float], gripper: float | None) -> None:
        """Move the robot for a moment, without waiting whether the loop refuses it."""
        self._say(JOG, {"id": _JOG_NUMBER, "motion": motion, "gripper": gripper})

    def check_jogged(self) -> None:
        """Look once whether what was jogged before moves nothing.

        Raises:
            ConsoleError: The loop has refused a motion since this was asked last.
        """
        problem, self._jog_problem = self._jog_problem, ""
        if problem:
            raise ConsoleError(problem)

    def _find(self) -> None:
        """Connect to where the loop listens now."""
        found = read_endpoint(self._file)
        if found == self._endpoint:
            return
        self._hang_up()
        self._endpoint = found
        if found is not None:
            self._socket = self._context.socket(zmq.DEALER)
            self._socket.setsockopt(zmq.LINGER, 0)
            self._socket.setsockopt(zmq.RCVHWM, 4)
            self._socket.setsockopt(zmq.SNDHWM, 64)
            self._socket.connect(found.address)

    def _say(self, kind: bytes, content: dict[str, Any]) -> bool:
        """Send a message; returns whether there is anybody to send it to."""
        if self._socket is None or self._endpoint is None:
            return False
        told = {**content, "at": time.monotonic()}
        frames = [self._endpoint.secret.encode(), kind, json.dumps(told).encode()]
        # By the asynchronous socket, which looks afterwards what has come meanwhile.
        sent = asyncio.ensure_future(self._socket.send_multipart(frames))
        if not sent.done():
            sent.cancel()  # now or not at all
        return True

    async def _listen(self, seconds: float) -> None:
        if self._socket is None:
            await asyncio.sleep(max(0.0, seconds))
            return
        if not await self._socket.poll(1000 * max(0.0, seconds)):
            return
        kind, *frames = await self._socket.recv_multipart()
        self._heard = time.monotonic()
        if kind == SNAPSHOT:
            self._newest = Snapshot.from_frames(frames)
            self._arrived.set()
        elif kind in (TAKEN, REFUSED):
            self._settle(json.loads(frames[0]))
        if self._untaken_stop is not None:
            self._say(EVENT, {"id": self._untaken_stop, "event": OperatorEvent.STOP})

    def _nobody(self, number: int, event: str) -> ConsoleError:
        hint = "see whether the actor, or collect, is running"
        if event == OperatorEvent.STOP:
            self._untaken_stop = number
            hint = f"use the emergency stop; a loop that answers later is told to stop; {hint}"
        return ConsoleError(f"nobody took {event!r}: no control loop answers", hint=hint)

    def _settle(self, content: dict[str, Any]) -> None:
        """Hand the loop's answer to who waits for it."""
        if content["id"] == _JOG_NUMBER:
            self._jog_problem = content["problem"]
        if content["id"] == self._untaken_stop:
            self._untaken_stop = None
        answer = self._answers.get(content["id"])
        if answer is None or answer.done():
            return
        if "problem" in content:
            answer.set_exception(ConsoleError(content["problem"]))
        else:
            answer.set_result(None)

    def _hang_up(self) -> None:
        if self._socket is not None:
            self._socket.close(0)
        self._socket = None
        self._heard = -float("inf")
