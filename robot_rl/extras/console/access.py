"""Access control of the console: open on this machine, token required from other machines.

Every request passes through this module, including websocket upgrades and requests to the 3-D
viewers, which have no check of their own and listen only on loopback. The number of connections is
limited, and idle ones are closed.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import ssl
import subprocess
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from aiohttp import web
from multidict import CIMultiDictProxy

from robot_rl.console.link import ConsoleError

LOOPBACK = "127.0.0.1"
_COOKIE = "robot_rl_console"
_TOKEN = "token"
_LEAST_TOKEN_LENGTH = 16
_CERTIFICATE_DAYS = "825"  # maximum that browsers accept
MOST_CONNECTIONS = 64
_LOOK_SECONDS = 1.0
_HANDSHAKE_SECONDS = 5.0

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def read_token(path: str | None) -> str | None:
    """Read the token for browsers; `ConsoleError` if it cannot be read or is too weak."""
    if path is None:
        return None
    hint = f"make one: openssl rand -hex 16 > {path}"
    try:
        token = Path(path).read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise ConsoleError(f"the token file {path} cannot be read", got=error, hint=hint) from error
    if len(token) < _LEAST_TOKEN_LENGTH or not token.isalnum():
        raise ConsoleError(
            f"the token in {path} is too weak",
            got=f"{len(token)} characters",
            expected=f"at least {_LEAST_TOKEN_LENGTH} letters and digits",
            hint=hint,
        )
    return token


def check_host(host: str, token: str | None) -> None:
    """Raise `ConsoleError` for listening beyond this machine without a token."""
    if token is None and not is_loopback(host):
        raise ConsoleError(
            "beyond this machine the console is opened with a token only: it moves the robot",
            got=f"console.host={host} without console.token_file",
            hint="openssl rand -hex 16 > token; add console.token_file=token. Or keep the console"
            " on loopback and come through ssh: ssh -L 8080:127.0.0.1:8080 ROBOT",
        )


def certificate(host: str, given: str | None, folder: Path) -> ssl.SSLContext | None:
    """Load the TLS context for other machines; None on loopback, which needs none.

    It uses the given PEM file with certificate and key, or a self-signed certificate that is
    created once and stored in `folder`. `ConsoleError` if the file cannot be read or created.
    """
    if given is None and is_loopback(host):
        return None
    path = Path(given) if given else folder / "certificate.pem"
    if given is None and not path.exists():
        _make_certificate(host, path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(path)
    except (OSError, ssl.SSLError) as error:
        raise ConsoleError(
            f"the certificate {path} cannot be used",
            got=error,
            expected="one PEM file with a certificate and its private key",
        ) from error
    return context


def is_loopback(host: str) -> bool:
    """Whether a host name or address is reachable only from this machine."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class AccessGate:
    """Admits or rejects requests to the console.

    On loopback without a token, every user of this machine is admitted, but no foreign web page in
    a local browser: such a page can only send its own origin and host. Browsers send the token once
    in the address, as ``?token=…``, and then as a cookie. If this connection is encrypted
    (`secure`), the cookie is sent only over encrypted ones.
    """

    def __init__(self, token: str | None, *, secure: bool) -> None:
        self._token, self._secure = token, secure

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Admit or reject one request, or exchange its token for a cookie."""
        _check_origin(request.headers, known_names_only=self._token is None)
        if self._token is None:
            return await handler(request)
        given = request.query.get(_TOKEN)
        if given is not None and request.path == "/" and self._is_token(given):
            answer = web.HTTPFound("/")
            answer.set_cookie(
                _COOKIE, self._token, httponly=True, samesite="Strict", secure=self._secure
            )
            raise answer
        if not self._is_token(request.cookies.get(_COOKIE, "")):
            raise web.HTTPUnauthorized(
                text="This console needs its token: open the address that it printed,"
                " https://HOST:PORT/?token=TOKEN"
            )
        return await handler(request)

    def _is_token(self, text: str) -> bool:
        return self._token is not None and hmac.compare_digest(text.encode(), self._token.encode())


def _check_origin(headers: CIMultiDictProxy[str], *, known_names_only: bool) -> None:
    host = headers.get("Host", "")
    # A foreign page can point its own host name to this machine, but cannot change that name.
    if known_names_only and not is_loopback(urlsplit(f"//{host}").hostname or ""):
        raise web.HTTPForbidden(text=f"the console is not called {host}")
    origin = headers.get("Origin")
    if origin is not None and urlsplit(origin).netloc != host:
        raise web.HTTPForbidden(text=f"pages of {origin} may not use the console")


def _make_certificate(host: str, path: Path) -> None:
    """Create a self-signed certificate and its key, in one file that only this user can read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", str(path)]
    subject = ["-subj", "/CN=robot_rl console", "-days", _CERTIFICATE_DAYS, "-out", str(path)]
    try:
        command = ["openssl", "req", "-x509", *key, *subject]
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        path.unlink(missing_ok=True)
        raise ConsoleError(
            f"no certificate could be made, without which connections to {host} are not encrypted",
            got=getattr(error, "stderr", None) or error,
            hint="install openssl, or name a PEM file with console.certificate=PATH",
        ) from error


@dataclass(eq=False)
class _Use:
    since: float  # monotonic time of the last response, or of the connection's start
    answering: bool = False  # also while it is a websocket


class Connections:
    """Limits the connections of a server: idle ones make room for new ones."""

    def __init__(self) -> None:
        self._server: web.Server | None = None
        self._uses: dict[asyncio.BaseTransport, _Use] = {}

    async def listen(
        self, server: web.Server, host: str, port: int, encryption: ssl.SSLContext | None
    ) -> asyncio.Server:
        """Start to accept connections for a server; raises `OSError`."""
        self._server = server
        given = None if encryption is None else _HANDSHAKE_SECONDS
        loop = asyncio.get_running_loop()
        return await loop.create_server(
            self._new, host, port, ssl=encryption, ssl_handshake_timeout=given
        )

    def _new(self) -> asyncio.Protocol:
        """Create the protocol of a new connection; refuse it if all others are in use."""
        assert self._server is not None
        self._update()
        if len(self._uses) >= MOST_CONNECTIONS:
            waiting = [t for t, use in self._uses.items() if not use.answering]
            if not waiting:
                return _Refusal()
            self._end(min(waiting, key=lambda transport: self._uses[transport].since))
        return self._server()

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Mark a connection as used while a request is answered."""
        self._update()
        use = self._uses.get(request.transport) if request.transport else None
        if use is None:
            return await handler(request)
        use.answering = True
        try:
            return await handler(request)
        finally:
            use.answering, use.since = False, time.monotonic()

    async def watch(self, idle_seconds: float) -> None:
        """Close connections idle for `idle_seconds` (no complete request), until cancelled.

        Connections with a request in progress stay open.
        """
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            self._update()
            for transport, use in list(self._uses.items()):
                if not use.answering and time.monotonic() > use.since + idle_seconds:
                    self._end(transport)

    def _update(self) -> None:
        now = time.monotonic()
        assert self._server is not None
        open_now = [c.transport for c in self._server.connections if c.transport is not None]
        self._uses = {t: self._uses.get(t) or _Use(now) for t in open_now}

    def _end(self, transport: asyncio.BaseTransport) -> None:
        del self._uses[transport]
        if isinstance(transport, asyncio.WriteTransport):
            transport.abort()


class _Refusal(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()
