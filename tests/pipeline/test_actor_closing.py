"""However the actor ends, the robot holds still and is released."""

from __future__ import annotations

import io
import threading
from contextlib import closing, redirect_stdout
from types import SimpleNamespace

import pytest
from tiny_runs import TINY, RunServer, publish_cloned

from robot_rl.actor import act
from robot_rl.config import compose
from robot_rl.env.sim.robot import SimRobot
from robot_rl.learning.weights import SteppedWeights
from robot_rl.processes import waiting
from robot_rl.processes.signals import StopEvent, Stopped
from robot_rl.run import RunDirectory


class LinkFailed(Exception):
    """What a weight source says whose link has failed."""


class Printed(io.StringIO):
    """What an actor prints, which is stopped soon after it has said these words."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self.stop, self._words = StopEvent(), words

    def write(self, text: str) -> int:
        if self._words in text:
            threading.Timer(0.5, self.stop.set).start()
        return super().write(text)


@pytest.fixture
def released(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the robot was told at its end."""
    told: list[str] = []
    for name in ("hold", "close"):
        monkeypatch.setattr(SimRobot, name, lambda robot, name=name: told.append(name))
    return told


def said_until_stopped(server: RunServer, words: str) -> str:
    """Let an actor act until soon after it has said these words; returns all that it said."""
    run = RunDirectory.open(str(server.run), str(server.run.parent))
    printed = Printed(words)
    with redirect_stdout(printed), pytest.raises(Stopped):
        list(act(compose([*TINY]), run, printed.stop))
    return printed.getvalue()


def test_an_actor_that_waits_for_the_first_weights_says_so_and_ends_when_asked_to(
    server: RunServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "QUIET_SECONDS", 0.1)
    said = said_until_stopped(server, "first weights")
    assert said.count("actor: waiting for the learner's first weights") == 1


def test_an_actor_whose_learner_is_frozen_says_once_whom_it_waits_for(
    server: RunServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "QUIET_SECONDS", 0.1)
    publish_cloned(server.run, 1)  # and nobody publishes anything later
    said = said_until_stopped(server, "weights after")
    assert said.count("actor: waiting for the learner's weights after step 1: ") == 1
    assert "look at its process (robot-rl learner)" in said


def test_a_wait_is_told_where_it_lasts_unusually_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now, told = 0.0, []
    monkeypatch.setattr(waiting, "time", SimpleNamespace(monotonic=lambda: now))
    wait = waiting.QuietWait(told.append)
    for seconds in (50, 300, 500, 800, 2500):  # such as a slow learner's blocks, and a frozen one
        for _ in range(seconds + 1):
            wait.goes_on(f"{seconds} s")
            now += 1.0
        wait.ends()
    assert told == ["waiting for 300 s", "waiting for 2500 s"]


def test_a_weight_source_that_cannot_be_closed_leaves_the_robot_held(
    server: RunServer, released: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(source: SteppedWeights) -> None:
        raise LinkFailed

    publish_cloned(server.run)
    monkeypatch.setattr(SteppedWeights, "close", fail)
    run = RunDirectory.open(str(server.run), str(server.run.parent))
    episodes = act(compose([*TINY, "environment_steps=1"]), run, StopEvent())
    with closing(episodes), pytest.raises(LinkFailed):
        list(episodes)
    assert released[-2:] == ["hold", "close"]


def test_a_policy_of_another_task_leaves_the_robot_held(
    server: RunServer, released: list[str]
) -> None:
    publish_cloned(server.run)
    run = RunDirectory.open(str(server.run), str(server.run.parent))
    config = compose([*TINY, "task=pick_cube", "environment_steps=1"])
    with pytest.raises(Exception, match="reach"):
        list(act(config, run, StopEvent()))
    assert released == ["hold", "close"]
