"""Runs so small that they take seconds, through the real command line and processes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import psutil

from policies import checkpoint
from robot_rl.actor import act
from robot_rl.config import compose
from robot_rl.learning.weights import publish
from robot_rl.processes.signals import StopEvent
from robot_rl.processes.waiting import wait_until
from robot_rl.replay.client import ReplayClient
from robot_rl.replay.server import ReplayServer
from robot_rl.run import RunDirectory
from robot_rl.wire.endpoint import wait_for_endpoint

TINY = (
    "task=reach",
    "task.environment.time_limit_steps=30",
    "demonstrations=4",
    "cloning.updates=60",
    "policy.denoiser.hidden=[64,64]",
    "algorithm.settings.actor_hidden=[64,64]",
    "algorithm.settings.critic_hidden=[64,64]",
    "environment_steps=400",
    "block_steps=25",
    "algorithm.schedule.warmup_steps=75",
    "algorithm.schedule.critic_only_updates=20",
    "algorithm.schedule.updates_per_step=1",
    "algorithm.schedule.batch_size=32",
    "evaluation.every_steps=100",
    "evaluation.episodes=8",
    "evaluation.final_episodes=10",
    "evaluation.slots=8",
    "evaluation.videos=2",
)
WAIT_SECONDS = 300.0

AnyCommand = TypeVar("AnyCommand", bound="Command")


class Command:
    """`robot-rl` as a process of its own, in a working directory; it prints to a file."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.folder = folder
        self.output = folder / "output.txt"
        with self.output.open("ab") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "robot_rl.cli", *words],
                cwd=folder,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def text(self) -> str:
        return self.output.read_text()

    def wait_until(self, reached: Callable[[], bool]) -> None:
        def asked() -> bool:
            if reached():
                return True
            assert self.process.poll() is None, self.text
            return False

        assert wait_until(asked, WAIT_SECONDS), self.text

    def interrupt(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.end()

    def end(self) -> int:
        return self.process.wait(WAIT_SECONDS)

    def kill(self) -> None:
        """End it and its children, unless it has ended."""
        if self.process.poll() is None:
            for process in psutil.Process(self.process.pid).children(recursive=True):
                process.kill()
            self.process.kill()
            self.process.wait()


@contextmanager
def starting(kind: type[AnyCommand]) -> Iterator[Callable[..., AnyCommand]]:
    """Give what starts commands; whatever a failed test leaves of them is killed."""
    started: list[AnyCommand] = []

    def start(folder: Path, *words: str) -> AnyCommand:
        started.append(kind(folder, *words))
        return started[-1]

    try:
        yield start
    finally:
        for command in started:
            command.kill()


class Train(Command):
    """`robot-rl train`."""

    def __init__(self, folder: Path, *words: str) -> None:
        named = [w.partition("=")[2] for w in words if w.startswith("runs_directory=")]
        self.runs = folder / (named[0] if named else "runs")
        super().__init__(folder, "train", *words)

    @property
    def run(self) -> Path:
        return (self.runs / "latest").resolve()

    def learned(self) -> int:
        blocks = lines(self.run / "learner.jsonl")
        return int(blocks[-1]["environment_steps"]) if blocks else 0

    def child(self, name: str) -> psutil.Process | None:
        """The process of a stage of this run, None while there is none."""
        for process in psutil.Process(self.process.pid).children():
            with suppress(psutil.NoSuchProcess):  # it ends while we look
                words = process.cmdline()
                if name in words and f"run={self.run}" in words:
                    return process
        return None

    def end(self) -> int:
        code = super().end()
        assert wait_until(lambda: not processes_of(self.run), 20, every_s=0.05), "left behind"
        return code


class RunServer:
    """The replay server of a run, in a thread of this process."""

    def __init__(self, run: Path) -> None:
        self.run, self._stop = run, StopEvent()
        server = ReplayServer(run / "store")
        self._thread = threading.Thread(target=server.run, args=(self._stop,))
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


class ServerProcess:
    """`robot-rl replay` of a run, which can be killed and started again."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.start()

    def start(self, *words: str) -> None:
        command = [sys.executable, "-m", "robot_rl.cli", "replay", f"run={self.run}", *words]
        self.process = subprocess.Popen(command)
        try:
            place, process = self.run / "store", self.process
            own = lambda: wait_for_endpoint(place, WAIT_SECONDS).pid == process.pid  # noqa: E731
            assert wait_until(own, WAIT_SECONDS)
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def act_for(steps: int, run: RunDirectory) -> None:
    """Put environment steps into the store with the cloned policy."""
    publish_cloned(run.path)
    config = compose([*TINY, f"environment_steps={steps}"])
    for _ in act(config, run, StopEvent()):
        pass


def publish_cloned(run: Path, acts_until: int = 10**9) -> None:
    """Give the store of a run its cloned policy, which may act until a step."""
    with ReplayClient(run / "store") as client:
        publish(client, checkpoint.load(run / "checkpoints/bc/policy"), acts_until)


def processes_of(run: Path) -> list[str]:
    """Command lines of the processes that work in a run directory."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if f"run={run}" in words or f"resume={run}" in words:
            found.append(" ".join(words[2:]))
    return found


def lines(path: Path) -> list[dict]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def without(records: list[dict], *names: str) -> list[dict]:
    return [{k: v for k, v in record.items() if k not in names} for record in records]
