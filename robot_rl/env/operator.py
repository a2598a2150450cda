"""Operator input on its way to the robot's loop: events and motion, from any source.

Keyboard, SpaceMouse, console, ROS services and the simulated operator write to an `OperatorInbox`
from their own threads; the loop that moves the robot polls it once a tick and never waits for it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from robot_rl.errors import RobotRLError

Motion = npt.NDArray[np.float64]
_Item = TypeVar("_Item")

JOG_TIMEOUT_S = 0.25
_MOST_UNREAD = 256


class OperatorError(RobotRLError):
    """An operator input that is impossible, or that no loop reads."""


class OperatorEvent(StrEnum):
    """An event that an operator can send; members equal their text."""

    SUCCESS = "success"  # the episode has reached its goal, and ends
    FAILURE = "failure"  # the episode has failed, and ends
    DISCARD = "discard"  # the running episode is not to be kept
    UNDO = "undo"  # the last recorded episode is not to be kept
    START = "start"  # begin the next episode
    RESET = "reset"  # end the episode and bring the robot back to the start
    PAUSE = "pause"  # begin no further episode
    RESUME = "resume"  # go on after a pause
    TAKE_OVER = "take_over"  # the operator acts from now on, even without motion
    HAND_BACK = "hand_back"  # the policy acts again
    STOP = "stop"  # hold still until `clear_errors`
    CLEAR_ERRORS = "clear_errors"  # motion is allowed again after a stop


# What nothing moves after, and what ends it.
HALTS = {OperatorEvent.STOP: OperatorEvent.CLEAR_ERRORS, OperatorEvent.PAUSE: OperatorEvent.RESUME}


class OperatorInput(NamedTuple):
    """The operator's input since the last poll."""

    events: tuple[OperatorEvent, ...]  # in the order in which they came
    # (6,) float64 in [-1, 1], translation and rotation vector in the base frame, in units of the
    # largest action; zero without motion. Of an arm that takes joint targets, of each joint (n,).
    motion: Motion
    gripper: float | None  # a new command, -1 open to +1 closed; None: leave it as it is
    moving: bool  # whether the operator moves the arm or commands the gripper


NOTHING = OperatorInput((), np.zeros(6), None, moving=False)


class OperatorInbox:
    """Where all sources of operator input meet. Writers may be any threads, the reader is one.

    Polling takes no lock. A motion counts until the same source sends another, and no longer than
    `jog_timeout_s`: a device that falls silent does not keep the robot moving. Of several sources
    that move the one heard last counts, so that a SpaceMouse at rest does not hinder a console.

    Args:
        jog_timeout_s: How long a motion counts [s]; infinity on the stepped clock.
        clock: A steady clock, in seconds.

    Attributes:
        gripper: The gripper's last command, -1 open to +1 closed, of any source; the loop sets
            it, for buttons that open and close in turn.
        advice: What a coach tells the operator now; empty where it says nothing.
        unmovable: Action columns that no operator can move by a motion of the tool; the loop sets
            it. Where there are any, every such motion is refused.
        joints: Those of them that move joints, which a leader arm can; the loop sets it too.
        missing: Tells in words what of the robot is not there, empty where all is; from the loop.
    """

    def __init__(
        self, jog_timeout_s: float = JOG_TIMEOUT_S, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._timeout = jog_timeout_s
        self._clock = clock
        # Single operations on deques and dicts are atomic in Python.
        self._events: deque[OperatorEvent] = deque()
        self._grippers: deque[float] = deque()
        self._jogs: dict[str, tuple[Motion, float]] = {}  # and when, by source
        self._listeners: tuple[Callable[[OperatorEvent], None], ...] = ()
        self._stopped: dict[str, tuple[str, float]] = {}  # arm → why and when [s]
        self._halts: set[OperatorEvent] = set()  # that were posted, and not yet taken back
        self._noting = threading.Lock()  # among arms: who reads takes none
        self.gripper = -1.0
        self.advice = ""
        self.unmovable: tuple[str, ...] = ()
        self.joints: tuple[str, ...] = ()
        self.missing: Callable[[], str] = str

    def listen(self, listener: Callable[[OperatorEvent], None]) -> None:
        """Call this for every event as it is posted, before the loop polls.

        The listener is called in the writer's thread, and must neither wait nor raise.
        """
        self._listeners = (*self._listeners, listener)

    def post(self, event: str) -> None:
        """Say something to the loop, and to those who `listen`.

        Raises:
            OperatorError: There is no such event; or so many are unread that no loop can be
                listening. Those who `listen` have heard it even then, and a stop waits for a loop.
        """
        try:
            known = OperatorEvent(event)
        except ValueError as error:
            raise OperatorError(
                "there is no such operator event", got=event, expected=[*map(str, OperatorEvent)]
            ) from error
        for listener in self._listeners:
            listener(known)
        if known in HALTS:
            self._halts.add(known)
        self._halts.difference_update(halt for halt, end in HALTS.items() if end is known)
        unread = len(self._events)
        if unread < _MOST_UNREAD or known is OperatorEvent.STOP:
            self._events.append(known)
        if unread >= _MOST_UNREAD:
            raise OperatorError(
                "nobody reads what the operator says",
                got=f"{unread} events unread, then {known}",
                hint="see whether the actor or collect still runs",
            )

    def ask(self, event: str) -> None:
        """As `post`, for who hears the answer: a `start` that would be lost is refused.

        Raises:
            OperatorError: As `post`; or nothing can start, since the robot is stopped, paused or
                not there.
        """
        if event == OperatorEvent.START:
            ends = [str(HALTS[halt]) for halt in sorted(self._halts)]
            stopped = self.why_stopped()
            if stopped and OperatorEvent.CLEAR_ERRORS not in ends:
                ends.insert(0, str(OperatorEvent.CLEAR_ERRORS))
            if ends:
                raise OperatorError(
                    "nothing can start yet",
                    got=stopped or f"the operator said {' and '.join(sorted(self._halts))}",
                    hint=f"say {', then '.join((*ends, event))}",
                )
            if missing := self.missing():
                raise OperatorError(
                    "nothing can start yet",
                    got=missing,
                    hint=f"say {event} once the robot is there",
                )
        self.post(event)

    def note_stopped(self, arm: str, why: str | None) -> None:
        """Let the loop hear that an arm has been stopped, and why, or (None) that it no longer is.

        Listeners do not hear it: they would pass it on to this or another arm.
        """
        with self._noting:
            if why is not None:
                self._stopped[arm] = why, self._clock()
                self._events.append(OperatorEvent.STOP)
                return
            self._stopped.pop(arm, None)
            if not self._stopped:
                self._halts.discard(OperatorEvent.STOP)
                self._events.append(OperatorEvent.CLEAR_ERRORS)

    def why_stopped(self) -> str:
        """The reasons of the arms that are stopped; empty where none is known to be."""
        reasons = [why for why, _ in tuple(self._stopped.values())]
        return f"the arm is stopped: {'; '.join(reasons)}" if reasons else ""

    def stopped_for(self) -> float:
        """Time since the last stop of an arm that is still stopped [s]; 0 where none is."""
        return min((self._clock() - at for _, at in tuple(self._stopped.values())), default=0.0)

    def jog(
        self, motion: npt.ArrayLike, gripper: float | None = None, *, source: str = "operator"
    ) -> None:
        """Move the robot as long as this is repeated, or say that a device is at rest.

        Args:
            motion: (6,), each in [-1, 1]; see `OperatorInput.motion`.
            gripper: A new command for the gripper, -1 open to +1 closed; None leaves it.
            source: Who moves; each source's last word counts.

        Raises:
            OperatorError: The motion or the gripper is not finite or out of range, or no operator
                can move this robot; nothing of it counts.
        """
        values = _checked(motion, 6, source, "translation and rotation vector, base frame")
        if self.unmovable and (values.any() or gripper is not None):
            raise OperatorError(
                f"{source} cannot move this robot",
                got=f"the action columns {', '.join(self.unmovable)}",
                hint="a policy can drive it, or a leader arm its joints; events are heard as ever",
            )
        self._take(values, gripper, source)

    def lead(
        self, motion: npt.ArrayLike, gripper: float | None = None, *, source: str = "leader"
    ) -> None:
        """As `jog`, with a motion of each of `joints` (n,) in [-1, 1]: from a leader arm."""
        values = _checked(motion, len(self.joints), source, ", ".join(self.joints))
        self._take(values, gripper, source)

    def _take(self, values: Motion, gripper: float | None, source: str) -> None:
        if gripper is not None:
            if not abs(gripper) <= 1.0:
                raise OperatorError(
                    f"{source} sent an impossible command to the gripper",
                    got=gripper,
                    expected="a number from -1, open, to +1, closed",
                )
            self._grippers.append(float(gripper))
        self._jogs[source] = values, self._clock()

    def poll(self) -> OperatorInput:
        """The events since the last poll, and the present motion. For the one reader."""
        events, grippers = _drained(self._events), _drained(self._grippers)
        motion = np.zeros(len(self.joints)) if self.joints else NOTHING.motion
        newest = self._clock() - self._timeout
        for given, seconds in tuple(self._jogs.values()):
            if seconds >= newest and given.any():
                motion, newest = given, seconds
        moving = bool(grippers) or bool(motion.any())
        return OperatorInput(events, motion.copy(), grippers[-1] if grippers else None, moving)


def _checked(motion: npt.ArrayLike, count: int, source: str, meaning: str) -> Motion:
    values = np.array(motion, np.float64)
    if values.shape != (count,) or not (np.abs(values) <= 1.0).all():
        raise OperatorError(
            f"a motion from {source} is no motion of this robot",
            got=f"shape {values.shape}: {values.tolist()}",
            expected=f"{count} numbers in [-1, 1]: {meaning}",
        )
    return values


def _drained(queue: deque[_Item]) -> tuple[_Item, ...]:
    """Take what is there now; what is appended meanwhile stays for the next time."""
    return tuple(queue.popleft() for _ in range(len(queue)))
