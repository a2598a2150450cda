"""Which rows a window covers: by the definition, and in numbers for datasets in memory."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robot_rl.data.episodes import EpisodeDataset, EpisodeWriter
from robot_rl.data.schema import SOURCE_INTERVENTION, SOURCE_POLICY
from robot_rl.replay import NotEnoughData, ReplayError
from robot_rl.replay.row_sources import EpisodeRows
from robot_rl.replay.sampler import Sampler
from robot_rl.replay.windows import SCALARS, DataKind, News, SampleSpec, WindowIndex

DISCOUNT = 0.9
TAKE_OVER = (SOURCE_POLICY, SOURCE_INTERVENTION)
ENDS = np.array([4, 9])  # episodes of 3 and 4 actions
plans = st.lists(
    st.tuples(st.integers(1, 7), st.sampled_from(["terminated", "truncated", "open"])),
    min_size=1,
    max_size=8,
)
specs = st.builds(
    SampleSpec,
    st.just(("state/x",)),
    n_step=st.integers(1, 5),
    discount=st.just(DISCOUNT),
    chunk_fields=st.sampled_from([(), ("action",), ("base_action",)]),
    chunk_steps=st.sampled_from([None, 2, 3, 4]),
    returns=st.booleans(),
)


def definition(scalars, spec, starts, is_visible):
    """The windows of rows as the specification says it, row by row: dictionaries."""
    count = len(scalars)

    def stop_of(t, step):
        """How many rows from t on belong to its window, at most `step`; None if unknown yet."""
        for k in range(t + 1, min(t + step + 1, count)):
            if (scalars["source"][t], scalars["source"][k]) == TAKE_OVER:
                return k - t
            if scalars["is_last"][k]:
                return k - t
        return step if t + step <= count else None

    def with_last(f, step):
        if scalars["is_last"][f]:
            return 1
        rows = stop_of(f, step)
        if rows is not None and rows < step and scalars["is_last"][f + rows]:
            return rows + 1
        return rows

    windows = []
    for t in range(count):
        if scalars["is_last"][t]:
            continue
        m, following, last = stop_of(t, spec.n_step), 0, t
        if m is None or t + m >= count:
            break
        last = t + m
        chunk = stop_of(t, spec.horizon) if spec.horizon else 0
        if chunk is None:
            break
        last = max(last, t + chunk - 1)
        if spec.next_chunk_fields:
            following = with_last(t + m, spec.horizon)
            if following is None:
                break
            last = max(last, t + m + following - 1)
        end = next((k for k in range(t, count) if scalars["is_last"][k]), None)
        if spec.returns:
            if end is None:
                break
            last = max(last, end)
        if not is_visible(last):
            break  # windows come in order
        whole = 0 if end is None or not spec.returns else stop_of(t, end - t)
        rewards = [DISCOUNT**j * float(scalars["reward"][t + j]) for j in range(max(m, whole))]
        ended = bool(scalars["terminated"][t + m - 1])
        windows.append(
            {
                "address": t,
                "steps": m,
                "chunk": chunk,
                "next_chunk": following,
                "before": t - max(start for start in starts if start <= t),
                "reward": sum(rewards[:m]),
                "discount": 0.0 if ended else DISCOUNT**m,
                "return": sum(rewards[:whole]),
                "ended": bool(whole) and bool(scalars["terminated"][t + whole - 1]),
            }
        )
    return windows


@settings(max_examples=150)
@given(plans, specs, st.integers(0, 60) | st.just(100), st.randoms(use_true_random=False))
def test_windows_agree_with_the_definition_however_rows_arrive(plan, spec, limit, random):
    rows = []
    for steps, end in plan:
        for step in range(steps):
            last = step == steps - 1
            ended = (end == "terminated" and last, end == "truncated" and last)
            source = random.choice([SOURCE_POLICY, SOURCE_POLICY, SOURCE_INTERVENTION])
            rows.append((len(rows) + 1, *ended, False, source, 0))
        rows.append((0, False, False, True, 1, 0))
    # The last episode may still be open.
    rows = rows[: len(rows) - random.randint(0, plan[-1][0])]
    scalars = np.array(rows, SCALARS)
    starts = [0, *(np.flatnonzero(scalars["is_last"]) + 1)]
    index = WindowIndex(spec)
    for episode, (start, end) in enumerate(pairwise([*starts, len(scalars)])):
        at = start
        while at < end:
            part = scalars[at : min(at + random.randint(1, 6), end)]
            whole = bool(part["is_last"][-1])
            index.add(News(episode, at, part, complete=whole))
            at += len(part)
    if scalars[-1]["terminated"] or scalars[-1]["truncated"]:
        scalars = scalars[:-1]
    steps_before = np.cumsum(~scalars["is_last"])
    assert index.online_transitions == (steps_before[-1] if len(scalars) else 0)
    limit = min(limit, index.online_transitions)
    expected = definition(scalars, spec, starts, lambda row: steps_before[row] <= limit)
    pool = index.pools[DataKind.ONLINE]
    windows = pool.windows[: pool.visible(limit)]
    assert len(windows) == len(expected)
    for name in expected[0] if expected else ():
        np.testing.assert_allclose(
            windows[name], [w[name] for w in expected], rtol=1e-5, atol=1e-6, err_msg=name
        )


def numbered(rows=9):
    """Columns whose values are row numbers, so that a window shows where it was cut."""
    row = np.arange(rows)
    return {
        "state/tcp_pose": np.repeat(row[:, None], 7, 1).astype(np.float32),
        "images/wrist": np.broadcast_to(row[:, None, None, None], (rows, 2, 2, 3)).astype(np.uint8),
        "action": np.repeat(row[:, None], 2, 1).astype(np.float32),
        "instruction": np.array([f"do {n}" for n in row]),
    }


def windows_of(rows, history, horizon, **changes):
    """Each window of datasets once, in order; numbers of rows where `numbered` made them."""
    values = {
        "fields": ("state/tcp_pose", "images/wrist", "instruction"),
        "batch_size": 16,
        "demonstration_share": 1.0,
        "next_fields": (),
        "observation_steps": history,
        "chunk_fields": ("action",),
        "chunk_steps": horizon,
        **changes,
    }
    return Sampler(rows, SampleSpec(**values), np.random.default_rng(0)).every_window()


def test_a_history_is_of_every_kind_of_field():
    batch = windows_of(EpisodeRows(numbered(), ENDS), 3, 1)
    assert batch["images/wrist"].shape == (7, 3, 2, 2, 3)
    assert batch["images/wrist"].dtype == np.uint8
    assert batch["instruction"][4].tolist() == ["do 4", "do 4", "do 5"]


def test_random_draws_are_those_of_a_choice_of_rows():
    """Clones of earlier versions are repeated bit by bit."""
    rows = EpisodeRows(numbered(), ENDS)
    spec = SampleSpec(("state/tcp_pose",), 64, demonstration_share=1.0, next_fields=())
    sampler, rng = Sampler(rows, spec, np.random.default_rng(3)), np.random.default_rng(3)
    for _ in range(3):
        chosen = rng.choice(rows.indices, 64)
        np.testing.assert_array_equal(sampler.sample()["state/tcp_pose"][:, 0], chosen)


def test_only_selected_episodes_give_windows():
    rows = EpisodeRows(numbered(), ENDS, episodes=[False, True])
    assert rows.indices.tolist() == [4, 5, 6, 7]
    assert windows_of(rows, 2, 2)["state/tcp_pose"][:, 1, 0].tolist() == [4, 5, 6, 7]


def test_windows_of_datasets(tmp_path, schema, make_episode):
    with EpisodeWriter(tmp_path / "data.zarr", schema) as writer:
        for steps in (3, 5, 4):
            rows = make_episode(steps)
            success = steps != 5
            writer.append(rows, seed=0, instruction=f"{steps}", success=success, source=1)
    dataset = EpisodeDataset(tmp_path / "data.zarr")
    fields = ("state/x", "action", "instruction")
    everything = EpisodeRows.of_datasets([dataset, dataset], fields)
    assert len(everything.indices) == 2 * (3 + 5 + 4)
    successful = EpisodeRows.of_datasets([dataset], fields, only_successful=True)
    assert successful.indices.tolist() == [0, 1, 2, 10, 11, 12, 13]
    batch = windows_of(successful, 1, 2, fields=("state/x", "instruction"))
    assert batch["state/x"][:, 0, 0].tolist() == [1, 2, 3, 11, 12, 13, 14]
    assert batch["instruction"][:, 0].tolist() == ["3"] * 3 + ["4"] * 4


def test_what_is_not_there_is_explained():
    with pytest.raises(NotEnoughData, match="none of them selected"):
        EpisodeRows(numbered(), ENDS, episodes=[False, False])
    with pytest.raises(ReplayError, match="did you mean 'action'"):
        windows_of(EpisodeRows(numbered(), ENDS), 1, 1, chunk_fields=("actions",))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"chunk_steps": 0}, "chunk_steps is out of range; got: 0"),
        ({"discount": float("nan")}, "discount is out of range"),
        ({"batch_size": 1 << 17}, "batch_size"),
        ({"policy_versions": (3, 2)}, "policy_versions is no range"),
        ({"fields": ("action", "action")}, "given twice"),
    ],
)
def test_an_impossible_specification_is_refused(changes, words):
    with pytest.raises(ReplayError, match=words):
        SampleSpec(**{"fields": ("action",), **changes})
