"""Address of a run's replay server."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from robot_rl.processes.signals import StopEvent, Stopped
from robot_rl.replay.client import ReplayClient
from robot_rl.run import RunDirectory
from robot_rl.wire import KeysRefused, ServerUnreachable

_SLICE_SECONDS = 0.25  # between two checks of a stop event
_STARTUP_SECONDS = 60.0  # for a server to start
_START_HERE = "start it with: robot-rl replay RUN"
_START_THERE = (
    "on that machine start it with: robot-rl replay RUN replay=network replay.keys=FOLDER,"
    " and see that no firewall closes the port"
)


@dataclass(frozen=True)
class ReplayAddress:
    """Location of a run's replay server."""

    store: Path  # folder of the store, for a server on this machine
    # ``tcp://HOST:PORT`` of a server on another machine. Its store is not read from here even if
    # the folder exists: that would be a copy.
    address: str | None = None
    keys: Path | None = None  # folder of this machine's keys

    @classmethod
    def of(cls, run: RunDirectory, connect: str | None, keys: str | None) -> Self:
        """Return the server of a run, from ``replay.connect`` and ``replay.keys``."""
        return cls(run.store, connect, Path(keys) if keys else None)

    def client(self, **options: Any) -> ReplayClient:
        """Make a client of the server; `options` are further arguments of `ReplayClient`."""
        return ReplayClient(self.address or self.store, keys=self.keys, **options)

    def wait(self, stop: StopEvent) -> None:
        """Wait up to a minute for the server to answer.

        Raises:
            ServerUnreachable: It did not start in time, or refuses this machine's keys.
            Stopped: `stop` was set.
        """
        deadline = time.monotonic() + _STARTUP_SECONDS
        with self.client(request_seconds=_SLICE_SECONDS) as client:
            while not stop.is_set():
                try:
                    client.statistics()
                    return
                except KeysRefused:
                    raise
                except ServerUnreachable as error:
                    if time.monotonic() > deadline:
                        raise ServerUnreachable(
                            f"no replay server answers at {self.address or self.store}",
                            got=f"none within {_STARTUP_SECONDS:g} s: {error}",
                            hint=_START_HERE if self.address is None else _START_THERE,
                        ) from error
        raise Stopped
