"""Start the processes of a run, watch them, and end them in order."""

from __future__ import annotations

import os
import re
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
# Notify the user if a child takes longer than this to end [s].
_QUIET_SECONDS = 3.0
# Log lines of a child for the user. The first line of a command lists its choices as key=value.
_FOR_THE_USER = re.compile(r"(?P<role>actor|learner|evaluation|replay): (?P<words>(?!\w+=).+)")
_ASKED_TO_END = (0, EXIT_INTERRUPTED, -signal.SIGTERM)
# A child that is killed more often than this is not restarted.
_DEATHS, _DEATHS_WITHIN_SECONDS = 5, 60.0


class ProcessDied(RobotRLError):
    """A process of the run ended with an error."""


@dataclass(eq=False)
class _Child:
    name: str
    module: str
    arguments: Sequence[str]
    log: IO[bytes]
    needed: bool
    process: subprocess.Popen[bytes] = field(init=False)
    log_start: int = 0  # log offset where the current process starts
    log_read: int = 0
    lost: bool = False
    deaths: list[float] = field(default_factory=list)


@dataclass(eq=False)
class ProcessGroup:
    """Child processes of one run, each with a log file.

    Log lines of a child that start with its role, such as "learner: ", are for the user. They are
    forwarded to `note` by `running` and when the child ends.

    A child that is killed by a signal is restarted and resumes; a child that exits with an error is
    not. The first child, the replay server, serves the others and ends last, so that no data they
    still send is lost.

    Each child runs in a separate session: Ctrl-C in the terminal reaches only the parent, which
    then ends the children. If the parent is killed, each child ends when its standard input closes.
    The parent and all later children hold the other end of that pipe.
    """

    logs: Path  # folder of the log files
    inherited: Sequence[int] = ()  # open descriptors that children inherit, for example of a lock
    # Receives messages for the user: restarts, and log lines of the children.
    note: Callable[[str], None] = print
    # Time for the children, and then for the first one, to end before they are killed [s]. A child
    # that has children itself must get more time than they do.
    end_seconds: float = _END_SECONDS

    def __post_init__(self) -> None:
        self._children: dict[str, _Child] = {}
        self.logs.mkdir(parents=True, exist_ok=True)

    def start(
        self, name: str, arguments: Sequence[str], module: str = COMMAND, *, needed: bool = True
    ) -> None:
        """Start `python -m MODULE ARGUMENTS`; unless `needed`, its failure is only reported."""
        log = (self.logs / f"{name}.log").open("ab+")
        child = _Child(name, module, arguments, log, needed)
        self._spawn(child)
        child.log_read = child.log_start
        self._children[name] = child

    def running(self, name: str) -> bool:
        """Return whether a child is still running; restart it if it was killed.

        Raises `ProcessDied` with the end of its log if it exited with an error or was killed too
        often.
        """
        child = self._children[name]
        code = child.process.poll()
        self._pass_on(child)
        if code is None:
            return True
        if code == 0 or child.lost:
            return False
        child.deaths.append(time.monotonic())
        recent = [at for at in child.deaths if at > child.deaths[-1] - _DEATHS_WITHIN_SECONDS]
        if code > 0 or len(recent) > _DEATHS:
            problem = self._died(child, code)
            if child.needed:
                raise problem
            child.lost = True
            self.note(f"going on without it: {problem}")
            return False
        how = f"the process {name!r} was killed by {signal.Signals(-code).name}"
        if child.process.stdin is not None:
            child.process.stdin.close()
        try:
            self._spawn(child)
        except OSError as error:
            raise ProcessDied(f"{how} and cannot be started again", got=error) from error
        self.note(f"{how}; it is started again, as process {child.process.pid}")
        return True

    def process_id(self, name: str) -> int:
        """Return a child's process id, which changes when it is restarted."""
        return self._children[name].process.pid

    def require(self, name: str) -> None:
        """Raise `ProcessDied` unless this child, which the others need, is running."""
        if not self.running(name):
            raise self._died(self._children[name], 0)

    def end(self) -> list[ProcessDied]:
        """End all children, the first one last, and wait until they have saved their data.

        Returns the problems: errors while ending, and children that had to be killed.
        """
        children = list(self._children.values())
        problems = []
        for group in (children[1:], children[:1]):
            for child in group:
                if child.process.poll() is None:
                    child.process.send_signal(signal.SIGTERM)
            deadline = time.monotonic() + self.end_seconds
            for child in group:
                problem = self._ended(child, deadline)
                problems += [problem] if problem else []
                self._pass_on(child)
        return problems

    def _pass_on(self, child: _Child) -> None:
        """Forward a child's new log lines for the user, with its name if several share a role."""
        log = child.log.fileno()
        news = os.pread(log, os.fstat(log).st_size - child.log_read, child.log_read)
        whole, end, _ = news.rpartition(b"\n")
        child.log_read += len(whole) + len(end)
        for line in whole.decode(errors="replace").splitlines():
            if said := _FOR_THE_USER.fullmatch(line):
                one_of_several = child.name.startswith(f"{said['role']}-")
                self.note(f"{child.name}: {said['words']}" if one_of_several else line)

    def _spawn(self, child: _Child) -> None:
        # If the parent is killed, a restarted child may end before older ones. They store what they
        # cannot send then.
        others = [other for other in self._children.values() if other is not child]
        inputs = [other.process.stdin.fileno() for other in others if other.process.stdin]
        child.log_start = child.log.seek(0, os.SEEK_END)
        child.process = start_process(
            child.arguments,
            child.module,
            stdout=child.log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            pass_fds=(*self.inherited, *inputs),
        )

    def _ended(self, child: _Child, deadline: float) -> ProcessDied | None:
        process = child.process
        with suppress(subprocess.TimeoutExpired):
            process.wait(min(_QUIET_SECONDS, max(deadline - time.monotonic(), 0.0)))
        left = deadline - time.monotonic()
        if process.returncode is None and left > 0.0:
            self.note(f"waiting for {child.name!r} to save and end; in {left:.0f} s it is killed")
            with suppress(subprocess.TimeoutExpired):
                process.wait(left)
        code = process.returncode
        if code is None:
            process.kill()
            process.wait()
            what = f"did not end within {self.end_seconds:g} s and was killed"
            return self._problem(child, what)
        return None if code in _ASKED_TO_END or not child.needed else self._died(child, code)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, KeyboardInterrupt) and self._children:
            names = ", ".join(self._children)
            self.note(f"ending {names}; Ctrl-C again kills them at once")
        try:
            problems = self.end()
        finally:  # on a second Ctrl-C while they save, kill all children
            for child in self._children.values():
                child.process.kill()
                child.process.wait()
                if child.process.stdin is not None:
                    child.process.stdin.close()
                child.log.close()
        # After one child fails, errors of the others are consequences; they are in their logs.
        if problems and not isinstance(error, ProcessDied):
            if error is None:
                raise problems[0]
            sys.stderr.write(f"robot-rl: {problems[0]}\n")
            error.add_note(str(problems[0]))  # so that the log it refers to is not deleted

    def _died(self, child: _Child, code: int) -> ProcessDied:
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        what = "ended with an error" if code else "has ended, but the others need it"
        return self._problem(child, what, f"{how}: ")

    def _problem(self, child: _Child, what: str, how: str = "") -> ProcessDied:
        path = self.logs / f"{child.name}.log"
        try:
            log = path.read_bytes()[child.log_start :].decode(errors="replace")
        except OSError as error:  # the run directory has been removed
            log = f"its log cannot be read: {error}"
        said = (log.strip() or "it printed nothing").splitlines()[-1].removeprefix("robot-rl: ")
        hint = f"see {path}" if log.strip() else None
        return ProcessDied(f"the process {child.name!r} {what}", got=how + said, hint=hint)


def start_process(
    arguments: Sequence[str], module: str = COMMAND, **options: Any
) -> subprocess.Popen[bytes]:
    """Start `python -P -m MODULE ARGUMENTS`; it ends when the pipe to its standard input closes.

    -P keeps files in the working folder from being imported: the folder may be a run copied from
    elsewhere. The options are passed to `subprocess.Popen`.
    """
    # One compute thread each: with several, processes that share cores stall each other.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", ENDS_WITH_INPUT: "1"}
    command = [sys.executable, "-P", "-m", module, *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, **options)
