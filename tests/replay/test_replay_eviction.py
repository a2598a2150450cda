"""A store at its capacity: the oldest whole episodes go, and nothing that counts is lost."""

from pathlib import Path

import numpy as np
import pytest
from store_writing import Recording, numbers, read_back, sampler_of

from robot_rl.data.schema import Field, row_schema
from robot_rl.replay import ReplayError, StoreFull
from robot_rl.replay.client import ReplayClient
from robot_rl.replay.row_sources import StoreRows
from robot_rl.replay.spool import size_for
from robot_rl.replay.store import StoreWriter
from robot_rl.replay.store_files import WrittenSegment


@pytest.fixture
def schema():
    return row_schema("reach", [Field("state/x", "float32", (3,))], ["dx", "dy"], 10.0)


@pytest.fixture
def open_writer(tmp_path):
    """Return a function that opens the store, closing the writer before."""
    writers = []

    def start(rows=None):
        if writers:
            writers.pop().close()
        writers.append(StoreWriter(tmp_path / "store", capacity_rows=rows))
        return writers[-1]

    yield start
    for writer in writers:
        writer.close()


def stored_episodes(store):
    """First row's number and length of each episode, every row checked."""
    found = []
    for _, rows in read_back(store):
        np.testing.assert_array_equal(np.diff(rows["reward"]), 1)
        found.append((int(rows["reward"][0]), len(rows)))
    return found


def stored_rows(writer):
    return writer.statistics()["rows"]


def test_the_oldest_whole_episodes_go_and_demonstrations_stay(open_writer, schema, make_episode):
    writer = open_writer(rows=40)
    demonstrations = Recording(writer, schema, actor=0)
    online = [Recording(writer, schema, actor=1), Recording(writer, schema, actor=2)]
    demonstrations.put(make_episode(9, source=0))
    put = []
    for number in range(8):
        rows = make_episode(4, source=2 if number == 1 else 1)
        online[number % 2].put(rows)
        put.append((int(rows[0]["reward"]), 5))
        assert stored_rows(writer) <= 40
    first, *rest = stored_episodes(writer.path)
    assert first == (1, 10)
    assert rest == put[-6:]
    totals = writer.statistics()
    assert totals["rows"] == 40
    assert totals["episodes"] == 7
    assert totals["environment_steps"] == {"demo": 9, "policy": 28, "intervention": 4}
    assert totals["evicted"] == {"rows": 10, "episodes": 2}


def test_an_open_episode_is_never_evicted_and_may_exceed_the_capacity(
    open_writer, schema, make_episode
):
    writer = open_writer(rows=10)
    long, short = Recording(writer, schema, actor=1), Recording(writer, schema, actor=2)
    rows = make_episode(30)
    long.put(rows[:20])
    for _ in range(3):
        short.put(make_episode(3))
    # The newest one stays until the next commit, so that a learner may see it.
    assert [length for _, length in stored_episodes(writer.path)] == [20, 4]
    long.put(rows[20:])
    assert stored_episodes(writer.path) == [(1, 31)]
    short.put(make_episode(3))
    assert [length for _, length in stored_episodes(writer.path)] == [4]


def test_what_one_commit_completes_stays_until_the_next(open_writer, schema, make_episode):
    writer = open_writer(rows=20)
    recording = Recording(writer, schema)
    recording.put([row for _ in range(6) for row in make_episode(4)])
    assert stored_rows(writer) == 30
    recording.put(make_episode(4))
    assert stored_episodes(writer.path) == [(16, 5), (21, 5), (26, 5), (31, 5)]


def test_counts_and_sequences_go_on_after_restarts(open_writer, schema, make_episode):
    capacity, owner, steps = 12, "me", 0
    for _ in range(4):
        writer = open_writer(rows=capacity)
        recording = Recording(writer, schema, session=0, owner=owner)
        assert writer.session(recording.key).next_sequence == steps * 5 // 4
        sampler = sampler_of(writer.path)
        for _ in range(5):
            recording.put(make_episode(4))
            steps += 4
            assert recording.steps() == sampler.transitions_available() == steps
            fresh = sampler_of(writer.path)
            assert fresh.transitions_available() == steps
            fresh.close()
        sampler.close()


def test_a_file_that_a_kill_left_without_rows_goes_in_its_turn(
    open_writer, schema, make_episode, monkeypatch
):
    put = []

    def record(recording):
        rows = make_episode(4)
        put.append((int(rows[0]["reward"]), 5))
        recording.put(rows)

    recording = Recording(open_writer(rows=20), schema, session=0, owner="me")
    record(recording)
    with monkeypatch.context() as killed:
        killed.setattr(WrittenSegment, "append", lambda *_: _interrupt())
        with pytest.raises(KeyboardInterrupt):
            record(recording)
    put.pop()
    writer = open_writer(rows=20)
    recording = Recording(writer, schema, session=0, owner="me")
    for _ in range(7):
        record(recording)
        assert stored_episodes(writer.path) == put[-4:]


def _interrupt():
    raise KeyboardInterrupt


def test_a_session_whose_rows_are_all_evicted_goes_on_where_it_was(
    open_writer, schema, make_episode
):
    writer = open_writer(rows=6)
    quiet = Recording(writer, schema, actor=1, session=0, owner="me")
    quiet.put(make_episode(4))
    for _ in range(3):
        Recording(writer, schema, actor=2).put(make_episode(4))
    assert len(stored_episodes(writer.path)) == 1
    writer = open_writer(rows=6)
    again = Recording(writer, schema, actor=1, session=0, owner="me")
    assert writer.session(again.key).next_sequence == 5
    again.put(make_episode(4))


def test_demonstrations_between_evicted_episodes_of_one_session(open_writer, schema, make_episode):
    writer = open_writer(rows=12)
    recording = Recording(writer, schema, session=0, owner="me")
    for source in (1, 0, 1, 0, 1):
        recording.put(make_episode(3, source=source))
    Recording(writer, schema, actor=2).put(make_episode(3))
    assert stored_episodes(writer.path) == [(5, 4), (13, 4), (21, 4)]
    writer = open_writer(rows=12)
    recording = Recording(writer, schema, session=0, owner="me")
    assert writer.session(recording.key).next_sequence == 20
    sampler = sampler_of(writer.path, demonstration_share=0.5)
    assert numbers(sampler) == {5, 6, 7, 13, 14, 15, 21, 22, 23}
    assert sampler.transitions_available() == 12
    sampler.close()


def test_identifiers_are_not_given_twice_though_the_newest_episode_is_gone(
    open_writer, schema, make_episode
):
    writer = open_writer(rows=3)
    rows = make_episode(4)
    old = Recording(writer, schema, actor=1, session=0, owner="me")
    old.put(rows[:2])
    Recording(writer, schema, actor=2).put(make_episode(4))
    old.put(rows[2:4])
    writer = open_writer(rows=3)
    Recording(writer, schema, actor=3).put(make_episode(4))
    assert [e.identifier for e, _ in read_back(writer.path)] == [0, 2]


def test_the_files_stay_within_the_capacity(open_writer, make_episode):
    images = row_schema("reach", [Field("images/front", "uint8", (40, 40, 3))], ["dx"], 10.0)
    capacity = 600
    writer = open_writer(rows=capacity)
    recording = Recording(writer, images)
    for number in range(600):
        row = {f.name: np.zeros(f.shape, f.dtype) for f in images.fields}
        row["source"] = np.uint8(1)
        rows = [{**row, "is_last": np.bool_(step == number % 20 + 1)} for step in range(22)]
        recording.put(rows[: number % 20 + 2])
    totals = writer.statistics()
    assert totals["evicted"]["rows"] > 5 * totals["rows"]
    assert capacity * 7 / 8 < totals["rows"] <= capacity
    on_disk = sum(file.stat().st_size for file in (writer.path / "rows").iterdir())
    assert on_disk < 1.1 * totals["rows"] * images.dtype.itemsize


@pytest.mark.parametrize("capacity", [0, -1, 1e6])
def test_impossible_capacities_are_refused(tmp_path, capacity):
    with pytest.raises(ReplayError, match=rf"capacity_rows is out of range.*got: {capacity}; exp"):
        StoreWriter(tmp_path / "store", capacity_rows=capacity)


def test_demonstrations_that_fill_the_capacity_are_an_error_that_says_so(
    open_writer, schema, make_episode
):
    writer = open_writer(rows=50)
    demonstrations, online = Recording(writer, schema, 0), Recording(writer, schema, 1)
    refused = None
    while refused is None:
        try:
            demonstrations.put(make_episode(9, source=0))
        except StoreFull as error:
            refused = error
    assert "demonstrations alone fill" in str(refused)
    assert "replay.capacity_" in str(refused)
    rows = make_episode(4)
    with pytest.raises(StoreFull, match="demonstrations alone fill"):
        online.put(rows)
    held = len(stored_episodes(writer.path))
    writer = open_writer(rows=10_000)
    Recording(writer, schema, actor=1).put(rows)
    assert len(stored_episodes(writer.path)) == held + 1


def test_demonstrations_without_room_do_not_keep_others_out(open_writer, schema, make_episode):
    writer = open_writer(rows=10)
    recordings = [Recording(writer, schema, 0), Recording(writer, schema, 1)]
    episodes = [make_episode(12, source=0), make_episode(4)]
    batches = [r.batch(rows, 0) for r, rows in zip(recordings, episodes, strict=True)]
    refused, accepted = writer.append(batches)
    assert isinstance(refused, StoreFull)
    assert accepted is None
    assert [length for _, length in stored_episodes(writer.path)] == [5]


def test_what_was_visible_is_drawn_until_the_next_refresh(open_writer, schema, make_episode):
    writer = open_writer(rows=300)
    Recording(writer, schema, actor=0).put(make_episode(49, source=0))
    online = Recording(writer, schema)
    for _ in range(24):
        online.put(make_episode(9))
    sampler, same = (sampler_of(writer.path, demonstration_share=0.5) for _ in range(2))
    for one in (sampler, same):
        one.refresh(24 * 9)
    before = [same.sample() for _ in range(20)]
    for _ in range(50):  # all that is visible of actors goes
        online.put(make_episode(9))
    for expected in before:
        batch = sampler.sample()
        for name, values in expected.items():
            np.testing.assert_array_equal(batch[name], values, name)
        assert (batch["source"] == 0).reshape(-1, 2).sum(1).tolist() == [1] * 16
    sampler.refresh()
    assert sampler.visible.online == 24 * 9  # files of two episodes go whole
    sampler.close()
    same.close()


def test_what_is_visible_depends_on_steps_and_capacity_alone(open_writer, schema, make_episode):
    capacity = 400
    writer = open_writer(rows=capacity)
    Recording(writer, schema, actor=0).put(make_episode(39, source=0))
    online = Recording(writer, schema)
    early = sampler_of(writer.path, capacity_rows=capacity)
    rng = np.random.default_rng(5)
    drawn = {}

    def draws(sampler, steps):
        sampler.rng = np.random.default_rng(steps)
        sampler.refresh(steps)
        return sampler.visible.online, sampler.sample()["state/x"].tobytes()

    steps = 0
    for number in range(160):
        length = int(rng.integers(1, 12))
        online.put(make_episode(length))
        steps += length
        drawn[steps] = draws(early, steps)
        if number > 80 and number % 4 == 0:
            before = steps - int(rng.integers(0, 25))
            late = sampler_of(writer.path, capacity_rows=capacity)
            late.refresh(before)
            for at in (before, *(s for s in drawn if before <= s)):
                found = draws(late, at)
                assert found == drawn.setdefault(at, found)
            late.close()
    assert steps > 2 * capacity
    assert 230 < early.visible.online < 350 - 40
    early.close()


def test_a_sampler_that_looks_away_misses_nothing_that_counts(open_writer, schema, make_episode):
    """Rows that came and went between two looks are counted; half-seen episodes too."""
    writer = open_writer(rows=60)
    one, two = Recording(writer, schema, actor=1), Recording(writer, schema, actor=2)
    sampler = sampler_of(writer.path)
    rng = np.random.default_rng(0)
    parts: list[tuple[Recording, list]] = []
    for number in range(200):
        recording = (one, two)[number % 2]
        episode = make_episode(int(rng.integers(1, 15)), terminated=bool(number % 3))
        cut = int(rng.integers(0, len(episode)))
        parts += [(recording, episode[:cut]), (recording, episode[cut:])]
    for number, (recording, rows) in enumerate(parts):
        if rows:
            recording.put(rows)
        if number % 7 == 0 or rng.random() < 0.1:
            assert sampler.transitions_available() == one.steps()
            sampler.refresh()
            fresh = sampler_of(writer.path)
            assert fresh.transitions_available() == one.steps()
            assert fresh.visible.online == sampler.visible.online
            assert fresh._index.online_rows == sampler._index.online_rows
            fresh.close()
    sampler.close()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_file_that_goes_while_it_is_looked_at(
    open_writer, schema, make_episode, monkeypatch, when
):
    writer = open_writer(rows=10)
    one, two = Recording(writer, schema, actor=1), Recording(writer, schema, actor=2)
    one.put(make_episode(4))
    (oldest,) = (writer.path / "rows").glob("*.rows")
    rows, stat = StoreRows(writer.path), Path.stat

    def evict(path, when_called):
        if path == oldest and when == when_called:
            monkeypatch.setattr(Path, "stat", stat)
            for _ in range(2):
                two.put(make_episode(4))

    def size_of(path, **options):
        evict(path, "before")
        found = stat(path, **options)
        evict(path, "after")
        return found

    monkeypatch.setattr(Path, "stat", size_of)
    assert [len(news.scalars) for news in rows.look()] == [5, 5]
    assert not oldest.exists()
    assert rows.evicted["rows"] == 5
    rows.close()


@pytest.mark.faults
def test_kills_during_eviction_leave_whole_episodes_in_order(
    start_server, schema, make_episode, tmp_path
):
    server = start_server(capacity_rows=200)
    sent = []
    with ReplayClient(
        server.store,
        spool_bytes=size_for(300, schema.dtype.itemsize),
        resend_seconds=0.1,
    ) as client:
        client.open_session(schema)

        def send(steps):
            rows = make_episode(steps)
            sent.append((int(rows[0]["reward"]), len(rows)))
            client.append_episode(rows)

        for number in range(400):
            send(5 + number % 40)
            if number % 40 == 20:
                server.kill()
                server.start()
        client.flush(20)
        send(5)  # what the last commit completed, however much it was, stays until the next one
        client.flush(20)
        totals = client.statistics()
    assert totals["environment_steps"]["policy"] == sum(length - 1 for _, length in sent)
    assert totals["evicted"]["episodes"] + totals["episodes"] == len(sent)
    held = stored_episodes(server.store)
    assert held == sent[-len(held) :]
    assert 200 - 45 <= totals["rows"] == sum(length for _, length in held) <= 200
    server.stop()
    writer = StoreWriter(server.store, capacity_rows=200)
    assert stored_rows(writer) == totals["rows"]
    writer.close()
