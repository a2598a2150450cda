"""A control loop's link and a console's client, joined for a test."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

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


async def until(reached: Callable[[], bool]) -> None:
    """Wait for something that happens in another thread."""
    while not reached():
        await asyncio.sleep(0.01)
