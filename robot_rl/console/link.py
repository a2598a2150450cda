"""The control loop's end of the console: operator input comes in, snapshots go out.

The loop only swaps a reference. A thread beside it listens on loopback, passes what operators say
to the loop's inbox, and sends the newest snapshot to each console that has asked within the last
seconds; while there is none it sleeps. All who can read the folder of `loop_folder` may move the
robot; other users of the machine, who reach the port too, do not know the secret.

    console → loop   Hello | Event | Jog
    loop → console   SnapshotMessage | Alive | Taken | Refused
"""

from __future__ import annotations

import contextlib
import math
import secrets
import threading
import time
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
from msgspec import Meta

from robot_rl.data.schema import DTYPES, Observation
from robot_rl.env.operator import JOG_TIMEOUT_S, OperatorEvent, OperatorInbox
from robot_rl.errors import RobotRLError
from robot_rl.run import RunDirectory
from robot_rl.wire import WireError
from robot_rl.wire.endpoint import Listener
from robot_rl.wire.messages import (
    MAXIMUM_PAYLOAD_FRAMES,
    Decoder,
    Frame,
    Message,
    Name,
    Natural,
    Numbered,
    Payload,
    encode,
    refusal,
)

# An older event is not what the operator wants now [s].
MOST_EVENT_AGE_SECONDS = 2.0
# A console that has not said hello for so long is closed [s].
LEASE_SECONDS = 2.0
MOST_SNAPSHOTS_HZ = 15.0
# Without anything new the console hears so often that the loop's process lives [s].
ALIVE_SECONDS = 0.5
_IDLE_SECONDS = 0.5
_LOOK_SECONDS = 0.01
_MOST_MESSAGES = 64
_WAITING_MESSAGES = 4
_MOST_BYTES = 4096
_MOST_WAITING_BYTES = 256 << 20  # of pictures that consoles do not read, and of what they say
_MOST_CONSOLES = 16
_MOST_COLUMNS = 64


class ConsoleError(RobotRLError):
    """The console cannot be opened, or the control loop cannot be reached from it."""


class Activity(StrEnum):
    """The activity of the loop; members equal their text."""

    ACTING = "acting"  # an episode runs
    RESETTING = "resetting"  # the robot is being brought to the next start
    WAITING = "waiting"  # no episode runs, and the next is about to begin or to be asked for
    PAUSED = "paused"  # the operator wants no further episode for now
    STOPPED = "stopped"  # the robot holds still until the stop is cleared
    ENDED = "ended"  # the process is about to end


class InControl(StrEnum):
    """Who moves the robot; members equal their text."""

    POLICY = "policy"
    OPERATOR = "operator"
    NOBODY = "nobody"


@dataclass(frozen=True)
class Situation:
    """The facts of a moment, beside what was observed."""

    activity: Activity = Activity.WAITING  # what the loop is doing
    in_control: InControl = InControl.NOBODY  # who moves the robot
    reason: str = ""  # why the robot holds still, where it does; empty otherwise
    episode: int = 0  # number of the episode of this process, from 1; 0 before the first
    episode_step: int = 0  # actions taken in it
    time_limit_steps: int = 0  # actions after which it is cut
    reward: float = 0.0  # of the last action
    total_reward: float = 0.0  # of the episode so far
    intervened_steps: int = 0  # actions of the operator in the episode
    run_steps: int = 0  # environment steps of the whole run, as far as known
    policy_version: int = 0  # gradient updates behind the acting policy
    decision_seconds: float = 0.0  # from the tick to the sending of the last action [s]
    lateness_seconds: float = 0.0  # how late the last tick was reached [s]
    instruction: str = ""  # what the robot is to do, in words
    advice: str = ""  # what the coach tells the operator
    # Seed of the scene that a person is to put back, where the run has pictures of it.
    wanted_scene: int | None = None
    action_names: tuple[str, ...] = ()  # columns of the actions
    action: tuple[float, ...] = ()  # what was sent last, (d,) in [-1, 1]
    stamp_observation: int = 0  # time of the observation on the clock of the environment [ns]


@dataclass(frozen=True)
class Snapshot:
    """One moment of a control loop."""

    situation: Situation = field(default_factory=Situation)  # the facts
    # What was seen, by field name; its arrays are not written to any more.
    observation: Observation = field(default_factory=dict)

    def to_frames(self) -> list[Frame]:
        """Make the frames of a message; large arrays are not copied."""
        values = self.observation.items()
        arrays = [(name, value.dtype.name, value.shape) for name, value in values]
        payload = [np.ascontiguousarray(v).reshape(-1).view(np.uint8).data for _, v in values]
        return encode(SnapshotMessage(situation=self.situation, arrays=arrays), payload)

    @classmethod
    def of(cls, seen: SnapshotMessage, payload: Payload) -> Snapshot:
        """Take a message of `to_frames` apart; `WireError` if it is not as it announces."""
        found = [len(frame) for frame in payload]
        sizes = [
            math.prod(shape) * np.dtype(dtype).itemsize if dtype in DTYPES else -1
            for _, dtype, shape in seen.arrays
        ]
        if found != sizes:
            raise WireError(
                "the arrays of a snapshot are not as they are announced",
                got=f"{found} bytes",
                expected=str(seen.arrays)[:200],
            )
        observation = {
            name: np.frombuffer(frame, dtype).reshape(shape)
            for (name, dtype, shape), frame in zip(seen.arrays, payload, strict=True)
        }
        return cls(seen.situation, observation)


class SnapshotMessage(Message):
    """A snapshot: the facts, and for each frame the name, dtype and shape of an array."""

    payload_frames: ClassVar[tuple[int, int]] = (0, MAXIMUM_PAYLOAD_FRAMES)
    situation: Situation
    arrays: list[tuple[str, str, tuple[Natural, ...]]]


class Hello(Message):
    """A console goes on listening."""


class Event(Numbered):
    """An event of the operator, and its time on the machine's steady clock [s]."""

    event: Name
    at: float


class Jog(Numbered):
    """A motion of the operator's, for a moment."""

    motion: Annotated[tuple[float, ...], Meta(max_length=_MOST_COLUMNS)]
    gripper: float | None
    at: float


class Alive(Message):
    """The loop's process lives."""


class Taken(Numbered):
    """The loop's inbox has the event."""


def loop_folder(run: RunDirectory, actor: int) -> Path:
    """The folder in which the process that has an actor's robot says where it listens."""
    return run.path / "console" / f"actor-{actor}"


class ConsoleLink:
    """Connects an actor's control loop to any number of consoles, which come and go.

    They find its endpoint in the run directory; what their operators say goes into the inbox.
    """

    def __init__(self, run: RunDirectory, inbox: OperatorInbox, actor: int = 1) -> None:
        self._inbox = inbox
        self._newest: Snapshot | None = None
        self._sent: Snapshot | None = None
        self._next_snapshot = self._next_alive = 0.0
        self._leases: dict[bytes, float] = {}
        self._problem: Exception | None = None
        self._ending = threading.Event()
        self._decoder = Decoder(Hello, Event, Jog)
        folder = loop_folder(run, actor)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # A console that does not read misses snapshots; it never makes anybody wait.
            self._listener = Listener(
                "tcp://127.0.0.1:0",
                folder=folder,
                secret=secrets.token_hex(16),
                frame_bytes=_MOST_BYTES,
                unread_messages=_WAITING_MESSAGES,
                held_bytes=_MOST_WAITING_BYTES,
            )
        except OSError as error:
            raise ConsoleError(f"{folder} cannot be written", got=error) from error
        self._thread = threading.Thread(target=self._serve, name="console-link", daemon=True)
        self._thread.start()

    @property
    def open_consoles(self) -> int:
        """Number of consoles that listen now."""
        return len(self._leases)

    def publish(self, snapshot: Snapshot) -> None:
        """Make this the newest snapshot; `ConsoleError` where nobody hears the operator now."""
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
            self._listener.withdraw()

    def _serve(self) -> None:
        try:
            while not self._ending.is_set():
                self._listener.poll(self._wait())
                # At most so much that snapshots still go out.
                for received in islice(iter(self._listener.receive, None), _MOST_MESSAGES):
                    self._take(*received)
                now = time.monotonic()
                self._leases = {c: end for c, end in self._leases.items() if end > now}
                if self._leases and self._newest is not self._sent and now >= self._next_snapshot:
                    self._send_newest()
                    self._next_snapshot = now + 1.0 / MOST_SNAPSHOTS_HZ
                    self._next_alive = now + ALIVE_SECONDS
                elif self._leases and now >= self._next_alive:
                    self._send_all(encode(Alive()))
                    self._next_alive = now + ALIVE_SECONDS
            self._send_newest()
        except Exception as error:  # surfaces in the loop, at its next snapshot
            self._problem = error
        finally:
            self._listener.close()

    def _wait(self) -> float:
        """Seconds until there may be something to send, unless a message comes."""
        if not self._leases:
            return _IDLE_SECONDS
        if self._newest is self._sent:
            # This thread looks for new ones: to wake it would cost the loop a system call.
            return _LOOK_SECONDS
        return max(0.0, self._next_snapshot - time.monotonic())

    def _send_newest(self) -> None:
        newest = self._newest
        if newest is not None and newest is not self._sent:
            self._send_all(newest.to_frames())
            self._sent = newest

    def _send_all(self, frames: list[Frame]) -> None:
        for console in self._leases:
            self._listener.send(console, frames)

    def _take(self, console: bytes, frames: list[Frame]) -> None:
        """Do what one message of a console asks for, or answer with a refusal."""
        message = None
        try:
            message, _ = self._decoder.decode(frames)
            if isinstance(message, Hello):
                if console not in self._leases and len(self._leases) >= _MOST_CONSOLES:
                    raise ConsoleError(
                        "too many consoles are open",
                        got=len(self._leases) + 1,
                        expected=_MOST_CONSOLES,
                    )
                if console not in self._leases:
                    self._sent = None  # so that a new console gets the newest snapshot at once
                self._leases[console] = time.monotonic() + LEASE_SECONDS
            elif isinstance(message, Event):
                if message.event != OperatorEvent.STOP:  # a stop never comes too late
                    _check_age(message.at, MOST_EVENT_AGE_SECONDS)
                self._inbox.ask(message.event)
                self._listener.send(console, encode(Taken(request=message.request)))
            else:
                _check_age(message.at, JOG_TIMEOUT_S)
                self._inbox.jog(list(message.motion), message.gripper, source="console")
        except (RobotRLError, ValueError, TypeError) as error:
            problem = error if isinstance(error, RobotRLError) else ConsoleError(str(error))
            self._listener.send(console, encode(refusal(problem, message)))


def _check_age(at: float, most_seconds: float) -> None:
    """Refuse a message that waited in a queue for longer than this [s]."""
    age = time.monotonic() - at
    if age > most_seconds:
        raise ConsoleError(
            "what the operator said came too late",
            got=f"{age:.2f} s",
            expected=f"<= {most_seconds} s",
        )
