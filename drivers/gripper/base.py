"""The protocol of gripper drivers: a position between 0, open, and 1, closed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from drivers.base import DriverError


@dataclass(frozen=True)
class GripperState:
    """One measurement of a gripper."""

    stamp_ns: int  # when it was measured, on the system clock [ns]
    position: float  # of the fingers, 0 open to 1 closed
    # Whether the fingers were stopped by an object; None where the device cannot tell.
    object_held: bool | None = None


class Gripper(Protocol):
    """A gripper whose fingers can be sent to a position; one thread at a time uses it."""

    def connect(self) -> None:
        """Reach the device and make it ready; may be called again after `close` or an error.

        Raises `DriverTimeout` where it does not answer, `DriverFault` where it reports a fault, and
        `MissingExtra` where the vendor's SDK is not installed.
        """

    def read(self) -> GripperState:
        """Measure; raises as `connect`, and `Stale` where the newest measurement is too old."""

    def command(self, position: float) -> None:
        """Send the fingers to a position, 0 open to 1 closed, and return at once.

        For another position it is a `DriverError`, and nothing is sent.
        """

    def stop(self) -> None:
        """Stop the fingers where they are, with their present force; `command` moves them again."""

    def clear_errors(self) -> None:
        """Clear a fault after a person has looked at it; the fingers may move.

        Of a gripper that is not connected, the next `connect` does it. May be called by another
        thread than the one that connects.
        """

    def close(self) -> None:
        """Release the device, even if it was never reached."""


@dataclass(frozen=True)
class Fingers:
    """A gripper among the joints of an arm, or the motors of a LeRobot device."""

    name: str = "gripper"  # of its joint, or motor
    open_at: float = 100.0  # position when it is open, in its controller's own unit
    closed_at: float = 0.0  # position when it is closed

    def __post_init__(self) -> None:
        if self.open_at == self.closed_at:
            problem = "open_at and closed_at of the gripper are the same"
            raise DriverError(problem, got=self.open_at, expected="two positions")

    def share(self, position: float) -> float:
        """How far it is closed, 0 open to 1 closed, at a position of its joint."""
        share = (position - self.open_at) / (self.closed_at - self.open_at)
        return min(max(share, 0.0), 1.0)

    def position(self, share: float) -> float:
        """The other way round."""
        return self.open_at + share * (self.closed_at - self.open_at)


def check_position(position: float) -> float:
    """Return a commanded position as a float; `DriverError` where it is no number in [0, 1]."""
    if not 0.0 <= position <= 1.0:  # false for NaN
        raise DriverError(
            "a gripper cannot go there",
            got=position,
            expected="a position from 0, open, to 1, closed",
            hint="nothing was sent; the fingers stay where they are",
        )
    return float(position)
