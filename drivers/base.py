"""Code shared by all drivers: errors, checks before touching a device, devices on ROS topics."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from robot_rl.errors import RobotRLError
from robot_rl.processes.waiting import wait_until

if TYPE_CHECKING:
    from robot_rl.ros.ros_client import RosClient

_FOUND_S = 5.0  # time to discover running publishers


class DriverError(RobotRLError):
    """A device, its address or its configuration is wrong."""


class DriverTimeout(DriverError):
    """The device did not answer in time."""


class DriverFault(DriverError):
    """The device reports a fault, such as a protective stop; a person must look at it."""


class Stale(DriverError):
    """The latest measurement of `what` is too old to act on: older than `limit_s` [s]."""

    def __init__(self, what: str, age_s: float, limit_s: float, hint: str | None = None) -> None:
        super().__init__(
            f"{what} is too old",
            got=f"{age_s * 1e3:.0f} ms",
            expected=f"at most {limit_s * 1e3:.0f} ms",
            hint=hint,
        )


def check_ranges(what: str, driver: object, **ranges: tuple[float, float]) -> None:
    """Check that a driver's numbers are within (low, high) before touching its device.

    Raises `DriverError` for the first that is out of range or not a number.
    """
    for name, (low, high) in ranges.items():
        value = getattr(driver, name)
        if not (isinstance(value, int | float) and low <= value <= high):
            raise DriverError(
                f"{name!r} of the {what} is out of range", got=value, expected=f"{low} to {high}"
            )


def check_reachable(device: str, host: str, port: int, timeout_s: float) -> None:
    """Open and close a TCP connection; a vendor's SDK might wait minutes for a missing device.

    Raises `DriverError` if the host name is unknown or the port is closed, and `DriverTimeout` if
    there is no answer within `timeout_s` [s].
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


class TopicDriver:
    """A driver that reaches its device over topics, using its own ROS node while connected."""

    namespace: str  # prefix of topics that do not start with a slash
    _client: RosClient | None = None

    def listen(self, name: str) -> RosClient:
        """Start a node of this name, closing any old one first."""
        from robot_rl.ros.ros_client import RosClient

        self.close()
        self._client = RosClient(name, self.namespace)
        return self._client

    def published(self, *topics: str) -> str:
        """List these topics if all are published, else raise `DriverError`; sends nothing."""
        client = self.listen("examining")
        names = [client.topic(topic) for topic in topics if topic]

        def silent() -> list[str]:
            return [n for n in names if not client.node.get_publishers_info_by_topic(n)]

        try:
            wait_until(lambda: not silent(), _FOUND_S)
            if silent():
                hint = "start its controller; or correct the namespace and the topics in the cell"
                raise DriverError(f"nobody publishes {', '.join(silent())}", hint=hint)
        finally:
            self.close()
        return f"published: {', '.join(names)}"

    def check_connected(self, device: str) -> None:
        """Raise `DriverError` or `RosUnavailable` if its node is not running."""
        if self._client is None:
            raise DriverError(f"{device} is not connected", hint="call connect first")
        self._client.check()

    def close(self) -> None:
        """Leave ROS; the device's controller keeps its last command."""
        client, self._client = self._client, None
        if client is not None:
            client.close()
