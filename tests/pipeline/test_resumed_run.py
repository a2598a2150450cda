"""A resumed run is the run: killed anywhere, it comes to the same weights and rows, bit for bit."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from killable_run import NAMES, KillableRun
from tiny_runs import TINY, WAIT_SECONDS, RunServer, lines, publish_cloned

from robot_rl.actor import act
from robot_rl.config import compose
from robot_rl.processes.signals import StopEvent
from robot_rl.processes.waiting import wait_until
from robot_rl.replay.store_reader import StoreReader
from robot_rl.run import RunDirectory

pytestmark = pytest.mark.faults


@pytest.fixture
def start(cloned: Path, tmp_path: Path) -> Iterator[Callable[[str], KillableRun]]:
    """Start to learn in a copy of the cloned run, of a name."""
    started: list[KillableRun] = []

    def start_copy(name: str) -> KillableRun:
        shutil.copytree(cloned / "runs", tmp_path / name / "runs", symlinks=True)
        started.append(KillableRun(tmp_path / name, environment_steps=200))
        started[-1].start()
        return started[-1]

    yield start_copy
    for run in started:
        run.kill()


def in_an_episode(run: KillableRun, steps: int) -> bool:
    """Whether so many steps are stored, the last of which is within an episode of 30."""
    return run.steps() > steps and run.steps() % 30 > 5


def test_killed_or_stopped_and_resumed_it_learns_the_same_weights(start):
    whole, killed = start("whole"), start("killed")
    for names, softly, steps in (
        (NAMES, False, 80),
        (["actor"], True, 120),
        (["learner"], False, 160),
    ):
        assert wait_until(lambda steps=steps: in_an_episode(killed, steps), WAIT_SECONDS)
        killed.kill(names, softly=softly)
        killed.start()
    for run in (whole, killed):
        run.finish()
    expected, found = whole.result(), killed.result()
    assert [name for name in expected if expected[name] != found.get(name)] == []
    assert found.keys() == expected.keys()
    records = [
        [(e["episode"], e["seed"], e["return"]) for e in lines(run.run / "episodes.jsonl")]
        for run in (whole, killed)
    ]
    assert records[0] == records[1]
    blocks = [
        [n["environment_steps"] for n in lines(r.run / "learner.jsonl")] for r in (whole, killed)
    ]
    assert blocks[0] == blocks[1]  # none noted twice


def test_an_episode_that_goes_otherwise_is_told_and_another_one_begins(
    server: RunServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in an environment that ignores its seed; here it is another seed."""
    run = RunDirectory(server.run)
    publish_cloned(server.run)
    for seed, steps in ((0, 20), (1, 40)):
        for _ in act(
            compose([*TINY, f"environment_steps={steps}", f"seed={seed}"]), run, StopEvent()
        ):
            pass
    said = " ".join(capsys.readouterr().out.split())
    assert "the unfinished episode goes otherwise when it is played again; got: another " in said
    with StoreReader(run.store) as reader:
        episodes = reader.episodes()
    assert [e.environment_steps for e in episodes] == [20, 20]
    assert [e.session for e in episodes] == [0, 1]
