"""Operator input to the control loop: events and motion from any source.

Keyboard, SpaceMouse, console, ROS services and the simulated operator write to an `OperatorInbox`
from their own threads. The control loop polls it once per tick and never waits for it.
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
    """Invalid operator input, or input that no control loop reads."""


class OperatorEvent(StrEnum):
    """Operator events; members equal their text."""

    SUCCESS = "success"  # the episode has reached its goal, and ends
    FAILURE = "failure"  # the episode has failed, and ends
    DISCARD = "discard"  # do not keep the running episode
    UNDO = "undo"  # do not keep the last recorded episode
    START = "start"  # start the next episode
    RESET = "reset"  # end the episode and bring the robot back to the start
    PAUSE = "pause"  # start no further episode
    RESUME = "resume"  # continue after a pause
    TAKE_OVER = "take_over"  # the operator takes control, even without motion
    HAND_BACK = "hand_back"  # the policy acts again
    STOP = "stop"  # hold still until `clear_errors`
    CLEAR_ERRORS = "clear_errors"  # allow motion again after a stop


# Events that halt the robot, and the event that clears each.
HALTS = {OperatorEvent.STOP: OperatorEvent.CLEAR_ERRORS, OperatorEvent.PAUSE: OperatorEvent.RESUME}


class OperatorInput(NamedTuple):
    """The operator's input since the last poll."""

    events: tuple[OperatorEvent, ...]  # in order of arrival
    # (6,) float64 in [-1, 1], translation and rotation vector in the base frame, in units of the
    # largest action; zero without motion. For an arm with joint targets: one per joint (n,).
    motion: Motion
    gripper: float | None  # new command, -1 open to +1 closed; None for no change
    moving: bool  # whether the operator moves the arm or commands the gripper


NOTHING = OperatorInput((), np.zeros(6), None, moving=False)


class OperatorInbox:
    """Collects operator input from all sources. Any thread may write; only one reads.

    Polling takes no lock. A motion is valid until the same source sends another, but at most
    `jog_timeout_s`, so a device that goes silent does not keep the robot moving. Among moving
    sources the most recent one counts, so a SpaceMouse at rest does not block a console.

    Args:
        jog_timeout_s: How long a motion is valid [s]; infinity on the stepped clock.
        clock: A monotonic clock, in seconds.

    Attributes:
        gripper: Last gripper command from any source, -1 open to +1 closed; set by the loop, for
            toggle buttons.
        advice: The coach's current advice; empty for none.
        unmovable: Action columns that tool motion cannot drive; set by the loop. If there are any,
            all tool motion is refused.
        joints: Those of them that drive joints, which a leader arm can; also set by the loop.
        missing: Returns the robot's missing parts as text, empty if complete; set by the loop.
    """

    def __init__(
        self, jog_timeout_s: float = JOG_TIMEOUT_S, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._timeout = jog_timeout_s
        self._clock = clock
        # Single operations on deques and dicts are atomic in Python.
        self._events: deque[OperatorEvent] = deque()
        self._grippers: deque[float] = deque()
        self._jogs: dict[str, tuple[Motion, float]] = {}  # source -> motion, time [s]
        self._listeners: tuple[Callable[[OperatorEvent], None], ...] = ()
        self._stopped: dict[str, tuple[str, float]] = {}  # arm → why and when [s]
        self._halts: set[OperatorEvent] = set()  # posted and not yet cleared
        self._noting = threading.Lock()  # among arms; the reader takes no lock
        self.gripper = -1.0
        self.advice = ""
        self.unmovable: tuple[str, ...] = ()
        self.joints: tuple[str, ...] = ()
        self.missing: Callable[[], str] = str

    def listen(self, listener: Callable[[OperatorEvent], None]) -> None:
        """Register a listener, called for every event as it is posted, before the loop polls.

        The listener runs in the writer's thread and must neither block nor raise.
        """
        self._listeners = (*self._listeners, listener)

    def post(self, event: str) -> None:
        """Send an event to the loop and to all listeners.

        Raises:
            OperatorError: There is no such event; or so many are unread that no loop can be
                running. Listeners are called even then, and a stop stays queued.
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
        """Post an event, but refuse a `start` that would be lost. For callers that read the reply.

        Raises:
            OperatorError: As `post`; or nothing can start because the robot is stopped, paused or
                missing.
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
        """Notify the loop that an arm has stopped and why, or (None) that the stop was cleared.

        Listeners are not called: they would forward it to this or another arm.
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
        """Reasons of all stopped arms, as text; empty if no arm is known to be stopped."""
        reasons = [why for why, _ in tuple(self._stopped.values())]
        return f"the arm is stopped: {'; '.join(reasons)}" if reasons else ""

    def stopped_for(self) -> float:
        """Time since the latest stop of an arm that is still stopped [s]; 0 if none is."""
        return min((self._clock() - at for _, at in tuple(self._stopped.values())), default=0.0)

    def jog(
        self, motion: npt.ArrayLike, gripper: float | None = None, *, source: str = "operator"
    ) -> None:
        """Move the robot for as long as this is repeated, or report a device at rest.

        Args:
            motion: (6,), each in [-1, 1]; see `OperatorInput.motion`.
            gripper: A new gripper command, -1 open to +1 closed; None for no change.
            source: Name of the source; the last motion of each source counts.

        Raises:
            OperatorError: The motion or the gripper is not finite or out of range, or no operator
                can move this robot. The motion is then ignored.
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
        """Jog with a leader arm: one motion per joint of `joints` (n,), in [-1, 1]."""
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
        """Return the events since the last poll and the current motion. For the reader only."""
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
    """Pop the items present at the call; items appended meanwhile stay queued."""
    return tuple(queue.popleft() for _ in range(len(queue)))
