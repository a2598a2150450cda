"""Robotiq 2F-85, 2F-140 and Hand-E over Modbus RTU or Modbus TCP.

Registers follow Robotiq's "2F-85 & 2F-140 Instruction Manual", chapter 4, control and status. Not
yet tested on a real gripper.

After one second without a message the gripper reports fault 0x09, and keeps its last command and
its grip. If the driver dies, the gripper neither opens nor closes.
"""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any
from urllib.parse import urlsplit

from drivers.base import DriverError, DriverFault, DriverTimeout, check_ranges
from drivers.gripper.base import GripperState, check_position
from robot_rl.errors import require

FULL = 255  # full scale of the position, speed and force registers
FAULTS = {
    0x05: "the action waits for the (re)activation to end",
    0x07: "it has to be activated before it moves",
    0x08: "it is too hot; let it cool down",
    0x09: "there was no message for a second",
    0x0A: "its voltage is too low",
    0x0B: "its automatic release is in progress",
    0x0C: "its processor has a fault",
    0x0D: "its activation failed; look for something between the fingers",
    0x0E: "its current was too high",
    0x0F: "its automatic release is done",
}
# Not activated yet, or a communication timeout, which has ended once the gripper answers.
_HARMLESS = (0, 0x05, 0x07, 0x09)
_ACTIVATE, _GO_TO = 0x01, 0x08
_ACTIVE = 3  # gSTA
_MOVING, _ARRIVED = 0, 3  # gOBJ
_ACTIVATION_POLL_S = 0.05
# Fingers that move less than this many counts in this time [s] are stalled.
_SAME_COUNTS, _STALLED_S = 3, 1.0
_NEAR_COUNTS = 30  # fingers this close to the target count as arrived
_LONGEST_POLL_S = 0.1  # longest time counted per poll [s]


@dataclass(frozen=True)
class Status:
    """The gripper's three status registers."""

    activated: bool  # gACT, echo of the activation request
    goes: bool  # gGTO, echo of the go-to request; `object` is valid only with it
    state: int  # gSTA: 0 reset, 1 activation in progress, 3 active
    # gOBJ: 0 moving, 1 stopped by an object while opening, 2 while closing, 3 at the requested
    # position.
    object: int
    fault: int  # gFLT, see `FAULTS`
    request: int  # gPR, echo of the requested position
    position: int  # gPO: 0 open to 255 closed


@dataclass(eq=False)
class Robotiq2F:
    """A two-finger Robotiq gripper.

    The first `connect` activates an inactive gripper: **its fingers then open and close once**.
    Later calls do not. A gripper that was power-cycled or failed its activation stays still until
    `clear_errors`. Each `clear_errors` allows one activation at the next `connect`, even if it
    fails; a `stop` before then cancels it.
    """

    # `/dev/ttyUSB0` for its RS-485 adapter; `tcp://HOST:502` for Modbus TCP; `rtu+tcp://HOST:PORT`
    # for a gateway that forwards RTU frames.
    address: str
    speed: float = 1.0  # 0 slowest to 1 fastest (2F-85: 20 to 150 mm/s)
    force: float = 0.25  # 0 lowest to 1 highest (2F-85: 20 to 235 N)
    open_count: int = 3  # reported position when fully open, of 255
    closed_count: int = 228  # reported position when fully closed without an object, of 255
    device_id: int = 9  # Modbus address
    baud_rate: int = 115200  # serial line [bit/s]
    command_register: int = 0x03E8  # first of three registers; 0 with Robotiq's own TCP box
    status_register: int = 0x07D0  # first of three registers; 0 with Robotiq's own TCP box
    timeout_s: float = 0.2  # response timeout [s]
    activation_timeout_s: float = 10.0  # activation timeout [s]

    def __post_init__(self) -> None:
        check_ranges("gripper", self, speed=(0.0, 1.0), force=(0.0, 1.0))
        if not 0 <= self.open_count < self.closed_count <= FULL:
            raise DriverError(
                "open_count and closed_count of the gripper",
                got=f"{self.open_count} and {self.closed_count}",
                expected="0 <= open_count < closed_count <= 255",
            )
        self._failures = require("pymodbus.exceptions", "robotiq")
        self._client = _make_client(self.address, self.baud_rate, self.timeout_s)
        self._grip = round(self.speed * FULL) << 8 | round(self.force * FULL)
        self._stalled: DriverFault | None = None  # cleared by `clear_errors`
        self._left: int | None = None  # last finger position that matched the request
        # position, time, duration without motion
        self._seen, self._seen_at, self._still_s = 0, -math.inf, 0.0
        self._may_activate = True  # without `clear_errors`
        self._clearing = False
        self._stops = 0  # stop counter: cancels an activation that started before a stop
        self._deciding = threading.Lock()  # guards the decision to activate
        self._line = threading.Lock()  # one request at a time on the line

    def examine(self) -> str:
        """Return the gripper's status without moving it; raises like `connect`."""
        try:
            self._open()
            status = self.status()
            self._check(status)
        finally:
            self.close()
        active = "is" if status.state == _ACTIVE else "is not yet"
        return f"{active} active, at {self.address}, pymodbus {version('pymodbus')}"

    def connect(self) -> None:
        """Open the line; on the first call, activate the gripper."""
        self._open()
        stops = self._stops
        status = self.status()
        if not self._clearing:
            self._check(status)
        if self._clearing or (status.state != _ACTIVE and self._may_activate):
            self._activate(stops)
        elif status.state != _ACTIVE:
            raise self._not_active(
                "is not active: was it switched off, stopped, or did its activation fail?"
            )
        self._may_activate = False

    def read(self) -> GripperState:
        """Measure position and grip."""
        if self._clearing:
            raise DriverFault(
                f"the gripper at {self.address} has not been activated again yet",
                hint="that comes next, and moves its fingers; wait a few seconds",
            )
        status = self.status()
        stamp = time.time_ns()
        self._check(status)
        if status.state != _ACTIVE:
            raise self._not_active("is not active")
        self._check_motion(status)
        share = (status.position - self.open_count) / (self.closed_count - self.open_count)
        return GripperState(stamp, min(max(share, 0.0), 1.0), status.object in (1, 2))

    def command(self, position: float) -> None:
        """Command a position, 0 open to 1 closed."""
        count = round(check_position(position) * FULL)
        self._write(_ACTIVATE | _GO_TO, count, self._grip)

    def stop(self) -> None:
        """Stop the fingers; they keep their grip.

        Also ends a running activation: the gripper is then inactive until `clear_errors`.
        """
        with self._deciding:
            self._stops += 1
            self._may_activate = self._clearing = False
        status = self.status()
        if status.state == _ACTIVE:
            self._write(_ACTIVATE, status.position, self._grip)
        elif status.activated:
            self._write(0, 0)

    def clear_errors(self) -> None:
        """Activate the gripper once, at the next `connect`: **its fingers open and close**."""
        self._clearing = True

    def close(self) -> None:
        """Close the line; the gripper keeps its state."""
        self._client.close()

    def status(self) -> Status:
        """Read the status registers; `DriverTimeout` without a valid answer."""
        answer = self._ask("read_input_registers", self.status_register, count=3)
        if len(answer.registers) != 3:
            problem = f"the gripper at {self.address} sent half an answer"
            raise DriverTimeout(problem, got=answer.registers, expected="3 registers")
        # 16-bit registers; the first byte is the upper half.
        status, fault, position = (register >> 8 for register in answer.registers)
        state, held = status >> 4 & 0b11, status >> 6 & 0b11
        activated, goes = bool(status & _ACTIVATE), bool(status & _GO_TO)
        request = answer.registers[1] & 0xFF
        return Status(activated, goes, state, held, fault & 0x0F, request, position)

    def _open(self) -> None:
        if not self._client.connect():
            raise DriverTimeout(
                f"the gripper's line {self.address} does not open",
                hint="is the address right, does the gateway serve this port (on a UR: the URCap"
                " of the tool's RS-485), and does Robotiq's own URCap leave the line alone?"
                if "://" in self.address
                else "is it plugged in, is the address right, and may this user open it"
                " (group dialout)?",
            )

    def _activate(self, stops: int) -> None:
        """Activate the gripper, unless `stop` was called since the counter read `stops`."""
        # Reset before the fingers move, because a node reconnects after every failure.
        self._may_activate = self._clearing = False
        self._stalled = self._left = None
        self._write(0, 0)
        with self._deciding:
            if self._stops != stops:
                raise self._not_active("was stopped before its activation")
            self._write(_ACTIVATE, 0)
        deadline = time.monotonic() + self.activation_timeout_s
        while (status := self.status()).state != _ACTIVE:
            self._check(status)
            if not status.activated:
                raise self._not_active("was stopped during its activation")
            if time.monotonic() > deadline:
                raise DriverTimeout(
                    f"the gripper at {self.address} was not active in time",
                    got=f"state {status.state} after {self.activation_timeout_s:g} s",
                    hint="look for something between the fingers, then clear_errors",
                )
            time.sleep(_ACTIVATION_POLL_S)
        self._check(status)

    def _check_motion(self, status: Status) -> None:
        """Stop fingers that do not move although they were commanded to.

        Fingers that moved and then stopped hold an object, from outside or inside. Fully open
        fingers cannot hold one. The gripper keeps reporting motion while a policy commands a
        farther position.
        """
        now, at = time.monotonic(), status.position
        held = status.request > at > self.open_count + _SAME_COUNTS
        near = abs(at - status.request) <= _NEAR_COUNTS
        fine = not status.goes or status.object == _ARRIVED or held or near
        if fine:
            self._left = at
        if fine or abs(at - self._seen) > _SAME_COUNTS:
            self._seen, self._still_s = at, 0.0
        else:
            self._still_s += min(now - self._seen_at, _LONGEST_POLL_S)
        self._seen_at = now
        came = self._left is None or abs(at - self._left) > _SAME_COUNTS
        if self._still_s < _STALLED_S or (came and status.object != _MOVING):
            return
        self._stalled = DriverFault(
            f"the fingers of the gripper at {self.address} do not move",
            got=f"at {at} of {FULL} for {self._still_s:.1f} s",
            hint="look for what holds them, free them, then say clear_errors to the gripper, which"
            " opens and closes its fingers once",
        )
        self._write(_ACTIVATE, at, self._grip)  # so that they do not jump when freed
        raise self._stalled

    def _check(self, status: Status) -> None:
        if self._stalled is not None:
            raise self._stalled
        if status.fault not in _HARMLESS:
            meaning = FAULTS.get(status.fault, "a fault that the manual does not list")
            raise DriverFault(
                f"the gripper at {self.address} reports a fault: {meaning}",
                got=f"gFLT 0x{status.fault:02X}",
                hint="remove the cause, then clear_errors, which opens and closes its fingers once",
            )

    def _not_active(self, what: str) -> DriverFault:
        return DriverFault(
            f"the gripper at {self.address} {what}",
            hint="clear_errors activates it, which opens and closes its fingers once",
        )

    def _write(self, action: int, position: int, grip: int = 0) -> None:
        registers = [action << 8, position, grip]
        self._ask("write_registers", self.command_register, registers)

    def _ask(self, method: str, *arguments: Any, **options: Any) -> Any:
        try:
            with self._line:
                ask = getattr(self._client, method)
                answer = ask(*arguments, device_id=self.device_id, **options)
        except (self._failures.ModbusException, OSError) as error:
            raise DriverTimeout(
                f"the gripper at {self.address} does not answer",
                got=error,
                hint="look at its cable and power, its Modbus address and the baud rate",
            ) from error
        if answer.isError():
            raise DriverError(
                f"the gripper at {self.address} refuses a request",
                got=answer,
                expected=f"registers at 0x{arguments[0]:04X}",
                hint="see command_register and status_register",
            )
        return answer


def _make_client(address: str, baud_rate: int, timeout_s: float) -> Any:
    modbus = require("pymodbus.client", "robotiq")
    options: dict[str, Any] = {"timeout": timeout_s, "retries": 1}
    if address.startswith("/"):
        require("serial", "robotiq")
        return modbus.ModbusSerialClient(address, baudrate=baud_rate, **options)
    parts = urlsplit(address)
    framers = {"tcp": "socket", "rtu+tcp": "rtu"}
    if parts.scheme not in framers or not parts.hostname:
        raise DriverError(
            "the gripper's address cannot be read",
            got=address,
            expected="/dev/ttyUSB0, tcp://HOST:PORT or rtu+tcp://HOST:PORT",
        )
    framer = require("pymodbus", "robotiq").FramerType(framers[parts.scheme])
    return modbus.ModbusTcpClient(parts.hostname, port=parts.port or 502, framer=framer, **options)
