"""How a command ends when a person asks it to, or its terminal is closed."""

from __future__ import annotations

import math
import os
import pty
import signal
import subprocess
import sys

import pytest

from robot_rl import cli
from robot_rl.commands.table import COMMANDS
from robot_rl.plugins import Command
from robot_rl.processes import signals

pytestmark = pytest.mark.usefixtures("default_signals")


@pytest.fixture
def command(monkeypatch):
    """Makes a function a command of its own, `robot-rl work`."""

    def make(work):
        monkeypatch.setattr(sys.modules[__name__], "work", work, raising=False)
        target = Command(f"{__name__}:work", "works", "")
        monkeypatch.setitem(COMMANDS, "work", target)

    return make


def hang_up():
    os.kill(os.getpid(), signal.SIGHUP)


@pytest.mark.parametrize(("together", "saved"), [(math.inf, ["saved"]), (0.0, [])])
def test_of_signals_that_come_together_the_first_counts(
    command, monkeypatch, capsys, together, saved
):
    monkeypatch.setattr(signals, "_TOGETHER_SECONDS", together)
    done = []

    def work():
        try:
            hang_up()
        finally:
            hang_up()  # in the middle of the clean end
            done.append("saved")

    command(work)
    assert cli.main(["work"]) == 130
    assert done == saved
    assert capsys.readouterr().err == "robot-rl: stopped\n"


def test_what_nohup_has_begun_outlives_its_terminal(command):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    done = []

    def work():
        hang_up()
        done.append("worked")

    command(work)
    assert cli.main(["work"]) == 0
    assert done == ["worked"]
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_what_a_script_runs_aside_hears_ctrl_c(command):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    command(lambda: os.kill(os.getpid(), signal.SIGINT))
    assert cli.main(["work"]) == 130


def test_what_a_library_makes_of_an_interruption_is_one_line(command, capsys):
    def work():
        try:
            hang_up()
        except KeyboardInterrupt as error:
            raise ImportError("cannot load it") from error

    command(work)
    assert cli.main(["work"]) == 130
    said = "robot-rl: the interrupted work ended with ImportError('cannot load it')"
    assert capsys.readouterr().err == f"{said}\nrobot-rl: stopped\n"


def test_the_same_error_without_a_signal_is_shown_whole(command):
    def work():
        raise ImportError("cannot load it")

    command(work)
    with pytest.raises(ImportError):
        cli.main(["work"])


SHOWING = """
import signal, sys, time
from robot_rl import cli
from robot_rl.processes.progress_display import WorkProgress
from robot_rl.commands.table import COMMANDS
from robot_rl.plugins import Command

def work():
    with WorkProgress(10, "episodes") as progress:
        progress.phase("working")
        while True:
            time.sleep(0.1)

sys.modules["showing"] = sys.modules["__main__"]
COMMANDS["work"] = Command("showing:work", "", "")
code = cli.main(["work"])
open(sys.argv[1], "w").write(str(code))
"""


def test_a_closed_terminal_is_no_error(tmp_path):
    ours, theirs = pty.openpty()
    code = tmp_path / "code"
    with subprocess.Popen(
        [sys.executable, "-c", SHOWING, str(code)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    ) as process:
        os.close(theirs)
        shown = b""
        try:
            while b"working" not in shown:
                shown += os.read(ours, 65536)
            process.send_signal(signal.SIGHUP)
            os.close(ours)
            process.wait(60.0)
        finally:
            process.kill()
    assert code.read_text() == "130"


ENDING = """
import os, sys
from robot_rl import cli

class Circle:
    def __init__(self):
        self.me = self

    def __del__(self):
        os.write(1, b"looked through all objects")

kept = Circle()
sys.exit(cli.main(["--version"]))
"""


def test_a_command_that_is_done_looks_for_no_garbage():
    """A learner would take half a minute for it on a busy machine, after Ctrl-C too."""
    done = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("robot-rl ")
    assert "looked" not in done.stdout


LEAVING = """
import atexit, sys, time
from robot_rl import cli
from robot_rl.commands.table import COMMANDS
from robot_rl.plugins import Command

def leave():
    print("leaving", flush=True)
    time.sleep(60)

def work():
    atexit.register(leave)

sys.modules["leaving"] = sys.modules["__main__"]
COMMANDS["work"] = Command("leaving:work", "", "")
sys.argv = ["robot-rl", "work"]
cli.command()
"""


def test_who_presses_ctrl_c_again_at_the_very_end_sees_no_traceback():
    words = [sys.executable, "-c", LEAVING]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == b"leaving\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(60.0) == -signal.SIGINT
            assert process.stderr.read() == b""
        finally:
            process.kill()
