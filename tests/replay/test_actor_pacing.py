"""What keeps actors and learner in step, whoever is faster."""

from __future__ import annotations

import time

import numpy as np
import pytest

from robot_rl.learning.blocks import Blocks
from robot_rl.learning.weights import RealtimeWeights, WeightsReceiver
from robot_rl.replay.client import ReplayClient
from robot_rl.run import RunDirectory


@pytest.mark.parametrize("eagerness", [0.02, 0.5, 0.98])
def test_steps_and_updates_keep_their_ratio_whoever_is_faster(eagerness):
    blocks = Blocks(5, 10**6, 50, 20, 7, 3, actors=2)
    assert blocks.acts_until(0, 0) == 30, "the warm-up and two blocks"
    rng = np.random.default_rng(0)
    steps = updates = 0
    for _ in range(20_000):
        acting = rng.random() < eagerness
        may_act = steps < blocks.acts_until(0, updates)
        may_learn = updates < blocks.updates_at(steps // 5 * 5)
        assert may_act or may_learn, "both sides wait for each other"
        steps += acting and may_act
        updates += not acting and may_learn
        ahead = 3 * (steps - 20) - max(updates - 7, 0)
        assert ahead <= 3 * 2 * 5
        assert updates <= 7 or ahead >= 0
    assert (updates - 7) / (steps - 20) == pytest.approx(3, rel=0.1)


def test_an_actor_in_real_time_counts_the_steps_of_the_others(
    server, client, schema, make_episode, tmp_path
):
    """Each of several actors ran the whole budget: it counted its own steps alone."""
    client.open_session(schema, 2)
    receiver = WeightsReceiver(RunDirectory(tmp_path))
    source = RealtimeWeights(ReplayClient(server.store), receiver, 0, print)
    try:
        for others in (5, 12):
            client.append_episode(make_episode(others - source.run_steps(0)), {})
            deadline = time.monotonic() + 30
            while source.run_steps(3) < others:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            assert source.run_steps(3) == others
            assert source.run_steps(40) == 40, "its own that are not stored yet"
            assert source.at_step(3) is None
    finally:
        source.close()
