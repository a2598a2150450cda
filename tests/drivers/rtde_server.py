"""A minimal controller of Universal Robots for `ur-rtde`: RTDE, dashboard and script port.

It runs in a process of its own, for the library's constructors hold Python's global lock. Its arm
is a point that force mode pushes: the TCP moves in proportion to the force. It ends the uploaded
program when a watchdog is armed and not kicked. As of a real one, its answers are not its deeds: a
program begins and ends, and a protective stop ends, a while after it was asked for, and only some
time after it began. Lines on its standard input are events: `protective_stop`, `power_off`,
`local` control, which takes no programs, `silence`.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable

PORTS = {"rtde": 30004, "dashboard": 29999, "script": 30003}
_PERIOD = 0.008
_SPEED_PER_FORCE = 0.005  # m/s for each N
_FORCE_MODE, _END_FORCE_MODE, _ZERO_SENSOR, _WATCHDOG, _STOP_SCRIPT = 6, 7, 8, 35, 255
# What the script says in output_int_register_0. It is done with a command until the library has
# seen that and clears it, for the library waits for this up to 300 s; only commands that are
# streamed are not waited for.
_READY, _DONE = 1, 2
_STREAMED = {_FORCE_MODE}
_STOPPED, _RUNNING = 1, 2  # the program, in runtime_state
_PROTECTIVE_STOP = 0b100
_ON, _OFF = 7, 3  # robot modes
_CHANGE_SECONDS = 0.3
_LOCKED_SECONDS = 2.0  # 5 s of a real one
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


def kind_of(name: str) -> str:
    """The type of an RTDE variable, as far as `ur-rtde` asks for it."""
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


class Controller:
    """What the sockets share."""

    def __init__(self, host: str) -> None:
        self.values = {
            "actual_q": [0.0, -1.57, 1.57, -1.57, -1.57, 0.0],
            "actual_TCP_pose": [0.4, 0.0, 0.3, 3.14159265, 0.0, 0.0],
            "actual_TCP_force": [0.0, 0.0, 5.0, 0.0, 0.0, 0.0],
            "robot_mode": _ON,
            "safety_mode": 1,
            "safety_status_bits": 1,
            "speed_scaling": 1.0,
            "target_speed_fraction": 1.0,
            "output_int_register_0": _READY,
        }
        self.run(False)
        self.force = [0.0] * 3
        self.changes: list[tuple[float, Callable[[], None]]] = []  # when, and what
        self.beginning = False
        self.local = False
        self.unlockable = 0.0
        self.silent = False
        self.patience = float("inf")
        self.kicked = time.monotonic()
        for name, port in PORTS.items():
            listener = socket.create_server((host, port))
            serve = getattr(self, f"_serve_{name}")
            threading.Thread(target=self._accept, args=(listener, serve), daemon=True).start()

    def run(self, running: bool) -> None:
        """Begin or end the program."""
        self.values["runtime_state"] = _RUNNING if running else _STOPPED
        self.values["robot_status_bits"] = 0b11 if running else 0b01
        self.force = [0.0] * 3

    def soon(self, change: Callable[[], None]) -> None:
        """Let something happen a while from now."""
        self.changes.append((time.monotonic() + _CHANGE_SECONDS, change))

    def begin(self) -> None:
        """Begin the uploaded program, unless the arm must not move."""
        self.beginning = False
        takes = self.values["safety_status_bits"] == 1 and self.values["robot_mode"] == _ON
        if takes and not self.local:
            self.patience = float("inf")
            self.values["output_int_register_0"] = _READY
            self.run(True)

    def unlock(self) -> str:
        """What the dashboard answers."""
        if time.monotonic() < self.unlockable:
            return "Cannot unlock protective stop until 5s after occurrence"
        self.soon(lambda: self.values.update(safety_status_bits=1))
        return "Protective stop releasing"

    def event(self, name: str) -> None:
        """Let something happen."""
        if name == "protective_stop":
            self.values["safety_status_bits"] = _PROTECTIVE_STOP
            self.unlockable = time.monotonic() + _LOCKED_SECONDS
            self.run(False)
        elif name == "power_off":
            self.values["robot_mode"] = _OFF
            self.run(False)
        elif name == "local":
            self.local = True
        elif name == "silence":
            self.silent = True

    def advance(self) -> None:
        """Let a period pass."""
        due = [change for change in self.changes if change[0] <= time.monotonic()]
        for change in due:
            self.changes.remove(change)
            change[1]()
        if time.monotonic() - self.kicked > self.patience:
            self.run(False)
        velocity = [_SPEED_PER_FORCE * force for force in self.force]
        pose = self.values["actual_TCP_pose"]
        moved = [p + v * _PERIOD for p, v in zip(pose[:3], velocity, strict=True)]
        self.values["actual_TCP_pose"] = [*moved, *pose[3:]]
        self.values["actual_TCP_speed"] = [*velocity, 0.0, 0.0, 0.0]

    def _accept(self, listener: socket.socket, serve: object) -> None:
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=self._guarded, args=(serve, connection), daemon=True).start()

    def _guarded(self, serve, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            serve(connection)

    def _serve_dashboard(self, connection: socket.socket) -> None:
        answers = {
            "PolyscopeVersion": "URSoftware 5.11.0.108249 (Dec 15 2021)",
            "is in remote control": "true",
            "get serial number": "20195500000",
            "close safety popup": "closing safety popup",
            "stop": "Stopped",
        }
        connection.sendall(b"Connected: Universal Robots Dashboard Server\n")
        for line in connection.makefile("r"):
            command = line.strip()
            answer = answers.get(command, "ok")
            if command == "unlock protective stop":
                answer = self.unlock()
            if command == "stop":
                self.soon(lambda: self.run(False))
            connection.sendall(answer.encode() + b"\n")

    def _serve_script(self, connection: socket.socket) -> None:
        while connection.recv(65536):
            if not self.beginning:  # else it is the rest of the program
                self.beginning = True
                self.soon(self.begin)

    def _serve_rtde(self, connection: socket.socket) -> None:
        outputs: list[str] = []
        inputs: list[list[str]] = []

        def send(kind: int, payload: bytes) -> None:
            connection.sendall(struct.pack(">HB", 3 + len(payload), kind) + payload)

        while True:
            size, kind = struct.unpack(">HB", _read(connection, 3))
            payload = _read(connection, size - 3)
            letter = chr(kind)
            if letter in "VP":
                send(kind, b"\x01")
            elif letter == "v":
                send(kind, struct.pack(">4I", 5, 11, 0, 108249))
            elif letter == "O":
                outputs = [name for name in payload[8:].decode().split(",") if name]
                send(kind, b"\x01" + ",".join(map(kind_of, outputs)).encode())
            elif letter == "I":
                inputs.append([name for name in payload.decode().split(",") if name])
                kinds = ",".join(map(kind_of, inputs[-1]))
                send(kind, bytes([len(inputs)]) + kinds.encode())
            elif letter == "S":
                send(kind, b"\x01")
                stream = threading.Thread(target=self._guarded, args=(self._stream(outputs), send))
                stream.daemon = True
                stream.start()
            elif letter == "U":
                self._take(inputs[payload[0] - 1], payload[1:])

    def _stream(self, names: list[str]):
        def stream(send) -> None:
            began = time.monotonic()
            while True:
                if not self.silent:
                    self.values["timestamp"] = time.monotonic() - began
                    send(ord("U"), b"\x01" + b"".join(self._packed(name) for name in names))
                time.sleep(_PERIOD)

        return stream

    def _packed(self, name: str) -> bytes:
        form = _KINDS[kind_of(name)]
        count = int(form[0]) if form[0].isdigit() else 1
        value = self.values.get(name, [0] * count if count > 1 else 0)
        return struct.pack(">" + form, *(value if count > 1 else [value]))

    def _take(self, names: list[str], data: bytes) -> None:
        """Take the input registers, which carry one command to the script."""
        self.kicked = time.monotonic()
        values = struct.unpack_from(">" + "".join(_KINDS[kind_of(n)] for n in names), data)
        registers = dict(zip(names, values, strict=False))
        command = registers.get("input_int_register_0", 0)
        if command == _FORCE_MODE:
            self.force = [registers[f"input_double_register_{i}"] for i in (6, 7, 8)]
        elif command == _WATCHDOG:
            self.patience = 1.0 / registers["input_double_register_0"]
        elif command == _STOP_SCRIPT:
            self.soon(lambda: self.run(False))
        elif command == _ZERO_SENSOR and not any(self.force):
            self.values["actual_TCP_force"] = [0.0] * 6
        elif command:
            self.force = [0.0] * 3
        waited_for = command and command not in _STREAMED
        self.values["output_int_register_0"] = _DONE if waited_for else _READY


def _read(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise ConnectionResetError
        data += part
    return data


def main(host: str) -> None:
    """Serve until the standard input closes."""
    controller = Controller(host)

    def advance() -> None:
        while True:
            controller.advance()
            time.sleep(_PERIOD)

    threading.Thread(target=advance, daemon=True).start()
    print("ready", flush=True)  # noqa: T201 - the test waits for it
    for line in sys.stdin:
        controller.event(line.strip())


if __name__ == "__main__":
    main(sys.argv[1])
