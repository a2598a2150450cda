"""What all drivers share: errors, checks before a device is touched, and devices on ROS topics."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from robot_rl.errors import RobotRLError
from robot_rl.processes.waiting import wait_until

if TYPE_CHECKING:
    from robot_rl.ros.ros_client import RosClient

_FOUND_S = 5.0  # in which running publishers are discovered


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


class TopicDriver:
    """A driver that reaches its device over topics, with a ROS node of its own while connected."""

    namespace: str  # below which its topics are that do not begin with a slash
    _client: RosClient | None = None

    def listen(self, name: str) -> RosClient:
        """Start a node of this name, after closing an old one."""
        from robot_rl.ros.ros_client import RosClient

        self.close()
        self._client = RosClient(name, self.namespace)
        return self._client

    def published(self, *topics: str) -> str:
        """Name these topics if all are published, else raise `DriverError`; sends nothing."""
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
        """Check that its node runs, or raise `DriverError` or `RosUnavailable`."""
        if self._client is None:
            raise DriverError(f"{device} is not connected", hint="call connect first")
        self._client.check()

    def close(self) -> None:
        """Leave ROS; a controller keeps its last command."""
        client, self._client = self._client, None
        if client is not None:
            client.close()
