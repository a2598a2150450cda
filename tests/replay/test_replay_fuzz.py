"""A hostile peer beside an honest one: nobody notices it.

pytest tests/replay/test_replay_fuzz.py                                    some seconds
ROBOT_RL_FUZZ_SECONDS=600 pytest -s -m slow tests/replay/test_replay_fuzz.py   as long as asked
"""

import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import zmq
from fuzzing import GREETING, READY
from store_writing import read_back

from robot_rl.replay.client import ReplayClient
from robot_rl.replay.replica import Replica
from robot_rl.replay.row_sources import StoreRows
from robot_rl.replay.sampler import Sampler
from robot_rl.replay.windows import SampleSpec
from robot_rl.wire.endpoint import read_endpoint
from robot_rl.wire.keys import add_client, create_keys

SEED = int(os.environ.get("ROBOT_RL_FUZZ_SEED", "1"))
LONG_SECONDS = float(os.environ.get("ROBOT_RL_FUZZ_SECONDS", "600"))
ANSWER_SECONDS = 20.0  # the machine may be busy; without the bound a hang would be a mere wait
ACTOR = 5


def anonymous_bytes(pid):
    resident, shared = map(int, Path(f"/proc/{pid}/statm").read_text().split()[1:3])
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


def attack(address, seed, seconds, schema, session, rows, keys):
    place = {name: getattr(session, name) for name in ("actor", "owner")}
    facts = {
        "schema": schema.to_json(),
        "honest": {**place, "session": session.session},
        "rows": rows,
        "keys": None if keys is None else str(keys),
    }
    script = Path(__file__).with_name("fuzzing.py")
    words = [address, str(seed), str(seconds), json.dumps(facts)]
    return subprocess.Popen(
        [sys.executable, str(script), *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


class Honest:
    """A client that writes, samples from a replica, and looks whether it is served as always."""

    def __init__(self, server, keys, schema, make_episode):
        self._server, self._schema, self._make_episode = server, schema, make_episode
        spec = SampleSpec(("state/x", "images/front"), 16, 3, 0.9, 0.0)
        self.client = ReplayClient(server.store, keys=keys, request_seconds=ANSWER_SECONDS)
        self.session = self.client.open_session(schema, ACTOR)
        self.sent = []
        self.slowest = 0.0
        self.write()
        self._opened = contextlib.ExitStack()
        asking = self._opened.enter_context(ReplayClient(server.store, keys=keys))
        replica = Replica(server.store.with_name(f"replica-{server.process.pid}"), asking)
        self._opened.enter_context(contextlib.closing(replica))
        rows = StoreRows(replica.folder, replica.pull)
        self._sampler = Sampler(rows, spec, np.random.default_rng(0))
        self._opened.enter_context(contextlib.closing(self._sampler))

    def write(self):
        rows = self._make_episode(8)
        started = time.monotonic()
        self.client.append_episode(rows)
        self.client.flush(ANSWER_SECONDS)
        self.slowest = max(self.slowest, time.monotonic() - started)
        self.sent += [self._schema.pack(row) for row in rows]

    def sample(self):
        started = time.monotonic()
        self._sampler.refresh(None)
        state = self._sampler.state_dict()
        batch = self._sampler.sample()
        self.slowest = max(self.slowest, time.monotonic() - started)
        assert np.isfinite(batch["state/x"]).all()
        assert set(batch["steps"]) <= {1, 2, 3}
        assert self._sampler.state_dict() != state

    def check_store(self):
        found = read_back(self._server.store)
        stored = [row.tobytes() for e, rows in found if e.actor == ACTOR for row in rows]
        assert stored == self.sent

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._opened.close()
        self.client.close()


def fuzz(server, keys, schema, make_episode, seed, seconds):
    """Attack a server for a while and check all that is promised; return what happened."""
    pid, most = server.process.pid, 0
    with Honest(server, keys, schema, make_episode) as honest:
        address, peer = read_endpoint(server.store).address, keys and keys / "peer"
        started = time.monotonic()
        hostile = attack(address, seed, seconds, schema, honest.session, len(honest.sent), peer)
        try:
            while hostile.poll() is None:
                honest.write()
                honest.sample()
                most = max(most, anonymous_bytes(pid))
            output, errors = hostile.communicate()
        finally:
            hostile.kill()
            hostile.communicate()
        attacked = time.monotonic() - started
        assert hostile.returncode == 0, errors.decode()
        assert server.process.poll() is None
        assert read_endpoint(server.store).pid == pid
        statistics = honest.client.statistics()
        counts = json.loads(output)
        assert statistics["internal_errors"] == 0, errors.decode()
        assert counts.get("internal errors", 0) == 0, errors.decode()
        assert statistics["bad_messages"] > 0
        honest.check_store()
    # What was let in must not keep the next server, or a reader, from opening the store.
    server.kill()
    server.start()
    with ReplayClient(server.store, keys=keys) as client:
        assert client.statistics()["rows"] >= len(honest.sent)
    honest.check_store()
    return {
        "seed": seed,
        "seconds": round(attacked, 1),
        "keys": keys is not None,
        "honest rows": len(honest.sent),
        "slowest answer [s]": round(honest.slowest, 2),
        "most anonymous memory [MiB]": most >> 20,
        **{name: value for name, value in statistics.items() if isinstance(value, int)},
        **counts,
    }


def report(facts):
    sys.stdout.write(json.dumps(facts, indent=1) + "\n")


@pytest.fixture
def keys(request, tmp_path):
    if not request.param:
        return None
    create_keys(tmp_path / "keys")
    add_client(tmp_path / "keys", "peer")
    return tmp_path / "keys"


@pytest.mark.parametrize("keys", [False, True], indirect=True, ids=["loopback", "keys"])
def test_a_hostile_peer_harms_nobody(start_server, keys, schema, make_episode):
    server = start_server(keys=keys)
    report(fuzz(server, keys, schema, make_episode, SEED, 2.0))


@pytest.mark.slow
@pytest.mark.timeout(LONG_SECONDS + 300)
@pytest.mark.parametrize("keys", [False, True], indirect=True, ids=["loopback", "keys"])
def test_a_hostile_peer_harms_nobody_for_long(start_server, keys, schema, make_episode):
    server = start_server(keys=keys)
    report(fuzz(server, keys, schema, make_episode, SEED, LONG_SECONDS / 2))


# What fuzzing and reading the code have found, each with its limit.


def test_the_log_does_not_grow_with_what_is_wrong(tmp_path, start_server, schema, capfd):
    server = start_server()
    context = zmq.Context()
    with context.socket(zmq.DEALER) as hostile:
        hostile.linger = 0
        hostile.connect(read_endpoint(server.store).address)
        for _ in range(500):
            hostile.send_multipart([b"junk"])
            assert hostile.poll(5000)
            hostile.recv_multipart()
    context.term()
    with ReplayClient(server.store) as client:
        assert client.statistics()["bad_messages"] == 500
    assert 0 < capfd.readouterr().err.count("bad message") <= 12


def test_a_message_without_end_is_cut_off(start_server, schema):
    server = start_server(message_bytes=16 << 20)
    host, port = read_endpoint(server.store).address.removeprefix("tcp://").rsplit(":", 1)
    frame = b"\x03" + struct.pack(">Q", 1 << 20) + bytes(1 << 20)  # and more frames follow
    with socket.create_connection((host, int(port)), timeout=10) as place:
        place.sendall(GREETING + READY)
        with pytest.raises(OSError, match=r"reset|pipe"):  # noqa: PT012
            for _ in range(1000):
                place.sendall(frame)
    with ReplayClient(server.store) as client:
        assert client.open_session(schema).next_sequence == 0
    assert server.process.poll() is None


@pytest.mark.faults
def test_connections_that_are_opened_and_left_give_their_descriptors_back(server, client):
    process = psutil.Process(server.process.pid)
    client.statistics()
    before = process.num_fds()
    host, port = read_endpoint(server.store).address.removeprefix("tcp://").split(":")
    with contextlib.ExitStack() as opened:
        for number in range(100):
            plain = opened.enter_context(socket.create_connection((host, int(port)), timeout=5))
            plain.sendall(GREETING[:number])
        deadline = time.monotonic() + 60
        while process.num_fds() > before:
            assert time.monotonic() < deadline
            client.statistics()
            time.sleep(0.2)


HANG_UP_ON_A_BUSY_SERVER = """
import socket, struct, sys, time
from pathlib import Path
from fuzzing import GREETING, READY
from robot_rl.wire.endpoint import Listener
listener = Listener("tcp://127.0.0.1:0", folder=Path(sys.argv[1]))
host, port = listener.address.removeprefix("tcp://").split(":")
with socket.create_connection((host, int(port))) as plain:
    plain.sendall(GREETING + READY)
    answered = b""
    while b"READY" not in answered:
        answered += plain.recv(1000)
    plain.sendall(2000 * (b"\\x00\\x14" + bytes(20)))
    time.sleep(1.0)
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
time.sleep(20.0)  # what libzmq does of its own accord, it does within this time
listener.close()
"""


@pytest.mark.slow
def test_a_peer_that_hangs_up_on_a_busy_server_does_not_end_it(tmp_path):
    """With ZeroMQ's heartbeats the process was aborted."""
    place = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    command = [sys.executable, "-c", HANG_UP_ON_A_BUSY_SERVER, str(tmp_path)]
    done = subprocess.run(command, env=place, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
