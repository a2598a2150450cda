"""What can go wrong with a device, and what drivers check before they touch one."""

from __future__ import annotations

import socket

from robot_rl.errors import RobotRLError


class DriverError(RobotRLError):
    """Something is wrong with a device, its address or its configuration."""


class DriverTimeout(DriverError):
    """The device did not answer in time."""


class DriverFault(DriverError):
    """The device reports a fault, such as a protective stop; a person has to look at it."""


class Stale(DriverError):
    """The newest measurement, `what`, is too old to act on: older than `limit_s` [s]."""

    def __init__(self, what: str, age_s: float, limit_s: float, hint: str | None = None) -> None:
        super().__init__(
            f"{what} is too old",
            got=f"{age_s * 1e3:.0f} ms",
            expected=f"at most {limit_s * 1e3:.0f} ms",
            hint=hint,
        )


def check_ranges(what: str, driver: object, **ranges: tuple[float, float]) -> None:
    """Check a driver's numbers, by the lowest and highest one, before its device is touched.

    The `DriverError` names the first that is out of range or not a number.
    """
    for name, (low, high) in ranges.items():
        value = getattr(driver, name)
        if not (isinstance(value, int | float) and low <= value <= high):
            raise DriverError(
                f"{name!r} of the {what} is out of range", got=value, expected=f"{low} to {high}"
            )


def check_reachable(device: str, host: str, port: int, timeout_s: float) -> None:
    """Open and close a TCP connection, before a vendor's SDK waits for it for minutes.

    Raises `DriverError` where the name is unknown or nothing listens there, and `DriverTimeout`
    where there is no answer within `timeout_s` [s].
    """
    try:
        socket.create_connection((host, port), timeout_s).close()
    except OSError as error:
        late = isinstance(error, TimeoutError)
        raise (DriverTimeout if late else DriverError)(
            f"the {device} at {host}:{port} cannot be reached",
            got=f"nothing within {timeout_s:g} s" if late else error,
            hint="is it on, its remote interface too, and on the network of this machine? Is the"
            " address right?",
        ) from error
