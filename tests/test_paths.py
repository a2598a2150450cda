"""A path that a user types may have any name: it is no word of the settings' grammar."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from robot_rl import cli
from robot_rl.commands.runs import load_resolved, save_resolved
from robot_rl.commands.table import COMMANDS
from robot_rl.config import PATHS, ConfigError, compose, given, parse
from robot_rl.errors import in_shell
from robot_rl.processes.resources import find_resource
from robot_rl.run import RunDirectory

NAMES = [
    "My Lab",
    "jürgen",
    "ju\u0308rgen",  # with a combining accent
    "Jürgen's lab (2), x=y",
    'say "hi"',
    "it's",
    "x=y",
    "a,b",
    "(2)",
    "[red]",
    "{a: b}",
    "$HOME",
    "#1",
    "100 %",
    "~me",
    "-dash",
    "--dash",
    "null",
    "5",
    "true",
    ":smile: 🤖",
    "研究室",
    "back\\slash",
    "ends with \\",
    "two\nlines",
    "a;b & c | d > e < f * ? !",
    "`id`",
    os.fsdecode(b"latin-1 \xe4"),  # no UTF-8
    "x" * 250,
]


# Keys whose paths need not be there, so that a configuration takes many names at once.
FREE = ("classifier.test", "console.certificate", "console.model", "console.token_file")
FREE += ("dataset", "replay.keys", "runs_directory")


def named(place: Path, name: str) -> Path:
    """A folder of such a name."""
    (place / name).mkdir()
    return place / name


def test_path_is_taken_as_it_stands_and_kept_by_a_run(tmp_path: Path):
    folders = [named(tmp_path, name) for name in NAMES]
    for folder in folders:
        for path in (str(folder), folder.name):
            words = in_shell("robot-rl", "train", f"resume={path}")
            assert shlex.split(words)[2:] == [f"resume={path}"]
            for key in PATHS if path != "null" else ():
                assert parse(f"{key}={path}").value() == path
    for first in range(0, len(folders), len(FREE)):
        given = dict(zip(FREE, map(str, folders[first:]), strict=False))
        config = compose([f"{key}={path}" for key, path in given.items()])
        save_resolved(config, folders[first])
        for found in (config, load_resolved(folders[first])):
            assert {key: OmegaConf.select(found, key) for key in given} == given


# One for each way in which a shell, a settings grammar or a path may misread a name.
@pytest.mark.parametrize(
    "name",
    [
        *("Jürgen's lab (2), x=y", 'say "hi"', "-dash", "null", "$HOME", "ends with \\"),
        *("two\nlines", "a;b & c | d > e < f * ? !", os.fsdecode(b"latin-1 \xe4")),
    ],
    ids=ascii,
)
def test_printed_command_is_taken_back_by_a_shell(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
):
    """`inspect` says how to go on with a run; that command, and a process of it, find the run."""
    folder = named(tmp_path, name)
    run = RunDirectory.create("reach", folder)
    save_resolved(compose(["task=reach", f"runs_directory={folder}"]), run.path)
    monkeypatch.chdir(tmp_path)
    path = os.path.relpath(run.path, tmp_path)
    assert cli.main(["inspect", path if path[0] != "-" else f"./{path}"]) == 0
    # Also in a line of its own; the name may hold the end of one.
    printed = os.fsdecode(capfdbinary.readouterr().out).partition("to go on: ")[2]
    program, command, *words = shlex.split(printed)
    assert (program, command) == ("robot-rl", "train")
    assert cli.command_config(COMMANDS["train"], words).resume == str(run.path)
    place = [f"run={run.path}", f"runs_directory={folder}"]  # as `train` starts its processes
    config = cli.command_config(COMMANDS["actor"], place)
    assert (config.run, config.runs_directory) == (str(run.path), str(folder))


def test_shell_gives_the_words_back(tmp_path: Path):
    """A real one: what it makes of printed words is what was meant."""
    words = [f"dataset={name}" for name in NAMES]
    code = "import json, sys; print(json.dumps(sys.argv[1:]))"
    line = in_shell(sys.executable, "-c", code, *words)
    done = subprocess.run(["sh", "-c", line], capture_output=True, check=True)
    assert json.loads(done.stdout) == words


@pytest.mark.parametrize("path", ["a${b}", "???"])
def test_path_that_no_configuration_file_can_keep_is_refused(path: str):
    with pytest.raises(ConfigError, match="a path must not hold"):
        parse(f"dataset={path}")


def test_texts_of_a_run_are_not_read_again_as_settings():
    for text in ('schön (2), "x=y"', "a\\b", "[1]"):
        assert given("task.environment.instruction", text).value() == text


@pytest.mark.parametrize("name", ["Jürgen's lab (2), x=y", '$[a] {b, "c"} #100 %\\', "~me"])
def test_cell_and_its_folder_may_have_any_name(tmp_path: Path, name: str):
    folder = tmp_path / name
    (folder / "configs" / "task").mkdir(parents=True)
    (folder / "cell.yaml").write_text("choices: {robot: sim}\nseed: 3\n", encoding="utf-8")
    shutil.copy(find_resource("configs/task/reach.yaml"), folder / "configs/task/own.yaml")
    before = os.environ["ROBOT_RL_PATH"]
    try:
        config = compose([f"cell={folder}", "task=own"])
    finally:
        os.environ["ROBOT_RL_PATH"] = before
    assert (config.cell, config.seed) == (str(folder / "cell.yaml"), 3)
    assert (config.choices.task, config.task.name) == ("own", "reach")


def test_word_with_equals_is_a_path_where_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    run = RunDirectory.create("reach", "x=y")
    save_resolved(compose(["task=reach"]), run.path)
    for command in ("inspect", "explain"):
        assert cli.main([command, "x=y/latest"]) == 0
    assert cli.main(["export", "x=y/latest", "-out"]) == cli.EXIT_ERROR
    assert "of a path write ./-out" in capsys.readouterr().err
    assert cli.main(["keys", "b=c"]) == cli.EXIT_ERROR
    assert "of a path write ./b=c" in capsys.readouterr().err


@pytest.mark.parametrize("path", ["/proc/x", "/dev/null/x", "x" * 300], ids=ascii)
def test_path_that_cannot_be_is_no_traceback(
    path: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.chdir(tmp_path)
    for words in (
        ["inspect", path],
        ["export", path, "out"],
        ["keys", path],
        ["cell", path, "arm=ur"],
        ["train", "task=reach", f"resume={path}"],
        ["train", "task=reach", f"cell={path}"],
        ["train", "task=reach", f"dataset={path}"],
        ["evaluate", path],
    ):
        assert cli.main(words) == cli.EXIT_ERROR, words
    assert path in capsys.readouterr().err
