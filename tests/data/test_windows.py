"""Windows for chunked imitation: what a batch holds at the edges of episodes."""

import time

import numpy as np
import pytest
from recorder import append_known, make_schema

from robot_rl.data.episodes import EpisodeDataset, EpisodeWriter
from robot_rl.data.windows import WindowError, WindowSampler

ENDS = np.array([4, 9])  # episodes of 3 and 4 actions


def numbered(rows=9):
    """Columns whose values are row numbers, so that a window shows where it was cut."""
    row = np.arange(rows)
    return {
        "state/tcp_pose": np.repeat(row[:, None], 7, 1).astype(np.float32),
        "images/wrist": np.broadcast_to(row[:, None, None, None], (rows, 2, 2, 3)).astype(np.uint8),
        "action": np.repeat(row[:, None], 2, 1).astype(np.float32),
    }


def test_every_row_with_an_action_has_one_window():
    sampler = WindowSampler(numbered(), ENDS, 2, 3)
    assert sampler.indices.tolist() == [0, 1, 2, 4, 5, 6, 7]
    assert len(sampler) == 7


def test_history_repeats_the_first_row_and_stays_in_the_episode():
    batch = WindowSampler(numbered(), ENDS, 3, 1).batch([0, 1, 4, 5, 7])
    assert batch["state/tcp_pose"][:, :, 0].tolist() == [
        [0, 0, 0], [0, 0, 1], [4, 4, 4], [4, 4, 5], [5, 6, 7],
    ]  # fmt: skip
    assert batch["images/wrist"].shape == (5, 3, 2, 2, 3)
    assert batch["images/wrist"].dtype == np.uint8


def test_chunks_repeat_the_last_action_and_mark_it():
    batch = WindowSampler(numbered(), ENDS, 1, 3).batch([0, 1, 2, 7])
    assert batch["action"][:, :, 0].tolist() == [[0, 1, 2], [1, 2, 2], [2, 2, 2], [7, 7, 7]]
    assert batch["valid"].tolist() == [
        [True, True, True], [True, True, False], [True, False, False], [True, False, False],
    ]  # fmt: skip


def test_no_window_shows_another_episode_or_an_action_of_a_final_row():
    sampler = WindowSampler(numbered(), ENDS, 4, 8)
    batch = sampler.batch(sampler.indices)
    episode = np.searchsorted(ENDS, sampler.indices, side="right")
    for name in ("state/tcp_pose", "action"):
        rows = batch[name][..., 0].astype(int)
        assert (np.searchsorted(ENDS, rows, side="right") == episode[:, None]).all()
    assert not np.isin(batch["action"][..., 0], ENDS - 1).any()


def test_one_step_windows_are_the_rows_themselves():
    arrays = numbered()
    sampler = WindowSampler(arrays, ENDS, 1, 1)
    batch = sampler.batch(sampler.indices)
    np.testing.assert_array_equal(batch["action"][:, 0], arrays["action"][sampler.indices])
    assert batch["valid"].all()


def test_batches_are_copies():
    arrays = numbered()
    batch = WindowSampler(arrays, ENDS, 1, 1).batch([0])
    batch["action"][:] = 99
    assert arrays["action"].max() < 99


def test_only_selected_episodes_give_windows():
    sampler = WindowSampler(numbered(), ENDS, 2, 2, episodes=[False, True])
    assert sampler.indices.tolist() == [4, 5, 6, 7]


def test_windows_of_a_dataset(tmp_path):
    with EpisodeWriter(tmp_path / "data.zarr", make_schema()) as writer:
        for _ in range(4):
            append_known(writer)
    dataset = EpisodeDataset(tmp_path / "data.zarr")
    everything = WindowSampler.of_dataset(dataset, 2, 8)
    assert len(everything) == dataset.rows_total - 4
    columns = {"state/tcp_pose", "last_command", "action", "valid"}
    assert everything.batch(everything.indices).keys() == columns
    successful = WindowSampler.of_dataset(dataset, 2, 8, only_successful=True)
    starts = dataset.episode_ends - np.diff(dataset.episode_ends, prepend=0)
    assert successful.indices[0] == starts[0]
    assert len(successful) == 1 + (dataset.episode_ends[3] - starts[3] - 1)


@pytest.mark.parametrize("bad", [-1, 3, 8, 9])
def test_rows_that_cannot_be_s_are_refused(bad):
    with pytest.raises(WindowError, match=r"row"):
        WindowSampler(numbered(), ENDS, 1, 1).batch([0, bad])


def test_arguments_that_do_not_fit_are_explained():
    with pytest.raises(WindowError, match=r"'action'.*got: 8 rows; expected: 9 rows"):
        WindowSampler({"action": np.zeros((8, 2))}, ENDS, 1, 1)
    with pytest.raises(WindowError, match="horizon=0"):
        WindowSampler(numbered(), ENDS, 1, 0)
    with pytest.raises(WindowError, match="at least two rows"):
        WindowSampler(numbered(), [8, 9], 1, 1)
    with pytest.raises(WindowError, match="0 of them selected"):
        WindowSampler(numbered(), ENDS, 1, 1, episodes=[False, False])
    with pytest.raises(WindowError, match="bool"):
        WindowSampler(numbered(), ENDS, 1, 1, episodes=[1])


def test_a_batch_of_256_takes_less_than_a_millisecond():
    random = np.random.default_rng(0)
    ends = np.arange(101, 101 * 21, 101)
    arrays = {
        name: random.random((ends[-1], width), np.float32)
        for name, width in {"state/a": 7, "state/b": 13, "action": 6}.items()
    }
    sampler = WindowSampler(arrays, ends, 2, 8)
    times = []
    for _ in range(50):
        rows = random.choice(sampler.indices, 256)
        start = time.perf_counter()
        sampler.batch(rows)
        times.append(time.perf_counter() - start)
    assert min(times) < 1e-3
