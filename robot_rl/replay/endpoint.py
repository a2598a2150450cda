"""Where a store's server listens: checking addresses, and the file that tells others."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
import re
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from robot_rl.processes.files import replace_text
from robot_rl.replay.errors import AddressRefused, ServerUnreachable

ENDPOINT_FILE = "endpoint.json"
_ADDRESS = re.compile(r"tcp://(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^/:\s]+):(?P<port>\d{1,5})")


@dataclass(frozen=True)
class Endpoint:
    """Where a running server is found.

    Attributes:
        address: ``tcp://HOST:PORT``.
        pid: Its process id.
        local: A quicker way to it for clients on the same machine, None where it has none.
    """

    address: str
    pid: int
    local: str | None = None


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
            "this is not an address of a replay server",
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
    host, _ = parse_address(address)
    if keys or _is_loopback(host):
        return
    raise AddressRefused(
        "beyond this machine the replay server is used with keys only: without them its messages "
        "are neither authenticated nor encrypted",
        got=f"{address} without keys",
        expected="tcp://127.0.0.1:PORT, or keys",
        hint="make keys once with: robot-rl keys FOLDER, and add replay.keys=FOLDER",
    )


def is_ipv6(address: str) -> bool:
    """Return whether the host is an IPv6 address, for which ZeroMQ wants an option set."""
    return parse_address(address)[0].startswith("[")


def local_address(bound: str) -> str:
    """Return where a client on this machine reaches a server that listens at `bound`."""
    host, port = parse_address(bound)
    try:
        anywhere = ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        anywhere = False
    if not anywhere:
        return bound
    return f"tcp://{'[::1]' if host.startswith('[') else '127.0.0.1'}:{port}"


def local_socket(store: Path) -> str | None:
    """Name the Unix socket of a store's server; None on systems without names outside of folders.

    The name is the same after a restart, and ends with the process.
    """
    if sys.platform != "linux":
        return None
    name = hashlib.sha256(os.fsencode(store.resolve())).hexdigest()[:32]
    return f"ipc://@robot-rl-replay-{name}"


def write_endpoint(store: Path, endpoint: Endpoint) -> None:
    """Tell where the server of `store` listens; readers see the old file or the new one."""
    replace_text(store / ENDPOINT_FILE, json.dumps(asdict(endpoint)))


def read_endpoint(store: Path) -> Endpoint:
    """Return where the server of `store` listens, or last listened before it was killed.

    Raises:
        ServerUnreachable: No server has told.
    """
    file = store / ENDPOINT_FILE
    try:
        content = json.loads(file.read_text())
        local = content.get("local")
        return Endpoint(
            str(content["address"]), int(content["pid"]), None if local is None else str(local)
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ServerUnreachable(
            f"no replay server has announced itself in {file}",
            got=repr(error),
            hint="start it with: robot-rl replay",
        ) from error


def wait_for_endpoint(path: Path, timeout: float) -> Endpoint:
    """Wait until a running server of the store has told where it listens.

    Raises:
        ServerUnreachable: None has within `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            endpoint = read_endpoint(path)
            os.kill(endpoint.pid, 0)
            return endpoint
        except (ServerUnreachable, ProcessLookupError) as error:
            if time.monotonic() > deadline:
                raise ServerUnreachable(
                    f"no replay server of {path} is running", got=repr(error)
                ) from error
        time.sleep(0.02)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
