"""`robot-rl replay`: the replay server of a run, as a process of its own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from robot_rl.processes.signals import stop_event
from robot_rl.replay.segments import Capacity
from robot_rl.replay.server import ReplayServer
from robot_rl.run import RunDirectory

if TYPE_CHECKING:
    from omegaconf import DictConfig


def run(config: DictConfig) -> None:
    """Serve the store of the run `config.run` until SIGINT or SIGTERM."""
    directory = RunDirectory.open(config.run, config.runs_directory)
    settings = config.replay
    with stop_event() as stop:
        server = ReplayServer(
            directory.store,
            settings.address,
            keys=Path(settings["keys"]) if settings["keys"] else None,
            fsync=settings.fsync,
            group_rows=int(settings.group_rows),
            group_seconds=float(settings.group_seconds),
            message_bytes=int(settings.message_bytes),
            memory_bytes=int(settings.memory_bytes),
            capacity=Capacity(settings.get("capacity_rows"), settings.get("capacity_bytes")),
        )
        protection = "whoever has a key" if settings["keys"] else "this machine only"
        print(f"replay: serving {directory.store} at {server.address} to {protection}", flush=True)
        server.run(stop)
    print("replay: stopped, everything is committed", flush=True)
