"""What a specification asks for, in numbers: rows are numbered from 1 in the order of writing."""

import numpy as np
import pytest
from store_writing import Recording, sampler_of

from robot_rl.replay import NotEnoughData, ReplayError, StoreReplaced
from robot_rl.replay.store import StoreWriter


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
