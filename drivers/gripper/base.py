"""Gripper driver protocol: position from 0 (open) to 1 (closed)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from drivers.base import DriverError


@dataclass(frozen=True)
class GripperState:
    """One gripper measurement."""

    stamp_ns: int  # measurement time on the system clock [ns]
    position: float  # finger position, 0 open to 1 closed
    # Whether an object stopped the fingers; None if the device cannot detect it.
    object_held: bool | None = None


class Gripper(Protocol):
    """A gripper with position control; one thread uses it at a time."""

    def connect(self) -> None:
        """Connect and prepare the device; can be called again after `close` or an error.

        Raises `DriverTimeout` if the device does not answer, `DriverFault` if it reports a fault,
        and `MissingExtra` if the vendor's SDK is not installed.
        """

    def read(self) -> GripperState:
        """Measure; raises like `connect`, and `Stale` if the latest measurement is too old."""

    def command(self, position: float) -> None:
        """Command a position, 0 open to 1 closed, and return immediately.

        Raises `DriverError` for a position out of range, and sends no command.
        """

    def stop(self) -> None:
        """Stop the fingers in place, at their current force; `command` moves them again."""

    def clear_errors(self) -> None:
        """Clear a fault after a person has checked the gripper; the fingers may move.

        If the gripper is not connected, the next `connect` clears it. Can be called from a
        different thread than `connect`.
        """

    def close(self) -> None:
        """Release the device; safe if it was never connected."""


@dataclass(frozen=True)
class Fingers:
    """A gripper that is one of an arm's joints, or one motor of a LeRobot device."""

    name: str = "gripper"  # name of its joint or motor
    open_at: float = 100.0  # open position, in the controller's unit
    closed_at: float = 0.0  # closed position, in the same unit

    def __post_init__(self) -> None:
        if self.open_at == self.closed_at:
            problem = "open_at and closed_at of the gripper are the same"
            raise DriverError(problem, got=self.open_at, expected="two positions")

    def share(self, position: float) -> float:
        """Convert a joint position to 0 (open) to 1 (closed)."""
        share = (position - self.open_at) / (self.closed_at - self.open_at)
        return min(max(share, 0.0), 1.0)

    def position(self, share: float) -> float:
        """Convert 0 (open) to 1 (closed) to a joint position."""
        return self.open_at + share * (self.closed_at - self.open_at)


def check_position(position: float) -> float:
    """Return a commanded position as a float; `DriverError` if it is not in [0, 1]."""
    if not 0.0 <= position <= 1.0:  # false for NaN
        raise DriverError(
            "a gripper cannot go there",
            got=position,
            expected="a position from 0, open, to 1, closed",
            hint="nothing was sent; the fingers stay where they are",
        )
    return float(position)
