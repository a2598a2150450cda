"""What a specification asks for, in numbers: rows are numbered from 1 in the order of writing."""

import numpy as np
import pytest
from store_writing import Recording, sampler_of

from robot_rl.replay import ReplayError, StoreReplaced
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


def found(sampler, **options):
    return [numbers(rows["state/x"]) for _, rows in sampler.episodes(["state/x"], **options)]


def test_each_episode_that_has_ended_is_given_whole_in_the_order_of_beginning(
    writer, schema, episode
):
    one, other = Recording(writer, schema, actor=1), Recording(writer, schema, actor=2)
    Recording(writer, schema, actor=0).put(episode(2, source=0))  # rows 1 to 3
    first, second = episode(3), episode(2)  # rows 4 to 7, and 8 to 10
    one.put(first[:2])
    other.put(second)
    sampler = sampler_of(writer.path, n_step=3)
    assert found(sampler) == []  # the first one holds the second back
    one.put(first[2:])
    one.put(episode(3)[:2])  # rows 11 and 12 of an episode that goes on
    sampler.refresh()
    assert found(sampler) == [[4, 5, 6, 7], [8, 9, 10]]
    identifiers = [number for number, _ in sampler.episodes(["state/x"])]
    assert found(sampler, after=identifiers[0]) == [[8, 9, 10]]
    other.put(episode(1))  # rows 14 and 15, held back too
    sampler.refresh()
    assert found(sampler, after=identifiers[1]) == []
    sampler.refresh(4)
    assert found(sampler) == []  # of the first not all steps are visible
    assert found(sampler, demonstrations=True) == [[1, 2, 3]]
    sampler.close()


def test_a_cut_episode_ends_with_its_last_observation_as_far_as_there_is_one(
    writer, schema, episode
):
    first = Recording(writer, schema)
    first.put(episode(5)[:3])  # rows 1 to 3
    Recording(writer, schema).put(episode(2, terminated=True)[:2])  # rows 7 and 8
    Recording(writer, schema)
    sampler = sampler_of(writer.path)
    assert found(sampler) == [[1, 2, 3], [7, 8, 8]]
    sampler.close()


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
    for wrong in ({}, {**sampler.state_dict(), "rng": 1}):
        with pytest.raises(ReplayError, match="not the state of a sampler"):
            sampler.load_state_dict(wrong)
    sampler.close()
    other.close()
