"""A Franka Hand behind real sockets: what the driver uses of the protocol of libfranka's gripper.

Requests come by TCP, each with an id that its answer repeats; the state goes out by UDP.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time

PORT = 1338
VERSION = 3  # of the protocol
FULL_WIDTH = 0.08
CONNECT, HOMING, GRASP, MOVE, STOP = range(5)
SUCCEEDED, FAILED, UNSUCCESSFUL, ABORTED = range(4)
_HEADER = struct.Struct("<HII")  # command, id, size of header and content
_STATE = struct.Struct("<IddBH")  # number, width, largest width, whether it holds something, °C
_PERIOD_S = 0.01


class Hand:
    """What the hand does with its requests.

    Attributes:
        width: Between the fingers [m].
        max_width: As the last homing found it; 0 for a hand that was never homed.
        homing_status: What a homing ends with.
        endless: Whether a motion goes on until it is stopped or `end_motions` is called.
        early_stops: How many stops it answers without ending a motion.
        telling: Cleared: it sends no state.
        requests: The number of the connection, from 0, and the command of each request.
    """

    def __init__(self) -> None:
        self.width = FULL_WIDTH
        self.max_width = FULL_WIDTH
        self.homing_status = SUCCEEDED
        self.endless = False
        self.early_stops = 0
        self.telling = threading.Event()
        self.telling.set()
        self.requests: list[tuple[int, int]] = []
        self._going_on: list[tuple[socket.socket, int, int]] = []

    def count(self, command: int) -> int:
        """How often something was asked for."""
        return sum(asked == command for _, asked in self.requests)

    @property
    def moving(self) -> bool:
        """Whether a motion goes on."""
        return bool(self._going_on)

    def end_motions(self, status: int) -> None:
        """End every motion that goes on."""
        while self._going_on:
            _answer(*self._going_on.pop(), status)

    def serve(self, connection: socket.socket, number: int) -> None:
        """Answer one client until it leaves."""
        stream = connection.makefile("rb")
        while header := stream.read(_HEADER.size):
            command, identity, size = _HEADER.unpack(header)
            content = stream.read(size - _HEADER.size)
            if command == CONNECT:
                self._greet(connection, identity, content)
            else:
                self.requests.append((number, command))
                self._take(connection, command, identity, content)

    def _greet(self, connection: socket.socket, identity: int, content: bytes) -> None:
        _, port = struct.unpack("<HH", content)
        version = struct.pack("<H", VERSION)
        _answer(connection, CONNECT, identity, SUCCEEDED, version)
        address = (connection.getpeername()[0], port)
        threading.Thread(target=self._tell, args=(address,), daemon=True).start()

    def _tell(self, address: tuple[str, int]) -> None:
        number = 0
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            while True:
                self.telling.wait()
                number += 1
                state = _STATE.pack(number, self.width, self.max_width, 0, 30)
                with contextlib.suppress(ConnectionRefusedError):
                    sender.sendto(state, address)
                time.sleep(_PERIOD_S)

    def _take(self, connection: socket.socket, command: int, identity: int, content: bytes) -> None:
        if command in (GRASP, MOVE, HOMING) and self.endless:
            self._going_on.append((connection, command, identity))
            return
        if command in (GRASP, MOVE):
            (self.width,) = struct.unpack_from("<d", content)
        if command == STOP and self.early_stops:
            self.early_stops -= 1
        elif command == STOP:
            self.end_motions(ABORTED)
        if command == HOMING and self.homing_status == SUCCEEDED:
            self.max_width = FULL_WIDTH
        status = self.homing_status if command == HOMING else SUCCEEDED
        _answer(connection, command, identity, status)


@contextlib.contextmanager
def serve(hand: Hand, host: str):
    """Let the hand be reached at an address of this machine."""
    with socket.create_server((host, PORT)) as listener:

        def accept() -> None:
            number = 0
            with contextlib.suppress(OSError):  # the listener is closed
                while True:
                    connection, _ = listener.accept()
                    client = threading.Thread(
                        target=hand.serve, args=(connection, number), daemon=True
                    )
                    client.start()
                    number += 1

        threading.Thread(target=accept, daemon=True).start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)


def _answer(
    connection: socket.socket, command: int, identity: int, status: int, content: bytes = b""
) -> None:
    size = _HEADER.size + 2 + len(content)
    message = _HEADER.pack(command, identity, size) + struct.pack("<H", status) + content
    with contextlib.suppress(OSError):  # the client has left
        connection.sendall(message)
