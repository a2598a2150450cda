"""`robot-rl console`: a web server with one page, its websocket, and the 3-D viewers behind it.

Text messages are JSON, with a `type` to the page and a `do` from it; binary messages are camera
images, see `Pages`. A page stores no state: when reloaded, it gets everything again.
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
from omegaconf import DictConfig

from policies import registry
from robot_rl.console.link import ConsoleError, loop_folder
from robot_rl.env.sim.task import SimTask
from robot_rl.env.task import Task
from robot_rl.extras.console import access
from robot_rl.extras.console.library import SPEEDS, EpisodeLibrary, EpisodePlayer
from robot_rl.extras.console.loop_client import LoopClient
from robot_rl.extras.console.pages import LIVE, REPLAY, Page, Pages
from robot_rl.processes.resources import find_resource
from robot_rl.processes.signals import ending_signals
from robot_rl.ros.nodes import node_table
from robot_rl.run import SCENES, RunDirectory

if TYPE_CHECKING:
    from robot_rl.extras.console.scene import RobotScene

_PAGE = Path(__file__).parent / "page"
_MOST_MESSAGE_BYTES = 4096
_MOST_ASKED = 64  # maximum pending requests of a page
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
_MOST_SAID_BYTES = 1 << 20  # maximum message size to a viewer
# Hides viser's own panel and notices, since the console has the buttons; see also viewer.js.
_ADDED_TO_PAGE = (
    b"<style>.mantine-Paper-root,.mantine-Notifications-root{display:none!important}</style>"
    b'<script src="/viewer.js"></script>'
)


async def serve_console(config: DictConfig, run: RunDirectory) -> None:
    """Serve the console of a run until asked to stop."""
    settings = config.console
    host, actor = str(settings.host), int(config.actor)
    token = access.read_token(settings.token_file)
    access.check_host(host, token)
    encryption = access.certificate(host, settings.certificate, run.path / "console")
    stop = asyncio.Event()
    for number in ending_signals():
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    facts = {
        "task": str(config.task.name),
        "run": f"{run.path.parent.name}/{run.path.name}",
        "actor": actor,
        "rate": float(config.control_rate_hz),
        "clock": str(config.clock),
        "views": _views(config),
    }
    library = EpisodeLibrary(run, Path(config.dataset) if config.dataset else None)
    gate = access.AccessGate(token, secure=encryption is not None)
    server = ConsoleServer(run, facts, loop_folder(run, actor), library, _scenes(config), gate)

    def ready(port: int) -> None:
        # Keep the token itself out of terminals and log files.
        query = f"?token=TOKEN, with the token that is in {settings.token_file}" if token else ""
        scheme = "http" if encryption is None else "https"
        shown = f"[{host}]" if ":" in host else host
        print(f"console: {scheme}://{shown}:{port}/{query}", flush=True)

    await server.serve(host, int(settings.port), encryption, stop, ready)


def _views(config: DictConfig) -> dict[str, dict[str, Any]]:
    """Return, for each camera with its own node, the part of its image that the node publishes.

    `part` is left, top, width and height in device pixels; `size` is the published width and
    height.
    """
    found: dict[str, dict[str, Any]] = {}
    for node in node_table(config):
        given, driver = node.parameters, node.driver
        part = given.get("crop") or [0, 0, driver.get("width"), driver.get("height")]
        if "camera" in given and node.name in config.nodes and None not in part:
            size = given.get("size") or part[2:]
            found[given["camera"]] = {
                "node": node.name,
                "part": [int(n) for n in part],
                "size": [int(n) for n in size],
            }
    return found


def _scenes(config: DictConfig) -> dict[str, Any]:
    """Create the 3-D scenes, if the robot has a model."""
    model = config.console.model or config.robot.get("model")
    if not model:
        return {}
    from robot_rl.extras.console.scene import RobotScene  # late import: viser takes a moment

    form = config.task.get("environment")  # a task of a real robot has none
    task = registry.make(form, Task) if form else None
    simulated = task if isinstance(task, SimTask) else None
    return {name: RobotScene(find_resource(model), simulated) for name in (LIVE, REPLAY)}


@dataclass(eq=False)
class ConsoleServer:
    """Serves the console of one run."""

    run: RunDirectory
    facts: dict[str, Any]  # constants that a page shows, such as the task and its rate
    loop_folder: Path  # where the control loop publishes its address
    library: EpisodeLibrary  # the stored episodes
    scenes: dict[str, RobotScene]  # `live` and `replay`; empty for robots without a model
    gate: access.AccessGate  # access control
    idle_seconds: float = 15.0  # an idle connection without a complete request is closed after this

    def __post_init__(self) -> None:
        self._client = LoopClient(self.loop_folder)
        self._player = EpisodePlayer()
        self._pages = Pages(self.run, self._client, self.library, self._player, self.scenes)
        facts = {**self.facts, "scenes": sorted(self.scenes), "speeds": SPEEDS}
        self._pages.send("facts", facts)

    async def serve(
        self,
        host: str,
        port: int,
        encryption: ssl.SSLContext | None,
        stop: asyncio.Event,
        ready: Callable[[int], None],
    ) -> None:
        """Serve until `stop` is set; call `ready` with the port; 0 selects a free one."""
        session = aiohttp.ClientSession()
        proxies = {name: ViewerProxy(scene.port, session) for name, scene in self.scenes.items()}
        connections = access.Connections()
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
        self, proxies: dict[str, ViewerProxy], connections: access.Connections
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
        """Return the image of a scene that a person has to restore."""
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


_LOGGER = logging.getLogger(__name__)
# A request that is not HTTP gets a 400; it is not a server error.
_LOGGER.addFilter(
    lambda record: not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))
)


async def _secure(request: web.Request, response: web.StreamResponse) -> None:
    if not request.path.startswith("/scene/"):  # viser's pages need other kinds of content
        response.headers.update(_SECURITY_HEADERS)


@dataclass(frozen=True)
class ViewerProxy:
    """Forwards requests to a viser server on loopback, which has no access control of its own."""

    port: int
    session: aiohttp.ClientSession

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Forward one request, or all messages of a websocket."""
        if request.headers.get("Upgrade", "").lower() == "websocket":
            return await self._join(request)
        address = f"http://{access.LOOPBACK}:{self.port}/{request.match_info['path']}"
        async with self.session.get(address) as answer:
            headers = {k: v for k, v in answer.headers.items() if k.lower() not in _HOP_HEADERS}
            body = await answer.read()
            if answer.content_type == "text/html":
                body = body.replace(b"<head>", b"<head>" + _ADDED_TO_PAGE, 1)
            return web.Response(status=answer.status, headers=headers, body=body)

    async def _join(self, request: web.Request) -> web.WebSocketResponse:
        asked = request.headers.get("Sec-WebSocket-Protocol", "")
        protocols = [name.strip() for name in asked.split(",") if name.strip()]
        address, most = f"http://{access.LOOPBACK}:{self.port}/", _MOST_VIEWER_BYTES
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
