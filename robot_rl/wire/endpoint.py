"""Server addresses and sockets: listening, admitting clients, and finding a server."""

from __future__ import annotations

import errno
import ipaddress
import math
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import zmq
from zmq.utils.monitor import recv_monitor_message

from robot_rl.processes.files import replace_text
from robot_rl.processes.waiting import wait_until
from robot_rl.wire import AddressRefused, KeysRefused, ServerUnreachable
from robot_rl.wire.keys import Admission, ClientKeys, ServerKeys
from robot_rl.wire.messages import DEFAULT_PAYLOAD_BYTES, PIECE_BYTES, Frame
from robot_rl.wire.peers import CURVE_BYTES, Peers

ENDPOINT_FILE = "endpoint.json"
_HINT = "start it; that of a store with: robot-rl replay"
_ADDRESS = re.compile(r"tcp://(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[^/:\s]+):(?P<port>\d{1,5})")
_UNREAD_BY_US = 128  # messages per client
_UNREAD_BY_CLIENT = 32
_MOST_PARTS = 4096  # most parts read of one message
_LARGE_BYTES = 1 << 16  # from this size ZeroMQ sends without a copy and reports completion
_LINGER_MILLISECONDS = 200
_OPTIONS = {
    zmq.ROUTER_MANDATORY: 1,
    # Otherwise a second peer with the same name as a first is neither read nor closed. Our clients
    # choose no name, and a peer cannot take a name that ZeroMQ generates.
    zmq.ROUTER_HANDOVER: 1,
    zmq.RCVHWM: _UNREAD_BY_US,
    # Free the descriptors of silent or lost connections. Do not use ZeroMQ's heartbeats: with them
    # libzmq 4.3.5 aborts the process if a peer disconnects while its messages wait to be read
    # ("Assertion failed: !_io_error", libzmq issue 4364).
    zmq.HANDSHAKE_IVL: 10_000,  # ms
    zmq.TCP_KEEPALIVE: 1,
    zmq.TCP_KEEPALIVE_IDLE: 60,  # s
    zmq.TCP_KEEPALIVE_INTVL: 15,
    zmq.TCP_KEEPALIVE_CNT: 4,
}

EVENTS = (  # of a client's socket
    zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


class Endpoint(msgspec.Struct, frozen=True):
    """Address and credentials of a running server."""

    address: str  # ``tcp://HOST:PORT``
    pid: int  # the server's process id
    # The clients' password. Every user of the machine can reach the port, but only users who can
    # read the file are admitted. None if the server admits all clients on this machine.
    secret: str | None = None


def parse_address(address: str) -> tuple[str, int]:
    """Split ``tcp://host:port``; raises `AddressRefused`.

    Returns:
        The host (IPv6 addresses keep their brackets) and the port; port 0 means any free port.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None or int(match["port"]) > 65535:
        raise AddressRefused(
            "this is not an address of a server",
            got=address,
            expected="tcp://HOST:PORT, for example tcp://127.0.0.1:5555",
        )
    return match["host"], int(match["port"])


def check_protected(address: str, *, keys: bool) -> None:
    """Check that messages leaving this machine are authenticated and encrypted.

    Raises:
        AddressRefused: Not an address, or not loopback and without keys.
    """
    number = _number(parse_address(address)[0])
    if keys or (number is not None and number.is_loopback):
        return
    raise AddressRefused(
        "beyond this machine a server is used with keys only: without them its messages are neither"
        " authenticated nor encrypted",
        got=f"{address} without keys",
        expected="tcp://127.0.0.1:PORT, or keys",
        hint="make keys once with: robot-rl keys FOLDER, and add replay.keys=FOLDER",
    )


def client_socket(
    context: zmq.Context[Any], endpoint: Endpoint, keys: ClientKeys | None = None
) -> Any:
    """Create a client's socket for a server, not yet connected."""
    check_protected(endpoint.address, keys=keys is not None)
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.RECONNECT_IVL, 20)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 200)
    socket.setsockopt(zmq.IPV6, parse_address(endpoint.address)[0].startswith("["))
    if keys is not None:
        socket.curve_serverkey = keys.server
        socket.curve_publickey = zmq.curve_public(keys.secret)
        socket.curve_secretkey = keys.secret
    elif endpoint.secret is not None:
        socket.plain_username = b"robot_rl"
        socket.plain_password = endpoint.secret.encode()
    return socket


def why_refused(event: int, value: int, *, keys: bool) -> ServerUnreachable | None:
    """Return why a client's handshake, with or without keys, failed; None if it was only cut."""
    if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
        return KeysRefused(
            "the server does not admit this client's key",
            hint="in the server's folder of keys there must be a clients/NAME.public for it;"
            " after a change the server must be restarted",
        )
    mismatch = value == zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH
    if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL and mismatch:
        problem = "the server did not accept a client without keys"
        hint = "replay.keys=FOLDER, with keys that robot-rl keys has made beside the server's"
        if keys:
            problem = "this client uses keys, and the server does not"
            hint = "start the server with replay.keys=FOLDER, or this client without"
        return KeysRefused(problem, hint=hint)
    if event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL and keys:
        # A server restarting behind a tunnel looks the same for a while.
        return ServerUnreachable(
            "what listens there ends every handshake",
            hint="server.public is not the key of this server, or no robot_rl server",
        )
    return None


def read_endpoint(folder: Path) -> Endpoint:
    """Return the endpoint of a server, running or killed; raises `ServerUnreachable`."""
    file = folder / ENDPOINT_FILE
    try:
        return msgspec.json.decode(file.read_bytes(), type=Endpoint)
    except (OSError, ValueError) as error:
        raise ServerUnreachable(
            f"no server has announced itself in {file}", got=error, hint=_HINT
        ) from error


def wait_for_endpoint(folder: Path, timeout: float) -> Endpoint:
    """Wait up to `timeout` [s] for a running server's address; raises `ServerUnreachable`."""

    def running() -> Endpoint | None:
        try:
            endpoint = read_endpoint(folder)
            os.kill(endpoint.pid, 0)
        except (ServerUnreachable, ProcessLookupError):
            return None
        return endpoint

    endpoint = wait_until(running, timeout)
    if endpoint is None:
        raise ServerUnreachable(
            f"no server of {folder} is running", got=f"none within {timeout:g} s", hint=_HINT
        )
    return endpoint


def _number(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Parse a host as an IP address; None for a name."""
    try:
        return ipaddress.ip_address("127.0.0.1" if host == "localhost" else host.strip("[]"))
    except ValueError:
        return None


class Listener:
    """Server socket that receives whole messages from clients and sends messages to them.

    Args:
        address: ``tcp://HOST:PORT``. Port 0 reuses the port of a server killed on this folder, so
            that its clients find the new one, or else picks any free port.
        folder: Folder to write the address to; None if the clients know it.
        keys: The server's keys and admitted clients; None admits all clients on this machine.
        secret: Password for clients on this machine, without keys.
        frame_bytes: Largest ZeroMQ frame that a client may send.
        unread_messages: Most messages queued for a client.
        held_bytes: Most bytes, over all clients, queued for the server; the same limit applies to
            bytes queued for clients. Clients above it are disconnected, see `Peers`.
        memory_bytes: Most memory of the process; above it, clients with queued bytes are
            disconnected too.

    Attributes:
        address: The listening address with the actual port.
        admission: Counts the refused clients; None if all are admitted.
        peers: The connections.
        poller: Wakes on messages; further sockets can be registered.

    Raises:
        AddressRefused: Not an address of this machine, beyond loopback without keys, or in use.
    """

    def __init__(
        self,
        address: str,
        *,
        folder: Path | None = None,
        keys: ServerKeys | None = None,
        secret: str | None = None,
        frame_bytes: int = PIECE_BYTES,
        unread_messages: int = _UNREAD_BY_CLIENT,
        held_bytes: int = DEFAULT_PAYLOAD_BYTES,
        memory_bytes: int | None = None,
    ) -> None:
        check_protected(address, keys=keys is not None)
        host, port = parse_address(address)
        self._folder, self._secret = folder, secret
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        for option, value in _OPTIONS.items():
            self._socket.setsockopt(option, value)
        self._socket.setsockopt(zmq.MAXMSGSIZE, frame_bytes + CURVE_BYTES)
        self._socket.setsockopt(zmq.SNDHWM, unread_messages)
        self._socket.setsockopt(zmq.IPV6, host.startswith("["))
        self.poller = zmq.Poller()
        self.poller.register(self._socket, zmq.POLLIN)
        self.admission: Admission | None = None
        self._held_bytes = held_bytes
        # Large messages in transit, oldest first: client, bytes and tracker.
        self._unread: list[tuple[bytes, int, zmq.MessageTracker]] = []
        encrypted = keys is not None
        self.peers = Peers(self._context, self._socket, encrypted, held_bytes, memory_bytes)
        try:
            asked = keys or secret
            if asked is not None:
                self.admission = Admission(self._context, self._socket, asked)
                self.poller.register(self.admission.socket, zmq.POLLIN)
            self._bind(host, port)
            self.address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
            if folder is not None:
                text = msgspec.json.encode(self.endpoint).decode()
                replace_text(folder / ENDPOINT_FILE, text, 0o666 if secret is None else 0o600)
        except BaseException:
            self.close()
            raise

    @property
    def endpoint(self) -> Endpoint:
        """Endpoint for clients on this machine."""
        host, port = parse_address(self.address)
        number = _number(host)
        if number is not None and number.is_unspecified:
            host = "[::1]" if number.version == 6 else "127.0.0.1"
        return Endpoint(f"tcp://{host}:{port}", os.getpid(), self._secret)

    def withdraw(self) -> None:
        """Remove the address file from the folder."""
        assert self._folder is not None
        (self._folder / ENDPOINT_FILE).unlink(missing_ok=True)

    def poll(self, seconds: float) -> bool:
        """Wait for an event, at most `seconds`; return whether there may be a message."""
        ready = dict(self.poller.poll(math.ceil(1000 * seconds)))
        if self.admission is not None:
            self.admission.answer()
        return self._socket in ready

    def receive(self) -> tuple[bytes, list[Frame]] | None:
        """Return the client and the frames (not copied) of one waiting message, or None."""
        try:
            client = self._socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            self.peers.note_idle()
            return None
        parts: list[zmq.Frame] = []
        more = True
        while more and len(parts) < _MOST_PARTS:
            parts.append(self._socket.recv(copy=False))
            more = parts[-1].more
        frames: list[Frame] = [part.buffer for part in parts]
        with suppress(zmq.ZMQError):  # the peer left before ZeroMQ identified it
            self.peers.note_message(client, parts[0].get(zmq.SRCFD), frames)
        if more:
            self.peers.end(client, "a message of it has too many parts")
            while self._socket.getsockopt(zmq.RCVMORE):
                self._socket.recv()
        return client, frames

    def send(self, client: bytes, frames: list[Frame]) -> bool:
        """Send a message; return False if the client is gone or does not read."""
        size = sum(map(len, frames))
        large = size >= _LARGE_BYTES
        if large:
            self._make_room(size)
        try:
            tracker = self._socket.send_multipart(
                [client, *frames], zmq.NOBLOCK, copy=False, track=large
            )
        except zmq.ZMQError:
            return False
        if tracker is not None:
            self._unread.append((client, size, tracker))
        return True

    def _make_room(self, size: int) -> None:
        """Disconnect the clients with the oldest unread messages if too many bytes are queued."""
        self._unread = [waits for waits in self._unread if not waits[2].done]
        while self._unread and size + sum(w[1] for w in self._unread) > self._held_bytes:
            client = self._unread[0][0]
            self._unread = [waits for waits in self._unread if waits[0] != client]
            self.peers.end(client, "it does not read what it has asked for")

    def close(self) -> None:
        """Stop listening; queued messages get a short time to be sent."""
        self.peers.close()
        self._socket.close(_LINGER_MILLISECONDS)
        if self.admission is not None:
            self.admission.close()
        self._context.term()

    def _bind(self, host: str, port: int) -> None:
        if port == 0 and self._folder is not None:
            with suppress(ServerUnreachable, AddressRefused, zmq.ZMQError):
                former = parse_address(read_endpoint(self._folder).address)[1]
                self._socket.bind(f"tcp://{host}:{former}")
                return
        try:
            self._socket.bind(f"tcp://{host}:{port or '*'}")
        except zmq.ZMQError as error:
            problem, got = f"a server cannot listen on tcp://{host}:{port}", error.strerror
            if error.errno == errno.EADDRINUSE:
                hint = "stop the program that uses the port, or choose another, or port 0"
                raise AddressRefused(problem, got=got, hint=hint) from error
            expected = "an address of this machine, or tcp://0.0.0.0:PORT for all of them"
            raise AddressRefused(problem, got=got, expected=expected) from error


class ServerConnection:
    """Connects to the server at an address, or to the address stored in a folder.

    Messages and events wake the poller.

    Raises:
        ServerUnreachable: The folder holds no server address.
    """

    def __init__(self, address: str | Path, keys: ClientKeys | None, poller: zmq.Poller) -> None:
        endpoint = read_endpoint(address) if isinstance(address, Path) else Endpoint(address, pid=0)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket: Any = client_socket(self._context, endpoint, keys)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._monitor: Any = self._socket.get_monitor_socket(EVENTS)
        self._socket.connect(endpoint.address)
        poller.register(self._monitor, zmq.POLLIN)
        poller.register(self._socket, zmq.POLLIN)

    def event(self) -> dict[str, Any] | None:
        """Return the next of `EVENTS` with its ``event`` and ``value``, or None."""
        return dict(recv_monitor_message(self._monitor)) if self._monitor.poll(0) else None

    def receive(self) -> list[bytes] | None:
        """Return the frames of the next message, or None."""
        try:
            frames: list[bytes] = self._socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None
        return frames

    def send(self, frames: list[Frame]) -> None:
        """Send a message without a copy; drop it if it cannot be sent."""
        # ZeroMQ abandons a connection with refused keys, and then accepts no more messages.
        with suppress(zmq.Again):
            self._socket.send_multipart(frames, zmq.NOBLOCK, copy=False)

    def close(self) -> None:
        """Close the connection and drop messages in transit."""
        self._socket.disable_monitor()
        self._context.destroy(linger=0)
