"""What a specification asks for, in numbers: rows are numbered from 1 in the order of writing."""

import numpy as np
import pytest
from store_writing import Recording, sampler_of

from robot_rl.replay import NotEnoughData, ReplayError, StoreReplaced, StoreWriter


@pytest.fixture
def writer(tmp_path):
    writer = StoreWriter(tmp_path / "store")
    yield writer
    writer.close()


@pytest.fixture
def episode(make_episode):
    """A function that makes an episode with its numbers in the base's proposals too."""

    def make(steps, *, version=0, **options):
        rows = make_episode(steps, **options)
        for row in rows:
            row["base_action"][:] = row["state/x"][0] / 100
            row["policy_version"] = np.int64(version)
        return rows

    return make


def drawn(sampler, batches=20):
    """All windows that a sampler draws, by the number of their first row."""
    found = {}
    for _ in range(batches):
        batch = sampler.sample()
        for b, number in enumerate(batch["state/x"].reshape(len(batch["steps"]), -1)[:, -1]):
            found[int(number)] = {name: column[b] for name, column in batch.items()}
    sampler.close()
    return found


def numbers(rows, scale=1):
    return np.round(rows[..., 0] * scale).astype(int).tolist()


def test_a_history_is_of_the_own_episode_at_both_states(writer, schema, episode):
    recording = Recording(writer, schema)
    recording.put(episode(3))  # rows 1 to 4
    recording.put(episode(2))  # rows 5 to 7
    sampler = sampler_of(writer.path, fields=("state/x",), n_step=2, observation_steps=3)
    windows = drawn(sampler)
    expected = {
        1: ([1, 1, 1], [1, 2, 3]),
        2: ([1, 1, 2], [2, 3, 4]),
        3: ([1, 2, 3], [2, 3, 4]),
        5: ([5, 5, 5], [5, 6, 7]),
        6: ([5, 5, 6], [5, 6, 7]),
    }
    assert windows.keys() == expected.keys()
    for number, (before, after) in expected.items():
        assert numbers(windows[number]["state/x"]) == before
        assert numbers(windows[number]["next/state/x"]) == after


def test_chunks_of_the_base_begin_at_both_states(writer, schema, episode):
    Recording(writer, schema).put(episode(3))  # rows 1 to 4, of which the last proposes only
    sampler = sampler_of(
        writer.path,
        fields=("state/x",),
        n_step=2,
        discount=0.5,
        chunk_fields=("action", "base_action"),
        chunk_steps=4,
    )
    windows = drawn(sampler)
    expected = {
        1: ([1, 2, 3, 3], 3, [3, 4, 4, 4], 2, 2),
        2: ([2, 3, 3, 3], 2, [4, 4, 4, 4], 1, 2),
        3: ([3, 3, 3, 3], 1, [4, 4, 4, 4], 1, 1),
    }
    assert windows.keys() == expected.keys()
    for number, (chunk, valid, following, following_valid, steps) in expected.items():
        window = windows[number]
        assert "next/chunk/action" not in window
        assert numbers(window["chunk/base_action"], 100) == chunk
        assert numbers(window["chunk/action"], 1000) == chunk
        assert window["chunk/valid"].tolist() == [step < valid for step in range(4)]
        assert numbers(window["next/chunk/base_action"], 100) == following
        assert window["next/chunk/valid"].tolist() == [step < following_valid for step in range(4)]
        assert window["steps"] == steps
        assert window["discount"] == 0.5**steps


def test_a_chunk_of_the_policy_ends_where_an_operator_takes_over(writer, schema, episode):
    rows = episode(5)  # rows 1 to 6; the operator drives at 3 and 4
    for row in rows[2:4]:
        row["source"] = np.uint8(2)
    Recording(writer, schema).put(rows)
    windows = drawn(sampler_of(writer.path, n_step=4, chunk_fields=("action",)))
    assert numbers(windows[1]["chunk/action"], 1000) == [1, 2, 2, 2]
    assert windows[1]["chunk/valid"].tolist() == [True, True, False, False]
    assert numbers(windows[3]["chunk/action"], 1000) == [3, 4, 5, 5]


def test_returns_go_to_the_end_and_say_whether_more_may_follow(writer, schema, episode):
    recording = Recording(writer, schema)
    recording.put(episode(3, terminated=True))  # rewards 1, 2, 3
    recording.put(episode(2))  # rewards 5, 6, and then the time was over
    recording.put(episode(4)[:3])  # still going on
    sampler = sampler_of(writer.path, discount=0.5, n_step=1, returns=True)
    assert sampler.transitions_available() == 3 + 2 + 3
    windows = drawn(sampler)
    returns = {number: window["return"] for number, window in windows.items()}
    assert returns == {1: 1 + 1 + 0.75, 2: 2 + 1.5, 3: 3, 5: 5 + 3, 6: 6}
    valid = {number for number, window in windows.items() if window["return/valid"]}
    assert valid == {1, 2, 3}


def test_a_range_of_versions_is_of_the_steps_of_actors(writer, schema, episode):
    Recording(writer, schema, actor=0).put(episode(2, source=0))  # rows 1 to 3
    recording = Recording(writer, schema, actor=1)
    for version in (4, 5, 6, 7):
        recording.put(episode(2, version=version))  # rows 4 to 6, 7 to 9, ...
    sampler = sampler_of(writer.path, policy_versions=(5, 6), demonstration_share=0.5)
    assert sampler.visible.online == 4
    assert sampler.transitions_available() == 8
    assert drawn(sampler).keys() == {1, 2, 7, 8, 10, 11}


def in_order(sampler):
    batch = sampler.sample()
    return numbers(batch["state/x"][batch["drawn"]])


def test_in_order_each_episode_comes_once_from_its_start(writer, schema, episode):
    options = {"order": "episodes", "batch_size": 4, "n_step": 1}
    one, other = Recording(writer, schema, actor=1), Recording(writer, schema, actor=2)
    Recording(writer, schema, actor=0).put(episode(2, source=0))  # rows 1 to 3
    first, second = episode(3), episode(2)  # rows 4 to 7, and 8 to 10
    one.put(first[:2])
    other.put(second)
    sampler = sampler_of(writer.path, **options)
    with pytest.raises(NotEnoughData, match="was given"):  # the first one holds the second back
        sampler.sample()
    one.put(first[2:])
    one.put(episode(3)[:2])  # rows 11 and 12 of an episode that goes on
    sampler.refresh()
    assert sampler.visible.left == 5
    assert in_order(sampler) == [4, 5, 6, 8]
    state = sampler.state_dict()
    again = sampler_of(writer.path, **options)
    assert in_order(again) == [4, 5, 6, 8]
    for each in (sampler, again):
        batch = each.sample()
        assert batch["drawn"].tolist() == [True, False, False, False]
        assert numbers(batch["state/x"]) == [9, 9, 9, 9]
        with pytest.raises(NotEnoughData, match="was given"):
            each.sample()
    other.put(episode(1))  # rows 14 and 15, held back too
    sampler.refresh()
    assert sampler.visible.left == 0
    again.load_state_dict(state)
    assert in_order(again) == [9]
    sampler.close()
    again.close()
    shown = sampler_of(writer.path, demonstration_share=1.0, **options)
    assert in_order(shown) == [1, 2]
    shown.close()


def test_the_state_of_another_store_is_refused(tmp_path, writer, schema, episode):
    """A run was resumed silently on the store of another one of the same task."""
    Recording(writer, schema).put(episode(3))
    sampler = sampler_of(writer.path)
    other = StoreWriter(tmp_path / "other")
    Recording(other, schema).put(episode(3))
    replaced = sampler_of(other.path)
    with pytest.raises(StoreReplaced, match="another store than the one that was learned from"):
        replaced.load_state_dict(sampler.state_dict())
    replaced.close()
    for wrong in ({}, {**sampler.state_dict(), "given": [3]}, {**sampler.state_dict(), "rng": 1}):
        with pytest.raises(ReplayError, match="not the state of a sampler"):
            sampler.load_state_dict(wrong)
    sampler.close()
    other.close()
