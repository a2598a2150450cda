"""A replay server that is killed again and again, and started again at once."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Sequence
from typing import Self

from robot_rl.processes.group import start_process


class KilledServer:
    """Runs `robot-rl ARGUMENTS` in a process of its own that gets SIGKILL at a fixed period.

    Args:
        arguments: Of the command line.
        every_seconds: Time between a start and the kill that follows it.

    Attributes:
        kills: How often it was killed.
    """

    def __init__(self, arguments: Sequence[str], every_seconds: float) -> None:
        """See the class."""
        self.kills = 0
        self._arguments = arguments
        self._every = every_seconds
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="server-killer", daemon=True)

    def __enter__(self) -> Self:
        """Start the server."""
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        """End the server well.

        Raises:
            RuntimeError: The thread that kills it has died.
        """
        self._stop.set()
        self._thread.join()
        if self._failure is not None and error is None:
            raise RuntimeError("the thread that kills the server has died") from self._failure

    def _run(self) -> None:
        try:
            while not self._killed_once():
                self.kills += 1
        except BaseException as failure:
            self._failure = failure

    def _killed_once(self) -> bool:
        """Run the server until it is killed; return whether it was to end instead."""
        with start_process(self._arguments, stdout=subprocess.DEVNULL) as process:
            ends = self._stop.wait(self._every)
            process.terminate() if ends else process.kill()
        return ends
