"""The learner while the replay server is away: it waits with its weights, and loses no update."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path

import pytest
import torch
from omegaconf import DictConfig
from tiny_runs import TINY, WAIT_SECONDS, ServerProcess, act_for, lines
from torch import Tensor

from robot_rl.config import Settings, compose
from robot_rl.learner import Learner
from robot_rl.learning.workbench import Workbench
from robot_rl.processes import waiting
from robot_rl.processes.progress_display import WorkProgress
from robot_rl.processes.signals import StopEvent, Stopped
from robot_rl.processes.waiting import wait_until
from robot_rl.replay.client import ReplayClient
from robot_rl.run import LAST, STATE_FILE, RunDirectory, RunError
from robot_rl.wire import KeysRefused
from robot_rl.wire.endpoint import wait_for_endpoint
from robot_rl.wire.keys import create_keys

pytestmark = pytest.mark.faults

STEPS = 100


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    monkeypatch.chdir(folder)
    return RunDirectory.open("latest", "runs")


def configured(*words: str) -> DictConfig:
    return compose([*TINY, "clock=realtime", "evaluation.every_steps=400", *words])


class KillingProgress(WorkProgress):
    """Kills the server when a block has been trained, before its weights are published."""

    def __init__(self, server: ServerProcess, at_steps: tuple[int, ...]) -> None:
        super().__init__(STEPS)
        self._server, self._at_steps = server, at_steps

    def update(self, done: int, *block: object) -> None:
        super().update(done, *block)
        if done in self._at_steps:
            self._server.kill()


def test_a_learner_outlasts_an_outage_and_is_saved_when_it_is_stopped_in_one(
    run: RunDirectory,
    server_process: ServerProcess,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    act_for(STEPS, run)
    stop, ends = StopEvent(), []

    def wait_for_note() -> None:
        capsys.readouterr()
        note = "learner: waiting with new weights"
        assert wait_until(lambda: note in capsys.readouterr().out or bool(ends), WAIT_SECONDS)

    with ReplayClient(run.store, request_seconds=0.5, large_seconds=0.5) as sender:
        bench = Workbench(Settings.of(configured()), run, stop)
        bench.client = sender
        learner = Learner(bench)

        def learn() -> None:
            try:
                learner.learn(KillingProgress(server_process, (50, 100)))
            except Exception as end:
                ends.append(end)

        learning = threading.Thread(target=learn)
        learning.start()
        wait_for_note()
        server_process.start()
        assert wait_until(
            lambda: len(lines(run.path / "learner.jsonl")) == 4 or bool(ends), WAIT_SECONDS
        )
        wait_for_note()
        stop.set()
        learning.join()
        bench.__exit__()
    assert [type(end) for end in ends] == [Stopped]
    state = json.loads((run.complete_folder(LAST) / STATE_FILE).read_text())
    assert state["environment_steps"] == STEPS


def test_a_learner_elsewhere_outlasts_an_outage_and_learns_what_one_beside_the_store_does(
    run: RunDirectory, server_process: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    act_for(STEPS, run)
    said: list[str] = []

    def say(bench: Workbench, text: str) -> None:
        said.append(text)
        if "learner: waiting" in text and server_process.process.poll() is not None:
            server_process.start()

    monkeypatch.setattr(Workbench, "say", say)

    class Killing(WorkProgress):
        def update(self, done: int, *block: object) -> None:
            super().update(done, *block)
            if done == 50:
                server_process.kill()

    def learned(bench: Workbench, progress: WorkProgress) -> dict[str, Tensor]:
        learner = Learner(bench)
        learner.learn(progress)
        bench.__exit__()
        tensors, _ = bench.training_state(LAST)
        return tensors

    elsewhere = run.path.with_name("elsewhere")
    shutil.copytree(run.path, elsewhere, symlinks=True, ignore=shutil.ignore_patterns("store"))
    words = configured(f"environment_steps={STEPS}")
    beside = learned(Workbench(Settings.of(words), run), WorkProgress(STEPS))
    address = wait_for_endpoint(run.store, WAIT_SECONDS).address
    words = configured(f"environment_steps={STEPS}", f"replay.connect={address}")
    bench = Workbench(Settings.of(words), RunDirectory(elsewhere))
    with ReplayClient(address, request_seconds=0.5, large_seconds=0.5) as client:
        bench.client = client
        away = learned(bench, Killing(STEPS))
    assert any("learner: waiting" in text for text in said)
    assert (elsewhere / "replica" / "rows").is_dir()
    assert all(torch.equal(away[name], tensor) for name, tensor in beside.items())
    file = elsewhere / LAST / STATE_FILE
    file.write_text(json.dumps({**json.loads(file.read_text()), "format": 1}))
    with pytest.raises(RunError, match=r"another version of robot_rl.*got: 1.*begin a new run"):
        bench.training_state(LAST)


def test_a_learner_is_saved_before_a_server_that_refuses_its_keys_ends_it(
    run: RunDirectory, server_process: ServerProcess, tmp_path: Path
) -> None:
    act_for(STEPS, run)
    create_keys(tmp_path / "keys")

    class LockingProgress(WorkProgress):
        def update(self, done: int, *block: object) -> None:
            super().update(done, *block)
            if done == 50:
                server_process.kill()
                server_process.start(f"replay.keys={tmp_path / 'keys'}")

    with Workbench(Settings.of(configured()), run) as bench:
        learner = Learner(bench)
        with pytest.raises(KeysRefused):
            learner.learn(LockingProgress(STEPS))
    state = json.loads((run.complete_folder(LAST) / STATE_FILE).read_text())
    assert state["environment_steps"] == 50


@pytest.mark.usefixtures("server")
def test_a_learner_whose_actor_is_frozen_says_once_whom_it_waits_for(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "QUIET_SECONDS", 0.1)
    stop, told = StopEvent(), []

    def say(bench: Workbench, text: str) -> None:
        told.append(text)
        threading.Timer(1.0, stop.set).start()

    monkeypatch.setattr(Workbench, "say", say)
    with Workbench(Settings.of(configured()), run, stop) as bench:
        Learner(bench).learn(WorkProgress(STEPS))
    (line,) = told
    assert line.startswith("learner: waiting for the steps of an actor, 0 of ")
    assert "look at its process (robot-rl actor)" in line
