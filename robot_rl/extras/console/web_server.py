"""The console's web server: one page, its websocket, and the 3-D viewers behind it.

Text messages are JSON, those to a page with a `type` and those from it with a `do`; binary ones are
camera images, see `Pages`. A page keeps nothing itself: when it is reloaded, it is told
everything again.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp import WSMsgType, web
from aiohttp.http_exceptions import HttpProcessingError

from robot_rl.console.link import ConsoleError
from robot_rl.extras.console.access import LOOPBACK, AccessGate
from robot_rl.extras.console.connections import Connections
from robot_rl.extras.console.library import SPEEDS, EpisodeLibrary, EpisodePlayer
from robot_rl.extras.console.loop_client import LoopClient
from robot_rl.extras.console.pages import Page, Pages
from robot_rl.run import SCENES, RunDirectory

if TYPE_CHECKING:
    from robot_rl.extras.console.scene import RobotScene

_PAGE = Path(__file__).parent / "page"
_MOST_MESSAGE_BYTES = 4096
_MOST_ASKED = 64  # that one page waits for
_PING_SECONDS = 30.0
_SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' blob:; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}

_HOP_HEADERS = frozenset(
    ("connection", "content-encoding", "content-length", "keep-alive", "transfer-encoding")
)
_MOST_VIEWER_BYTES = 64 << 20
_MOST_SAID_BYTES = 1 << 20  # to a viewer, in one message
# Without viser's own panel and notices, for the console has the buttons; and see viewer.js.
_ADDED_TO_PAGE = (
    b"<style>.mantine-Paper-root,.mantine-Notifications-root{display:none!important}</style>"
    b'<script src="/viewer.js"></script>'
)


@dataclass(eq=False)
class ConsoleServer:
    """Serves the console of one run."""

    run: RunDirectory
    facts: dict[str, Any]  # what a page shows and does not change, such as the task and its rate
    loop_folder: Path  # where the control loop says how it is reached
    library: EpisodeLibrary  # the stored episodes
    scenes: dict[str, RobotScene]  # `live` and `replay`; empty for robots without a model
    gate: AccessGate  # who may come in
    idle_seconds: float = 15.0  # after which a connection that asks nothing is closed

    def __post_init__(self) -> None:
        self._client = LoopClient(self.loop_folder)
        self._player = EpisodePlayer()
        self._pages = Pages(self.run, self._client, self.library, self._player, self.scenes)
        facts = {**self.facts, "scenes": sorted(self.scenes), "speeds": SPEEDS}
        self._pages.tell("facts", facts)

    async def serve(
        self,
        host: str,
        port: int,
        encryption: ssl.SSLContext | None,
        stop: asyncio.Event,
        ready: Callable[[int], None],
    ) -> None:
        """Serve until `stop` is set; `ready` hears of the port, which is any free one for 0."""
        session = aiohttp.ClientSession()
        proxies = {name: ViewerProxy(scene.port, session) for name, scene in self.scenes.items()}
        connections = Connections()
        app = self._application(proxies, connections)
        runner = web.AppRunner(app, access_log=None, logger=_LOGGER, shutdown_timeout=1.0)
        await runner.setup()
        assert runner.server is not None
        works = [self._client.run(), self._player.run(), *self._pages.works(), stop.wait()]
        tasks = [asyncio.ensure_future(work) for work in works]
        try:
            try:
                listening = await connections.listen(runner.server, host, port, encryption)
            except OSError as error:
                raise ConsoleError(
                    f"the console cannot listen on {host}:{port}",
                    got=error.strerror or error,
                    hint="choose another port with console.port=PORT, or any free one with"
                    " console.port=0",
                ) from error
            ready(listening.sockets[0].getsockname()[1])
            tasks.append(asyncio.create_task(connections.watch(self.idle_seconds)))
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                listening.close()
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await session.close()
            await runner.cleanup()

    def _application(
        self, proxies: dict[str, ViewerProxy], connections: Connections
    ) -> web.Application:
        app = web.Application(middlewares=[connections.middleware, self.gate.middleware])
        app.on_response_prepare.append(_secure)
        app.router.add_get("/socket", self._socket)
        for name in ("", *sorted(path.name for path in _PAGE.iterdir())):
            app.router.add_get(f"/{name}", self._file)
        app.router.add_get(r"/wanted/{seed:\d+}/{camera:[\w.-]+}.jpg", self._wanted)
        for name, proxy in proxies.items():
            app.router.add_get(f"/scene/{name}", proxy.handle)
            app.router.add_get(f"/scene/{name}/{{path:.*}}", proxy.handle)
        return app

    async def _file(self, request: web.Request) -> web.StreamResponse:
        return web.FileResponse(_PAGE / (request.path.removeprefix("/") or "index.html"))

    async def _wanted(self, request: web.Request) -> web.StreamResponse:
        """What a camera saw of a scene that a person is to put back."""
        named = request.match_info
        return web.FileResponse(self.run.path / SCENES / named["seed"] / f"{named['camera']}.jpg")

    async def _socket(self, request: web.Request) -> web.StreamResponse:
        browser = web.WebSocketResponse(heartbeat=_PING_SECONDS, max_msg_size=_MOST_MESSAGE_BYTES)
        await browser.prepare(request)
        page = Page(browser)
        self._pages.add(page)
        writing = asyncio.create_task(page.write())
        asking: set[asyncio.Task[None]] = set()
        try:
            async for message in browser:
                if message.type != WSMsgType.TEXT:
                    continue
                if len(asking) >= _MOST_ASKED:
                    await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
                task = asyncio.create_task(self._pages.answer(page, message.data))
                asking.add(task)
                task.add_done_callback(asking.discard)
        finally:
            self._pages.remove(page)
            writing.cancel()
            await asyncio.gather(writing, *asking, return_exceptions=True)
        return browser


def _is_own_fault(record: logging.LogRecord) -> bool:
    """Whether a record is of more than a request that was no HTTP, which is answered with 400."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


_LOGGER = logging.getLogger(__name__)
_LOGGER.addFilter(_is_own_fault)


async def _secure(request: web.Request, response: web.StreamResponse) -> None:
    if not request.path.startswith("/scene/"):  # viser's pages have parts of other kinds
        response.headers.update(_SECURITY_HEADERS)


@dataclass(frozen=True)
class ViewerProxy:
    """Passes requests on to a viser server on loopback, which has no access control of its own."""

    port: int
    session: aiohttp.ClientSession

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Pass on one request, or all messages of a websocket."""
        if request.headers.get("Upgrade", "").lower() == "websocket":
            return await self._join(request)
        address = f"http://{LOOPBACK}:{self.port}/{request.match_info['path']}"
        async with self.session.get(address) as answer:
            headers = {k: v for k, v in answer.headers.items() if k.lower() not in _HOP_HEADERS}
            body = await answer.read()
            if answer.content_type == "text/html":
                body = body.replace(b"<head>", b"<head>" + _ADDED_TO_PAGE, 1)
            return web.Response(status=answer.status, headers=headers, body=body)

    async def _join(self, request: web.Request) -> web.WebSocketResponse:
        wanted = request.headers.get("Sec-WebSocket-Protocol", "")
        protocols = [name.strip() for name in wanted.split(",") if name.strip()]
        address, most = f"http://{LOOPBACK}:{self.port}/", _MOST_VIEWER_BYTES
        joined = self.session.ws_connect(address, protocols=protocols, max_msg_size=most)
        async with joined as viewer:
            chosen = [viewer.protocol] if viewer.protocol else []
            browser = web.WebSocketResponse(protocols=chosen, max_msg_size=_MOST_SAID_BYTES)
            await browser.prepare(request)
            both = ((browser, viewer), (viewer, browser))
            ways = [asyncio.create_task(_pass_on(*ends)) for ends in both]
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
        if message.type == WSMsgType.BINARY:
            await target.send_bytes(message.data)
        elif message.type == WSMsgType.TEXT:
            await target.send_str(message.data)
