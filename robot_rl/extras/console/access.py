"""Who may use the console: everybody on this machine, beyond it who has the token.

Each request passes here, those that open a websocket included, and those to the 3-D viewers, which
have no check of their own and listen on loopback only.
"""

from __future__ import annotations

import hmac
import ipaddress
import ssl
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit

from aiohttp import web
from multidict import CIMultiDictProxy

from robot_rl.console.link import ConsoleError

LOOPBACK = "127.0.0.1"
_COOKIE = "robot_rl_console"
_TOKEN = "token"
_LEAST_TOKEN_LENGTH = 16
_CERTIFICATE_DAYS = "825"  # the most that browsers accept

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def read_token(path: str | None) -> str | None:
    """Read the token that browsers must give; `ConsoleError` if that cannot be, or is too weak."""
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
    """Refuse, by a `ConsoleError`, to listen beyond this machine without a token."""
    if token is None and not is_loopback(host):
        raise ConsoleError(
            "beyond this machine the console is opened with a token only: it moves the robot",
            got=f"console.host={host} without console.token_file",
            hint="openssl rand -hex 16 > token; add console.token_file=token. Or keep the console"
            " on loopback and come through ssh: ssh -L 8080:127.0.0.1:8080 ROBOT",
        )


def certificate(host: str, given: str | None, folder: Path) -> ssl.SSLContext | None:
    """What encrypts the console beyond this machine; None on loopback, where nothing has to.

    That is the given PEM file with certificate and key, or a self-signed one, which is made once
    and kept in `folder`. `ConsoleError` where it cannot be read or made.
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
    """Whether only this machine reaches a host name or address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class AccessGate:
    """Lets requests through to the console, or not.

    On loopback without a token anybody on this machine may come, but no foreign web page that a
    browser here has open: such a page cannot name another origin or host than its own. Browsers
    give the token once in the address, as ``?token=…``, and then as a cookie, which is sent over an
    encrypted connection only if this one is (`secure`).
    """

    def __init__(self, token: str | None, *, secure: bool) -> None:
        self._token, self._secure = token, secure

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer one request, refuse it, or take its token for the cookie that tells after it."""
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
    # A foreign page can make its own name point to this machine, but it cannot change that name.
    if known_names_only and not is_loopback(urlsplit(f"//{host}").hostname or ""):
        raise web.HTTPForbidden(text=f"the console is not called {host}")
    origin = headers.get("Origin")
    if origin is not None and urlsplit(origin).netloc != host:
        raise web.HTTPForbidden(text=f"pages of {origin} may not use the console")


def _make_certificate(host: str, path: Path) -> None:
    """Make a self-signed certificate and its key, in one file that only this user reads."""
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
            f"no certificate could be made, without which {host} cannot be encrypted",
            got=getattr(error, "stderr", None) or error,
            hint="install openssl, or name a PEM file with console.certificate=PATH",
        ) from error
