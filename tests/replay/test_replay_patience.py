"""How long a client waits for weights, which take longer than anything else."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from robot_rl.replay.client import ReplayClient
from robot_rl.wire import ServerUnreachable

REQUEST_SECONDS = 0.5
RESEND_SECONDS = 0.1


def connected(store: Path) -> ReplayClient:
    client = ReplayClient(store, request_seconds=REQUEST_SECONDS, resend_seconds=RESEND_SECONDS)
    deadline = time.monotonic() + 60
    while True:
        with suppress(ServerUnreachable):
            client.statistics()
            return client
        assert time.monotonic() < deadline


@contextmanager
def slow(server: Any) -> Iterator[None]:
    """The answer to what is asked next takes longer than a request may."""
    server.process.send_signal(signal.SIGSTOP)
    going_on = threading.Timer(3 * REQUEST_SECONDS, server.process.send_signal, [signal.SIGCONT])
    going_on.start()
    try:
        yield
    finally:
        going_on.join()


def test_weights_arrive_over_a_slow_connection_in_both_directions(server: Any) -> None:
    with connected(server.store) as client:
        with slow(server):
            client.put_weights("policy", 1, bytes(1 << 20))
        with slow(server):
            found = client.get_weights("policy", newer_than=0, wait_seconds=0.1)
        assert found is not None
        assert (found.version, len(found.tensors)) == (1, 1 << 20)


def test_weights_wait_for_a_server_that_starts_again(server: Any) -> None:
    with connected(server.store) as client:
        server.kill()
        starting = threading.Timer(3 * REQUEST_SECONDS, server.start)
        starting.start()
        try:
            client.put_weights("policy", 1, b"one")
        finally:
            starting.join()


def test_closing_a_client_ends_what_another_thread_waits_for(
    start_server: Callable[..., Any],
) -> None:
    server = start_server()
    client = connected(server.store)
    server.kill()
    ends: list[ServerUnreachable] = []

    def wait() -> None:
        with pytest.raises(ServerUnreachable, match="closed") as end:
            client.get_weights("policy", newer_than=0)
        ends.append(end.value)

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(2 * REQUEST_SECONDS)
    assert waiting.is_alive()
    client.close()
    waiting.join(20)  # an answer would be waited for much longer
    assert len(ends) == 1
