"""What can go wrong with a device, and the one way to import a vendor's SDK."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

from policies import extras
from robot_rl.errors import RobotRLError


class DriverError(RobotRLError):
    """Something is wrong with a device, its address or its configuration."""


class DriverTimeout(DriverError):
    """The device did not answer in time."""


class DriverFault(DriverError):
    """The device reports a fault, such as a protective stop; a person has to look at it."""


class Stale(DriverError):
    """The newest measurement is too old to act on.

    Args:
        what: The measurement or topic.
        age_s: How old it is [s].
        limit_s: How old it may be [s].
        hint: What to look at.
    """

    def __init__(self, what: str, age_s: float, limit_s: float, hint: str | None = None) -> None:
        """See the class."""
        super().__init__(
            f"{what} is too old",
            got=f"{age_s * 1e3:.0f} ms",
            expected=f"at most {limit_s * 1e3:.0f} ms",
            hint=hint,
        )
        self.age_s = age_s


class MissingExtra(DriverError):
    """A vendor's SDK is not installed, or does not load."""


def check_ranges(device: str, ranges: Mapping[str, tuple[float, float, float]]) -> None:
    """Check a driver's numbers before its device is touched.

    Args:
        device: Its name, for the error.
        ranges: Value, lowest and highest value of each argument.

    Raises:
        DriverError: Names the first argument that is out of range or not a number.
    """
    for name, (value, low, high) in ranges.items():
        if not low <= value <= high:
            raise DriverError(
                f"{name!r} of the {device} is out of range", got=value, expected=f"{low} to {high}"
            )


def require(module: str, extra: str) -> ModuleType:
    """Import a vendor's SDK when a driver is made, not before.

    Args:
        module: Dotted name of the module.
        extra: The extra of `robot_rl` that installs it.

    Raises:
        MissingExtra: Names the extra to install, or the library that the SDK itself lacks.
    """
    return extras.require(module, extra, MissingExtra)
