"""A learner away from the store: a replica gives the same batches, whatever the server does."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from functools import partial

import numpy as np
import pytest
import store_writing
from store_writing import Recording, read_back

from robot_rl.replay import (
    StoreError,
    StoreFull,
    StoreReplaced,
)
from robot_rl.replay.client import ReplayClient
from robot_rl.replay.protocol import Annotations
from robot_rl.replay.replica import Replica
from robot_rl.replay.row_sources import StoreRows
from robot_rl.replay.store import StoreWriter, rebuild_catalogue
from robot_rl.replay.store_files import segments_of
from robot_rl.replay.store_reader import StoreReader
from robot_rl.wire import ServerUnreachable
from robot_rl.wire.keys import add_client, create_keys

FIELDS = ("state/x", "images/front", "action", "base_action")
RESEND_SECONDS = 0.1
# Copies until it is killed; says when it has begun.
COPYING = """
import sys, time
from pathlib import Path
from robot_rl.replay.client import ReplayClient
from robot_rl.replay.replica import Replica
client = ReplayClient(Path(sys.argv[1]))
print("begun", flush=True)
replica = Replica(Path(sys.argv[2]), client)
while True:
    replica.pull()
"""


sampler_of = partial(
    store_writing.sampler_of, fields=FIELDS, batch_size=16, demonstration_share=0.5
)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "replica"


@pytest.fixture
def replicated(folder, opened):
    """Return a function that copies the store of a server, or goes on with that."""

    def replicated(server, **options):
        options = {"request_seconds": 10.0, "resend_seconds": RESEND_SECONDS, **options}
        client = opened(ReplayClient(server.store, **options))
        return opened(Replica(folder, client))

    return replicated


def assert_same(one, other):
    assert list(one) == list(other)
    for name in one:
        assert one[name].dtype == other[name].dtype
        np.testing.assert_array_equal(one[name], other[name])


def assert_same_rows(folder, store):
    copied, stored = read_back(folder), read_back(store)
    assert [e for e, _ in copied] == [e for e, _ in stored]
    for (_, rows), (_, expected) in zip(copied, stored, strict=True):
        assert rows.tobytes() == expected.tobytes()


def test_what_is_drawn_from_a_replica_are_the_same_bits(
    server, client, schema, make_episode, replicated, opened
):
    client.open_session(schema, actor=0)
    client.append_episode(make_episode(20, source=0))
    client.open_session(schema, actor=1)
    client.append_episode(make_episode(25))
    client.flush(10)
    replica = replicated(server)
    local = opened(sampler_of(StoreRows(server.store), seed=4))
    remote = opened(sampler_of(StoreRows(replica.folder, replica.pull), seed=4))
    for round_number in range(6):
        for _ in range(2):
            assert_same(local.sample(), remote.sample())
        client.append_episode(make_episode(7), {"task": "reach", "seed": round_number})
        for row in make_episode(5)[: 1 + round_number]:
            client.append(row)
        client.open_session(schema, actor=1)  # which cuts that one
        client.flush(10)
        assert_same(local.sample(), remote.sample())  # nothing comes before the next refresh
        assert local.transitions_available() == remote.transitions_available()
        steps = None if round_number % 2 else 20 + 4 * round_number
        local.refresh(steps)
        remote.refresh(steps)
        assert local.visible == remote.visible
        assert json.loads(json.dumps(local.state_dict())) == remote.state_dict()
    assert_same_rows(replica.folder, server.store)
    remote.load_state_dict(local.state_dict())  # a state moves between them
    assert_same(local.sample(), remote.sample())


def test_annotations_follow(server, client, schema, make_episode, replicated, opened):
    client.open_session(schema)
    for _ in range(2):
        client.append_episode(make_episode(25))
    client.flush(10)
    with StoreReader(server.store) as reader:
        episodes = reader.episodes()
    replica = replicated(server)
    options = {"rewards": "score", "demonstration_share": 0.0}
    local = opened(sampler_of(StoreRows(server.store), **options))
    remote = opened(sampler_of(StoreRows(replica.folder, replica.pull), **options))
    for version, (episode, rows) in enumerate(
        [(episodes[0], 10), (episodes[1], 26), (episodes[0], 5)]
    ):
        values = np.full(rows, version + 1, np.float32)
        new = Annotations(episode.session_key, "score", version, episode.sequences[:rows], values)
        client.annotate(new)
        for sampler in (local, remote):
            sampler.refresh()
        assert local.visible == remote.visible
        assert_same(local.sample(), remote.sample())
    with StoreReader(replica.folder) as reader:
        assert reader.annotation_counts() == {"score": 41}


def test_what_the_server_evicts_goes_from_the_replica_too(
    start_server, schema, make_episode, replicated, opened
):
    server = start_server(capacity_rows=60)
    with ReplayClient(server.store) as client:
        client.open_session(schema, actor=0)
        client.append_episode(make_episode(4, source=0))
        client.open_session(schema, actor=1)
        client.append_episode(make_episode(4))
        client.flush(10)
        replica = replicated(server)
        remote = opened(sampler_of(StoreRows(replica.folder, replica.pull), capacity_rows=60))
        local = opened(sampler_of(StoreRows(server.store), capacity_rows=60))
        for round_number in range(30):
            client.append_episode(make_episode(4 + round_number % 3))
            client.flush(10)
            if round_number % 7 == 3:  # some come and go unseen
                assert local.transitions_available() == remote.transitions_available()
                local.refresh()
                remote.refresh()
                assert local.visible == remote.visible
                assert_same(local.sample(), remote.sample())
        replica.pull()
        assert_same_rows(replica.folder, server.store)
        copied, stored = segments_of(replica.folder), segments_of(server.store)
        assert [segment.path.name for segment in copied] == [s.path.name for s in stored]
        assert len(read_back(server.store)) < 15


def test_a_replica_goes_on_where_it_was_and_its_server_may_come_and_go(
    start_server, schema, make_episode, folder
):
    server = start_server()
    with ReplayClient(server.store, resend_seconds=RESEND_SECONDS) as actor:
        actor.open_session(schema)
        actor.append_episode(make_episode(600))
        for row in make_episode(30)[:20]:  # it goes on
            actor.append(row)
        actor.flush(30)
        command = [sys.executable, "-c", COPYING, str(server.store), str(folder)]
        for wait in (0.0, 0.02, 0.05, 0.5):  # killed at some point of copying, or after it
            copying = subprocess.Popen(command, stdout=subprocess.PIPE)
            assert copying.stdout.readline() == b"begun\n"
            time.sleep(wait)
            copying.send_signal(signal.SIGKILL)
            copying.wait()
            copying.stdout.close()
        options = {"request_seconds": 0.3, "resend_seconds": RESEND_SECONDS}
        with (
            ReplayClient(server.store, **options) as client,
            contextlib.closing(Replica(folder, client)) as replica,
        ):
            assert_same_rows(folder, server.store)
            with pytest.raises(StoreError, match="another replay server"):
                Replica(folder, client)
            sampler = sampler_of(StoreRows(folder, replica.pull), demonstration_share=0.0)
            with contextlib.closing(sampler):
                server.kill()
                with pytest.raises(ServerUnreachable):
                    sampler.refresh()
                sampler.sample()  # which needs no server
                server.start()
                for row in make_episode(1)[:1]:
                    actor.append(row)
                actor.flush(30)
                sampler.refresh()
                assert sampler.visible.available == 600 + 20
            assert_same_rows(folder, server.store)


def test_a_large_store_comes_in_parts(tmp_path, schema, make_episode, start_server, replicated):
    """More episodes and annotations than one answer takes."""
    writer = StoreWriter(tmp_path / "store")
    recording = Recording(writer, schema)
    for _ in range(60):
        recording.put([row for _ in range(10) for row in make_episode(1)])
    key, rows = recording.key, np.arange(1200)
    for version in range(15):
        values = np.random.default_rng(version).normal(size=1200).astype(np.float32)
        writer.annotate(Annotations(key, "score", version, rows, values))
    writer.close()
    server = start_server()
    replica = replicated(server)
    assert_same_rows(replica.folder, server.store)
    with StoreReader(replica.folder) as copied, StoreReader(server.store) as stored:
        for episode in stored.episodes()[::97]:
            for one, other in zip(
                copied.annotations("score", episode),
                stored.annotations("score", episode),
                strict=True,
            ):
                np.testing.assert_array_equal(one, other)


def test_a_replica_across_the_network_needs_keys(tmp_path, start_server, schema, make_episode):
    create_keys(tmp_path / "keys")
    add_client(tmp_path / "keys", "learner")
    server = start_server(keys=tmp_path / "keys")
    own = tmp_path / "keys" / "learner"
    with ReplayClient(server.store, keys=own) as client:
        client.open_session(schema)
        client.append_episode(make_episode(5))
        client.flush(10)
        with contextlib.closing(Replica(tmp_path / "replica", client)):
            assert_same_rows(tmp_path / "replica", server.store)
    owner = StoreReader(server.store).catalogue.sessions()
    copied = b"".join(file.read_bytes() for file in (tmp_path / "replica").rglob("*.rows"))
    assert all(session.owner.encode() not in copied for session in owner.values())


def test_a_full_disk_is_said_with_what_the_replica_needs(
    start_server, small_disk, schema, make_episode
):
    server = start_server()
    with ReplayClient(server.store) as client:
        client.open_session(schema)
        client.append_episode(make_episode(800))
        client.flush(30)
        folder = small_disk("3m") / "replica"
        needed = 801 * schema.dtype.itemsize
        with pytest.raises(StoreFull, match=rf"disk is full.*replica.*room for {needed} bytes"):
            Replica(folder, client)
        with pytest.raises(StoreFull):  # what was copied is no obstacle
            Replica(folder, client)


def test_an_empty_store_has_no_replica_yet(server, client, replicated):
    with pytest.raises(StoreError, match="no session has been started"):
        replicated(server)


def test_a_replica_of_another_store_or_of_other_rows_is_refused(
    start_server, tmp_path, schema, make_episode, folder
):
    server, other = start_server(), start_server(tmp_path / "other")
    for one in (server, other):
        with ReplayClient(one.store) as client:
            client.open_session(schema, owner="me", session=0)
            client.append_episode(make_episode(9))

    def replicate(store):
        with ReplayClient(store) as client:
            Replica(folder, client).close()

    replicate(server.store)
    with pytest.raises(StoreReplaced, match="another store"):
        replicate(other.store)
    with pytest.raises(StoreError, match="is a replica, which cannot be served"):
        StoreWriter(folder)
    (segment,) = segments_of(folder)
    content = segment.path.read_bytes()
    segment.path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))  # as a power cut may do
    with pytest.raises(StoreError, match=r"has rows that its store has not.*another row 9"):
        replicate(server.store)
    segment.path.write_bytes(content + content[-schema.dtype.itemsize :])
    with pytest.raises(StoreError, match=r"11 rows, and 10 in the store"):
        replicate(server.store)
    segment.path.write_bytes(content[:-1])  # torn: it is copied again
    replicate(server.store)
    assert segment.path.read_bytes() == content
    server.stop()
    rebuild_catalogue(server.store)
    server.start()
    with pytest.raises(StoreReplaced, match="whose catalogue was rebuilt"):
        replicate(server.store)


@pytest.mark.faults
def test_a_learner_draws_on_while_the_server_is_killed_and_an_actor_writes(
    start_server, schema, make_episode, replicated, opened
):
    server = start_server()
    with ReplayClient(server.store, resend_seconds=RESEND_SECONDS) as actor:
        actor.open_session(schema)
        actor.append_episode(make_episode(50))
        actor.flush(10)
        replica = replicated(server, request_seconds=30.0)
        remote = opened(sampler_of(StoreRows(replica.folder, replica.pull), seed=7))
        local = opened(sampler_of(StoreRows(server.store), seed=7))
        for round_number in range(1, 9):
            for _ in range(20):
                actor.append_episode(make_episode(10))
            if round_number % 2:
                os.kill(server.process.pid, signal.SIGKILL)
                server.process.wait()
                server.start(wait=False)
            target = 50 + 200 * round_number
            for sampler in (remote, local):
                while sampler.transitions_available() < target:
                    time.sleep(0.01)
                sampler.refresh(target)
            for _ in range(10):
                assert_same(local.sample(), remote.sample())
        actor.flush(30)
        replica.pull()
        assert_same_rows(replica.folder, server.store)
