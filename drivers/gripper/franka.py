"""The Franka Hand through franky-control (libfranka); not yet run on hardware.

The hand keeps its grip, and ends a motion that has begun, when this process dies.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from drivers.errors import DriverError, DriverFault, DriverTimeout, require
from drivers.gripper.base import GripperState, check_position

_JOIN_S = 5.0
# How often a stop is sent until the motion has ended, and how long each may take.
_STOPS, _STOP_S = 10, 0.1


class FrankaHand:
    """The hand of a Franka arm.

    To close is to grasp with `force`, to open is to move. A motion blocks in libfranka, so that a
    thread of its own runs them; a newer command stops the one that is going on.

    Args:
        host: Address of the arm's controller.
        speed: Of the fingers towards each other [m/s], at most 0.2.
        force: Of a grasp [N], at most 70 for long.

    Raises:
        DriverError: A number out of its range.
        MissingExtra: franky-control is not installed.
    """

    def __init__(self, host: str, speed: float = 0.1, force: float = 30.0) -> None:
        """See the class."""
        for name, value, limit in (("speed", speed, 0.2), ("force", force, 140.0)):
            if not 0.0 < value <= limit:
                raise DriverError(
                    f"{name} of the Franka Hand", got=value, expected=f"over 0, at most {limit:g}"
                )
        self._franky = require("franky", "franka")
        self._host, self._speed, self._force = host, speed, force
        self._hand: Any = None
        self._changed = threading.Condition()
        self._wanted: float | None = None
        self._moving = self._interrupted = self._ending = self._homing = False
        self._failure: DriverError | None = None
        self._thread: threading.Thread | None = None

    def connect(self) -> None:
        """Reach the hand; one that was never homed is reported, not moved."""
        self.close()
        homed = True
        try:
            self._hand = self._franky.Gripper(self._host)
            if self._homing:
                self._homing = False  # before the fingers move: a node connects again for ever
                homed = self._hand.homing()
            width = float(self._hand.state.max_width)
        except Exception as error:  # franky's own, which begin at Exception
            raise self._translated(error) from error
        if not homed:
            raise DriverFault(
                f"the Franka Hand at {self._host} was not homed",
                hint="look at the fingers, then clear_errors, which closes and opens them",
            )
        if width <= 0.0:
            raise DriverFault(
                f"the Franka Hand at {self._host} does not know its width",
                hint="clear_errors homes it, which closes and opens its fingers",
            )
        self._wanted, self._failure = None, None
        self._ending = self._homing = False
        self._thread = threading.Thread(target=self._run, name="franka hand", daemon=True)
        self._thread.start()

    def read(self) -> GripperState:
        """Where the fingers are."""
        if self._failure is not None:
            raise self._failure
        try:
            state = self._connected().state
        except self._franky.Exception as error:
            raise self._translated(error) from error
        share = 1.0 - state.width / state.max_width
        return GripperState(time.time_ns(), min(max(share, 0.0), 1.0), bool(state.is_grasped))

    def command(self, position: float) -> None:
        """Send the fingers to a position; the thread moves them."""
        value = check_position(position)
        hand = self._connected()
        with self._changed:
            self._wanted = value
            interrupt = self._interrupted = self._moving
            self._changed.notify_all()
        if interrupt:
            self._stop(hand)

    def stop(self) -> None:
        """Stop the fingers; afterwards no motion goes on.

        Raises:
            DriverTimeout: The motion does not end.
        """
        hand = self._connected()
        with self._changed:
            self._wanted, self._interrupted = None, True
        for _ in range(_STOPS):  # one that overtakes the motion in the library ends nothing
            self._stop(hand)
            with self._changed:
                if self._changed.wait_for(lambda: not self._moving, _STOP_S):
                    return
        raise DriverTimeout(
            f"the Franka Hand at {self._host} does not stop",
            hint="look at the fingers, then see Desk",
        )

    def clear_errors(self) -> None:
        """Home the hand at the next `connect`, once: **its fingers close and open**."""
        self._homing = True
        self._failure = DriverFault(f"the Franka Hand at {self._host} is to be homed")

    def close(self) -> None:
        """Let go of the hand."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(_JOIN_S)
        self._thread = self._hand = None

    def _run(self) -> None:
        """Run one motion after the other, always the newest that was asked for."""
        hand = self._hand
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ending or self._wanted is not None)
                if self._ending:
                    return
                position, self._wanted = self._wanted, None
                self._moving, self._interrupted = True, False
            try:
                self._move(hand, position or 0.0)
            except Exception as error:
                # A motion that `stop` or a newer command interrupts ends as a failed command.
                failed = isinstance(error, self._franky.CommandException)
                if not (failed and self._interrupted):
                    self._failure = self._translated(error)
            finally:
                with self._changed:
                    self._moving = False
                    self._changed.notify_all()

    def _move(self, hand: Any, position: float) -> None:
        state = hand.state  # takes a while, in which the motion may be taken back
        with self._changed:
            if self._interrupted or self._ending:
                return
        width = (1.0 - position) * state.max_width
        if width < state.width:
            anything = state.max_width  # whatever is between the fingers counts as grasped
            hand.grasp(width, self._speed, self._force, anything, anything)
        else:
            hand.move(width, self._speed)

    def _stop(self, hand: Any) -> None:
        try:
            hand.stop()
        except self._franky.Exception as error:
            raise self._translated(error) from error

    def _connected(self) -> Any:
        if self._hand is None:
            raise DriverError("the Franka Hand is not connected", hint="call connect first")
        return self._hand

    def _translated(self, error: BaseException) -> DriverError:
        if isinstance(error, self._franky.NetworkException):
            return DriverTimeout(
                f"the Franka Hand at {self._host} does not answer",
                got=error,
                hint="is the address right, FCI enabled in Desk, and no other program connected?",
            )
        return DriverFault(
            f"the Franka Hand at {self._host} failed", got=error, hint="see Desk, then clear_errors"
        )
