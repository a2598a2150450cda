"""Exactly once through kill -9, reconnects, refusals, and the mailbox of weights."""

import os
import shutil
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from store_writing import read_back, sampler_of

from robot_rl.data.schema import SchemaMismatch
from robot_rl.processes.signals import StopEvent
from robot_rl.replay import (
    RowRefused,
    SessionTaken,
    StoreError,
    StoreFull,
    WeightsRefused,
)
from robot_rl.replay.client import ReplayClient
from robot_rl.replay.server import ReplayServer
from robot_rl.replay.spool import size_for
from robot_rl.wire import AddressRefused, ServerUnreachable
from robot_rl.wire.endpoint import read_endpoint

RESEND_SECONDS = 0.1


def stored_rows(store):
    """Return the packed rows of a store, episode by episode."""
    return [row.tobytes() for _, rows in read_back(store) for row in rows]


def test_rows_come_back_byte_for_byte(server, client, schema, make_episode):
    client.open_session(schema, actor=3)
    episodes = [make_episode(4), make_episode(2, terminated=True)]
    sent = []
    for seed, rows in enumerate(episodes):
        for index, row in enumerate(rows):
            client.append(row, {"task": "reach", "seed": seed} if index == 0 else None)
            sent.append(schema.pack(row))
    client.flush(10)
    assert stored_rows(server.store) == sent
    (first, _), (second, _) = read_back(server.store)
    found = first.rows, first.environment_steps, first.sealed, first.source
    assert found == (5, 4, True, "policy")
    assert (second.first_sequence, second.metadata) == (5, {"task": "reach", "seed": 1})
    totals = client.statistics()
    assert totals["rows"] == 8
    assert totals["environment_steps"] == {"demo": 0, "policy": 6, "intervention": 0}


@pytest.mark.parametrize("fsync", ["none", "group"])
def test_every_acknowledged_row_survives_kills_exactly_once(
    start_server, schema, make_episode, fsync
):
    server = start_server(fsync=fsync)
    stop = StopEvent()
    acknowledged_at_kill = []

    def kill_and_restart():
        for delay in (0.05, 0.2, 0.12):
            time.sleep(delay)
            server.kill()
            acknowledged_at_kill.append(sent_count[0] - client.unacknowledged)
            server.start()
        stop.set()

    sent, sent_count = [], [0]
    with ReplayClient(
        server.store,
        spool_bytes=size_for(300, schema.dtype.itemsize),
        resend_seconds=RESEND_SECONDS,
    ) as client:
        client.open_session(schema)
        killer = threading.Thread(target=kill_and_restart)
        killer.start()
        while not stop.is_set():
            rows = make_episode(20)
            while not client.has_room(len(rows)):
                time.sleep(0.005)
            for row in rows:
                sent.append(schema.pack(row))
                client.append(row)
                sent_count[0] += 1
        killer.join()
        client.flush(20)
    server.stop()
    assert len(acknowledged_at_kill) == 3
    assert acknowledged_at_kill[-1] > 0
    assert stored_rows(server.store) == sent


def test_actors_side_by_side_survive_a_kill_and_each_step_is_seen_once(
    start_server, schema, make_episode
):
    """A sampler that watches while three actors write counts as the server does."""
    server = start_server()
    episodes = {actor: [make_episode(3 + n % 5) for n in range(30)] for actor in (1, 2, 3)}
    steps = sum(len(rows) - 1 for sent in episodes.values() for rows in sent)
    failures, seen = [], [0]
    half_way = threading.Barrier(len(episodes) + 1)

    def act(actor):
        try:
            with ReplayClient(server.store, batch_rows=3, resend_seconds=RESEND_SECONDS) as client:
                client.open_session(schema, actor)
                for number, rows in enumerate(episodes[actor]):
                    client.append_episode(rows)
                    client.flush(20)
                    if number == 15:
                        half_way.wait(30)
        except BaseException as failure:
            failures.append(failure)
            half_way.abort()

    threads = [threading.Thread(target=act, args=[actor]) for actor in episodes]
    for thread in threads:
        thread.start()
    half_way.wait(30)
    server.kill()
    server.start()
    sampler = sampler_of(server.store)
    while any(thread.is_alive() for thread in threads):
        seen.append(sampler.transitions_available())
        sampler.refresh(seen[-1])
        assert seen[-2] <= seen[-1]
        assert sampler.visible.online <= seen[-1]
    assert not failures
    sampler.refresh()
    assert sampler.transitions_available() == sampler.visible.online == steps
    sampler.close()
    found = read_back(server.store)
    for actor, sent in episodes.items():
        stored = [row.tobytes() for e, rows in found if e.actor == actor for row in rows]
        assert stored == [schema.pack(row) for rows in sent for row in rows]


def test_an_actor_restarted_in_the_middle_of_an_episode_begins_a_new_session(
    server, schema, make_episode
):
    sent = []
    sessions = []
    for _ in range(3):
        with ReplayClient(server.store) as client:
            sessions.append(client.open_session(schema, actor=7).session)
            for row in make_episode(5)[:4]:
                client.append(row)
                sent.append(schema.pack(row))
    assert sessions == [0, 1, 2]
    assert stored_rows(server.store) == sent


def test_a_session_goes_on_only_for_its_owner(server, schema, make_episode):
    rows = make_episode(3)
    with ReplayClient(server.store) as client:
        opened = client.open_session(schema, actor=1)
        for row in rows:
            client.append(row)
    with ReplayClient(server.store) as client:
        with pytest.raises(SessionTaken, match="another writer"):
            client.open_session(schema, actor=1, session=opened.session)
        again = client.open_session(schema, actor=1, session=opened.session, owner=opened.owner)
        assert (again.next_sequence, again.in_episode) == (4, False)
        assert client.append(make_episode(1)[0]) == 4
    assert len(stored_rows(server.store)) == 5


def test_a_session_goes_on_in_the_middle_of_an_episode(start_server, schema, make_episode):
    server = start_server()
    rows = make_episode(2, terminated=True)

    def go_on(*more):
        with ReplayClient(server.store) as client:
            opened = client.open_session(schema, actor=1, session=0, owner="me")
            for row in more:
                client.append(row)
            client.flush(10)
            return opened, client.statistics()

    go_on(rows[0])
    opened, table = go_on(rows[1])
    assert (opened.next_sequence, opened.in_episode, opened.ended) == (1, True, False)
    assert table["environment_steps"]["policy"] == 1
    server.kill()
    server.start()
    with pytest.raises(RowRefused, match="is_last"):
        go_on(rows[0])
    opened, table = go_on(rows[2])
    assert (opened.next_sequence, opened.in_episode, opened.ended) == (2, True, True)
    assert table["environment_steps"]["policy"] == 2


def test_a_session_that_was_opened_while_the_server_was_away_can_be_written(
    start_server, schema, make_episode
):
    server = start_server()
    with ReplayClient(server.store, request_seconds=60.0, resend_seconds=RESEND_SECONDS) as client:
        first = client.open_session(schema)
        client.append_episode(make_episode(2))
        client.flush(30)
        server.kill()
        starting = threading.Timer(0.3, server.start)
        starting.start()
        second = client.open_session(schema)
        starting.join()
        time.sleep(0.5)  # what the server says of the first session may come after the second's
        client.append_episode(make_episode(2))
        client.flush(30)
    assert second.session == first.session + 1
    assert len(stored_rows(server.store)) == 6


def test_bad_rows_are_refused_in_the_callers_thread(client, schema, make_episode):
    client.open_session(schema)
    rows = make_episode(3)
    with pytest.raises(SchemaMismatch, match="state/x"):
        client.append({**rows[0], "state/x": np.full(3, np.nan, np.float32)})
    with pytest.raises(RowRefused, match="begin"):
        client.append(rows[-1])
    client.append(rows[2])
    with pytest.raises(RowRefused, match="is_last"):
        client.append(rows[0])
    client.append(rows[3])
    with pytest.raises(RowRefused, match="whole episode"):
        client.append_episode(rows[:2])
    with pytest.raises(SchemaMismatch, match="source"):
        client.append_episode([rows[0], {**rows[1], "source": "demo"}, rows[3]])
    with pytest.raises(RowRefused, match="flag"):
        client.append({**rows[0], "source": np.uint8(9)})
    client.flush(10)
    assert client.statistics()["rows"] == 2


def test_a_full_disk_is_said_and_loses_nothing(start_server, small_disk, schema, make_episode):
    disk = small_disk("6m")
    server = start_server(disk / "store")
    size = size_for(400, schema.dtype.itemsize)
    client = ReplayClient(server.store, spool_bytes=size, resend_seconds=RESEND_SECONDS)
    client.open_session(schema)
    (disk / "filling").write_bytes(bytes(5 << 20))
    sent = []
    while client.has_room(21):
        for row in make_episode(20):
            client.append(row)
            sent.append(schema.pack(row))
        time.sleep(0.01)
    with pytest.raises(StoreFull, match=r"the disk is full.*\d+ bytes free"):
        client.flush(0.5)
    with pytest.raises(StoreFull):
        client.put_weights("policy", 1, bytes(1 << 20))
    assert isinstance(client.problem, StoreFull)
    server.kill()
    (disk / "filling").unlink()
    server.start()
    client.flush(20)
    client.close()
    assert stored_rows(server.store) == sent
    assert server.stop() == 0


def test_weights_are_a_durable_latest_value(start_server):
    server = start_server()
    with ReplayClient(server.store, resend_seconds=RESEND_SECONDS) as client:
        assert client.get_weights("policy") is None
        client.put_weights("policy", 5, b"five", {"encoder": "abc"})
        client.put_weights("policy", 5, b"five", {"encoder": "abc"})
        with pytest.raises(WeightsRefused, match=r"got: 5.*expected: > 5"):
            client.put_weights("policy", 5, b"other")
        with pytest.raises(WeightsRefused):
            client.put_weights("policy", 4, b"four")
        server.kill()
        server.start()
        record = client.get_weights("policy")
        assert (record.version, record.tensors, record.metadata) == (5, b"five", {"encoder": "abc"})
        assert client.get_weights("policy", newer_than=5) is None
        client.put_weights("policy", 6, os.urandom(3 << 20))
        assert client.get_weights("policy", newer_than=5).version == 6


def test_waiting_for_weights_blocks_nobody_and_ends_when_they_come(
    server, client, schema, make_episode
):
    client.open_session(schema)
    client.put_weights("policy", 1, b"one")
    with ReplayClient(server.store) as waiting:
        result = []
        thread = threading.Thread(
            target=lambda: result.append(waiting.get_weights("policy", 2, wait_seconds=20))
        )
        thread.start()
        client.append_episode(make_episode(5))
        client.flush(5)
        client.put_weights("policy", 2, b"two")
        time.sleep(0.1)
        assert not result
        client.put_weights("policy", 3, b"three")
        thread.join(5)
        assert result[0].tensors == b"three"
        start = time.monotonic()
        assert waiting.get_weights("policy", 3, wait_seconds=0.2) is None
        assert 0.2 <= time.monotonic() - start < 2


def test_who_finds_too_many_others_waiting_asks_again(tmp_path, monkeypatch):
    monkeypatch.setattr("robot_rl.replay.server.MAXIMUM_WAITING", 1)
    stop = StopEvent()
    running = threading.Thread(target=ReplayServer(tmp_path / "store").run, args=(stop,))
    running.start()
    try:
        with ReplayClient(tmp_path / "store") as first, ReplayClient(tmp_path / "store") as second:
            other = threading.Thread(target=first.get_weights, args=("policy", 0, 1.0))
            other.start()
            time.sleep(0.2)  # it waits
            assert second.get_weights("policy", 0, 0.1) is None
            other.join()
    finally:
        stop.set()
        running.join()


def test_a_port_in_use_is_one_clear_error(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(AddressRefused, match=address):
            ReplayServer(tmp_path / "store", address)
    ReplayServer(tmp_path / "store", address).close()


@pytest.mark.parametrize("address", ["ipc:///tmp/x", "7"])
def test_what_is_no_address_is_refused(tmp_path, address):
    with pytest.raises(AddressRefused, match=r"127\.0\.0\.1"):
        ReplayServer(tmp_path / "store", address)


def test_a_clean_stop_keeps_everything_and_withdraws_the_endpoint(server, schema, make_episode):
    with ReplayClient(server.store) as client:
        client.open_session(schema)
        client.append_episode(make_episode(10))
    assert server.stop() == 0
    with pytest.raises(ServerUnreachable):
        read_endpoint(server.store)
    assert len(stored_rows(server.store)) == 11


def test_a_failed_link_surfaces_in_the_next_call(server, schema, make_episode):
    client = ReplayClient(server.store, resend_seconds=RESEND_SECONDS)
    client.open_session(schema)
    # A server of another store at the same place knows nothing of the acknowledged rows.
    client.append_episode(make_episode(3))
    client.flush(5)
    server.kill()
    shutil.rmtree(server.store)
    server.start()

    def append_and_flush():
        client.append_episode(make_episode(3))  # the first to fail where the link knows already
        client.flush()

    raised = []
    for call in (append_and_flush, lambda: client.has_room(1), client.close):
        with pytest.raises(
            (StoreError, SessionTaken), match=r"another store|never opened"
        ) as failed:
            call()
        raised.append(failed.value)
    assert len(set(map(id, raised))) == 3  # one that is raised again keeps the frames of every time


def test_the_replay_path_loads_no_policy_and_no_torch():
    code = (
        "import sys, robot_rl.replay, robot_rl.replay.server;"
        "print(sorted({'torch', 'policies.policy', 'hydra', 'rclpy'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
