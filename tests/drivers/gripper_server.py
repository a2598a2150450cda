"""A Robotiq 2F behind a real Modbus server: pymodbus, with the gripper's register map and manners.

Everything happens when the status is asked for, step by step, so that tests do not depend on time.
"""

from __future__ import annotations

import asyncio
import os
import select
import threading
import tty
from contextlib import ExitStack, contextmanager

from pymodbus import FramerType
from pymodbus.constants import ExcCodes
from pymodbus.server import ModbusSerialServer, ModbusTcpServer
from pymodbus.simulator import DataType, SimData, SimDevice

COMMAND, STATUS = 0x03E8, 0x07D0
OPEN_COUNT, CLOSED_COUNT = 3, 228
STEP = 40  # counts of motion for each question


class Gripper2F:
    """What the gripper does with its command registers, as in chapter 4 of its manual."""

    def __init__(self, activation_polls=2):
        self.position = OPEN_COUNT
        self.request = self.speed = self.force = 0
        self.active = self.go = False
        self.activation_left = self.activation_polls = activation_polls
        self.fault = 0
        self.object_at = None  # count at which something is between the fingers
        self.activations = 0
        self.silent = False
        self.commands = []

    def write(self, registers):
        action, self.request = registers[0] >> 8, registers[1] & 0xFF
        self.speed, self.force = registers[2] >> 8, registers[2] & 0xFF
        self.commands.append(tuple(registers))
        active, self.go = bool(action & 1), bool(action & 8)
        if active and not self.active:
            self.activation_left, self.fault = self.activation_polls, 0
            self.activations += 1
        self.active = active

    def status(self):
        held = 0
        if self.active and self.activation_left:
            self.activation_left -= 1
            state = 1
        else:
            state = 3 if self.active else 0
        if state == 3 and self.go and not self.fault:
            held = self._move()
        first = self.active | self.go << 3 | state << 4 | held << 6
        return [first << 8, self.fault << 8 | self.request, self.position << 8]

    def _move(self):
        goal = min(max(self.request, OPEN_COUNT), CLOSED_COUNT)
        closing = goal > self.position
        if closing and self.object_at is not None and self.object_at < goal:
            goal, blocked = self.object_at, 2
        else:
            blocked = 3
        way = goal - self.position
        self.position += max(-STEP, min(STEP, way))
        return blocked if self.position == goal else 0


@contextmanager
def serve(gripper, kind):
    """Run the server; yields the address for the driver: kind is tcp, rtu+tcp or serial."""

    async def action(function, start, address, count, registers, values):
        if gripper.silent:
            await asyncio.Event().wait()
        if values is not None and address == COMMAND:
            gripper.write(values)
        elif function == 4 and address == STATUS:
            registers[STATUS - start : STATUS - start + 3] = gripper.status()
        elif function != 4:
            return ExcCodes.ILLEGAL_FUNCTION
        return None

    block = [SimData(COMMAND, count=STATUS + 3 - COMMAND, values=0, datatype=DataType.REGISTERS)]
    device = SimDevice(9, simdata=block, action=action)
    with ExitStack() as stack:
        if kind == "serial":
            ours, theirs = stack.enter_context(_serial_line())
            make = lambda: ModbusSerialServer(device, port=theirs, baudrate=115200)  # noqa: E731
            stack.enter_context(_running(make))
            yield ours
            return
        framer = FramerType.RTU if kind == "rtu+tcp" else FramerType.SOCKET
        make = lambda: ModbusTcpServer(device, framer=framer, address=("127.0.0.1", 0))  # noqa: E731
        server = stack.enter_context(_running(make))
        yield f"{kind}://127.0.0.1:{server.transport.sockets[0].getsockname()[1]}"


@contextmanager
def _running(make):
    loop, started, servers = asyncio.new_event_loop(), threading.Event(), []

    async def serve_forever():
        server = make()
        servers.append(server)
        await server.serve_forever(background=True)
        started.set()

    def run():
        loop.run_until_complete(serve_forever())
        loop.run_forever()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert started.wait(10.0)
    try:
        yield servers[0]
    finally:
        asyncio.run_coroutine_threadsafe(_end(servers[0]), loop).result(10.0)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10.0)


async def _end(server):
    await server.shutdown()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


@contextmanager
def _serial_line():
    """Two serial ports joined by a cable: pseudo-terminals, and a thread that carries bytes."""
    ends = [os.openpty() for _ in range(2)]
    for pair in ends:
        for descriptor in pair:
            tty.setraw(descriptor)
    (left, left_port), (right, right_port) = ends
    wake, end = os.pipe()

    def carry():
        while True:
            ready, _, _ = select.select([left, right, wake], [], [])
            if wake in ready:
                return
            for descriptor in ready:
                os.write(right if descriptor == left else left, os.read(descriptor, 4096))

    thread = threading.Thread(target=carry, daemon=True)
    thread.start()
    try:
        yield os.ttyname(left_port), os.ttyname(right_port)
    finally:
        os.close(end)
        thread.join(10.0)
        for descriptor in (left, left_port, right, right_port, wake):
            os.close(descriptor)
