"""Killed recordings and full disks: finished episodes stay, and recording goes on."""

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from recorder import append_known, expected_episode, make_rows, make_schema

from robot_rl.data.episodes import EpisodeDataset, EpisodeWriter, StorageFull

pytestmark = pytest.mark.faults

# As many kills as fit in the time, between these limits: a busy machine makes fewer.
KILL_SECONDS, FEWEST_KILLS, MOST_KILLS = 8.0, 8, 60


def check_content(dataset, first=0):
    for index in range(first, len(dataset)):
        episode = dataset.episode(index)
        for name, column in expected_episode(index).items():
            np.testing.assert_array_equal(episode[name], column, err_msg=f"{index} {name}")
    count = len(dataset)
    assert dataset.seeds.tolist() == [100 + i for i in range(count)]
    assert dataset.instructions == [f"épisode {i}" for i in range(count)]


@contextlib.contextmanager
def recorders():
    """A program that starts one recorder for each path written to it."""
    script = Path(__file__).with_name("recorder.py")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as program:
        try:
            yield program
        finally:
            program.stdin.close()


def start(program, path):
    """Start a recorder; return the process."""
    program.stdin.write(f"{path}\n")
    program.stdin.flush()
    word, process = program.stdout.readline().split()
    assert word == "recorder"
    return int(process)


def seconds_of_three_episodes(program, path):
    """How long a recorder takes to start and to commit three episodes here and now."""
    before = time.monotonic()
    process = start(program, path)
    for _ in range(3):
        program.stdout.readline()
    seconds = time.monotonic() - before
    stop(program, process)
    return seconds


def stop(program, process):
    """Kill a recorder; return how many episodes it had reported, as far as not yet read."""
    os.kill(process, signal.SIGKILL)
    reported = 0
    while (line := program.stdout.readline().split()) != ["ended"]:
        reported = int(line[1])
    return reported


def test_a_kill_at_any_instant_loses_at_most_the_unfinished_episode(tmp_path):
    path = tmp_path / "demonstrations.zarr"
    random = np.random.default_rng(0)
    committed = kills = 0
    with recorders() as program:
        longest = seconds_of_three_episodes(program, tmp_path / "measured.zarr")
        deadline = time.monotonic() + KILL_SECONDS
        while kills < FEWEST_KILLS or (kills < MOST_KILLS and time.monotonic() < deadline):
            kills += 1
            process = start(program, path)
            time.sleep(random.uniform(0.0, longest))
            reported = stop(program, process)
            if not path.exists():
                assert reported == 0  # killed before the dataset was there
                continue
            dataset = EpisodeDataset(path)
            assert len(dataset) >= max(committed, reported)
            assert len(dataset) <= max(committed, reported) + 1
            check_content(dataset, first=max(0, committed - 1))
            committed = len(dataset)
    assert committed > kills // 4
    check_content(EpisodeDataset(path))
    with EpisodeWriter(path, make_schema()) as writer:
        append_known(writer)
    assert not list(path.rglob("*.partial"))


def test_readers_see_only_whole_episodes_while_one_is_written(tmp_path):
    path = tmp_path / "demonstrations.zarr"
    with EpisodeWriter(path, make_schema()) as writer:
        append_known(writer)
    dataset = EpisodeDataset(path)
    counts = []
    with recorders() as program:
        process = start(program, path)
        while len(dataset) < 10:
            seen = len(dataset)
            dataset = EpisodeDataset(path)
            counts.append(len(dataset))
            check_content(dataset, first=seen - 1)
        stop(program, process)
    assert counts == sorted(counts)


def test_an_episode_that_meets_a_full_disk_can_be_appended_again(tmp_path):
    """The largest file size stands for the disk: the kernel refuses the write in the middle."""
    path = tmp_path / "demonstrations.zarr"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    rows = make_rows(0, length=400)
    with EpisodeWriter(path, make_schema()) as writer:
        append_known(writer)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (6000, hard))
            with pytest.raises(StorageFull, match=r"no space left.*next: free some space"):
                writer.append(rows, seed=1, success=True, source=0)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        check_content(EpisodeDataset(path))
        assert len(EpisodeDataset(path)) == 1
        append_known(writer)
    check_content(EpisodeDataset(path))
    assert len(EpisodeDataset(path)) == 2


def test_a_full_file_system_loses_nothing_that_was_committed(small_disk):
    disk = small_disk("1500k")
    path = disk / "demonstrations.zarr"
    with EpisodeWriter(path, make_schema()) as writer:
        append_known(writer)
        append_known(writer)
        fill(disk / "ballast")
        with pytest.raises(StorageFull, match="nothing that was recorded is lost"):
            append_known(writer)
        dataset = EpisodeDataset(path)
        assert len(dataset) == 2
        check_content(dataset)
        with pytest.raises(StorageFull):
            EpisodeWriter(disk / "second.zarr", make_schema())
        (disk / "ballast").unlink()
        append_known(writer)
    check_content(EpisodeDataset(path))
    assert len(EpisodeDataset(path)) == 3


def fill(ballast):
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
