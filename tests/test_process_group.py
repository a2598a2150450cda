"""Children of a run: what they print, how they end, and how they are waited for."""

import shutil

import psutil
import pytest

from robot_rl.processes import group as group_module
from robot_rl.processes.group import ProcessDied, ProcessGroup
from robot_rl.processes.waiting import wait_until

DEAF = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("asleep", flush=True)
time.sleep(600)
"""

TALKING = """
import time
print("learner: task=reach seed=0", flush=True)
print("learner: waiting for ", end="", flush=True)
time.sleep(0.5)
print("the steps of an actor", flush=True)
print("online learning | environment steps 50 of 100", flush=True)
print("learner: going on", flush=True)
print("learner: unfinished", end="", flush=True)
"""

PARTING = """
import signal, sys, time
def end(number, frame):
    print("actor: 12 rows wait for the next start", flush=True)
    sys.exit()
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
time.sleep(600)
"""

SLOW = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda number, frame: (time.sleep(1), sys.exit()))
print("awake", flush=True)
time.sleep(600)
"""


def test_the_user_hears_of_a_child_that_takes_long_to_end(tmp_path, monkeypatch):
    monkeypatch.setattr(group_module, "_QUIET_SECONDS", 0.1)
    (tmp_path / "slow.py").write_text(SLOW)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    notes = []
    with ProcessGroup(tmp_path, note=notes.append) as group:
        group.start("learner", [], module="slow")
        while "awake" not in (tmp_path / "learner.log").read_text():
            group.require("learner")
    (note,) = notes
    assert note.startswith("waiting for 'learner' to save and end; in ")


def test_ctrl_c_says_what_a_second_one_does(tmp_path, monkeypatch):
    (tmp_path / "slow.py").write_text(SLOW)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    notes = []

    def interrupted():
        with ProcessGroup(tmp_path, note=notes.append) as group:
            group.start("learner", [], module="slow")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert notes == ["ending learner; Ctrl-C again kills them at once"]


@pytest.mark.parametrize("name", ["learner", "learner-2"])
def test_what_a_child_says_to_the_user_is_noted_line_by_line_and_once(tmp_path, monkeypatch, name):
    """Its choices, which it prints first, and its progress are in its log alone."""
    (tmp_path / "talking.py").write_text(TALKING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / f"{name}.log").write_text("learner: of an earlier start\n")
    notes = []
    with ProcessGroup(tmp_path, note=notes.append) as group:
        group.start(name, [], module="talking")
        while group.running(name):
            pass
        assert notes == [f"{name}: waiting for the steps of an actor", f"{name}: going on"]
    assert len(notes) == 2


def test_the_last_words_of_a_child_that_is_asked_to_end_are_noted(tmp_path, monkeypatch):
    """As how many rows wait for the next start, after Ctrl-C."""
    (tmp_path / "parting.py").write_text(PARTING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    notes = []
    with ProcessGroup(tmp_path, note=notes.append) as group:
        group.start("actor", [], module="parting")
        while "ready" not in (tmp_path / "actor.log").read_text():
            group.require("actor")
    assert notes == ["actor: 12 rows wait for the next start"]


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


def test_what_is_waited_for_is_asked_once_even_without_time():
    assert wait_until(lambda: "found", 0.0) == "found"
    asked = []
    assert not wait_until(lambda: asked.append(1), 0.05, every_s=0.01)
    assert len(asked) > 1


def test_what_is_asked_may_end_the_waiting():
    def ask():
        raise ProcessDied("the process 'actor' has ended")

    with pytest.raises(ProcessDied, match="actor"):
        wait_until(ask, 60.0)
