"""Franka Hand through franky-control (libfranka); not yet tested on hardware.

If this process dies, the hand finishes its motion and keeps its grip.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from drivers.base import DriverError, DriverFault, DriverTimeout, check_ranges, check_reachable
from drivers.gripper.base import GripperState, check_position
from robot_rl.errors import require

_JOIN_S = 5.0
_PORT = 1338  # port of the hand
# Close above one threshold, open below the other; the hysteresis filters a wavering policy.
_CLOSE_ABOVE, _OPEN_BELOW = 0.7, 0.3
# Number of stops sent until the motion ends, and the wait after each [s].
_STOPS, _STOP_S = 10, 0.1


@dataclass
class _Motions:
    """State shared between the driver and its motion thread, for one connection.

    A thread that hung in the library and resumes after the next `connect` still sees its own state,
    which is marked as ending.
    """

    hand: Any  # the franky gripper
    # Guards the other fields and signals changes.
    changed: threading.Condition = field(default_factory=threading.Condition)
    # Whether the latest command closes the hand; None before the first one, and after a stop.
    commanded: bool | None = None
    wanted: bool | None = None  # pending motion: True closes, False opens, None for none
    moving: bool = False  # whether a motion, including homing, is running or starting
    # Whether the library is still executing a stop, which would also end the next motion.
    stopping: bool = False
    interrupted: bool = False  # whether the motion was cancelled
    ending: bool = False  # whether the thread must exit
    failure: DriverError | None = None  # error raised by a motion


@dataclass(eq=False)
class FrankaHand:
    """The hand of a Franka arm.

    It only closes or opens. Closing grasps any object with `force`; opening moves to the full
    width. Commands from 0.3 to 0.7 and repeated commands are ignored. Motions block in libfranka,
    so a separate thread runs them. A new command stops the current motion.
    """

    host: str  # address of the arm's controller
    speed: float = 0.1  # closing and opening speed [m/s], at most 0.2
    force: float = 30.0  # grasp force [N], at most 70 continuously

    def __post_init__(self) -> None:
        check_ranges("Franka Hand", self, speed=(1e-3, 0.2), force=(1.0, 140.0))
        self._franky = require("franky", "franka")
        self._homing = False
        self._motions: _Motions | None = None
        self._thread: threading.Thread | None = None

    def examine(self) -> str:
        """Check that the arm's controller listens, without moving; raises `DriverError` if not."""
        check_reachable("Franka control unit", self.host, _PORT, _JOIN_S)
        return f"controller at {self.host}, franky-control {version('franky-control')}"

    def connect(self) -> None:
        """Connect; raises `DriverFault` if the hand was never homed, and does not move it."""
        self.close()
        try:
            hand = self._franky.Gripper(self.host)
            self._motions = motions = _Motions(hand)  # lets `stop` end homing too
            homed = self._home(motions)
            width = float(hand.state.max_width)
        except Exception as error:  # franky's errors, which derive from Exception
            raise self._translated(error) from error
        if not homed:
            raise DriverFault(
                f"the Franka Hand at {self.host} was not homed",
                hint="look at the fingers, then clear_errors, which closes and opens them",
            )
        if width <= 0.0:
            raise DriverFault(
                f"the Franka Hand at {self.host} does not know its width",
                hint="clear_errors homes it, which closes and opens its fingers",
            )
        self._thread = threading.Thread(
            target=self._run, args=(motions,), name="franka hand", daemon=True
        )
        self._thread.start()

    def read(self) -> GripperState:
        """Measure the finger position."""
        motions = self._connected()
        if self._homing:
            raise DriverFault(
                f"the Franka Hand at {self.host} has not been homed yet",
                hint="that comes next, and moves its fingers; wait a few seconds",
            )
        if motions.failure is not None:
            raise motions.failure
        try:
            state = motions.hand.state
        except self._franky.Exception as error:
            raise self._translated(error) from error
        share = 1.0 - state.width / state.max_width
        return GripperState(time.time_ns(), min(max(share, 0.0), 1.0), bool(state.is_grasped))

    def command(self, position: float) -> None:
        """Close or open the fingers in the motion thread."""
        value = check_position(position)
        motions = self._connected()
        closing = value > _CLOSE_ABOVE
        if closing == motions.commanded or (not closing and value >= _OPEN_BELOW):
            return
        with motions.changed:
            motions.commanded = motions.wanted = closing
            motions.interrupted = motions.stopping = motions.moving
            motions.changed.notify_all()
        if motions.stopping:
            self._stop(motions)

    def stop(self) -> None:
        """Stop the fingers and cancel homing; raises `DriverTimeout` if they keep moving."""
        self._homing = False
        motions = self._connected()
        with motions.changed:
            motions.commanded, motions.wanted, motions.interrupted = None, None, True
        for _ in range(_STOPS):  # a stop that reaches the library before the motion has no effect
            self._stop(motions)
            with motions.changed:
                if motions.changed.wait_for(lambda: not motions.moving, _STOP_S):
                    return
        problem = f"the Franka Hand at {self.host} does not stop"
        raise DriverTimeout(problem, hint="look at the fingers, then see Desk")

    def clear_errors(self) -> None:
        """Home the hand once, at the next `connect`: **its fingers close and open**.

        A `stop` before then cancels it.
        """
        self._homing = True

    def close(self) -> None:
        """Disconnect from the hand."""
        motions, self._motions = self._motions, None
        thread, self._thread = self._thread, None
        if motions is not None:
            with motions.changed:
                motions.ending = True
                motions.changed.notify_all()
        if thread is not None:
            thread.join(_JOIN_S)

    def _home(self, motions: _Motions) -> bool:
        """Home the hand if requested; returns False if homing failed."""
        with motions.changed:
            wanted, self._homing = (
                self._homing,
                False,
            )  # reset now: a node reconnects after every failure
            if not wanted or motions.interrupted:
                return True
            motions.moving = True
        try:
            return bool(motions.hand.homing())
        finally:
            with motions.changed:
                motions.moving = False
                motions.changed.notify_all()

    def _run(self, motions: _Motions) -> None:
        """Run motions one by one, always the latest request."""
        while True:
            with motions.changed:
                motions.changed.wait_for(
                    lambda: motions.ending or (motions.wanted is not None and not motions.stopping)
                )
                if motions.ending:
                    return
                closing, motions.wanted = bool(motions.wanted), None
                motions.moving, motions.interrupted = True, False
            try:
                self._move(motions, closing)
            except Exception as error:
                # A motion that `stop` or a newer command interrupts raises a CommandException.
                failed = isinstance(error, self._franky.CommandException)
                if not (failed and motions.interrupted):
                    motions.failure = self._translated(error)
            finally:
                with motions.changed:
                    motions.moving = False
                    motions.changed.notify_all()

    def _move(self, motions: _Motions, closing: bool) -> None:
        hand = motions.hand
        width = hand.state.max_width  # slow; the motion may be cancelled meanwhile
        with motions.changed:
            if motions.interrupted or motions.ending:
                return
        if closing:  # any width counts as a successful grasp
            hand.grasp(0.0, self.speed, self.force, width, width)
        else:
            hand.move(width, self.speed)

    def _stop(self, motions: _Motions) -> None:
        try:
            motions.hand.stop()
        except self._franky.Exception as error:
            raise self._translated(error) from error
        finally:
            with motions.changed:
                motions.stopping = False
                motions.changed.notify_all()

    def _connected(self) -> _Motions:
        if self._motions is None:
            raise DriverError("the Franka Hand is not connected", hint="call connect first")
        return self._motions

    def _translated(self, error: BaseException) -> DriverError:
        if isinstance(error, self._franky.NetworkException):
            return DriverTimeout(
                f"the Franka Hand at {self.host} does not answer",
                got=error,
                hint="is the address right, FCI enabled in Desk, and no other program connected?",
            )
        return DriverFault(
            f"the Franka Hand at {self.host} failed", got=error, hint="see Desk, then clear_errors"
        )
