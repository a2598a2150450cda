"""Starts the processes of a run, watches them, and ends them in order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from robot_rl.errors import RobotRLError

_END_SECONDS = 30.0


class ProcessDied(RobotRLError):
    """A process of the run ended with an error."""


class ProcessGroup:
    """Child processes of one run, each with a log file.

    The children have sessions of their own: Ctrl-C in the terminal reaches only the parent,
    which then ends them in the order that loses nothing.

    Args:
        logs: Folder of the log files.
    """

    def __init__(self, logs: Path) -> None:
        """See the class."""
        self._logs = logs
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._files: list[IO[bytes]] = []
        logs.mkdir(parents=True, exist_ok=True)

    def start(self, name: str, arguments: Sequence[str]) -> None:
        """Start `python -m robot_rl.cli ARGUMENTS` under a name."""
        log = (self._logs / f"{name}.log").open("ab")
        self._files.append(log)
        # One computing thread each: with several, processes that share cores stall one another.
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._children[name] = subprocess.Popen(
            [sys.executable, "-m", "robot_rl.cli", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )

    @property
    def process_ids(self) -> list[int]:
        """Process ids of the children that run."""
        return [child.pid for child in self._children.values() if child.poll() is None]

    def running(self, name: str) -> bool:
        """Whether a child is still running.

        Raises:
            ProcessDied: It has ended with an error; the message has the end of its log.
        """
        code = self._children[name].poll()
        if code is None:
            return True
        if code != 0:
            raise ProcessDied(
                f"the process {name!r} ended with an error",
                got=f"exit code {code}: {self._last_words(name)}",
                hint=f"see {self._logs / name}.log; then go on with robot-rl train resume=RUN",
            )
        return False

    def end(self, name: str) -> None:
        """Ask a child to end, and wait until it has saved what it holds."""
        child = self._children[name]
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)
        try:
            child.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            raise ProcessDied(
                f"the process {name!r} did not end within {_END_SECONDS:g} s and was killed",
                hint=f"see {self._logs / name}.log",
            ) from None

    def __enter__(self) -> Self:
        """Return the group."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End all children: those that send first, the replay server last."""
        problems = []
        for name in reversed(list(self._children)):
            try:
                self.end(name)
            except ProcessDied as problem:
                problems.append(problem)
        for log in self._files:
            log.close()
        if problems and error is None:
            raise problems[0]

    def _last_words(self, name: str) -> str:
        lines = (self._logs / f"{name}.log").read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it printed nothing"


class MemorySampler:
    """Peak of anonymous and shared memory of a set of processes, sampled at 1 Hz.

    Pages of mapped files (the replay store) are not counted: the system takes them back at will.
    """

    def __init__(self) -> None:
        """Start at zero."""
        self.peak_bytes = 0
        self._next = 0.0

    def sample(self, process_ids: Sequence[int]) -> None:
        """Look at the processes, if a second has passed since the last look."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + 1.0
            self.peak_bytes = max(self.peak_bytes, sum(_resident_bytes(i) for i in process_ids))


def _resident_bytes(process_id: int) -> int:
    try:
        lines = Path(f"/proc/{process_id}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    values = dict(line.split(":", 1) for line in lines if line.startswith(("RssAnon", "RssShmem")))
    return sum(int(value.split()[0]) * 1024 for value in values.values())
