"""The connections of the console's web server, of which there are few, and none that only waits."""

from __future__ import annotations

import asyncio
import ssl
import time
from dataclasses import dataclass

from aiohttp import web

from robot_rl.extras.console.access import Handler

MOST_CONNECTIONS = 64
_LOOK_SECONDS = 1.0
_HANDSHAKE_SECONDS = 5.0


@dataclass(eq=False)
class _Use:
    """What a connection is used for."""

    since: float  # steady time at which its last request was answered, or at which it came
    answering: bool = False  # also for as long as it is a websocket


class Connections:
    """Bounds the connections of a server: those that are not used make room for others."""

    def __init__(self) -> None:
        self._server: web.Server | None = None
        self._uses: dict[asyncio.BaseTransport, _Use] = {}

    async def listen(
        self, server: web.Server, host: str, port: int, encryption: ssl.SSLContext | None
    ) -> asyncio.Server:
        """Let a server's connections come in; raises `OSError`."""
        self._server = server
        given = None if encryption is None else _HANDSHAKE_SECONDS
        loop = asyncio.get_running_loop()
        return await loop.create_server(
            self._new, host, port, ssl=encryption, ssl_handshake_timeout=given
        )

    def _new(self) -> asyncio.Protocol:
        """Make the protocol of a new connection; where all places are in use it is refused."""
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
        """Note that a connection is used as long as a request is answered."""
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
        """Hang up on those that have asked nothing whole for so long, until cancelled.

        One that is being answered stays.
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
