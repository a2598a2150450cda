"""Feetech STS3215 servos on a serial line, as those of an SO-101: enough of their protocol.

Each goes to its goal at a bounded speed while its torque is on, and stays where it is without.
"""

from __future__ import annotations

import os
import pty
import threading
import time
import tty

PING, READ, WRITE, SYNC_READ, SYNC_WRITE = 1, 2, 3, 0x82, 0x83
BROADCAST = 0xFE
FIRMWARE, MODEL, TORQUE, GOAL, PRESENT = 0, 3, 40, 42, 56
LOW, HIGH, OFFSET = 9, 11, 31
_STS3215 = 777
_SPEED = 3000.0  # counts per second


class Servo:
    """The registers of one servo."""

    def __init__(self, position: int, low: int = 0, high: int = 4095) -> None:
        self.memory = bytearray(128)
        self.memory[FIRMWARE : FIRMWARE + 2] = bytes([3, 10])
        self.position, self._at = float(position), time.monotonic()
        for place, value in ((MODEL, _STS3215), (LOW, low), (HIGH, high), (GOAL, position)):
            self.put(place, value)

    def put(self, place: int, value: int) -> None:
        self.memory[place : place + 2] = value.to_bytes(2, "little")

    def word(self, place: int) -> int:
        return int.from_bytes(self.memory[place : place + 2], "little")

    def move(self) -> None:
        """Let the time pass that has passed."""
        now = time.monotonic()
        most, self._at = _SPEED * (now - self._at), now
        if self.memory[TORQUE]:
            way = self.word(GOAL) - self.position
            self.position += max(-most, min(most, way))
        self.put(PRESENT, round(self.position))


class Bus:
    """Servos by their number, at the serial device `port`, until `close`."""

    def __init__(self, servos: dict[int, Servo]) -> None:
        self.servos = servos
        self.silent = False
        self._wire, self._port = pty.openpty()
        tty.setraw(self._wire)
        tty.setraw(self._port)
        self.port = os.ttyname(self._port)
        self._heard = b""
        self._ending = False
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ending = True
        os.write(self._port, b"\0")  # wakes the thread
        self._thread.join(5.0)
        os.close(self._port)
        os.close(self._wire)

    def _serve(self) -> None:
        while not self._ending:
            self._heard += os.read(self._wire, 256)
            while (packet := self._next()) is not None:
                if not self.silent:
                    self._obey(*packet)

    def _next(self) -> tuple[int, int, bytes] | None:
        """The next whole packet: number, instruction and its parameters."""
        start = self._heard.find(b"\xff\xff")
        if start < 0 or len(self._heard) < start + 4:
            return None
        size = self._heard[start + 3]
        end = start + 4 + size
        if len(self._heard) < end:
            return None
        packet, self._heard = self._heard[start:end], self._heard[end:]
        return packet[2], packet[4], packet[5:-1]

    def _obey(self, number: int, instruction: int, given: bytes) -> None:
        if instruction == SYNC_READ:
            for each in given[2:]:
                self._answer(each, self._read(each, given[0], given[1]))
        elif instruction == SYNC_WRITE:
            size = given[1]
            for at in range(2, len(given), size + 1):
                self._write(given[at], given[0], given[at + 1 : at + 1 + size])
        elif instruction == PING:
            for each in self.servos if number == BROADCAST else [number]:
                self._answer(each, b"")
        elif instruction == READ:
            self._answer(number, self._read(number, given[0], given[1]))
        elif instruction == WRITE:
            self._write(number, given[0], given[1:])
            self._answer(number, b"")

    def _read(self, number: int, place: int, size: int) -> bytes:
        servo = self.servos[number]
        servo.move()
        return bytes(servo.memory[place : place + size])

    def _write(self, number: int, place: int, content: bytes) -> None:
        servo = self.servos[number]
        servo.move()
        servo.memory[place : place + len(content)] = content

    def _answer(self, number: int, content: bytes) -> None:
        if number not in self.servos:
            return
        body = bytes([number, len(content) + 2, 0]) + content
        os.write(self._wire, b"\xff\xff" + body + bytes([~sum(body) & 0xFF]))
