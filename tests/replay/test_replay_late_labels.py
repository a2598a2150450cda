"""Labels that come when an episode is stored already: annotations that learning can use."""

import numpy as np
import pytest
from store_writing import sampler_of

from robot_rl.replay.address import ReplayAddress
from robot_rl.replay.protocol import Annotations
from robot_rl.replay.store_reader import StoreReader
from robot_rl.rewards.labels import LateLabels


@pytest.fixture
def told(server, client, schema, make_episode):
    """Two episodes of which the last is labelled twice, and a reader."""
    notes = []
    opened = client.open_session(schema)
    labels = LateLabels(ReplayAddress(server.store), opened, notes.append)
    for steps in (3, 5):
        for row in make_episode(steps):
            begins = row["episode_step"] == 0 and not row["is_last"]
            labels.note_row(client.append(row, {} if begins else None), begins=bool(begins))
    labels.tell(False)  # at once: the rows may still be on their way
    labels.close()
    labels.tell(True)
    labels.close()
    assert notes == []
    reader = StoreReader(server.store)
    yield reader
    reader.close()


def test_the_newest_label_is_the_reward_of_the_whole_last_episode(told):
    first, last = told.episodes()
    assert not told.annotations("reward", first)[0].any()
    valid, _, values = told.annotations("reward", last)
    assert valid.all()
    assert values.tolist() == [0, 0, 0, 0, 1, 0]
    assert told.read_episode(last)["reward"][0] != 0, "rows never change"


def test_learning_takes_it_where_it_is_asked_to(told, server):
    sampler = sampler_of(server.store, batch_size=64, n_step=1, rewards="reward")
    rewards = set(sampler.sample()["reward"].tolist())
    sampler.close()
    assert {0.0, 1.0} < rewards, "labelled, and those of the episode without a label"


@pytest.fixture
def discounts(server, client, schema, make_episode):
    """Annotates an episode of three steps that its time limit has ended: reward -> discounts."""
    client.open_session(schema)

    def annotated(name, *versions, limit=True):
        client.append_episode(make_episode(3, truncated=limit, terminated=not limit), {})
        client.flush()
        reader = StoreReader(server.store)
        episode = reader.episodes()[-1]
        reader.close()
        for version, values in enumerate(versions):
            rewards = np.array(values, np.float32)
            place, rows = episode.session_key, episode.sequences
            client.annotate(Annotations(place, name, version, rows, rewards))
        sampler = sampler_of(server.store, batch_size=64, n_step=1, rewards=name)
        batch = sampler.sample()
        sampler.close()
        by_row = sorted(set(zip(batch["state/x"][:, 0], batch["discount"], strict=True)))
        return [round(float(discount), 3) for _, discount in by_row]

    return annotated


def test_a_late_success_ends_the_episode_as_a_timely_one_does(discounts):
    """It gave the reward, and bootstrapped after it: values of almost 2."""
    assert discounts("reward", [0, 0, 1, 0]) == [0.9, 0.9, 0.0]


@pytest.mark.parametrize(
    ("name", "versions"),
    [
        ("reward", [[0, 0, 0, 0]]),
        ("reward", [[0, 0, 1, 0], [0, 0, 0, 0]]),
        ("reward", [[0, 1, 0, 0]]),
        ("progress", [[0, 0.5, 1, 0]]),
    ],
    ids=["failure", "failure after all", "in the middle", "dense"],
)
def test_nothing_else_that_is_annotated_ends_an_episode(discounts, name, versions):
    assert discounts(name, *versions) == [0.9, 0.9, 0.9]


def test_a_late_failure_leaves_an_end_an_end(discounts):
    assert discounts("reward", [0, 0, 0, 0], limit=False) == [0.9, 0.9, 0.0]
