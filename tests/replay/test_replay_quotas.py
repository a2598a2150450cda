"""Shares of demonstrations, interventions and the policy's own steps in a batch."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from store_writing import Recording, sampler_of

from robot_rl.replay import NotEnoughData, ReplayError
from robot_rl.replay.sampler import Quotas
from robot_rl.replay.store import StoreWriter
from robot_rl.replay.windows import DataKind

SHARES = st.integers(0, 20).flatmap(lambda d: st.tuples(st.just(d), st.integers(0, 20 - d)))


@given(st.integers(1, 300), SHARES)
def test_every_part_of_a_batch_keeps_the_shares(size, shares):
    demonstration, intervention = (share / 20 for share in shares)
    kinds = Quotas(size, demonstration, intervention).kinds(dict.fromkeys(DataKind, 1))
    online = 1 - demonstration - intervention
    parts = dict(zip(DataKind, (demonstration, intervention, online), strict=True))
    for kind, share in parts.items():
        counts = np.concatenate(([0], np.cumsum(kinds == kind)))
        slack = 1 if kind is DataKind.DEMONSTRATION else 2
        excess = counts - share * np.arange(size + 1)
        assert excess.max() - excess.min() <= slack + 1e-6
        if share == 0:
            assert counts[-1] == 0


@pytest.mark.parametrize("shares", [(-0.1, 0.5), (0.6, 0.5), (0.5, 1.1)])
def test_impossible_shares_are_refused(shares):
    with pytest.raises(ReplayError, match="at most 1 together"):
        Quotas(8, *shares)


def test_a_kind_without_data_is_replaced_by_one_that_has_a_share():
    quotas = Quotas(8, 0.5, 0.25)
    demonstration, intervention, online = DataKind

    def counts(**available):
        amounts = {kind: available.get(kind.name.lower(), 0) for kind in DataKind}
        return np.bincount(quotas.kinds(amounts), minlength=3).tolist()

    assert counts(demonstration=1, intervention=1, online=1) == [4, 2, 2]
    assert counts(demonstration=1, online=1) == [6, 0, 2]
    assert counts(online=1) == [0, 0, 8]
    assert counts(intervention=1, online=1) == [0, 2, 6]
    assert counts(demonstration=1) == [8, 0, 0]
    with pytest.raises(NotEnoughData, match="nothing to sample from"):
        counts()
    with pytest.raises(NotEnoughData, match="online"):
        Quotas(8, 0.0, 0.0).kinds({demonstration: 5, intervention: 0, online: 0})


@pytest.fixture
def store(tmp_path, schema, make_episode, opened):
    """20 steps of demonstrations, 10 of interventions, 30 of the policy."""
    writer = opened(StoreWriter(tmp_path / "store"))
    Recording(writer, schema, actor=0).put(make_episode(20, source=0))
    rows = make_episode(40)
    for row in rows[10:20]:
        row["source"] = np.uint8(2)
    Recording(writer, schema, actor=1).put(rows)
    return writer.path


def sources(sampler, batches=200):
    drawn = np.stack([sampler.sample()["source"] for _ in range(batches)])
    sampler.close()
    return drawn


def test_interventions_are_drawn_with_demonstrations_and_as_online_steps(store):
    """As in HIL-SERL: both buffers hold them."""
    sampler = sampler_of(store, demonstration_share=0.5, batch_size=64, n_step=1)
    assert sampler.visible.demonstrations == 20
    assert sampler.visible.interventions == 10
    assert sampler.visible.online == 40
    drawn = sources(sampler)
    every_second = np.arange(64) % 2 == 1
    assert set(np.unique(drawn[:, every_second])) == {0, 2}
    assert set(np.unique(drawn[:, ~every_second])) == {1, 2}
    assert np.mean(drawn[:, every_second] == 2) == pytest.approx(1 / 3, abs=0.03)
    assert np.mean(drawn[:, ~every_second] == 2) == pytest.approx(1 / 4, abs=0.03)


def test_interventions_can_have_slots_of_their_own(store):
    sampler = sampler_of(
        store, demonstration_share=0.25, intervention_share=0.5, batch_size=64, n_step=1
    )
    drawn = sources(sampler)
    assert (drawn == 0).sum(1).tolist() == [16] * 200
    assert (drawn == 2).sum(1).min() >= 32
    # A quarter of what is drawn as online is an intervention too.
    assert (drawn == 1).sum() / (200 * 16) == pytest.approx(3 / 4, abs=0.03)


def test_interventions_stand_in_for_missing_demonstrations(tmp_path, schema, make_episode):
    writer = StoreWriter(tmp_path / "store")
    Recording(writer, schema).put(make_episode(6, source=2))
    Recording(writer, schema).put(make_episode(6))
    drawn = sources(sampler_of(writer.path, demonstration_share=0.5), 20)
    assert (drawn[:, 1::2] == 2).all()
    writer.close()


def test_without_interventions_the_random_stream_is_that_of_two_kinds(
    tmp_path, schema, make_episode
):
    """Runs recorded before interventions had quotas are repeated bit by bit."""
    writer = StoreWriter(tmp_path / "store")
    Recording(writer, schema, actor=0).put(make_episode(20, source=0))
    Recording(writer, schema, actor=1).put(make_episode(30))
    sampler = sampler_of(writer.path, demonstration_share=0.5, batch_size=8, n_step=1)
    rng = np.random.default_rng(0)
    for _ in range(5):
        demonstrations, online = 1 + rng.integers(0, 20, 4), 22 + rng.integers(0, 30, 4)
        expected = np.stack((online, demonstrations), axis=1).reshape(-1)
        np.testing.assert_array_equal(sampler.sample()["state/x"][:, 0], expected)
    sampler.close()
    writer.close()
