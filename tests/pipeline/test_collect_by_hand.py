"""Demonstrations that a person drives, recorded by the stage with a device that a test plays."""

from __future__ import annotations

import errno
import io
import os
import signal
from contextlib import redirect_stdout

import numpy as np
import pytest
import zarr
from omegaconf import OmegaConf

from robot_rl.commands.train import collect
from robot_rl.config import compose
from robot_rl.data.episodes import EpisodeDataset
from robot_rl.data.schema import SOURCE_DEMONSTRATION

FRONT = [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
RESET = [[0.0] * 6] * 2  # the device is read before and after the robot moves
BEGIN = ["n", *RESET]
EVENTS = {
    "n": "start",
    "enter": "success",
    "backspace": "failure",
    "delete": "discard",
    "u": "undo",
    "esc": "stop",
    "c": "clear_errors",
}
EPISODE = [*BEGIN, FRONT, FRONT, "enter"]


def session(folder, script, *overrides, run=None):
    """One session of `robot-rl collect`; returns what it printed and the run directory."""
    config = compose(
        [
            "task=reach",
            "control_rate_hz=50.0",
            "recording.countdown_s=0.0",
            "recording.undo_s=0.0",
            f"runs_directory={folder}",
            *overrides,
        ]
    )
    OmegaConf.set_struct(config, False)
    config.teleop.device = {
        "_target_": "scripted_device.ScriptedDevice",
        "script": script,
        "events": EVENTS,
    }
    config.choices.teleop = "scripted"
    config.run = run
    printed = io.StringIO()
    with redirect_stdout(printed):
        collect(config)
    return printed.getvalue(), (folder / "latest").resolve()


@pytest.fixture
def disk_full_twice(monkeypatch):
    """A disk that is full in the middle of the first two appends."""
    resize, full = zarr.Array.resize, [True, True]

    def resize_until_full(array, shape):
        if full and array.path == "data/reward":
            full.pop()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        resize(array, shape)

    monkeypatch.setattr(zarr.Array, "resize", resize_until_full)
    monkeypatch.setattr("robot_rl.learning.stages.collect._SPACE_SECONDS", 0.1)


def test_keys_begin_label_undo_and_discard_episodes(tmp_path):
    undone = [*EPISODE, "u"]
    failed = [*BEGIN, FRONT, "backspace"]
    discarded = [*BEGIN, FRONT, FRONT, "delete"]
    script = [*undone, *EPISODE, *failed, *discarded, *EPISODE]
    printed, run = session(tmp_path, script, "demonstrations=2", "recording.keep_failures=true")
    demonstrations = EpisodeDataset(run / "demonstrations.zarr")
    assert demonstrations.successes.tolist() == [True, True]
    assert EpisodeDataset(run / "failures.zarr").successes.tolist() == [False]
    for words in ("success after", "failure after", "discard after", "undone"):
        assert words in printed
    columns = demonstrations.episode(0)
    np.testing.assert_array_equal(columns["action"][:2], [FRONT, FRONT])
    np.testing.assert_array_equal(columns["policy_action"], columns["action"])
    assert not columns["intervened"].any()
    assert set(columns["source"]) == {SOURCE_DEMONSTRATION}
    assert columns["terminated"].tolist() == [False, False, True, False]


def test_an_interrupted_session_goes_on_with_other_episodes(tmp_path, monkeypatch):
    from robot_rl.learning.stages.collect import TeleoperatedSession

    waited = TeleoperatedSession.wait_for_start

    def interrupted(self, number):
        if number == 2:
            raise KeyboardInterrupt
        waited(self, number)

    with monkeypatch.context() as patch:
        patch.setattr(TeleoperatedSession, "wait_for_start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session(tmp_path, EPISODE, "demonstrations=2")
    run = (tmp_path / "latest").resolve()
    assert len(EpisodeDataset(run / "demonstrations.zarr")) == 1
    session(tmp_path, EPISODE, "demonstrations=2", run=str(run))
    seeds = EpisodeDataset(run / "demonstrations.zarr").seeds
    assert len(set(seeds.tolist())) == 2


@pytest.mark.usefixtures("default_signals")
def test_ctrl_c_while_an_episode_is_written_leaves_it_whole_and_once(tmp_path, monkeypatch):
    resize = zarr.Array.resize

    def resize_interrupted(array, shape):
        if array.path == "data/reward":
            signal.raise_signal(signal.SIGINT)
        resize(array, shape)

    with monkeypatch.context() as patch:
        patch.setattr(zarr.Array, "resize", resize_interrupted)
        with pytest.raises(KeyboardInterrupt):
            session(tmp_path, [*EPISODE, *EPISODE], "demonstrations=2")
    run = (tmp_path / "latest").resolve()
    assert len(EpisodeDataset(run / "demonstrations.zarr")) == 1
    session(tmp_path, EPISODE, "demonstrations=2", run=str(run))
    seeds = EpisodeDataset(run / "demonstrations.zarr").seeds
    assert len(set(seeds.tolist())) == len(seeds) == 2


def test_a_stop_and_a_lost_device_cut_the_episode_and_it_goes_on_afterwards(tmp_path):
    stopped = [*BEGIN, FRONT, "esc", [0.0] * 6, "n", "c"]
    lost = [*BEGIN, FRONT, "gone", [0.0] * 6]
    printed, run = session(tmp_path, [*stopped, *lost, *EPISODE], "demonstrations=1")
    assert len(EpisodeDataset(run / "demonstrations.zarr")) == 1
    assert "stop after" in printed
    assert "device is gone" in printed


def test_a_lost_device_is_no_failure_that_somebody_has_seen(tmp_path):
    lost = [*BEGIN, FRONT, "gone", [0.0] * 6]
    printed, run = session(
        tmp_path, [*lost, *EPISODE], "demonstrations=1", "recording.keep_failures=true"
    )
    assert "device is gone" in printed
    assert len(EpisodeDataset(run / "demonstrations.zarr")) == 1
    assert len(EpisodeDataset(run / "failures.zarr")) == 0


def test_the_last_one_can_be_undone_for_a_moment(tmp_path):
    script = [*EPISODE, "u", *EPISODE]
    printed, run = session(tmp_path, script, "demonstrations=1", "recording.undo_s=1.0")
    assert "kept in 1 s" in printed
    assert "undone" in printed
    assert len(EpisodeDataset(run / "demonstrations.zarr")) == 1


def test_a_demonstration_that_meets_a_full_disk_is_kept_until_there_is_space(
    tmp_path, disk_full_twice
):
    started_in_vain = ["n", "n"]
    printed, run = session(tmp_path, [*EPISODE, *started_in_vain, *EPISODE], "demonstrations=2")
    assert printed.count("the last episode waits for space: ") == 2
    assert len(set(EpisodeDataset(run / "demonstrations.zarr").seeds.tolist())) == 2


def test_the_last_demonstration_waits_for_space_before_the_session_ends(tmp_path, disk_full_twice):
    printed, run = session(tmp_path, EPISODE, "demonstrations=1")
    assert "the last episode waits for space: " in printed
    assert len(EpisodeDataset(run / "demonstrations.zarr")) == 1


def test_a_demonstration_that_waits_for_space_can_be_undone(tmp_path, disk_full_twice):
    script = [*EPISODE, "n", "u", *EPISODE, "n", *EPISODE]
    printed, run = session(tmp_path, script, "demonstrations=2")
    assert printed.index("waits for space") < printed.index("undone: the last episode")
    assert len(EpisodeDataset(run / "demonstrations.zarr")) == 2
