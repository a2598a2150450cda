"""`robot-rl annotate`: a progress model's scores beside the rows of a store."""

from __future__ import annotations

from pathlib import Path

from robot_rl.errors import RobotRLError
from robot_rl.processes.signals import stop_event
from robot_rl.replay.catalogue import is_store
from robot_rl.replay.client import ReplayClient
from robot_rl.rewards.progress import RemoteProgressModel, annotate_progress
from robot_rl.run import CONFIG_FILE, RunDirectory


def run(store: str, address: str, *, table: str | None) -> None:
    """Have the model at an address judge the sealed episodes of a store.

    Args:
        store: A store or a run directory, whose replay server must be running.
        address: Where the model's server listens on this machine.
        table: Name of the store's table; None takes the only one.

    Raises:
        RobotRLError: There is no store, its server or the model does not answer.
    """
    place = Path(store)
    if (place / CONFIG_FILE).is_file():
        place = RunDirectory(place).store
    if not is_store(place):
        raise RobotRLError(f"there is no store at {place}", expected="a store or a run directory")
    with (
        stop_event() as stop,
        RemoteProgressModel(address) as model,
        ReplayClient(place) as client,
    ):
        count = annotate_progress(place, table, client, model, stop)
        print(f"judged {count} episodes with version {model.version} of the model at {address}")
        if stop.is_set():
            print("the same command judges the others")
            raise KeyboardInterrupt
