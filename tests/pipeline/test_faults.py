"""Processes that are killed and disks that are full: one clear error, and the run goes on."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from tiny_runs import TINY, WAIT_SECONDS, Train, lines, processes_of

from robot_rl.replay.store_reader import StoreReader

pytestmark = pytest.mark.faults

STEPS = "environment_steps=400"


def _rows(run: Path) -> dict[tuple[int, int], bytes]:
    """Rows of the actor's episodes, as bytes, by session and sequence."""
    reader = StoreReader(run / "store")
    rows = {}
    for episode in reader.episodes():
        if episode.source == "policy":
            for index, row in enumerate(reader.read_episode(episode)):
                rows[episode.session, episode.first_sequence + index] = row.tobytes()
    reader.close()
    return rows


def _finish(train: Train) -> None:
    """Resume and check that no step is missing and none was learned from twice."""
    resumed = Train(train.folder, f"resume={train.run}")
    assert resumed.end() == 0, resumed.text
    _check_whole(train)


def _check_whole(train: Train) -> None:
    blocks = [b["environment_steps"] for b in lines(train.run / "learner.jsonl")]
    last = [b for i, b in enumerate(blocks) if all(b < later for later in blocks[i + 1 :])]
    assert last == list(range(25, 401, 25))
    summary = json.loads((train.run / "summary.json").read_text())
    assert summary["environment_steps"] == 400
    assert summary["gradient_updates"] == 20 + 325
    assert lines(train.run / "episodes.jsonl")[-1]["environment_steps"] == 400
    reader = StoreReader(train.run / "store")
    episodes = [e for e in reader.episodes() if e.source == "policy"]
    reader.close()
    assert sum(e.environment_steps for e in episodes) == 400
    assert episodes[-1].sealed


@pytest.mark.parametrize("name", ["actor", "learner", "replay", "evaluate"])
def test_a_killed_process_is_started_again_and_the_run_goes_on(folder, start_train, name):
    train = start_train(folder, "resume=latest", STEPS)
    train.wait_until(lambda: train.learned() >= 125 and train.child(name) is not None)
    before = _rows(train.run)
    child = train.child(name)
    assert child is not None
    child.kill()
    assert train.end() == 0, train.text
    shown = "evaluator" if name == "evaluate" else name
    words = " ".join(train.text.split())
    assert words.count(f"the process {shown!r} was killed by SIGKILL; it is started again,") == 1
    assert before.items() <= _rows(train.run).items()
    _check_whole(train)


def test_a_run_with_two_actors_goes_on_through_many_kills(folder, start_train):
    """Every process is killed four times; no more often than the parent puts up with."""
    train = start_train(folder, "actors=2", "seed=1", *TINY, "environment_steps=1200")
    train.wait_until(lambda: train.learned() >= 100)
    victims = ["actor=1", "actor=2", "learner", "replay"] * 4
    rng = np.random.default_rng(0)
    for name in rng.permutation(victims).tolist():
        goal = train.learned() + int(rng.integers(1, 40))
        train.wait_until(lambda goal=goal: train.learned() >= goal)
        train.wait_until(lambda name=name: train.child(name) is not None)
        child = train.child(name)
        assert child is not None
        child.kill()
    assert train.end() == 0, train.text
    summary = json.loads((train.run / "summary.json").read_text())
    assert summary["environment_steps"] == 1200
    assert summary["gradient_updates"] == 20 + 1125
    points = [e["environment_steps"] for e in lines(train.run / "evaluations.jsonl")]
    assert sorted(set(points)) == [*range(0, 1200, 100), 1200]
    reader = StoreReader(train.run / "store")
    episodes = [e for e in reader.episodes() if e.source == "policy"]
    reader.close()
    for actor in (1, 2):
        own = [e for e in episodes if e.actor == actor]
        assert own
        for session in {e.session for e in own}:
            rows = sorted((e.first_sequence, e.rows) for e in own if e.session == session)
            ends = [first + count for first, count in rows]
            assert [first for first, _ in rows] == [0, *ends[:-1]]


def test_a_process_that_dies_again_and_again_is_one_clear_error(folder, start_train):
    train = start_train(folder, "resume=latest", STEPS)
    killed: set[int] = set()
    while train.process.poll() is None:
        child = train.child("learner")
        if child is not None and child.pid not in killed:
            killed.add(child.pid)
            child.kill()
        time.sleep(0.02)
    assert train.end() == 2
    assert len(killed) == 6
    errors = [line for line in train.text.splitlines() if line.startswith("robot-rl:")]
    assert len(errors) == 1
    assert "the process 'learner' ended with an error; got: killed by SIGKILL" in errors[0]
    assert f"to go on: robot-rl train resume={train.run}\n" in train.text
    _finish(train)


def test_a_killed_parent_leaves_nobody_behind(folder, start_train):
    train = start_train(folder, "resume=latest", STEPS)
    train.wait_until(lambda: train.learned() >= 100)
    train.process.kill()
    train.end()  # checks that the children are gone
    assert processes_of(train.run) == []
    state = json.loads((train.run / "checkpoints/last/state.json").read_text())
    assert state["environment_steps"] == train.learned()  # the learner saved as it ended
    _finish(train)


def test_resuming_right_after_a_kill_waits_for_the_old_processes(folder, start_train):
    train = start_train(folder, "resume=latest", STEPS)
    train.wait_until(lambda: train.learned() >= 100)
    train.process.kill()
    _finish(train)


def test_an_actor_killed_between_the_last_step_and_its_observation(folder, start_train):
    """The step that ended an episode is not counted until its last observation is there."""
    from robot_rl.commands.runs import load_resolved
    from robot_rl.data.schema import RowSchema
    from robot_rl.replay.client import ReplayClient
    from robot_rl.wire.endpoint import wait_for_endpoint

    run = (folder / "runs/latest").resolve()
    train = start_train(folder, "resume=latest", STEPS)
    train.wait_until(lambda: train.learned() >= 100)
    assert train.interrupt() == 130
    assert load_resolved(run).task.name == "reach"
    words = [sys.executable, "-m", "robot_rl.cli", "replay", f"run={run}"]
    server = subprocess.Popen(words)
    try:
        wait_for_endpoint(run / "store", WAIT_SECONDS)
        reader = StoreReader(run / "store")
        schema: RowSchema = reader.schema
        episode = next(e for e in reader.episodes() if e.sealed and e.source == "policy")
        rows = reader.read_episode(episode)[-2:-1]  # a truncated or terminated row
        reader.close()
        with ReplayClient(run / "store") as client:
            client.open_session(schema, 1)
            client.append({f.name: rows[f.name][0] for f in schema.fields}, {"task": "reach"})
            client.flush()
    finally:
        server.terminate()
        assert server.wait(20) == 0
    _finish(train)


def test_a_full_disk_is_one_clear_error_and_loses_nothing(folder, small_disk, start_train):
    disk = small_disk("24m")
    shutil.copytree(folder / "runs", disk / "runs", symlinks=True)
    runs = f"runs_directory={disk}/runs"
    train = start_train(folder, "resume=latest", STEPS, runs, "replay.spool_bytes=4194304")
    train.wait_until(lambda: train.learned() >= 100)
    filling = disk / "filling"
    with filling.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    assert train.end() == 2
    errors = [line for line in train.text.splitlines() if line.startswith("robot-rl:")]
    assert len(errors) == 1, train.text
    assert "full" in errors[0] or "No space" in errors[0]
    before = _rows(train.run)
    assert before
    filling.unlink()
    _finish(train)
    assert before.items() <= _rows(train.run).items()


def test_a_taken_port_ends_train_with_one_error(folder, start_train):
    import zmq

    context = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    train = start_train(folder, "resume=latest", f"replay.address=tcp://127.0.0.1:{port}", STEPS)
    assert train.end() == 2
    socket.close()
    context.term()
    errors = [line for line in train.text.splitlines() if line.startswith("robot-rl:")]
    assert len(errors) == 1
    assert "Address already in use" in errors[0]
    assert str(port) in errors[0]
    train = start_train(folder, "resume=latest")  # the port is free now
    assert train.end() == 0, train.text


def test_an_actor_refuses_weights_that_are_not_numbers(folder):
    from policies import checkpoint
    from robot_rl.learning.weights import publish
    from robot_rl.replay.client import ReplayClient
    from robot_rl.wire.endpoint import wait_for_endpoint

    run = (folder / "runs/latest").resolve()
    behaviour = checkpoint.load(run / "checkpoints/bc/policy")
    for parameter in behaviour.policy.parameters():
        parameter.data.fill_(np.nan)
    words = [sys.executable, "-m", "robot_rl.cli"]
    server = subprocess.Popen([*words, "replay", f"run={run}"])
    try:
        wait_for_endpoint(run / "store", WAIT_SECONDS)
        with ReplayClient(run / "store") as client:
            publish(client, behaviour, 1000)
        done = subprocess.run(
            [*words, "actor", f"run={run}"], capture_output=True, text=True, timeout=60
        )
    finally:
        server.terminate()
        server.wait(20)
    assert done.returncode == 2
    assert "is not finite" in done.stderr
