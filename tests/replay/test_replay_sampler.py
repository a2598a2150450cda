"""What the learner draws: windows that stop at episode ends, visibility, shares, determinism."""

import itertools
import threading
from contextlib import closing
from functools import partial

import numpy as np
import pytest
import store_writing
from store_writing import Recording

from robot_rl.replay import NotEnoughData, ReplayError, StoreError
from robot_rl.replay.sampler import Prefetcher

FIELDS = ("state/x", "images/front", "action", "base_action")
make_sampler = partial(
    store_writing.sampler_of, fields=FIELDS, batch_size=16, demonstration_share=0.5
)


@pytest.fixture
def recording(writer, schema):
    return Recording(writer, schema)


@pytest.fixture
def sampler_of(writer, opened):
    """Return a function that opens a sampler, which is closed at the end."""
    return lambda **options: opened(make_sampler(writer.path, **options))


def check_batch(batch, rows):
    """Check that what is drawn are the bytes of rows, found by their numbered state."""
    by_number = {float(row["reward"]): i for i, row in enumerate(rows)}
    for b, steps in enumerate(batch["steps"]):
        t = by_number[float(batch["state/x"][b, 0])]
        assert batch["source"][b] == rows[t]["source"]
        for name in FIELDS:
            np.testing.assert_array_equal(batch[name][b], rows[t][name])
        for name in ("state/x", "images/front", "base_action"):
            np.testing.assert_array_equal(batch[f"next/{name}"][b], rows[t + steps][name])


def test_batches_are_the_rows_that_were_stored(writer, schema, make_episode, sampler_of):
    demonstrations = [make_episode(5, source=0, terminated=True), make_episode(2, source=0)]
    shown, acted = Recording(writer, schema, actor=9), Recording(writer, schema, actor=0)
    for rows in demonstrations:
        shown.put(rows)
    online = [make_episode(1), make_episode(6, terminated=True), make_episode(4, source=2)]
    for rows in online:
        acted.put(rows)
    sampler = sampler_of(intervention_share=0.0)
    assert sampler.transitions_available() == 11
    assert (sampler.visible.online, sampler.visible.demonstrations) == (11, 7)
    everything = list(itertools.chain(*demonstrations, *online))
    seen = set()
    for _ in range(40):
        batch = sampler.sample()
        assert "next/action" not in batch
        check_batch(batch, everything)
        seen |= set(batch["state/x"][:, 0])
        demonstration = batch["source"] == 0
        for size in (2, 4, 8):
            counts = demonstration.reshape(-1, size).sum(1)
            assert (counts == size // 2).all()
    assert len(seen) == 18


def test_what_is_visible_does_not_depend_on_how_far_the_actor_is(
    recording, make_episode, sampler_of
):
    rows = list(itertools.chain(*(make_episode(4) for _ in range(5))))
    recording.put(rows[:12])
    early = sampler_of(demonstration_share=0.0)
    assert early.transitions_available() == 10
    recording.put(rows[12:])
    late = sampler_of(demonstration_share=0.0)
    for steps in (7, 8, 9, 15, 20):
        early.refresh(steps)
        late.refresh(steps)
        assert early.visible.online == late.visible.online
        np.testing.assert_array_equal(early.sample()["state/x"], late.sample()["state/x"])
    # Step 7 is the third of the second episode: rows 5, 6, 7 are visible, so no window is whole.
    late.refresh(7)
    assert late.visible.online == 4
    late.refresh(8)
    assert late.visible.online == 8
    with pytest.raises(NotEnoughData, match=r"got: 20.*expected: 21"):
        late.refresh(21)


def test_unknown_names_and_numbers_are_refused(writer, schema):
    with pytest.raises(StoreError, match="no session has been started"):
        make_sampler(writer.path)
    Recording(writer, schema)
    with pytest.raises(ReplayError, match="did you mean 'state/x'"):
        make_sampler(writer.path, fields=("state/y",))
    with pytest.raises(ReplayError, match="n_step"):
        make_sampler(writer.path, n_step=0)


def test_prefetched_batches_are_the_same_and_no_more(recording, make_episode, sampler_of):
    recording.put(make_episode(60))
    plain, ahead = sampler_of(seed=1), sampler_of(seed=1)
    with closing(Prefetcher(ahead)) as prefetcher:
        for count in (5, 0, 3):
            for batch in prefetcher.batches(count):
                for name, array in plain.sample().items():
                    np.testing.assert_array_equal(batch[name], array)
            assert ahead.state_dict() == plain.state_dict()
            ahead.refresh()
        next(prefetcher.batches(100))  # the others are not waited for


def test_a_failure_of_the_prefetching_thread_surfaces_and_can_be_tried_again(
    recording, make_episode, sampler_of
):
    sampler, before = sampler_of(), {*threading.enumerate()}
    with closing(Prefetcher(sampler)) as prefetcher:
        for _ in range(2):
            with pytest.raises(NotEnoughData):
                next(prefetcher.batches(5))
        recording.put(make_episode(60))
        sampler.refresh()
        assert len([*prefetcher.batches(5)]) == 5
    left = {*threading.enumerate()} - before  # other tests may have left threads of their own
    assert not any(thread.name.startswith("replay-prefetch") for thread in left)
