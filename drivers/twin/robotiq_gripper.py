"""Robotiq 2F twin: a Modbus server with the gripper's registers, for `pymodbus`.

Registers follow Robotiq's "2F-85 & 2F-140 Instruction Manual", chapter 4. Another object moves the
fingers. Activation moves no fingers: it ends after a few status requests. The speed and force
registers are stored without effect.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from drivers.base import DriverError
from robot_rl.errors import require

if TYPE_CHECKING:
    from drivers.live_world import LiveWorld

OPEN_COUNT, CLOSED_COUNT = 3, 228  # as reported by a 2F-85, fully open and fully closed
_COMMAND, _STATUS = 0x03E8, 0x07D0  # first of three registers each
_DEVICE = 9  # Modbus address
_READ_INPUTS = 4  # Modbus function that reads the status
_THERE = 3  # position tolerance at the goal, in counts
_START_SECONDS = 10.0
_MOTION_SECONDS = 0.2  # time in which fingers start to move


class CountedFingers(Protocol):
    """Fingers with positions in counts, `OPEN_COUNT` to `CLOSED_COUNT`."""

    def go_to(self, count: int) -> None:
        """Move to a position, or until an object blocks the fingers."""

    def look(self) -> tuple[int, bool]:
        """Return the position, and whether the fingers are at rest."""


class WorldFingers:
    """Fingers of a simulated world, in counts; any thread may call the methods.

    Attributes:
        jammed: Whether the fingers are blocked.
    """

    def __init__(self, world: LiveWorld) -> None:
        self._world = world
        self.jammed = False
        self._goal = -1
        self._sent = -math.inf  # time of the last new goal, steady clock [s]

    def go_to(self, count: int) -> None:
        """Move to a position, unless jammed, or until an object blocks the fingers."""
        if count != self._goal and not self.jammed:
            self._goal, self._sent = count, time.monotonic()
            self._world.command_gripper((count - OPEN_COUNT) / (CLOSED_COUNT - OPEN_COUNT))

    def jam(self) -> None:
        """Block the fingers in place while `jammed` is set."""
        self.go_to(min(max(self.look()[0], OPEN_COUNT), CLOSED_COUNT))
        self.jammed, self._goal = True, -1

    def look(self) -> tuple[int, bool]:
        """Return the position and whether the fingers rest; False just after a new goal."""
        position, rests = self._world.gripper_position()
        count = OPEN_COUNT + round(position * (CLOSED_COUNT - OPEN_COUNT))
        return count, rests and time.monotonic() - self._sent > _MOTION_SECONDS


class RobotiqGripper:
    """The gripper behind its registers; if `silent`, it does not answer, as without power.

    Attributes:
        active: Whether activation was requested.
        activations: Number of activations.
        fault: gFLT.
        request: Last commanded position, 0 to 255.
    """

    def __init__(self, fingers: CountedFingers, activation_polls: int = 2) -> None:
        self._fingers = fingers
        self.activation_left = self.activation_polls = activation_polls
        self.request = self.speed = self.force = self.fault = self.activations = 0
        self.active = self.silent = self._go = False

    def write(self, registers: Sequence[int]) -> None:
        """Execute the three command registers."""
        action, self.request = registers[0] >> 8, registers[1] & 0xFF
        self.speed, self.force = registers[2] >> 8, registers[2] & 0xFF
        active, self._go = bool(action & 1), bool(action & 8)
        if active and not self.active:
            self.activation_left, self.fault = self.activation_polls, 0
            self.activations += 1
        self.active = active
        if not self._go:
            self._fingers.go_to(self._fingers.look()[0])

    def status(self) -> list[int]:
        """Return the three status registers."""
        if self.active and self.activation_left:
            self.activation_left -= 1
            state = 1
        else:
            state = 3 if self.active else 0
        moves = state == 3 and self._go and not self.fault
        goal = min(max(self.request, OPEN_COUNT), CLOSED_COUNT)
        if moves:
            self._fingers.go_to(goal)
        count, rests = self._fingers.look()
        held = 0
        if moves and rests:
            held = 3 if abs(count - goal) <= _THERE else 1 + (goal > count)
        first = self.active | self._go << 3 | state << 4 | held << 6
        return [first << 8, self.fault << 8 | self.request, count << 8]


class GripperServer:
    """A pymodbus server for a gripper, in its own thread.

    `make_server` receives the device with the registers and returns a server of `pymodbus.server`;
    it runs in the server's event loop. Needs the extra `robotiq`.

    Raises:
        DriverError: The server cannot start, for example because its port is in use.
    """

    def __init__(self, gripper: RobotiqGripper, make_server: Callable[[Any], Any]) -> None:
        device = _device(gripper)
        self._loop, started = asyncio.new_event_loop(), threading.Event()
        self._problem: Exception | None = None

        async def begin() -> None:
            try:
                self.server = make_server(device)
                await self.server.serve_forever(background=True)
            except Exception as problem:  # raised below
                self._problem = problem
            started.set()

        def run() -> None:
            self._loop.run_until_complete(begin())
            self._loop.run_forever()

        self._thread = threading.Thread(target=run, name="modbus", daemon=True)
        self._thread.start()
        if not started.wait(_START_SECONDS) or self._problem is not None:
            self._end()
            raise DriverError("the gripper's Modbus server cannot begin", got=repr(self._problem))

    def close(self) -> None:
        """Stop the server."""
        asyncio.run_coroutine_threadsafe(self._shut_down(), self._loop).result(_START_SECONDS)
        self._end()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_START_SECONDS)

    async def _shut_down(self) -> None:
        await self.server.shutdown()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


def serve_gripper(gripper: RobotiqGripper, host: str, port: int) -> GripperServer:
    """Serve serial-line frames over TCP, as a UR does for its tool connector."""
    server = require("pymodbus.server", "robotiq").ModbusTcpServer
    framer = require("pymodbus", "robotiq").FramerType.RTU
    return GripperServer(
        gripper, lambda device: server(device, framer=framer, address=(host, port))
    )


def _device(gripper: RobotiqGripper) -> Any:
    """Return a pymodbus device that forwards every request to the gripper."""
    simulator = require("pymodbus.simulator", "robotiq")
    illegal = require("pymodbus.constants", "robotiq").ExcCodes.ILLEGAL_FUNCTION

    async def act(
        function: int, start: int, address: int, count: int, registers: list[int], values: Any
    ) -> Any:
        if gripper.silent:
            await asyncio.Event().wait()
        if values is not None and address == _COMMAND:
            gripper.write(values)
        elif function == _READ_INPUTS and address == _STATUS:
            registers[_STATUS - start : _STATUS - start + 3] = gripper.status()
        elif function != _READ_INPUTS:
            return illegal
        return None

    size = _STATUS + 3 - _COMMAND
    block = simulator.SimData(_COMMAND, count=size, values=0, datatype=simulator.DataType.REGISTERS)
    return simulator.SimDevice(_DEVICE, simdata=[block], action=act)
