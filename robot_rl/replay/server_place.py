"""How the processes of a run find its replay server, and wait for it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from omegaconf import DictConfig

from robot_rl.processes.signals import StopEvent, Stopped
from robot_rl.replay.client import ReplayClient
from robot_rl.replay.errors import StoreFull
from robot_rl.replay.reader import TableRows
from robot_rl.replay.remote_sampler import RemoteSampler
from robot_rl.replay.replay_sampler import ReplaySampler
from robot_rl.replay.sampler import Sampler, SampleSpec
from robot_rl.run import RunDirectory
from robot_rl.wire.errors import KeysRefused, ServerUnreachable

STARTUP_SECONDS = 60.0
PATIENCE_SECONDS = 30.0
_SLICE_SECONDS = 0.25


@dataclass(frozen=True)
class ServerPlace:
    """Where the replay server of a run is.

    Attributes:
        store: Folder of the store, for a server on this machine.
        address: ``tcp://HOST:PORT`` of one on another machine, whose store is not read from
            here even if there is such a folder: it would be a copy.
        keys: Folder of this machine's keys.
    """

    store: Path
    address: str | None = None
    keys: Path | None = None

    @classmethod
    def of(cls, config: DictConfig, run: RunDirectory) -> Self:
        """Take it from ``replay.connect`` and ``replay.keys``."""
        settings = config.replay
        keys = Path(settings["keys"]) if settings["keys"] else None
        return cls(run.store, settings.connect, keys)

    def client(self, **options: Any) -> ReplayClient:
        """Make a client of the server, with further arguments of `ReplayClient`.

        Raises:
            AddressRefused: The address is none, or beyond this machine and there are no keys.
            KeysError: The keys cannot be read.
        """
        return ReplayClient(self.address or self.store, keys=self.keys, **options)

    def sampler(self, table: str, spec: SampleSpec, rng: np.random.Generator) -> Sampler:
        """Make a sampler: from the memory map, or over the network.

        Raises:
            StoreError: No such store or table.
            ReplayError: Unknown field, or a number out of range.
            ServerUnreachable: The server on another machine does not answer.
        """
        if self.address is None:
            return ReplaySampler(TableRows(self.store, table), spec, rng)
        client = self.client()
        try:
            return RemoteSampler(client, table, spec, rng)
        except BaseException:
            client.close()
            raise

    def wait(self, stop: StopEvent, seconds: float = STARTUP_SECONDS) -> None:
        """Wait until the server answers.

        Raises:
            KeysRefused: It and this machine do not accept each other's keys.
            ServerUnreachable: It did not come in time.
            Stopped: `stop` was set.
        """
        deadline = time.monotonic() + seconds
        with self.client(request_seconds=_SLICE_SECONDS) as client:
            while True:
                if stop.is_set():
                    raise Stopped
                try:
                    client.statistics()
                    return
                except KeysRefused:
                    raise
                except ServerUnreachable as error:
                    if time.monotonic() > deadline:
                        raise ServerUnreachable(
                            f"no replay server answers at {self.address or self.store}",
                            got=f"none within {seconds:g} s",
                            hint=self._hint(),
                        ) from error

    def _hint(self) -> str:
        if self.address is None:
            return "start it with: robot-rl replay run=RUN"
        return (
            "on that machine start it with: robot-rl replay run=RUN replay=network"
            " replay.keys=FOLDER, and see that no firewall closes the port"
        )


def flush(client: ReplayClient, stop: StopEvent, seconds: float = PATIENCE_SECONDS) -> None:
    """Wait until every row is committed, as long as rows get through.

    Raises:
        StoreFull: The store has no room, and none came in time.
        ServerUnreachable: No row got through in time.
        Stopped: `stop` was set; closing the client still tries for a while.
    """
    left, deadline = client.unacknowledged, time.monotonic() + seconds
    while True:
        try:
            client.flush(_SLICE_SECONDS)
            return
        except (ServerUnreachable, StoreFull):
            if stop.is_set():
                raise Stopped from None
            if client.unacknowledged < left:
                left, deadline = client.unacknowledged, time.monotonic() + seconds
            elif time.monotonic() > deadline:
                raise
