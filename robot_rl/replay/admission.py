"""Whom the server lets in: answers ZeroMQ's question about each client's key.

This is the handler of the ZeroMQ Authentication Protocol (RFC 27). It runs in the server's own
thread, so that there is no second one whose end nobody would notice: without a handler ZeroMQ
would let every client in that knows the server's public key.
"""

from __future__ import annotations

import logging

import zmq

from robot_rl.replay.keys import ServerKeys
from robot_rl.replay.log_limit import LogLimit

logger = logging.getLogger(__name__)
logger.addFilter(LogLimit())

_HANDLER = "inproc://zeromq.zap.01"
_VERSION = b"1.0"
_DOMAIN = b"replay"
_ANSWERED_AT_A_TIME = 64


class Admission:
    """Makes a socket ask for keys, and admits the clients that the keys name.

    Args:
        context: The socket's context; there is one handler in each.
        socket: The server's socket, not yet bound.
        keys: The server's own secret key, and whom to admit.

    Attributes:
        socket: Readable when `answer` has something to do.
        refused: Clients that were not let in so far.
    """

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], socket: zmq.Socket[bytes], keys: ServerKeys
    ) -> None:
        """Begin to answer; see the class."""
        self._clients = keys.clients
        self.refused = 0
        self.socket = context.socket(zmq.REP)
        self.socket.bind(_HANDLER)
        socket.curve_server = True
        socket.curve_secretkey = keys.secret
        socket.setsockopt(zmq.ZAP_DOMAIN, _DOMAIN)
        # Without a handler nobody comes in, instead of everybody.
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)

    def answer(self) -> None:
        """Answer the questions that wait."""
        for _ in range(_ANSWERED_AT_A_TIME):
            try:
                question = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self.socket.send_multipart(self._decide(question))

    def close(self) -> None:
        """End; nobody is let in any more."""
        self.socket.close(linger=0)

    def _decide(self, question: list[bytes]) -> list[bytes]:
        _, request, _, address, _, mechanism, *credentials = question
        name = None
        if mechanism == b"CURVE" and len(credentials) == 1:
            name = self._clients.get(credentials[0])
        if name is None:
            self.refused += 1
            logger.warning("refused a client at %s: its key is not admitted", address.decode())
            return [_VERSION, request, b"400", b"the key is not admitted", b"", b""]
        return [_VERSION, request, b"200", b"OK", name.encode(), b""]
