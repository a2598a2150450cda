"""`StopLatch`: a stop that survives the process that set it."""

from __future__ import annotations

import hashlib
import os
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from robot_rl.errors import RobotRLError

_PREFIX, _BETWEEN, _LONGEST = "stop.", "+", 60
# Driver settings that hold an arm's serial number, address or port.
_SERIALS = ("serial_number", "serial")
_HOSTS = ("host", "robot_ip", "ip_address", "ip", "address", "hostname", "remote_ip")
_WIRES = ("port", "device")
_LOOPBACK = dict.fromkeys(("localhost", "::1"), "127.0.0.1")
_ADDRESSES = 3  # most addresses used per host


class StopNotKept(RobotRLError):
    """The file that stores a stop cannot be read, written or removed."""


class StopLatch:
    """A file in `folder` that exists while an arm is stopped and holds the reason.

    The arm's node, with the full name `node`, reads it at startup, so a killed node stays stopped
    until a person clears it. `names_of` derives the file's name from the arm's address in the
    `driver` settings. The stop is therefore also found from another ROS domain or namespace, or
    with the address spelled differently, and a simulated arm cannot clear a real one.
    Raises `StopNotKept` if the folder cannot be created or written.
    """

    def __init__(self, folder: Path, node: str, driver: Mapping[str, Any]) -> None:
        self._folder = folder
        self._own, self._known_by = names_of(node, driver)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._not_kept("made", error) from error
        if not os.access(folder, os.W_OK | os.X_OK):
            raise self._not_kept("written", f"no permission for {folder}")

    def reason(self) -> str | None:
        """Return why the arm is stopped, or None. Raises `StopNotKept` on a read error."""
        try:
            # Empty if the process was killed between creating and writing it.
            reasons = [path.read_text() or "a stop" for path in self._files()]
        except (OSError, UnicodeDecodeError) as error:
            raise self._not_kept("read", error) from error
        return reasons[0] if reasons else None

    def set(self, reason: str) -> None:
        """Store the stop, or raise `StopNotKept`. A stored stop keeps its first reason."""
        if self._files():
            return
        path = self._folder / (_PREFIX + _BETWEEN.join(sorted(self._own)))
        try:
            with suppress(FileExistsError), path.open("x") as file:
                file.write(reason)
        except OSError as error:
            raise self._not_kept("written", error) from error

    def release(self) -> None:
        """Remove the stop at a person's request, or raise `StopNotKept`."""
        try:
            for path in self._files():
                path.unlink(missing_ok=True)
        except OSError as error:
            raise self._not_kept("removed", error) from error

    def _files(self) -> list[Path]:
        """Stop files that share a name with this arm."""
        found = sorted(self._folder.glob(f"{_PREFIX}*"))
        names = (path.name.removeprefix(_PREFIX).split(_BETWEEN) for path in found)
        return [path for path, its in zip(found, names, strict=True) if self._known_by & {*its}]

    def _not_kept(self, verb: str, problem: object) -> StopNotKept:
        return StopNotKept(
            f"the file that keeps a stop of the arm cannot be {verb}",
            got=problem,
            expected=f"a file in {self._folder}, which this user may write",
            hint="give the arm's node another folder in the parameter stop_folder",
        )


def kept_stop(folder: Path, node: str, driver: Mapping[str, Any]) -> str | None:
    """Return the stored reason why this arm is stopped, or None."""
    return StopLatch(folder, node, driver).reason() if folder.exists() else None


def names_of(node: str, driver: Mapping[str, Any]) -> tuple[set[str], set[str]]:
    """Return the names that an arm's stop is stored under, and the names it is found by.

    For a network arm: its host name and addresses, without the port. For a wired arm: the serial
    number of its adapter, or the device if the adapter has none. For an arm on topics: their
    namespace. Any other arm is simulated or the only one: its node's name and driver class.
    """
    settings = {**driver, **(driver.get("settings") or {})}
    for kind, names in (("serial", _SERIALS), ("host", _HOSTS), ("wire", _WIRES)):
        # YAML may have parsed a serial number as an integer.
        given = (settings[k] for k in names if isinstance(settings.get(k), str | int))
        value = str(next(given, "")).strip()
        if value and kind == "wire":
            serial, device = _on_wire(value)
            return _files_names(kind, serial or device), _files_names(kind, serial | device)
        if value:
            found = _on_network(value) if kind == "host" else {value}
            return (both := _files_names(kind, found)), both
    if namespace := str(settings.get("namespace", "")).strip("/"):
        return (topics := _files_names("topics", {namespace})), topics
    kind = str(driver.get("_target_", "")).rpartition(".")[2]
    return (own := _files_names("node", {f"{kind}.{node.strip('/')}"})), own


def _on_network(host: str) -> set[str]:
    """Return the host's name and addresses; only the name if it does not resolve now."""
    name = host.lower().rpartition("//")[2].partition("/")[0]
    if name.startswith("["):
        name = name[1:].partition("]")[0]
    elif name.count(":") == 1:
        name = name.partition(":")[0]
    name = name.rstrip(".")
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(name, None)}
    except (OSError, UnicodeError):
        found = set()
    return {_LOOPBACK.get(each, each) for each in (name, *sorted(found)[:_ADDRESSES])}


def _on_wire(device: str) -> tuple[set[str], set[str]]:
    """Return the adapter's serial numbers from udev links, and the device's own names."""
    if not device.startswith("/"):  # such as can0
        return set(), {device}
    path = os.path.realpath(device)
    links = Path("/dev/serial/by-id")
    given = {Path(device).name} if Path(device).parent == links else set()
    found = {link.name for link in links.glob("*") if os.path.realpath(link) == path}
    return given | found, {path, os.path.normpath(device)} - {str(links / name) for name in given}


def _files_names(kind: str, names: set[str]) -> set[str]:
    """Make names safe and short enough for a file name."""
    found = set()
    for word in (f"{kind}.{re.sub(r'[^A-Za-z0-9.-]', '_', name)}" for name in names):
        short = f"{word[: _LONGEST - 17]}.{hashlib.sha256(word.encode()).hexdigest()[:16]}"
        found.add(word if len(word) <= _LONGEST else short)
    return found


def default_stop_folder() -> Path:
    """Return the user's folder for stops, which survives a reboot."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state"
    return Path(state) / "robot_rl"
