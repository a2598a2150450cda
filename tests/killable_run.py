"""The online part of a run as processes that are killed at will, and quickly there again."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterable
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path

from omegaconf import DictConfig
from safetensors import safe_open

from robot_rl import actor, learner
from robot_rl.commands.runs import load_resolved
from robot_rl.processes.waiting import wait_until
from robot_rl.replay import StoreError, server
from robot_rl.replay.store_reader import StoreReader
from robot_rl.run import LAST

STAGES = {"replay": server.run, "learner": learner.run, "actor": actor.run}
NAMES = tuple(STAGES)
_SECONDS = 300.0
# What they import on their way, which takes some seconds.
_LOADED = (
    __name__,
    "robot_rl.learning.stages.vision",
    "robot_rl.learning.algorithms.residual",
    "robot_rl.env.sim.tasks.reach",
    "torch.fx.experimental.symbolic_shapes",
    "torch._refs",
)


class KillableRun:
    """Replay server, learner and actor of a prepared run, each a fork of one that is loaded.

    Args:
        folder: The working directory, in which `runs/latest` has a cloned policy.
        settings: Of the configuration, other than when it was cloned.
    """

    def __init__(self, folder: Path, **settings: object) -> None:
        self.run, self._log = (folder / "runs/latest").resolve(), folder / "output.txt"
        self._config = load_resolved(self.run)
        self._config.update(run=str(self.run), **settings)
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(list(_LOADED))
        self._processes: dict[str, BaseProcess] = {}

    def start(self) -> None:
        """Start the processes that were never started, or were killed."""
        for name in NAMES:
            if name not in self._processes:
                arguments = (name, self._config, self._log)
                process = self._context.Process(target=_work, args=arguments)
                process.start()
                self._processes[name] = process

    def kill(self, names: Iterable[str] = NAMES, *, softly: bool = False) -> None:
        """Kill some of them at once, or ask them to end."""
        killed = [self._processes.pop(name) for name in names if name in self._processes]
        for process in killed:
            (process.terminate if softly else process.kill)()
        for process in killed:
            process.join()

    def ends_within(self, seconds: float) -> bool:
        """Wait for learner and actor; returns whether both have done all of their work."""
        working = [self._processes[name] for name in NAMES[1:]]
        ended = wait_until(lambda: all(p.exitcode is not None for p in working), seconds)
        codes = [process.exitcode for process in self._processes.values()]
        assert all(code in (None, 0) for code in codes), self._log.read_text()
        return ended

    def finish(self) -> None:
        """Let them do what is left."""
        self.start()
        assert self.ends_within(_SECONDS), self._log.read_text()
        self.kill()

    def steps(self) -> int:
        """Environment steps in the store, 0 while it is not made yet."""
        with suppress(StoreError), StoreReader(self.run / "store") as reader:
            episodes = reader.episodes()
            return sum(e.environment_steps for e in episodes if e.source != "demo")
        return 0

    def result(self) -> dict[str, bytes]:
        """All tensors that learning has come to, and the rows of each episode, as bytes."""
        found = {}
        for file in sorted((self.run / LAST).resolve().rglob("*.safetensors")):
            with safe_open(file, "numpy") as tensors:
                for name in tensors.keys():  # noqa: SIM118  # it is no mapping
                    found[f"{file.name} {name}"] = tensors.get_tensor(name).tobytes()
        with StoreReader(self.run / "store") as reader:
            for number, episode in enumerate(reader.episodes()):
                rows = reader.read_episode(episode)
                found[f"episode {number}"] = rows.tobytes()
        return found


def _work(name: str, config: DictConfig, log: Path) -> None:
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    STAGES[name](config)
