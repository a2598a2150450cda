"""Whether a device answers at an address, before a vendor's SDK waits for it for minutes."""

from __future__ import annotations

import socket

from drivers.errors import DriverError, DriverTimeout


def check_reachable(device: str, host: str, port: int, timeout_s: float) -> None:
    """Open and close a TCP connection.

    Args:
        device: What is expected there, for the error.
        host: Name or IP address.
        port: TCP port.
        timeout_s: Longest wait [s].

    Raises:
        DriverError: The name is unknown, or nothing listens there.
        DriverTimeout: No answer in time.
    """
    address = f"{host}:{port}"
    try:
        socket.create_connection((host, port), timeout_s).close()
    except TimeoutError as error:
        raise DriverTimeout(
            f"the {device} at {address} does not answer",
            got=f"nothing within {timeout_s:g} s",
            hint="is it on, and on the network of this machine? Try ping",
        ) from error
    except socket.gaierror as error:
        raise DriverError(
            f"the name of the {device}, {host!r}, is unknown", got=error, hint="use its IP address"
        ) from error
    except OSError as error:
        raise DriverError(
            f"the {device} at {address} cannot be reached",
            got=error,
            hint="check the address, the cable, and that its remote interface is switched on",
        ) from error
