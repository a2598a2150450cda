"""`robot-rl console`: the operator's console of a run."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from policies import registry
from robot_rl.console.link import loop_folder
from robot_rl.env.sim.task import SimTask
from robot_rl.env.task import Task
from robot_rl.errors import require
from robot_rl.extras.console.library import EpisodeLibrary
from robot_rl.processes.machine import yield_to_control_loop
from robot_rl.processes.resources import find_resource
from robot_rl.processes.signals import ending_signals
from robot_rl.ros.nodes import node_table
from robot_rl.run import RunDirectory


def run(config: DictConfig) -> None:
    """Serve the console of the run `config.run` until asked to end."""
    directory = RunDirectory.open(config.run, config.runs_directory)
    # Whatever the clock is: the browser can wait, and the control loop cannot.
    yield_to_control_loop("realtime")
    for package in ("aiohttp", "viser"):
        require(package, "console")
    asyncio.run(_serve(config, directory))


async def _serve(config: DictConfig, run: RunDirectory) -> None:
    from robot_rl.extras.console import access
    from robot_rl.extras.console.web_server import ConsoleServer

    settings = config.console
    host, actor = str(settings.host), int(config.actor)
    token = access.read_token(settings.token_file)
    access.check_host(host, token)
    encryption = access.certificate(host, settings.certificate, run.path / "console")
    stop = asyncio.Event()
    for number in ending_signals():
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    dataset = Path(config.dataset) if config.dataset else None
    facts = {
        "task": str(config.task.name),
        "run": f"{run.path.parent.name}/{run.path.name}",
        "actor": actor,
        "rate": float(config.control_rate_hz),
        "clock": str(config.clock),
        "views": views(config),
    }
    library, guard = (
        EpisodeLibrary(run, dataset),
        access.AccessGate(token, secure=encryption is not None),
    )
    server = ConsoleServer(run, facts, loop_folder(run, actor), library, _scenes(config), guard)

    def ready(port: int) -> None:
        # The token itself stays out of terminals and log files.
        query = f"?token=TOKEN, with the token that is in {settings.token_file}" if token else ""
        scheme = "http" if encryption is None else "https"
        shown = f"[{host}]" if ":" in host else host
        print(f"console: {scheme}://{shown}:{port}/{query}", flush=True)

    await server.serve(host, int(settings.port), encryption, stop, ready)


def views(config: DictConfig) -> dict[str, dict[str, Any]]:
    """For each camera with a node of its own: its name, and what it publishes of its picture.

    `part` is left, top, width and height in the pixels of the device, the whole where none is cut;
    `size` is the width and height in which that is published.
    """
    found: dict[str, dict[str, Any]] = {}
    for node in node_table(config):
        given, driver = node.parameters, node.driver
        part = given.get("crop") or [0, 0, driver.get("width"), driver.get("height")]
        if "camera" in given and node.name in config.nodes and None not in part:
            part, size = (
                [int(n) for n in numbers] for numbers in (part, given.get("size") or part[2:])
            )
            found[given["camera"]] = {"node": node.name, "part": part, "size": size}
    return found


def _scenes(config: DictConfig) -> dict[str, Any]:
    """The 3-D scenes of a robot that has a model; none of another."""
    model = config.console.model or config.robot.get("model")
    if not model:
        return {}
    from robot_rl.extras.console.pages import LIVE, REPLAY
    from robot_rl.extras.console.scene import RobotScene

    form = config.task.get("environment")  # which a task of a real robot has not
    task = registry.make(form, Task) if form else None
    simulated = task if isinstance(task, SimTask) else None
    return {name: RobotScene(find_resource(model), simulated) for name in (LIVE, REPLAY)}
