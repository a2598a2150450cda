"""CURVE key files, and admission of clients to a server.

Layout of a folder made by `create_keys`:

    server.secret          stays on the server's machine; readable by its owner only
    server.public
    client.secret          for the processes on the server's machine
    clients/NAME.public    admitted clients: to revoke one, delete it and restart the server
    NAME/                  another client: copy only this folder to its machine
        server.public  client.secret

A key is 32 bytes, written as 40 characters of Z85 (ZeroMQ RFC 32). The holder of a client's secret
key can do everything a client can; the holder of the server's can impersonate the server.
"""

from __future__ import annotations

import hmac
import logging
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

import zmq
from zmq.utils import z85

from robot_rl.errors import in_shell
from robot_rl.wire import KeysError

logger = logging.getLogger(__name__)

LOCAL_CLIENT = "local"
SERVER_SECRET, SERVER_PUBLIC, CLIENT_SECRET = "server.secret", "server.public", "client.secret"
CLIENTS = "clients"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_READABLE_BY_OTHERS = 0o077
_HANDLER = "inproc://zeromq.zap.01"
_VERSION = b"1.0"
_ANSWERED_AT_A_TIME = 64


@dataclass(frozen=True)
class ServerKeys:
    """Keys of a server."""

    secret: bytes = field(repr=False)  # the secret key, Z85
    clients: frozenset[bytes]  # public keys of the admitted clients, 32 bytes each

    @classmethod
    def load(cls, folder: Path) -> ServerKeys:
        """Read the keys of a server; raises `KeysError`, also if no client is admitted."""
        secret = _read(folder / SERVER_SECRET, secret=True)
        files = (folder / CLIENTS).glob("*.public")
        clients = frozenset(z85.decode(_read(file)) for file in files)
        if not clients:
            raise KeysError(
                f"the keys in {folder} admit nobody",
                expected=f"files {CLIENTS}/NAME.public",
                hint=in_shell("robot-rl", "keys", folder, "client=NAME"),
            )
        return cls(secret, clients)


@dataclass(frozen=True)
class ClientKeys:
    """Keys of a client: its secret key and the server's public key, Z85."""

    server: bytes
    secret: bytes = field(repr=False)

    @classmethod
    def load(cls, folder: Path) -> ClientKeys:
        """Read the keys of a client; raises `KeysError`."""
        return cls(_read(folder / SERVER_PUBLIC), _read(folder / CLIENT_SECRET, secret=True))


class Admission:
    """Handler of the ZeroMQ Authentication Protocol (RFC 27): decides which clients are admitted.

    It runs in the server's thread, because the death of a separate thread might go unnoticed.

    Args:
        context: The socket's context; each context has one handler.
        socket: The server's socket, not yet bound.
        asked: Keys admit their clients. A secret is a password for this machine, sent unencrypted;
            clients that send it are admitted.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        socket: zmq.Socket[bytes],
        asked: ServerKeys | str,
    ) -> None:
        self._asked = asked
        self.refused = 0  # clients refused so far
        self.socket = context.socket(zmq.REP)  # readable when requests wait for `answer`
        self.socket.bind(_HANDLER)
        if isinstance(asked, ServerKeys):
            socket.curve_server = True
            socket.curve_secretkey = asked.secret
        else:
            socket.plain_server = True
        socket.setsockopt(zmq.ZAP_DOMAIN, b"robot_rl")
        # Without a handler, admit no client instead of all.
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)

    def answer(self) -> None:
        """Answer the waiting admission requests."""
        for _ in range(_ANSWERED_AT_A_TIME):
            try:
                question = self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            _, request, _, address, _, mechanism, *said = question
            verdict = [b"200", b"OK"]
            if isinstance(self._asked, ServerKeys):
                admitted = mechanism == b"CURVE" and said[0] in self._asked.clients
            else:
                secret = self._asked.encode()
                admitted = mechanism == b"PLAIN" and hmac.compare_digest(said[1], secret)
            if not admitted:
                self.refused += 1
                verdict = [b"400", b"the key is not admitted"]
                if is_logged(self.refused):
                    place = address.decode()
                    logger.warning("refused client %d, at %s: bad key", self.refused, place)
            self.socket.send_multipart([_VERSION, request, *verdict, b"", b""])

    def close(self) -> None:
        """Close the handler. No more clients are admitted."""
        self.socket.close(linger=0)


def is_logged(count: int) -> bool:
    """Whether to log the `count`-th fault of a peer: the 1st, 2nd, 4th, 8th and so on."""
    return count & (count - 1) == 0


def create_keys(folder: Path) -> None:
    """Create key pairs for a server and for the clients on its machine; raises `KeysError`."""
    public, secret = zmq.curve_keypair()
    _write(folder / SERVER_SECRET, secret, 0o600)
    _write(folder / SERVER_PUBLIC, public)
    _create_client(folder, LOCAL_CLIENT, folder)


def add_client(folder: Path, name: str) -> Path:
    """Create the key pair of another client and admit it; a running server must be restarted.

    Returns:
        The folder to copy to the client's machine.

    Raises:
        KeysError: The name is invalid or taken, or the folder has no server keys.
    """
    if not _NAME.fullmatch(name) or name == CLIENTS:
        raise KeysError(
            "this cannot be the name of a client",
            got=repr(name),
            expected="up to 64 letters, digits, _ and -",
        )
    public = _read(folder / SERVER_PUBLIC)
    own = folder / name
    _create_client(folder, name, own)
    _write(own / SERVER_PUBLIC, public)
    return own


def _create_client(folder: Path, name: str, own: Path) -> None:
    public, secret = zmq.curve_keypair()
    # Write the admission first: a secret key that is not admitted would be harder to diagnose.
    _write(folder / CLIENTS / f"{name}.public", public)
    _write(own / CLIENT_SECRET, secret, 0o600)


def _write(file: Path, key: bytes, mode: int = 0o644) -> None:
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as stream:
            stream.write(key + b"\n")
    except FileExistsError as error:
        raise KeysError(
            f"{file} exists, and keys are never overwritten",
            hint="add a client with client=NAME, or take another folder",
        ) from error
    except OSError as error:
        raise KeysError(f"{file} cannot be written", got=error) from error


def _read(file: Path, *, secret: bool = False) -> bytes:
    try:
        key, mode = file.read_bytes().strip(), file.stat().st_mode & 0o777
        damaged = len(z85.decode(key)) != 32
    except OSError as error:
        raise KeysError(
            f"there is no key {file}",
            got=error.strerror,
            hint=f"make keys with: {in_shell('robot-rl', 'keys', file.parent)}",
        ) from error
    except (KeyError, ValueError):
        damaged = True
    if damaged:
        raise KeysError(
            f"{file} is not a key", got=f"{len(key)} bytes", expected="40 characters of Z85"
        )
    if secret and mode & _READABLE_BY_OTHERS:
        raise KeysError(
            f"the secret key {file} can be read by others",
            got=f"mode {mode:03o}",
            expected="mode 600",
            hint=in_shell("chmod", "600", file),
        )
    return key


def make_keys(folder: str, client: str | None = None) -> None:
    """Create keys for a replay server, or for another client, and print where they belong."""
    keys = Path(folder)
    if client is None:
        create_keys(keys)
        print(
            f"made {keys}: it stays on the replay server's machine, secret keys for you alone\n"
            f"  start the server, and actor and learner beside it, with: replay=network"
            f" {in_shell(f'replay.keys={keys}')}\n"
            f"  let another machine in with: {in_shell('robot-rl', 'keys', keys, 'client=NAME')}",
            flush=True,
        )
        return
    own = add_client(keys, client)
    print(
        f"made {own}: copy this folder, and nothing else of {keys}, to {client}, for example with\n"
        f"  {in_shell('scp', '-rp', own, f'{client}:')}\n"
        f"restart the replay server, so that it lets {client} in; then there add\n"
        "  replay.connect=tcp://HOST_OF_THE_SERVER:PORT"
        f" {in_shell(f'replay.keys={own.name}')}\n"
        f"to shut {client} out again, delete {keys / CLIENTS / (client + '.public')} and restart"
        " the server",
        flush=True,
    )
