"""How actor and learner wait for the replay server: until it is there, or they are stopped."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from robot_rl.replay.client import ReplayClient
from robot_rl.replay.endpoint import wait_for_endpoint
from robot_rl.replay.errors import ServerUnreachable, StoreFull
from robot_rl.signals import Stopped

STARTUP_SECONDS = 60.0
PATIENCE_SECONDS = 30.0
_SLICE_SECONDS = 0.25


def wait_for_server(store: Path, stop: threading.Event, seconds: float = STARTUP_SECONDS) -> None:
    """Wait until the store's server runs.

    Raises:
        ServerUnreachable: It did not come in time.
        Stopped: `stop` was set.
    """
    deadline = time.monotonic() + seconds
    while True:
        if stop.is_set():
            raise Stopped
        try:
            wait_for_endpoint(store, _SLICE_SECONDS)
            return
        except ServerUnreachable as error:
            if time.monotonic() > deadline:
                raise ServerUnreachable(
                    f"no replay server of {store} is running",
                    got=f"none within {seconds:g} s",
                    hint="start it with: robot-rl replay run=RUN",
                ) from error


def flush(client: ReplayClient, stop: threading.Event, seconds: float = PATIENCE_SECONDS) -> None:
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
