"""Slow and half-open connections beside an honest client, which does not notice them.

pytest tests/replay/test_replay_slow_peers.py                       some seconds
pytest -s -m faults tests/replay/test_replay_slow_peers.py          1,000 connections for a minute
"""

import contextlib
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from slow_peers import KINDS
from store_writing import read_back

from robot_rl.processes.waiting import wait_until
from robot_rl.replay.client import ReplayClient
from robot_rl.wire.endpoint import read_endpoint
from robot_rl.wire.keys import create_keys
from robot_rl.wire.peers import MOST_CONNECTIONS, STALL_SECONDS

MIB = 1 << 20
# What a step may wait for; the machine may be busy.
WAIT_SECONDS = 1.0


def reserved_bytes(pid):
    """What counts against the limit on a process's own memory, used or not."""
    text = Path(f"/proc/{pid}/status").read_text()
    return 1024 * int(re.search(r"VmData:\s+(\d+)", text)[1])


@contextlib.contextmanager
def slow_peers(server, count, seconds, *kinds):
    """So many slow connections for so long; gives their process."""
    script = Path(__file__).with_name("slow_peers.py")
    words = [read_endpoint(server.store).address, str(count), str(seconds), *kinds]
    command = [sys.executable, str(script), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def stream(schema, make_episode):
    """Stream an episode after the other while others are slow, and check what was promised."""

    def stream(server, count, seconds, *kinds, keys=None):
        process, sent, longest, most = psutil.Process(server.process.pid), [], 0.0, 0
        with ReplayClient(server.store, keys=keys) as client:
            client.open_session(schema)
            descriptors = process.num_fds()
            with slow_peers(server, count, seconds, *kinds) as peers:
                while peers.poll() is None:
                    for row in make_episode(20):
                        begin = time.monotonic()
                        client.append(row)
                        client.flush(30)
                        longest = max(longest, time.monotonic() - begin)
                        sent.append(schema.pack(row))
                        most = max(most, reserved_bytes(server.process.pid))
                        time.sleep(0.02)
                told = json.loads(peers.stdout.read())
            assert server.process.poll() is None
            # They have left, and with them all that they had taken.
            assert wait_until(lambda: process.num_fds() <= descriptors + 5, 2 * STALL_SECONDS)
            statistics = client.statistics()
        assert [row.tobytes() for _, rows in read_back(server.store) for row in rows] == sent
        assert statistics["internal_errors"] == 0
        report = {"rows": len(sent), "longest [s]": round(longest, 3), "MiB": most // MIB, **told}
        sys.stdout.write(json.dumps(report) + "\n")
        return longest, most, statistics

    return stream


def test_slow_peers_take_no_memory_and_keep_nobody_waiting(start_server, stream):
    count = 2 * MOST_CONNECTIONS
    longest, most, statistics = stream(start_server(), count, 4)
    assert longest < 5 * WAIT_SECONDS
    assert most < 600 * MIB
    assert statistics["connections_ended"] > 0


@pytest.mark.faults
def test_a_connection_that_stays_in_a_message_is_ended(start_server, stream):
    kinds = ("announces 1 MiB", "drips parts", "announces before it is ready")
    assert set(kinds) <= set(KINDS)
    _, _, statistics = stream(start_server(), 30, 2 * STALL_SECONDS + 4, *kinds)
    assert statistics["connections_ended"] >= 20


@pytest.mark.faults
def test_who_says_nothing_may_stay(start_server, stream):
    _, _, statistics = stream(start_server(), 20, STALL_SECONDS + 2, "is silent")
    assert statistics["connections_ended"] == 0


@pytest.mark.faults
@pytest.mark.timeout(300)
@pytest.mark.parametrize("encrypted", [False, True], ids=["loopback", "keys"])
def test_a_thousand_slow_peers(tmp_path, start_server, stream, encrypted):
    keys = tmp_path / "keys" if encrypted else None
    if encrypted:
        create_keys(keys)
    longest, most, _ = stream(start_server(keys=keys), 1000, 60, keys=keys)
    assert longest < WAIT_SECONDS
    assert most < 600 * MIB
