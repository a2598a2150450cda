"""A learner that has a copy of the run but not the store: it learns the same, bit for bit."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tiny_runs import WAIT_SECONDS, lines, without

from robot_rl.wire.endpoint import wait_for_endpoint
from robot_rl.wire.keys import add_client, create_keys

pytestmark = pytest.mark.slow

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts `robot-rl WORDS`; all are ended afterwards."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "robot_rl.cli", *words]
        started.append(subprocess.Popen(command, cwd=tmp_path))
        return started[-1]

    yield start
    for process in started:
        process.terminate()
        process.wait(30)


def learn(start: Start, run: Path, learning: Path, server: list[str], client: list[str]) -> None:
    serving = start("replay", f"run={run}", *server)
    address = wait_for_endpoint(run / "store", 60).address
    connect = [f"replay.connect={address}"] if learning != run else []
    learner = start("learner", f"run={learning}", *connect, *client)
    actor = start("actor", f"run={run}", *server)
    assert actor.wait(WAIT_SECONDS) == 0
    assert learner.wait(WAIT_SECONDS) == 0
    serving.terminate()
    assert serving.wait(30) == 0


def test_a_learner_elsewhere_learns_the_same(cloned: Path, tmp_path: Path, start: Start) -> None:
    original = (cloned / "runs/latest").resolve()
    here, there, elsewhere = (tmp_path / name for name in ("here", "there", "elsewhere"))
    for copy in (here, there, elsewhere):
        shutil.copytree(original, copy, symlinks=True)
    learn(start, here, here, [], [])

    create_keys(tmp_path / "keys")
    own = add_client(tmp_path / "keys", "learner")
    server = ["replay=network", "replay.address='tcp://127.0.0.1:0'"]
    server.append(f"replay.keys={tmp_path / 'keys'}")
    learn(start, there, elsewhere, server, [f"replay.keys={own}"])

    assert not (elsewhere / "store").exists()
    curves = [
        without(lines(run / "learner.jsonl"), "updates_per_second") for run in (here, elsewhere)
    ]
    assert curves[0] == curves[1]
    assert curves[0][-1]["environment_steps"] == 400
    episodes = [lines(run / "episodes.jsonl") for run in (here, there)]
    timing = ("median_decision_ms", "max_decision_ms")
    assert without(episodes[0], *timing) == without(episodes[1], *timing)
