"""The Franka Hand through franky-control (libfranka); not yet run on hardware.

When this process dies, the hand finishes its motion and keeps its grip.
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
_PORT = 1338  # of the hand
# It closes on commands above the one and opens below the other; a policy in doubt wavers between.
_CLOSE_ABOVE, _OPEN_BELOW = 0.7, 0.3
# How often a stop is sent until the motion has ended, and how long each may take.
_STOPS, _STOP_S = 10, 0.1


@dataclass
class _Motions:
    """The state that the driver shares with the thread of its motions, for one connection.

    A thread that hung in the library, and goes on after the next `connect`, finds its own ended.
    """

    hand: Any  # franky's
    # Guards the other fields, and notifies of their changes.
    changed: threading.Condition = field(default_factory=threading.Condition)
    # Whether the newest command closes, or opens; None: no command since a stop.
    commanded: bool | None = None
    wanted: bool | None = None  # whether to close next, or to open; None: neither
    moving: bool = False  # whether a motion goes on, or begins; homing is one too
    # Whether a stop is under way in the library, which would end a motion that follows.
    stopping: bool = False
    interrupted: bool = False  # whether it was taken back
    ending: bool = False  # whether none may follow
    failure: DriverError | None = None  # error of a motion


@dataclass(eq=False)
class FrankaHand:
    """The hand of a Franka arm.

    It closes or opens: to close is to grasp with `force` whatever is there, to open is to move all
    the way. Commands from 0.3 to 0.7 change nothing, nor does a repeated command. A motion
    blocks in libfranka, so that a thread of its own runs them; a newer one stops the one that is
    going on.
    """

    host: str  # address of the arm's controller
    speed: float = 0.1  # of the fingers towards each other [m/s], at most 0.2
    force: float = 30.0  # of a grasp [N], at most 70 for long

    def __post_init__(self) -> None:
        check_ranges("Franka Hand", self, speed=(1e-3, 0.2), force=(1.0, 140.0))
        self._franky = require("franky", "franka")
        self._homing = False
        self._motions: _Motions | None = None
        self._thread: threading.Thread | None = None

    def examine(self) -> str:
        """Say whether the arm's controller listens, and leave it alone, or raise `DriverError`."""
        check_reachable("Franka control unit", self.host, _PORT, _JOIN_S)
        return f"controller at {self.host}, franky-control {version('franky-control')}"

    def connect(self) -> None:
        """Reach the hand; one that was never homed is reported, not moved."""
        self.close()
        try:
            hand = self._franky.Gripper(self.host)
            self._motions = motions = _Motions(hand)  # with which `stop` ends the homing too
            homed = self._home(motions)
            width = float(hand.state.max_width)
        except Exception as error:  # franky's own, which begin at Exception
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
        """Where the fingers are."""
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
        """Close or open the fingers; the thread moves them."""
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
        """Stop the fingers, or raise `DriverTimeout`; no motion goes on, nor is the hand homed."""
        self._homing = False
        motions = self._connected()
        with motions.changed:
            motions.commanded, motions.wanted, motions.interrupted = None, None, True
        for _ in range(_STOPS):  # one that overtakes the motion in the library ends nothing
            self._stop(motions)
            with motions.changed:
                if motions.changed.wait_for(lambda: not motions.moving, _STOP_S):
                    return
        problem = f"the Franka Hand at {self.host} does not stop"
        raise DriverTimeout(problem, hint="look at the fingers, then see Desk")

    def clear_errors(self) -> None:
        """Home the hand at the next `connect`, once: **its fingers close and open**.

        A `stop` in between takes that back.
        """
        self._homing = True

    def close(self) -> None:
        """Let go of the hand."""
        motions, self._motions = self._motions, None
        thread, self._thread = self._thread, None
        if motions is not None:
            with motions.changed:
                motions.ending = True
                motions.changed.notify_all()
        if thread is not None:
            thread.join(_JOIN_S)

    def _home(self, motions: _Motions) -> bool:
        """Home the hand where a person has asked for it; returns whether nothing failed."""
        with motions.changed:
            wanted, self._homing = (
                self._homing,
                False,
            )  # now: a node connects again after each failure
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
        """Run one motion after the other, always the newest that was asked for."""
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
                # A motion that `stop` or a newer command interrupts ends as a failed command.
                failed = isinstance(error, self._franky.CommandException)
                if not (failed and motions.interrupted):
                    motions.failure = self._translated(error)
            finally:
                with motions.changed:
                    motions.moving = False
                    motions.changed.notify_all()

    def _move(self, motions: _Motions, closing: bool) -> None:
        hand = motions.hand
        width = hand.state.max_width  # takes a while, in which the motion may be taken back
        with motions.changed:
            if motions.interrupted or motions.ending:
                return
        if closing:  # whatever is between the fingers counts as grasped
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
