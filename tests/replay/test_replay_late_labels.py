"""Labels that come when an episode is stored already: annotations that learning can use."""

import pytest
from store_writing import sampler_of

from robot_rl.connection import ServerPlace
from robot_rl.replay import StoreReader
from robot_rl.rewards.labels import LateLabels


@pytest.fixture
def told(server, client, schema, make_episode):
    """Two episodes of which the last is labelled twice, and a reader."""
    notes = []
    opened = client.open_session("reach", schema)
    labels = LateLabels(ServerPlace(server.store), "reach", opened, notes.append)
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
    first, last = told.episodes("reach")
    assert not told.annotations("reach", "reward", first)[0].any()
    valid, _, values = told.annotations("reach", "reward", last)
    assert valid.all()
    assert values.tolist() == [0, 0, 0, 0, 1, 0]
    assert told.read_episode("reach", last)["reward"][0] != 0, "rows never change"


def test_learning_takes_it_where_it_is_asked_to(told, server):
    sampler = sampler_of(server.store, batch_size=64, n_step=1, rewards="reward")
    rewards = set(sampler.sample()["reward"].tolist())
    sampler.close()
    assert {0.0, 1.0} < rewards, "labelled, and those of the episode without a label"
