"""Control-loop side of the console: receives operator input, sends snapshots.

The loop only swaps a reference. A separate thread listens on loopback, forwards operator input to
the loop's inbox, and sends the latest snapshot to each console that said hello within the last
seconds; it sleeps if there is none. Anyone who can read the folder of `loop_folder` may move the
robot. Other users of the machine can reach the port but do not know the secret.

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

# Older events are refused as stale [s].
MOST_EVENT_AGE_SECONDS = 2.0
# A console without a hello for this long is dropped [s].
LEASE_SECONDS = 2.0
MOST_SNAPSHOTS_HZ = 15.0
# Heartbeat interval while there is no new snapshot [s].
ALIVE_SECONDS = 0.5
_IDLE_SECONDS = 0.5
_LOOK_SECONDS = 0.01
_MOST_MESSAGES = 64
_WAITING_MESSAGES = 4
_MOST_BYTES = 4096
_MOST_WAITING_BYTES = 256 << 20  # unread images sent to consoles, and messages from them
_MOST_CONSOLES = 16
_MOST_COLUMNS = 64


class ConsoleError(RobotRLError):
    """The console cannot be opened, or cannot reach the control loop."""


class Activity(StrEnum):
    """Activity of the control loop; members equal their text."""

    ACTING = "acting"  # an episode runs
    RESETTING = "resetting"  # the robot moves to the next start pose
    WAITING = "waiting"  # no episode runs; the next is about to start or must be requested
    PAUSED = "paused"  # paused by the operator: no further episode for now
    STOPPED = "stopped"  # the robot holds still until the stop is cleared
    ENDED = "ended"  # the process is about to end


class InControl(StrEnum):
    """Who moves the robot; members equal their text."""

    POLICY = "policy"
    OPERATOR = "operator"
    NOBODY = "nobody"


@dataclass(frozen=True)
class Situation:
    """State of the loop at one moment, besides the observation."""

    activity: Activity = Activity.WAITING  # activity of the loop
    in_control: InControl = InControl.NOBODY  # who moves the robot
    reason: str = ""  # why the robot holds still; empty if it does not
    episode: int = 0  # number of the episode in this process, from 1; 0 before the first
    episode_step: int = 0  # actions executed in the episode
    time_limit_steps: int = 0  # actions after which it is truncated
    reward: float = 0.0  # of the last action
    total_reward: float = 0.0  # of the episode so far
    intervened_steps: int = 0  # actions of the operator in the episode
    run_steps: int = 0  # environment steps of the whole run, as far as known
    policy_version: int = 0  # gradient updates behind the acting policy
    decision_seconds: float = 0.0  # from the tick to the sending of the last action [s]
    lateness_seconds: float = 0.0  # how late the last tick was reached [s]
    instruction: str = ""  # the robot's task as text
    advice: str = ""  # the coach's advice to the operator
    # Seed of the scene that a person must restore, if the run has images of it.
    wanted_scene: int | None = None
    action_names: tuple[str, ...] = ()  # columns of the actions
    action: tuple[float, ...] = ()  # last action sent, (d,) in [-1, 1]
    stamp_observation: int = 0  # observation time on the environment's clock [ns]


@dataclass(frozen=True)
class Snapshot:
    """One moment of a control loop."""

    situation: Situation = field(default_factory=Situation)  # state of the loop
    # Observation by field name; the arrays are no longer modified.
    observation: Observation = field(default_factory=dict)

    def to_frames(self) -> list[Frame]:
        """Encode as message frames; large arrays are not copied."""
        values = self.observation.items()
        arrays = [(name, value.dtype.name, value.shape) for name, value in values]
        payload = [np.ascontiguousarray(v).reshape(-1).view(np.uint8).data for _, v in values]
        return encode(SnapshotMessage(situation=self.situation, arrays=arrays), payload)

    @classmethod
    def of(cls, seen: SnapshotMessage, payload: Payload) -> Snapshot:
        """Decode a message from `to_frames`; `WireError` if arrays do not match its header."""
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
    """A snapshot: the situation, and the name, dtype and shape of the array in each frame."""

    payload_frames: ClassVar[tuple[int, int]] = (0, MAXIMUM_PAYLOAD_FRAMES)
    situation: Situation
    arrays: list[tuple[str, str, tuple[Natural, ...]]]


class Hello(Message):
    """Keep-alive from a console."""


class Event(Numbered):
    """An operator event with its time on the machine's monotonic clock [s]."""

    event: Name
    at: float


class Jog(Numbered):
    """A short operator motion."""

    motion: Annotated[tuple[float, ...], Meta(max_length=_MOST_COLUMNS)]
    gripper: float | None
    at: float


class Alive(Message):
    """Heartbeat of the loop's process."""


class Taken(Numbered):
    """Acknowledges an event: it is in the loop's inbox."""


def loop_folder(run: RunDirectory, actor: int) -> Path:
    """Folder where the process that runs an actor's robot publishes its endpoint."""
    return run.path / "console" / f"actor-{actor}"


class ConsoleLink:
    """Connects an actor's control loop to any number of consoles.

    Consoles find its endpoint in the run directory; their operator input goes into the inbox.
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
            # A console that does not read misses snapshots; it never blocks the sender.
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
        """Number of connected consoles."""
        return len(self._leases)

    def publish(self, snapshot: Snapshot) -> None:
        """Set the latest snapshot; `ConsoleError` if the link has failed."""
        self._newest = snapshot
        if self._problem is not None:
            raise ConsoleError(
                "the link to the operator's console has failed", got=repr(self._problem)
            ) from self._problem

    def close(self) -> None:
        """Send the latest snapshot if it is still unsent, and disconnect."""
        self._ending.set()
        self._thread.join()
        with contextlib.suppress(OSError):
            self._listener.withdraw()

    def _serve(self) -> None:
        try:
            while not self._ending.is_set():
                self._listener.poll(self._wait())
                # Bounded, so that snapshots still go out.
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
        """Seconds until there may be something to send, unless a message arrives."""
        if not self._leases:
            return _IDLE_SECONDS
        if self._newest is self._sent:
            # Poll for new ones: waking this thread would cost the loop a system call.
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
        """Handle one console message, or reply with a refusal."""
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
                    self._sent = None  # so that a new console gets the latest snapshot at once
                self._leases[console] = time.monotonic() + LEASE_SECONDS
            elif isinstance(message, Event):
                if message.event != OperatorEvent.STOP:  # a stop is never too late
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
    """Raise `ConsoleError` if a message is older than `most_seconds`."""
    age = time.monotonic() - at
    if age > most_seconds:
        raise ConsoleError(
            "what the operator said came too late",
            got=f"{age:.2f} s",
            expected=f"<= {most_seconds} s",
        )
