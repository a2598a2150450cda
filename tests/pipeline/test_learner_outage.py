"""The learner while the replay server is away: it waits with its weights, and loses no update."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from omegaconf import DictConfig
from tiny_runs import TINY, WAIT_SECONDS, ServerProcess, act_for, lines

from robot_rl.config import compose
from robot_rl.learner import Learner
from robot_rl.learning.workbench import Workbench
from robot_rl.processes import waiting
from robot_rl.processes.progress import WorkProgress
from robot_rl.processes.signals import StopEvent, Stopped
from robot_rl.processes.waiting import wait_until
from robot_rl.replay import client
from robot_rl.replay.client import ReplayClient
from robot_rl.run import LAST, STATE_FILE, RunDirectory

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
    monkeypatch.setattr(client, "LARGE_SECONDS", 0.5)
    stop, ends = StopEvent(), []

    def wait_for_note() -> None:
        capsys.readouterr()
        note = "learner: waiting with new weights"
        assert wait_until(lambda: note in capsys.readouterr().out or bool(ends), WAIT_SECONDS)

    with ReplayClient(run.store, request_seconds=0.5) as sender:
        bench = Workbench(configured(), run, stop, records="learner", client=sender)
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
    with Workbench(configured(), run, stop, records="learner") as bench:
        Learner(bench).learn(WorkProgress(STEPS))
    (line,) = told
    assert line.startswith("learner: waiting for the steps of an actor, 0 of ")
    assert "look at its process (robot-rl actor)" in line
