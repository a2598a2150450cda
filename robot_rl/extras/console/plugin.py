"""`robot-rl console`: a run's operator console, in a browser."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from robot_rl.plugins import Command, Plugin

if TYPE_CHECKING:
    from omegaconf import DictConfig


def run(config: DictConfig) -> None:
    """Serve the console of the run `config.run` until asked to stop."""
    from robot_rl.errors import require  # late import: a command imports only what it needs
    from robot_rl.processes.machine import yield_to_control_loop
    from robot_rl.run import RunDirectory

    directory = RunDirectory.open(config.run, config.runs_directory)
    # On any clock: the browser can wait, the control loop cannot.
    yield_to_control_loop("realtime")
    for package in ("aiohttp", "viser"):
        require(package, "console")
    from robot_rl.extras.console.web_server import serve_console

    asyncio.run(serve_console(config, directory))


_COMMANDS = {
    "console": Command(
        f"{__name__}:run",
        "The operator's console of a run, in a browser.",
        "Shows the cameras, the robot in 3-D, curves and episodes, and has the buttons to label,"
        " pause, take over and stop. It may be opened and closed at any time, and finds the actor"
        " by itself, whichever process that is. Ctrl-C closes it; the run goes on.",
        keys="console.host console.port console.token_file console.certificate console.model run"
        " runs_directory",
    ),
}

PLUGIN = Plugin(commands=_COMMANDS)
