"""Where a store's server listens: checking addresses, and the file that tells others."""

from __future__ import annotations

import ipaddress
import json
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

from robot_rl.replay.errors import AddressRefused, ServerUnreachable

ENDPOINT_FILE = "endpoint.json"
_ADDRESS = re.compile(r"tcp://(?P<host>[^/]+):(?P<port>\d{1,5})")


@dataclass(frozen=True)
class Endpoint:
    """Address and process id of a running server."""

    address: str
    pid: int


def parse_address(address: str) -> tuple[str, int]:
    """Take ``tcp://host:port`` apart; port 0 means any free one.

    Raises:
        AddressRefused: Not such an address, or not this machine's loopback.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None or int(match["port"]) > 65535:
        raise AddressRefused(
            "this is not an address of a replay server",
            got=address,
            expected="tcp://127.0.0.1:PORT",
        )
    host = match["host"]
    try:
        loopback = host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise AddressRefused(
            "the replay server listens on this machine only: its messages are neither "
            "authenticated nor encrypted",
            got=address,
            expected="tcp://127.0.0.1:PORT",
            hint="tunnel the port, for example with ssh -L",
        )
    return host, int(match["port"])


def write_endpoint(store: Path, endpoint: Endpoint) -> None:
    """Tell where the server of `store` listens; readers see the old file or the new one."""
    temporary = store / f".{ENDPOINT_FILE}.{endpoint.pid}"
    temporary.write_text(json.dumps({"address": endpoint.address, "pid": endpoint.pid}))
    os.replace(temporary, store / ENDPOINT_FILE)


def read_endpoint(store: Path) -> Endpoint:
    """Return where the server of `store` listens, or last listened before it was killed.

    Raises:
        ServerUnreachable: No server has told.
    """
    file = store / ENDPOINT_FILE
    try:
        content = json.loads(file.read_text())
        return Endpoint(str(content["address"]), int(content["pid"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
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
