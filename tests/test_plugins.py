"""Plug-ins: what a folder of the user's own adds, and how its faults are reported."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


def robot_rl(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "robot_rl.cli", *words]
    environment = os.environ | {"ROBOT_RL_PATH": str(folder)}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=60
    )


def plugin(folder: Path, text: str) -> Path:
    (folder / "plugin.py").write_text(
        f"from robot_rl.plugins import Command, Option, Plugin\n{text}\n"
    )
    return folder


def test_a_folder_adds_a_command(tmp_path: Path) -> None:
    (tmp_path / "wiping.py").write_text("def run(place, *, times):\n    print(place, times)\n")
    plugin(
        tmp_path,
        'PLUGIN = Plugin(commands={"wipe": Command("wiping:run", "Wipe the table.", "",'
        ' arguments=("PLACE",), options=(Option("times", "how often", 2),))})',
    )
    assert "Wipe the table." in robot_rl(tmp_path, "--help").stdout
    assert robot_rl(tmp_path, "wipe", "left", "times=3").stdout == "left 3\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import nowhere_installed", "cannot be imported; got: ModuleNotFoundError"),
        ("PLUGIN = 3", "holds no plug-in; got: PLUGIN = 3"),
        ("", "holds no plug-in; got: PLUGIN = None"),
        (
            'PLUGIN = Plugin(commands={"train": Command("my:train", "", "")})',
            "have 'train' among their commands; got: robot_rl.commands.train:run and my:train",
        ),
    ],
)
def test_a_broken_plugin_is_one_sentence(tmp_path: Path, text: str, message: str) -> None:
    done = robot_rl(plugin(tmp_path, text), "train", "--help")
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_the_example_adds_a_command_a_check_and_a_file(tmp_path: Path, checkout: Path) -> None:
    folder = checkout / "examples/8_plugin"
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text("demonstrations: 3\n")
    (run / "episodes.jsonl").write_text('{"success": true}\n{"success": false}\n')
    assert robot_rl(folder, "attempts", str(run)).stdout == "1 of 2 episodes succeeded\n"
    code = """
import sys
from pathlib import Path
from omegaconf import OmegaConf
from robot_rl.plugins import added, plugins, resolve
from robot_rl.run import RunDirectory
run, config = RunDirectory(Path(sys.argv[1])), OmegaConf.create({"demonstrations": 3})
print(*resolve(plugins()[-1].checks[0])(run, config))
print(resolve(added("after_run")["attempts"])(run, config).read_text())
"""
    environment = os.environ | {"ROBOT_RL_PATH": str(folder)}
    words = [sys.executable, "-c", code, str(run)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[:2] == [
        "3 demonstrations are few: record 10 or more",
        "1 of 2 episodes succeeded",
    ]
