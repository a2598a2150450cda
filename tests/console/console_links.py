"""A control loop's link, a console's client, and a console's server, joined for a test."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from robot_rl.console.link import loop_folder
from robot_rl.extras.console.loop_client import LoopClient
from robot_rl.run import CONFIG_FILE, RunDirectory

WAIT_SECONDS = 30.0


def make_run(folder: Path) -> RunDirectory:
    """An empty run directory."""
    folder.mkdir(exist_ok=True)
    (folder / CONFIG_FILE).write_text("")
    return RunDirectory(folder)


def with_client(run: RunDirectory, use: Callable[[LoopClient], Awaitable[None]]) -> None:
    """Run `use` with a client that follows the run's control loop."""

    async def main() -> None:
        client = LoopClient(loop_folder(run, 1))
        task = asyncio.create_task(client.run())
        try:
            await asyncio.wait_for(use(client), WAIT_SECONDS)
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    asyncio.run(main())


def with_console(run: RunDirectory, use: Callable[[int], Awaitable[None]], **options: Any) -> None:
    """Run `use` with the port of a console of the run, open to everybody on this machine."""
    from robot_rl.extras.console.access import AccessGate
    from robot_rl.extras.console.library import EpisodeLibrary
    from robot_rl.extras.console.web_server import ConsoleServer

    async def main() -> None:
        library, gate = EpisodeLibrary(run, None), AccessGate(None, secure=False)
        server = ConsoleServer(run, {}, loop_folder(run, 1), library, {}, gate, **options)
        stop, port = asyncio.Event(), asyncio.get_running_loop().create_future()
        serving = asyncio.create_task(server.serve("127.0.0.1", 0, None, stop, port.set_result))
        await asyncio.wait_for(use(await port), WAIT_SECONDS)
        stop.set()
        await serving

    asyncio.run(main())


async def until(reached: Callable[[], bool]) -> None:
    """Wait for something that happens in another thread."""
    while not reached():
        await asyncio.sleep(0.01)
