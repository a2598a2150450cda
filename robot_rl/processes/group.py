"""Starts the processes of a run, watches them, and ends them in order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Self

from robot_rl.errors import RobotRLError
from robot_rl.processes.signals import ENDS_WITH_INPUT, EXIT_INTERRUPTED

COMMAND = "robot_rl.cli"
_END_SECONDS = 60.0
# Of a child that needs longer to end the user is told [s].
_QUIET_SECONDS = 3.0
_ASKED_TO_END = (0, EXIT_INTERRUPTED, -signal.SIGTERM)
# A child that is killed more often than this is not started again.
_DEATHS, _DEATHS_WITHIN_SECONDS = 5, 60.0


class ProcessDied(RobotRLError):
    """A process of the run ended with an error."""


@dataclass
class _Child:
    module: str
    arguments: tuple[str, ...]
    process: subprocess.Popen[bytes]
    log: IO[bytes]
    log_start: int
    log_read: int
    needed: bool
    lost: bool = False
    deaths: list[float] = field(default_factory=list)

    @property
    def input_descriptor(self) -> int:
        assert self.process.stdin is not None
        return self.process.stdin.fileno()


@dataclass(eq=False)
class ProcessGroup:
    """Child processes of one run, each with a log file.

    A child that is killed by a signal is started again, for each of them goes on where it was; one
    that ends with an error of its own is not.

    The one that is started first, the replay server, serves the others: it ends last, so that
    nothing that they still send is lost. The children have sessions of their own: Ctrl-C in the
    terminal reaches only the parent, which then ends them. Should the parent be killed, they do
    so by themselves: each ends when its standard input closes, whose other end the parent and all
    later children hold.
    """

    logs: Path  # folder of the log files
    inherited: Sequence[int] = ()  # open descriptors that they keep, for example of a lock
    note: Callable[[str], None] = print  # told of every child that is started again
    # How long the children have to end, and then the first one, before they are killed. A child
    # that has children of its own needs longer than these [s].
    end_seconds: float = _END_SECONDS

    def __post_init__(self) -> None:
        self._children: dict[str, _Child] = {}
        self.logs.mkdir(parents=True, exist_ok=True)

    def start(
        self,
        name: str,
        arguments: Sequence[str],
        module: str = COMMAND,
        *,
        needed: bool = True,
    ) -> None:
        """Start `python -m MODULE ARGUMENTS` under a name.

        Args:
            name: Of the child and of its log file.
            arguments: Its command line.
            module: What runs.
            needed: Whether its death is an error; of another child it is only noted.
        """
        log = (self.logs / f"{name}.log").open("ab+")
        words = tuple(arguments)
        process = self._spawn(module, words, log, list(self._children.values()))
        at = log.tell()
        self._children[name] = _Child(module, words, process, log, at, at, needed)

    def running(self, name: str) -> bool:
        """Whether a child is still running; one that was killed is started again.

        Raises:
            ProcessDied: It has ended with an error, or was killed too often; the message has the
                end of its log.
        """
        child = self._children[name]
        code = child.process.poll()
        if code is None:
            return True
        if code == 0 or child.lost:
            return False
        child.deaths.append(time.monotonic())
        recent = [at for at in child.deaths if at > child.deaths[-1] - _DEATHS_WITHIN_SECONDS]
        if code > 0 or len(recent) > _DEATHS:
            if child.needed:
                raise self._died(name, code)
            child.lost = True
            self.note(f"going on without it: {self._died(name, code)}")
            return False
        self._start_again(name, code)
        return True

    def require(self, name: str) -> None:
        """Check that a child that the others need is running.

        Raises:
            ProcessDied: It has ended, with an error or without, or was killed too often.
        """
        if not self.running(name):
            raise self._died(name, 0)

    def printed(self, name: str) -> list[str]:
        """Whole lines that a child has printed since this was asked before."""
        child = self._children[name]
        log = child.log.fileno()
        news = os.pread(log, os.fstat(log).st_size - child.log_read, child.log_read)
        whole, end, _ = news.rpartition(b"\n")
        child.log_read += len(whole) + len(end)
        return whole.decode(errors="replace").splitlines()

    def end(self) -> list[ProcessDied]:
        """Ask all children to end, the first one last, and wait until they have saved their data.

        Returns:
            What went wrong: an error while ending, or a child that had to be killed.
        """
        names = list(self._children)
        problems = []
        for group in (names[1:], names[:1]):
            for name in group:
                process = self._children[name].process
                if process.poll() is None:
                    process.send_signal(signal.SIGTERM)
            deadline = time.monotonic() + self.end_seconds
            problems += [problem for name in group if (problem := self._ended(name, deadline))]
        return problems

    def _start_again(self, name: str, code: int) -> None:
        child = self._children[name]
        how = signal.Signals(-code).name
        assert child.process.stdin is not None
        child.process.stdin.close()
        # Should the parent be killed, it may end before those who were started before it: what
        # they then cannot send stays with them.
        others = [other for other in self._children.values() if other is not child]
        try:
            child.process = self._spawn(child.module, child.arguments, child.log, others)
        except OSError as error:
            raise ProcessDied(
                f"the process {name!r} was killed by {how} and cannot be started again", got=error
            ) from error
        child.log_start = child.log.tell()
        self.note(f"the process {name!r} was killed by {how}; it is started again")

    def _spawn(
        self, module: str, arguments: Sequence[str], log: IO[bytes], others: Sequence[_Child]
    ) -> subprocess.Popen[bytes]:
        return start_process(
            arguments,
            module,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=(*self.inherited, *(other.input_descriptor for other in others)),
        )

    def _ended(self, name: str, deadline: float) -> ProcessDied | None:
        process = self._children[name].process
        with suppress(subprocess.TimeoutExpired):
            process.wait(min(_QUIET_SECONDS, max(deadline - time.monotonic(), 0.0)))
        left = deadline - time.monotonic()
        if process.returncode is None and left > 0.0:
            self.note(f"waiting for {name!r} to save and end; in {left:.0f} s it is killed")
            with suppress(subprocess.TimeoutExpired):
                process.wait(left)
        code = process.returncode
        if code is None:
            process.kill()
            process.wait()
            return ProcessDied(
                f"the process {name!r} did not end within {self.end_seconds:g} s and was killed",
                got=self._last_words(name),
                hint=f"see {self.logs / name}.log",
            )
        forgiven = code in _ASKED_TO_END or not self._children[name].needed
        return None if forgiven else self._died(name, code)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if isinstance(error, KeyboardInterrupt) and self._children:
            names = ", ".join(self._children)
            self.note(f"ending {names}; Ctrl-C again kills them at once")
        try:
            problems = self.end()
        finally:  # a second Ctrl-C while they save: nobody is left behind
            for child in self._children.values():
                _release(child)
        # After the death of one, what the others say of it is a consequence, and in their logs.
        if problems and not isinstance(error, ProcessDied):
            if error is None:
                raise problems[0]
            sys.stderr.write(f"robot-rl: {problems[0]}\n")

    def _died(self, name: str, code: int) -> ProcessDied:
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        problem = f"the process {name!r} ended with an error"
        if code == 0:
            problem = f"the process {name!r} has ended, but the others need it"
        return ProcessDied(
            problem,
            got=f"{how}: {self._last_words(name)}",
            hint=f"see {self.logs / name}.log",
        )

    def _last_words(self, name: str) -> str:
        try:
            log = (self.logs / f"{name}.log").read_bytes()
        except OSError as error:  # the run directory was removed meanwhile
            return f"its log cannot be read: {error}"
        written = log[self._children[name].log_start :]
        lines = written.decode(errors="replace").strip().splitlines()
        return lines[-1].removeprefix("robot-rl: ") if lines else "it printed nothing"


def start_process(
    arguments: Sequence[str], module: str = COMMAND, **options: Any
) -> subprocess.Popen[bytes]:
    """Start `python -m MODULE ARGUMENTS`, which ends when the pipe to its standard input closes.

    Args:
        arguments: The command line.
        module: What runs.
        **options: Of `subprocess.Popen`: where its output goes, for example.
    """
    # One computing thread each: with several, processes that share cores stall one another.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", ENDS_WITH_INPUT: "1"}
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, **options)


def _release(child: _Child) -> None:
    if child.process.poll() is None:
        child.process.kill()
        child.process.wait()
    if child.process.stdin is not None:
        child.process.stdin.close()
    child.log.close()
