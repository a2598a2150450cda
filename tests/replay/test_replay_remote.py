"""A learner without the store's files: the same batches over the wire, whatever the server does."""

import contextlib
import json
import threading
import time

import numpy as np
import pytest

from robot_rl.processes.signals import StopEvent
from robot_rl.processes.waiting import wait_until
from robot_rl.replay import (
    NotEnoughData,
    ReplayError,
    ServerBusy,
    StoreError,
    StoreReplaced,
    server_place,
)
from robot_rl.replay.client import ReplayClient
from robot_rl.replay.episode_records import Annotations
from robot_rl.replay.protocol import Sample, Sampled
from robot_rl.replay.replay_sampler import ReplaySampler
from robot_rl.replay.row_sources import TableRows
from robot_rl.replay.sampler import Prefetcher, SampleSpec
from robot_rl.replay.server import ReplayServer
from robot_rl.replay.server_place import MAXIMUM_WAITING, RemoteSampler, Sampling
from robot_rl.replay.store import StoreWriter
from robot_rl.replay.store_reader import StoreReader
from robot_rl.wire import ServerUnreachable, WireError
from robot_rl.wire.messages import PIECE_BYTES

FIELDS = ("state/x", "images/front", "action", "base_action")
RESEND_SECONDS = 0.1


def spec_of(**changes):
    values = {
        "fields": FIELDS,
        "batch_size": 16,
        "n_step": 3,
        "discount": 0.9,
        "demonstration_share": 0.5,
    }
    return SampleSpec(**{**values, **changes})


def local_sampler(store, rng, **changes):
    return ReplaySampler(TableRows(store, "reach"), spec_of(**changes), rng)


@pytest.fixture
def samplers(server, opened):
    """Return functions that open a local and a remote sampler; both are closed at the end."""

    def local(seed=0, **changes):
        return opened(local_sampler(server.store, np.random.default_rng(seed), **changes))

    def remote(seed=0, table="reach", **changes):
        spec = spec_of(**changes)
        client = ReplayClient(server.store, resend_seconds=RESEND_SECONDS)
        try:
            sampler = RemoteSampler(client, table, spec, np.random.default_rng(seed))
        except BaseException:
            client.close()
            raise
        return opened(sampler)

    return local, remote


def assert_same(one, other):
    assert list(one) == list(other)
    for name in one:
        assert one[name].dtype == other[name].dtype
        np.testing.assert_array_equal(one[name], other[name])


def test_remote_and_local_batches_are_the_same_bits(client, schema, make_episode, samplers):
    client.open_session("reach", schema, actor=0)
    client.append_episode(make_episode(20, source=0))
    client.open_session("reach", schema, actor=1)
    client.append_episode(make_episode(25))
    client.flush(10)
    local, remote = (make(seed=4) for make in samplers)
    for round_number in range(6):
        assert_same(local.sample(), remote.sample())
        assert_same(local.sample(), remote.sample())
        # What comes now is not visible before the next refresh.
        client.append_episode(make_episode(7))
        client.flush(10)
        assert_same(local.sample(), remote.sample())
        assert local.transitions_available() == remote.transitions_available()
        steps = None if round_number % 2 else 20 + 4 * round_number
        local.refresh(steps)
        remote.refresh(steps)
        assert local.visible.online == remote.visible.online
        assert local.visible.demonstrations == remote.visible.demonstrations == 20
        assert local.state_dict() == remote.state_dict()


def test_every_option_travels(server, client, schema, make_episode, samplers):
    client.open_session("reach", schema, actor=0)
    client.append_episode(make_episode(20, source=0))
    client.open_session("reach", schema, actor=1)
    for source in (1, 2, 1):
        client.append_episode(make_episode(25, source=source))
    client.flush(10)
    with contextlib.closing(StoreReader(server.store)) as reader:
        episodes = reader.episodes("reach")[-2:]  # of interventions, and of the policy
    for episode in episodes:
        values, rows = np.arange(10, dtype=np.float32), episode.sequences[:10]
        client.annotate(Annotations(episode.session_key, "score", 3, rows, values))
    changes = {
        "intervention_share": 0.25,
        "capacity_rows": 60,
        "rewards": "score",
        "next_fields": ("state/x",),
        "observation_steps": 2,
        "chunk_fields": ("action", "base_action"),
        "chunk_steps": 5,
        "policy_versions": (0, 3),
    }
    local, remote = (make(seed=4, **changes) for make in samplers)
    assert_same(local.sample(), remote.sample())
    assert local.visible == remote.visible
    assert 0 < local.visible.online < 75
    assert local.visible.interventions > 0


def test_episodes_in_order_are_given_across_the_network_too(start_server, schema, make_episode):
    server = start_server()
    with ReplayClient(server.store, resend_seconds=RESEND_SECONDS) as client:
        client.open_session("reach", schema)
        for steps in (4, 3, 6):
            client.append_episode(make_episode(steps))
        client.flush(10)
        changes = {"order": "episodes", "demonstration_share": 0.0, "batch_size": 4}
        changes |= {"returns": True, "policy_versions": (0, 3)}
        spec, asking = spec_of(**changes), ReplayClient(server.store, resend_seconds=RESEND_SECONDS)
        local = local_sampler(server.store, np.random.default_rng(0), **changes)
        remote = RemoteSampler(asking, "reach", spec, np.random.default_rng(0))
        assert remote.visible.left == 13
        assert_same(local.sample(), remote.sample())
        server.kill()
        server.start()
        for _ in range(2):
            assert_same(local.sample(), remote.sample())
        assert local.state_dict() == remote.state_dict()
        assert remote.visible.left == local.visible.left == 1
        assert remote.sample()["drawn"].tolist() == [True, False, False, False]
        with pytest.raises(NotEnoughData, match="was given"):
            remote.sample()
        remote.close()
        local.close()


def test_the_state_of_another_store_is_refused_by_the_server_too(
    client, schema, make_episode, samplers
):
    client.open_session("reach", schema)
    client.append_episode(make_episode(5))
    client.flush(10)
    _, make_remote = samplers
    remote = make_remote()
    state = {**remote.state_dict(), "store": "another"}
    with pytest.raises(StoreReplaced, match="another store"):
        remote.load_state_dict(state)
    asked = Sample(table="reach", spec=spec_of(), state=state, draw=True)
    with pytest.raises(StoreReplaced, match="another store"):
        client.ask(asked, Sampled)


@pytest.mark.parametrize(
    "changes",
    [
        {"fields": ("action", "action")},
        {"chunk_fields": ("action", "action")},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_name_that_is_wanted_twice_is_the_askers_mistake(client, schema, samplers, changes):
    """The fuzzer found it: the server blamed itself."""
    client.open_session("reach", schema)
    for make in samplers:
        with pytest.raises(ReplayError, match="given twice"):
            make(**changes)
    assert client.statistics()["sampling_failures"] == 0


def test_the_state_moves_between_local_and_remote(client, schema, make_episode, samplers):
    client.open_session("reach", schema)
    client.append_episode(make_episode(40))
    client.flush(10)
    make_local, make_remote = samplers
    local = make_local(seed=1)
    local.refresh(30)
    local.sample()
    state = json.loads(json.dumps(local.state_dict()))
    expected = local.sample()
    remote = make_remote(seed=9)
    remote.load_state_dict(state)
    assert_same(remote.sample(), expected)
    other = make_local(seed=2)
    other.load_state_dict(remote.state_dict())
    assert_same(other.sample(), remote.sample())
    with pytest.raises(ReplayError, match="not the state of a sampler"):
        remote.load_state_dict({"rng": {}, "environment_steps": None})


def test_what_cannot_be_drawn_is_the_same_error_as_without_a_network(
    client, schema, make_episode, samplers
):
    _, remote = samplers
    with pytest.raises(StoreError, match="no such table"):
        remote(table="nothing")
    client.open_session("reach", schema)
    sampler = remote()
    assert sampler.transitions_available() == 0
    with pytest.raises(NotEnoughData, match="nothing to sample from"):
        sampler.sample()
    with pytest.raises(NotEnoughData, match=r"got: 0.*expected: 5"):
        sampler.refresh(5)
    with pytest.raises(ReplayError, match="did you mean 'state/x'"):
        remote(fields=("state/y",))
    for wrong in ({"n_step": 0}, {"batch_size": 0}):
        with pytest.raises(ReplayError, match=next(iter(wrong))):
            remote(**wrong)
    for wrong in ({"n_step": 1 << 10}, {"batch_size": 1 << 20}, {"fields": ("x",) * 300}):
        with pytest.raises(ReplayError, match=r"out of range|twice"):
            remote(**wrong)
    with pytest.raises(ReplayError, match="PCG64"):
        RemoteSampler(client, "reach", spec_of(), np.random.Generator(np.random.MT19937(0)))
    assert client.statistics()["sampling_failures"] == 0


def test_a_batch_larger_than_a_message_is_refused(start_server, schema, make_episode):
    server = start_server(message_bytes=1 << 20)
    with ReplayClient(server.store) as client:
        client.open_session("reach", schema)
        client.append_episode(make_episode(5))
        client.flush(10)
        remote = RemoteSampler(
            ReplayClient(server.store), "reach", spec_of(batch_size=128), np.random.default_rng(0)
        )
        state = remote.state_dict()
        with pytest.raises(ReplayError, match=r"too large for one message.*message_bytes"):
            remote.sample()
        assert remote.state_dict() == state
        with pytest.raises(WireError, match="too large"):
            client.put_weights("policy", 1, bytes(2 << 20))
        remote.close()


def test_weights_and_batches_larger_than_a_frame_arrive(client, schema, make_episode, samplers):
    weights = np.random.default_rng(0).bytes(PIECE_BYTES + 7)
    client.put_weights("policy", 1, weights)
    assert client.get_weights("policy").tensors == weights
    client.open_session("reach", schema)
    client.append_episode(make_episode(5))
    client.flush(10)
    size = PIECE_BYTES // (40 * 40 * 3) + 1
    local, remote = (make(fields=("images/front",), batch_size=size) for make in samplers)
    assert_same(local.sample(), remote.sample())


def test_many_kinds_of_requests_share_one_server(client, schema, make_episode, samplers):
    client.open_session("reach", schema)
    client.append_episode(make_episode(30))
    client.flush(10)
    make_local, make_remote = samplers
    pairs = [(make_local(n_step=n), make_remote(n_step=n)) for n in range(1, 8)]
    for _ in range(2):
        for local, remote in pairs:
            assert_same(local.sample(), remote.sample())


def test_ever_new_kinds_of_requests_keep_no_learner_waiting(
    server, client, schema, make_episode, samplers
):
    client.open_session("reach", schema)
    client.append_episode(make_episode(20))
    client.flush(10)
    state = {**samplers[0]().state_dict(), "environment_steps": None}
    sampling, answered = Sampling(server.store, 1 << 20), []

    def ask(name, discount=0.9):
        spec = spec_of(demonstration_share=0.0, discount=discount)
        sampling.submit(name, Sample(table="reach", spec=spec, draw=False, state=state))

    def count():
        answered.extend(name for name, _ in sampling.answers())
        return len(answered)

    with contextlib.closing(sampling):
        ask(b"learner")
        assert wait_until(lambda: count() == 1, 10)
        with contextlib.suppress(ServerBusy):
            for number in range(20 * MAXIMUM_WAITING):
                ask(b"%d" % number, 0.5 + number * 1e-5)
            pytest.fail("nobody was turned away")
        ask(b"learner")
        so_far = count()
        assert wait_until(lambda: count() >= so_far + 3, 60)
        assert b"learner" in answered[1 : so_far + 3]


def test_an_order_that_an_outage_has_ended_goes_on_with_the_same_batches(
    start_server, schema, make_episode, monkeypatch
):
    monkeypatch.setattr(server_place, "_SAMPLING_SECONDS", 0.2)
    server = start_server()
    with ReplayClient(server.store) as actor:
        actor.open_session("reach", schema)
        actor.append_episode(make_episode(50))
        actor.flush(10)
    local = local_sampler(server.store, np.random.default_rng(7))
    client = ReplayClient(server.store, request_seconds=1.0, resend_seconds=RESEND_SECONDS)
    remote = RemoteSampler(client, "reach", spec_of(), np.random.default_rng(7))
    with contextlib.closing(remote), contextlib.closing(Prefetcher(remote)) as prefetcher:
        outages = []

        def next_batch(left):
            while True:
                try:
                    return prefetcher.next()
                except ServerUnreachable as outage:
                    outages.append(outage)
                if server.process.poll() is not None:
                    server.start()
                prefetcher.start(left)

        prefetcher.start(10)
        for left in range(10, 0, -1):
            if left == 6:
                server.kill()
            assert_same(local.sample(), next_batch(left))
        assert outages
    local.close()


@pytest.mark.faults
def test_prefetching_goes_on_while_the_server_is_killed_and_an_actor_writes(
    start_server, schema, make_episode
):
    server = start_server()
    stop = StopEvent()
    with ReplayClient(server.store, resend_seconds=RESEND_SECONDS) as actor:
        actor.open_session("reach", schema)
        actor.append_episode(make_episode(50))
        actor.flush(10)

        def act():
            while not stop.is_set():
                rows = make_episode(10)
                while not actor.has_room(len(rows)):
                    time.sleep(0.005)
                actor.append_episode(rows)

        writing = threading.Thread(target=act)
        writing.start()
        local = local_sampler(server.store, np.random.default_rng(7))
        remote = RemoteSampler(
            ReplayClient(server.store, resend_seconds=RESEND_SECONDS),
            "reach",
            spec_of(),
            np.random.default_rng(7),
        )
        try:
            with contextlib.closing(Prefetcher(remote)) as prefetcher:
                for round_number in range(3):
                    target = 50 + 10 * round_number
                    while remote.transitions_available() < target:
                        assert writing.is_alive()
                    remote.refresh(target)
                    prefetcher.start(40)
                    for number in range(40):
                        if number == 15:
                            server.kill()
                            server.start(wait=False)
                        batch = prefetcher.next()
                        if number == 0:
                            while local.transitions_available() < target:
                                assert writing.is_alive()
                            local.refresh(target)
                        assert_same(local.sample(), batch)
        finally:
            stop.set()
            writing.join()
            remote.close()
            local.close()
        actor.flush(20)


@pytest.fixture
def server_here(tmp_path):
    """A server in a thread of this process, so that a defect can be put into it."""
    server, stop = ReplayServer(tmp_path / "store"), threading.Event()
    thread = threading.Thread(target=server.run, args=(stop,))
    thread.start()
    yield server
    stop.set()
    thread.join()


def test_a_defect_in_sampling_is_answered_and_counted(
    server_here, schema, make_episode, monkeypatch
):
    server = server_here
    with ReplayClient(server.address) as client:
        client.open_session("reach", schema)
        client.append_episode(make_episode(5))
        client.flush(10)
        remote = RemoteSampler(
            ReplayClient(server.address), "reach", spec_of(), np.random.default_rng(0)
        )
        with monkeypatch.context() as patch:
            patch.setattr(ReplaySampler, "sample", lambda *_: 1 / 0)
            with pytest.raises(ReplayError, match=r"server failed on this message.*ZeroDivision"):
                remote.sample()
        remote.sample()
        remote.close()
        assert client.statistics()["sampling_failures"] == 1
        client.append_episode(make_episode(5))


def test_a_batch_that_nobody_had_thought_of_costs_the_others_nothing(
    server_here, schema, make_episode, monkeypatch
):
    server = server_here
    store = StoreWriter.append

    def stumble(writer, batches):
        if any(message.actor == 66 for message, _ in batches):
            raise ZeroDivisionError("a defect")
        return store(writer, batches)

    monkeypatch.setattr(StoreWriter, "append", stumble)
    with ReplayClient(server.address) as honest:
        honest.open_session("reach", schema, actor=1)
        for _ in range(5):
            poison = ReplayClient(server.address)
            poison.open_session("reach", schema, actor=66)
            poison.append_episode(make_episode(2))
            honest.append_episode(make_episode(20))
            with pytest.raises(ReplayError, match=r"server failed on these rows.*a defect"):
                poison.close()
        honest.flush(20)
        statistics = honest.statistics()
        assert statistics["tables"]["reach"]["rows"] == 5 * 21
        assert statistics["internal_errors"] >= 5
