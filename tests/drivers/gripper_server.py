"""The twin of a Robotiq 2F on every kind of line, with fingers that move at each question.

So nothing depends on time: they go some way whenever the status is asked for.
"""

from __future__ import annotations

import os
import select
import threading
import tty
from contextlib import ExitStack, closing, contextmanager

from pymodbus import FramerType
from pymodbus.server import ModbusSerialServer, ModbusTcpServer

from drivers.twin.robotiq_gripper import OPEN_COUNT, GripperServer, RobotiqGripper

STEP = 40  # counts of motion for each question


class Gripper2F(RobotiqGripper):
    """Its own fingers."""

    def __init__(self):
        self.position = OPEN_COUNT
        self.object_at = None  # count at which something is between the fingers
        self.commands = []
        super().__init__(self)

    def write(self, registers):
        self.commands.append(tuple(registers))
        super().write(registers)

    def go_to(self, goal):
        if self.object_at is not None and self.position < goal:
            goal = min(goal, self.object_at)
        way = goal - self.position
        self.position += max(-STEP, min(STEP, way))
        self._rests = self.position == goal

    def look(self):
        return self.position, self._rests

    _rests = True


@contextmanager
def serve(gripper, kind):
    """Run the server; yields the address for the driver: kind is tcp, rtu+tcp or serial."""
    with ExitStack() as stack:
        if kind == "serial":
            ours, theirs = stack.enter_context(_serial_line())
            stack.enter_context(
                closing(
                    GripperServer(
                        gripper,
                        lambda device: ModbusSerialServer(device, port=theirs, baudrate=115200),
                    )
                )
            )
            yield ours
            return
        framer = FramerType.RTU if kind == "rtu+tcp" else FramerType.SOCKET
        made = GripperServer(
            gripper,
            lambda device: ModbusTcpServer(device, framer=framer, address=("127.0.0.1", 0)),
        )
        stack.enter_context(closing(made))
        yield f"{kind}://127.0.0.1:{made.server.transport.sockets[0].getsockname()[1]}"


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
