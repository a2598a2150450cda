"""Universal Robots sockets for `ur-rtde`: RTDE, dashboard, scripts.

RTDE follows UR's "Real-Time Data Exchange (RTDE) Guide", protocol version 2.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from drivers.base import DriverError

# The library uploads its program to a port of the primary or secondary client.
_PORTS = {"rtde": (30004,), "dashboard": (29999,), "script": (30002, 30003)}
_POLYSCOPE = (5, 11, 0, 108249)
_KINDS = {
    "DOUBLE": "d",
    "VECTOR6D": "6d",
    "VECTOR3D": "3d",
    "VECTOR6INT32": "6i",
    "UINT32": "I",
    "UINT64": "Q",
    "INT32": "i",
    "UINT8": "B",
}
_DOUBLES = ("timestamp", "speed_scaling", "target_speed_fraction", "payload", "actual_momentum")
_VECTORS = ("target_", "actual_T", "actual_q", "joint_", "ft_raw", "payload_inertia", "external")
_POLL_SECONDS = 0.005
_QUIET_SECONDS = 0.5  # longest wait of a stream before it checks whether to stop


class UrBackend(Protocol):
    """The controller behind the sockets; each socket calls it in its own thread."""

    def outputs(self) -> Mapping[str, Any]:
        """Return the RTDE outputs by name, including registers; a missing name is 0."""

    def take(self, registers: Mapping[str, float]) -> None:
        """Execute the command in the RTDE input registers."""

    def take_program(self) -> None:
        """Start the uploaded program after a delay; an upload arrives in several parts."""

    def answer(self, command: str) -> str:
        """Return the dashboard's answer to a command; UR's error text for an unknown one."""


class UrSockets:
    """Serves a controller at an address, and simulates network faults.

    Raises:
        DriverError: A port is in use.
    """

    def __init__(self, controller: UrBackend, host: str) -> None:
        self._controller = controller
        self._host = host
        self._listeners: list[socket.socket] = []
        self._connections: set[socket.socket] = set()
        self._moved = threading.Condition()  # signals a new measurement
        self._measurements = 0
        self._is_cut = False
        self._stalled_until = 0.0  # steady clock [s]
        self._listen()

    def publish(self) -> None:
        """Make the streams send the latest outputs."""
        with self._moved:
            self._measurements += 1
            self._moved.notify_all()

    def cut(self) -> None:
        """Unplug the cable: no data arrives, in either direction."""
        self._is_cut = True
        self._close(self._listeners)

    def restore(self) -> None:
        """Plug in the cable; the controller has dropped the old connections."""
        self._close(list(self._connections))
        if self._is_cut:
            self._listen()
        self._is_cut = False

    def stall(self, seconds: float) -> None:
        """Stall for this long [s], then deliver all data at once, as TCP does after a loss."""
        self._stalled_until = time.monotonic() + seconds

    def close(self) -> None:
        """Close all ports."""
        self._close(self._listeners)
        self._close(list(self._connections))

    def _listen(self) -> None:
        for name, ports in _PORTS.items():
            for port in ports:
                try:
                    listener = socket.create_server((self._host, port))
                except OSError as error:
                    self._close(self._listeners)
                    raise DriverError(
                        f"port {port} of {self._host}, which is UR's for {name}, cannot be served",
                        got=error,
                        hint="end the other twin or simulator, or give this one another address"
                        " of this machine, such as 127.0.0.2",
                    ) from error
                self._listeners.append(listener)
                serve = getattr(self, f"_serve_{name}")
                self._start(self._accept, listener, serve)

    def _close(self, sockets: list[socket.socket]) -> None:
        for each in sockets:
            with contextlib.suppress(OSError):  # it was not connected
                each.shutdown(socket.SHUT_RDWR)  # wakes its waiting thread
            each.close()
        sockets.clear()

    def _start(self, target: Callable[..., None], *arguments: Any) -> None:
        def guarded() -> None:
            with contextlib.suppress(OSError):  # the peer or `close` ended it
                target(*arguments)

        threading.Thread(target=guarded, daemon=True).start()

    def _accept(self, listener: socket.socket, serve: Callable[[socket.socket], None]) -> None:
        while True:
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._connections.add(connection)
            self._start(self._serve, serve, connection)

    def _serve(self, serve: Callable[[socket.socket], None], connection: socket.socket) -> None:
        try:
            serve(connection)
        finally:
            self._connections.discard(connection)
            connection.close()

    def _arrived(self) -> None:
        """Wait until the data received now would have passed the simulated network."""
        while self._is_cut or time.monotonic() < self._stalled_until:
            time.sleep(_POLL_SECONDS)

    def _serve_dashboard(self, connection: socket.socket) -> None:
        connection.sendall(b"Connected: Universal Robots Dashboard Server\n")
        for line in connection.makefile("r"):
            self._arrived()
            connection.sendall(self._controller.answer(line.strip()).encode() + b"\n")

    def _serve_script(self, connection: socket.socket) -> None:
        while connection.recv(65536):
            self._arrived()
            self._controller.take_program()

    def _serve_rtde(self, connection: socket.socket) -> None:
        outputs: list[str] = []
        inputs: list[list[str]] = []
        sending = threading.Lock()

        def send(kind: str, payload: bytes) -> None:
            with sending:
                connection.sendall(_packet(kind, payload))

        while True:
            size, kind = struct.unpack(">Hc", _read(connection, 3))
            payload, letter = _read(connection, size - 3), kind.decode()
            self._arrived()
            if letter in "VP":
                send(letter, b"\x01")
            elif letter == "v":
                send(letter, struct.pack(">4I", *_POLYSCOPE))
            elif letter == "O":
                outputs = _names(payload[8:])
                send(letter, b"\x01" + ",".join(map(_kind_of, outputs)).encode())
            elif letter == "I":
                inputs.append(_names(payload))
                kinds = ",".join(map(_kind_of, inputs[-1]))
                send(letter, bytes([len(inputs)]) + kinds.encode())
            elif letter == "S":
                send(letter, b"\x01")
                self._start(self._stream, connection, outputs, sending)
            elif letter == "U":
                names = inputs[payload[0] - 1]
                form = ">" + "".join(_KINDS[_kind_of(name)] for name in names)
                values = struct.unpack_from(form, payload, 1)
                self._controller.take(dict(zip(names, values, strict=True)))

    def _stream(
        self, connection: socket.socket, names: Sequence[str], sending: threading.Lock
    ) -> None:
        """Send each measurement; data is buffered during a stall and lost during a cut."""
        seen, waiting = self._measurements, b""
        while connection.fileno() >= 0:
            with self._moved:
                self._moved.wait_for(lambda seen=seen: self._measurements != seen, _QUIET_SECONDS)  # type: ignore[misc]
                fresh, seen = self._measurements != seen, self._measurements
            if not fresh or self._is_cut:
                continue
            outputs = self._controller.outputs()
            data = b"".join(_packed(name, outputs) for name in names)
            waiting += _packet("U", b"\x01" + data)
            if time.monotonic() >= self._stalled_until:
                with sending:
                    connection.sendall(waiting)
                waiting = b""


def _kind_of(name: str) -> str:
    """Return the type of an RTDE variable that `ur-rtde` uses."""
    if "int_register" in name or name in ("robot_mode", "safety_mode"):
        return "INT32"
    if name == "joint_mode":
        return "VECTOR6INT32"
    if name in ("actual_tool_accelerometer", "payload_cog"):
        return "VECTOR3D"
    if name in _DOUBLES:
        return "DOUBLE"
    if name in ("actual_current", "actual_joint_voltage") or name.startswith(_VECTORS):
        return "VECTOR6D"
    if "digital" in name and name.startswith("actual"):
        return "UINT64"
    if "bits" in name or "status" in name or name == "runtime_state" or "registers" in name:
        return "UINT32"
    return "UINT8" if name.endswith(("_mask", "digital_output", "_type")) else "DOUBLE"


def _packet(kind: str, payload: bytes) -> bytes:
    return struct.pack(">Hc", 3 + len(payload), kind.encode()) + payload


def _packed(name: str, values: Mapping[str, Any]) -> bytes:
    form = _KINDS[_kind_of(name)]
    count = int(form[0]) if form[0].isdigit() else 1
    value = values.get(name, [0] * count if count > 1 else 0)
    return struct.pack(">" + form, *(value if count > 1 else [value]))


def _names(text: bytes) -> list[str]:
    return [name for name in text.decode().split(",") if name]


def _read(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise ConnectionResetError
        data += part
    return data
