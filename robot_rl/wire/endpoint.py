"""Where a server listens: checking addresses, telling others, and a client's socket for it."""

from __future__ import annotations

import ipaddress
import os
import re
from pathlib import Path
from typing import Any

import msgspec
import zmq

from robot_rl.processes.files import replace_text
from robot_rl.processes.waiting import wait_until
from robot_rl.wire import AddressRefused, ServerUnreachable
from robot_rl.wire.keys import ClientKeys

ENDPOINT_FILE = "endpoint.json"
_HINT = "start it; that of a store with: robot-rl replay"
_ADDRESS = re.compile(r"tcp://(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^/:\s]+):(?P<port>\d{1,5})")


class Endpoint(msgspec.Struct, frozen=True):
    """Where a running server is found."""

    address: str  # ``tcp://HOST:PORT``
    pid: int  # its process id
    # What a client must say. Every user of the machine can reach the port; only those who can read
    # the file get in. None where the server lets everybody on this machine in.
    secret: str | None = None


def parse_address(address: str) -> tuple[str, int]:
    """Take ``tcp://host:port`` apart; port 0 means any free one.

    Returns:
        The host, an IPv6 address in its brackets, and the port.

    Raises:
        AddressRefused: Not such an address.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None or int(match["port"]) > 65535:
        raise AddressRefused(
            "this is not an address of a server",
            got=address,
            expected="tcp://HOST:PORT, for example tcp://127.0.0.1:5555",
        )
    return match["host"], int(match["port"])


def check_protected(address: str, *, keys: bool) -> None:
    """Check that messages which leave this machine are authenticated and encrypted.

    Args:
        address: Where a server is to listen, or is to be reached.
        keys: Whether there are keys for it.

    Raises:
        AddressRefused: Not an address, or beyond loopback and without keys.
    """
    number = _number(parse_address(address)[0])
    if keys or (number is not None and number.is_loopback):
        return
    raise AddressRefused(
        "beyond this machine a server is used with keys only: without them its messages are neither"
        " authenticated nor encrypted",
        got=f"{address} without keys",
        expected="tcp://127.0.0.1:PORT, or keys",
        hint="make keys once with: robot-rl keys FOLDER, and add replay.keys=FOLDER",
    )


def local_address(bound: str) -> str:
    """Return where a client on this machine reaches a server that listens at `bound`."""
    host, port = parse_address(bound)
    number = _number(host)
    if number is None or not number.is_unspecified:
        return bound
    return f"tcp://{'[::1]' if number.version == 6 else '127.0.0.1'}:{port}"


def client_socket(
    context: zmq.Context[Any], endpoint: Endpoint, keys: ClientKeys | None = None
) -> Any:
    """Make a client's socket for a server, not yet connected."""
    check_protected(endpoint.address, keys=keys is not None)
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.RECONNECT_IVL, 20)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 200)
    socket.setsockopt(zmq.IPV6, parse_address(endpoint.address)[0].startswith("["))
    if keys is not None:
        socket.curve_serverkey = keys.server
        socket.curve_publickey = zmq.curve_public(keys.secret)
        socket.curve_secretkey = keys.secret
    elif endpoint.secret is not None:
        socket.plain_username = b"robot_rl"
        socket.plain_password = endpoint.secret.encode()
    return socket


def write_endpoint(folder: Path, endpoint: Endpoint) -> None:
    """Tell where a server listens; readers see the old file or the new one."""
    text = msgspec.json.encode(endpoint).decode()
    replace_text(folder / ENDPOINT_FILE, text, 0o666 if endpoint.secret is None else 0o600)


def read_endpoint(folder: Path) -> Endpoint:
    """Return where a server listens, or last listened before it was killed.

    Raises:
        ServerUnreachable: No server has told.
    """
    file = folder / ENDPOINT_FILE
    try:
        return msgspec.json.decode(file.read_bytes(), type=Endpoint)
    except (OSError, ValueError) as error:
        raise ServerUnreachable(
            f"no server has announced itself in {file}", got=error, hint=_HINT
        ) from error


def wait_for_endpoint(folder: Path, timeout: float) -> Endpoint:
    """Wait until a running server has told where it listens.

    Raises:
        ServerUnreachable: None has within `timeout` seconds.
    """
    endpoint = wait_until(lambda: _running(folder), timeout)
    if endpoint is None:
        raise ServerUnreachable(
            f"no server of {folder} is running", got=f"none within {timeout:g} s", hint=_HINT
        )
    return endpoint


def _running(folder: Path) -> Endpoint | None:
    try:
        endpoint = read_endpoint(folder)
        os.kill(endpoint.pid, 0)
    except (ServerUnreachable, ProcessLookupError):
        return None
    return endpoint


def _number(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Read the host of an address; None for a name."""
    try:
        return ipaddress.ip_address("127.0.0.1" if host == "localhost" else host.strip("[]"))
    except ValueError:
        return None
