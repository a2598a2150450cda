"""The 3-D viewers inside the console: viser on ports of loopback, passed on by the console's own.

Viser has no access control, so that browsers never reach it directly.
"""

from __future__ import annotations

import asyncio
import socket

import aiohttp
from aiohttp import web

LOOPBACK = "127.0.0.1"
_HOP_HEADERS = frozenset(
    ("connection", "content-encoding", "content-length", "keep-alive", "transfer-encoding")
)
_MOST_MESSAGE_BYTES = 64 << 20
# Without viser's own panel and notices, for the console has the buttons; and see viewer.js.
_ADDED_TO_PAGE = (
    b"<style>.mantine-Paper-root,.mantine-Notifications-root{display:none!important}</style>"
    b'<script src="/viewer.js"></script>'
)


def free_port() -> int:
    """A port of loopback that nobody uses at the moment."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


class ViewerProxy:
    """Passes requests below a path on to a viser server.

    Args:
        port: Where viser listens on loopback.
    """

    def __init__(self, port: int) -> None:
        self._address = f"http://{LOOPBACK}:{port}"
        self._session: aiohttp.ClientSession | None = None

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Pass on one request, or all messages of a websocket."""
        if self._session is None:
            self._session = aiohttp.ClientSession(auto_decompress=True)
        if request.headers.get("Upgrade", "").lower() == "websocket":
            return await self._join(request, self._session)
        path = request.match_info["path"]
        async with self._session.get(f"{self._address}/{path}") as answer:
            headers = {k: v for k, v in answer.headers.items() if k.lower() not in _HOP_HEADERS}
            body = await answer.read()
            if answer.content_type == "text/html":
                body = body.replace(b"<head>", b"<head>" + _ADDED_TO_PAGE, 1)
            return web.Response(status=answer.status, headers=headers, body=body)

    async def close(self) -> None:
        """Hang up."""
        if self._session is not None:
            await self._session.close()

    async def _join(
        self, request: web.Request, session: aiohttp.ClientSession
    ) -> web.WebSocketResponse:
        wanted = request.headers.get("Sec-WebSocket-Protocol", "")
        protocols = [name.strip() for name in wanted.split(",") if name.strip()]
        async with session.ws_connect(
            f"{self._address}/", protocols=protocols, max_msg_size=_MOST_MESSAGE_BYTES
        ) as viewer:
            chosen = [viewer.protocol] if viewer.protocol else []
            browser = web.WebSocketResponse(protocols=chosen, max_msg_size=_MOST_MESSAGE_BYTES)
            await browser.prepare(request)
            ways = [
                asyncio.create_task(_pass_on(browser, viewer)),
                asyncio.create_task(_pass_on(viewer, browser)),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
                await browser.close()
            return browser


_Socket = web.WebSocketResponse | aiohttp.ClientWebSocketResponse


async def _pass_on(source: _Socket, target: _Socket) -> None:
    async for message in source:
        if message.type == aiohttp.WSMsgType.BINARY:
            await target.send_bytes(message.data)
        elif message.type == aiohttp.WSMsgType.TEXT:
            await target.send_str(message.data)
