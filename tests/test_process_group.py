"""Children of a run that do not end when they are asked to."""

import shutil

import psutil
import pytest

from robot_rl.bench import _training
from robot_rl.bench._training import training
from robot_rl.config import compose
from robot_rl.stages import processes
from robot_rl.stages.processes import ProcessDied, ProcessGroup

DEAF = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("asleep", flush=True)
time.sleep(600)
"""

TALKING = """
import time
print("waiting for ", end="", flush=True)
time.sleep(0.5)
print("the robot", flush=True)
print("going on", flush=True)
print("unfinished", end="", flush=True)
"""

SLOW = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda number, frame: (time.sleep(1), sys.exit()))
print("awake", flush=True)
time.sleep(600)
"""


def test_of_a_child_that_takes_long_to_end_the_user_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "_QUIET_SECONDS", 0.1)
    (tmp_path / "slow.py").write_text(SLOW)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    notes = []
    with ProcessGroup(tmp_path, note=notes.append) as group:
        group.start("learner", [], module="slow")
        while "awake" not in (tmp_path / "learner.log").read_text():
            group.require("learner")
    (note,) = notes
    assert note.startswith("waiting for 'learner' to save and end; in ")


def test_what_a_child_prints_is_told_line_by_line_and_once(tmp_path, monkeypatch):
    (tmp_path / "talking.py").write_text(TALKING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "actor.log").write_text("of an earlier start\n")
    told = []
    with ProcessGroup(tmp_path) as group:
        group.start("actor", [], module="talking")
        while group.running("actor"):
            told.append(group.printed("actor"))
        told.append(group.printed("actor"))
    assert [line for lines in told for line in lines] == ["waiting for the robot", "going on"]


def test_the_run_directory_may_vanish_meanwhile(tmp_path, monkeypatch):
    (tmp_path / "deaf.py").write_text(DEAF)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    logs = tmp_path / "logs"

    def leave():
        with ProcessGroup(logs, end_seconds=0.1) as group:
            group.start("learner", [], module="deaf")
            while "asleep" not in (logs / "learner.log").read_text():
                group.require("learner")
            shutil.rmtree(logs)

    with pytest.raises(ProcessDied, match=r"was killed; got: its log cannot be read: .*No such"):
        leave()


def test_a_child_that_does_not_end_is_killed_and_quoted(tmp_path, monkeypatch):
    (tmp_path / "deaf.py").write_text(DEAF)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    others = psutil.Process().children()  # what earlier tests use, as Python's resource tracker
    children = []

    def leave():
        with ProcessGroup(tmp_path, end_seconds=0.5) as group:
            for name in ("first", "second", "third"):
                group.start(name, [], module="deaf")
                while "asleep" not in (tmp_path / f"{name}.log").read_text():
                    group.require(name)
            children.extend(set(psutil.Process().children()) - set(others))

    quoted = "'second' did not end within 0.5 s and was killed; got: asleep; next: see .*second.log"
    with pytest.raises(ProcessDied, match=quoted):
        leave()
    assert len(children) == 3
    assert not any(child.is_running() for child in children)


def test_a_bench_whose_training_does_not_end_shows_its_logs(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(_training, "_END_SECONDS", 0.0)

    def measure():
        with training(compose(["task=reach"]), str(tmp_path), []) as check:
            while "run directory" not in (tmp_path / "bench/train.log").read_text():
                check()

    with pytest.raises(ProcessDied, match="'train' did not end"):
        measure()
    assert "bench/train.log ends with:\n  train: task=reach robot=sim" in capfd.readouterr().err
