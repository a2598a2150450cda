"""The pages for users must not name what is not there, and their code must run."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from policies.places import PATH_VARIABLE
from policies.policy import ChunkPolicy, Policy
from robot_rl import cli
from robot_rl.commands.table import commands
from robot_rl.config import compose, group_choices
from robot_rl.env.robot import state_fields
from robot_rl.learning.algorithms.base import Algorithm

ROOT = Path(__file__).resolve().parent.parent
_KNOWN = commands()
PAGES = [
    path.relative_to(ROOT).as_posix()
    for path in (
        ROOT / "README.md",
        *(
            page
            for folder in ("docs", "hardware", "examples", "launch")
            for page in sorted(ROOT.glob(f"{folder}/*.md"))
        ),
    )
]
FOLDERS = (
    "robot_rl/",
    "policies",
    "configs",
    "hardware",
    "drivers",
    "launch",
    "docs/",
    "examples",
    "tests/",
)
every_page = pytest.mark.parametrize("page", PAGES)


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def code_of(page: str, language: str) -> str:
    (code,) = re.findall(rf"```{language}\n(.*?)```", text_of(page), re.DOTALL)
    return code


def build_lab(page: str, folder: Path) -> list[str]:
    """Write the folder `lab` that a page builds, file by file; returns it if it has parts in it."""
    parts = text_of(page).split("```")  # in turns prose and code, whose first line is the language
    for prose, code in zip(
        parts[::2], [part.partition("\n")[2] for part in parts[1::2]], strict=False
    ):
        for name in re.findall(r"`lab/([\w/]+\.\w+)`", prose)[-1:]:
            (folder / "lab" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "lab" / name).write_text(code)
    return [str(folder / "lab")] if (folder / "lab/configs").exists() else []


def run(*words: str, folder: Path, **variables: str) -> str:
    done = subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_readme_is_short():
    assert len(text_of("README.md").splitlines()) <= 200


@every_page
def test_every_file_that_is_named_exists(page):
    named = set(re.findall(rf"`((?:{'|'.join(FOLDERS)})[\w./-]*)`", text_of(page)))
    paths = {n for n in named if ("/" in n or n in FOLDERS) and "NAME" not in n}
    paths = {path for path in paths if not path.endswith("-v0")}  # Gymnasium's ids
    missing = {
        path
        for path in paths
        if not (ROOT / path).exists() and not (ROOT / path.replace(".", "/")).exists()
    }
    assert not missing


@every_page
def test_every_link_leads_somewhere(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
        if link.startswith("http"):
            continue
        path, _, heading = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        assert target.exists(), link
        if heading:
            titles = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            assert heading in {
                re.sub(r"[^\w\- ]", "", t.lower()).replace(" ", "-") for t in titles
            }, link


@every_page
def test_every_command_is_one_and_composes(page, tmp_path, monkeypatch):
    """In a folder that holds what the page says to write, and the examples, but no more."""
    build_lab(page, tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    text = text_of(page).replace("\\\n", " ")
    lines = re.findall(r"^ {3,}(?:\.venv/bin/)?robot-rl (.*)$", text, re.MULTILINE)
    lines += [f"train {words}" for words in re.findall(r'make train ARGS="([^"]*=[^"]*)"', text)]
    for line in lines:
        command, *words = shlex.split(line, comments=True)
        words = [word for word in words if word != "--help"]
        added = words.pop(words.index("--config-dir") + 1) if "--config-dir" in words else ""
        words = [word for word in words if word != "--config-dir"]
        monkeypatch.setenv(PATH_VARIABLE, added)
        if _KNOWN[command].takes_overrides:
            paths = [word for word in words if "=" not in word]
            assert len(paths) <= len(_KNOWN[command].positionals), line
            overrides = [
                word for word in words if word not in paths and not word.startswith("resume=")
            ]
            if not any("..." in word for word in overrides):
                compose(_KNOWN[command].expand(overrides))
        else:
            options = {option.name for option in _KNOWN[command].options}
            given = [word for word in words if "=" in word]
            assert {word.partition("=")[0] for word in given} <= options, line


@every_page
def test_choices_that_are_named_exist(page, tmp_path, monkeypatch):
    folders = [*map(str, sorted(ROOT.glob("examples/[1-9]_*"))), *build_lab(page, tmp_path)]
    monkeypatch.setenv(PATH_VARIABLE, os.pathsep.join(folders))
    choices = group_choices()
    groups = "task|algorithm|policy|observation|operator|reset|reward|teleop|robot"
    for group, choice in re.findall(rf"(?<![\w.])({groups})=(\w+)", text_of(page)):
        assert choice in {*choices[group], "NAME", "DEVICE", "X"}, f"{group}={choice}"


def test_the_tables_of_stages_and_benches_are_complete():
    page = text_of("docs/simulation.md")
    rows = re.findall(r"^\| (`[a-zA-Z`, -]+`) \|", page, re.MULTILINE)
    bench_names = [module.stem for module in ROOT.glob("robot_rl/bench/[!_]*.py")]
    assert set(_KNOWN) <= {word for row in rows for word in re.findall(r"[a-z-]+", row)}
    assert all(f"`{name}`" in page for name in bench_names)


def test_the_tables_of_states_and_algorithms_are_complete():
    page = text_of("docs/replay.md")
    states = re.findall(r"^\| `(state/\w+)` \| (\d|joints) \|", page, re.MULTILINE)
    assert states == [
        (field.name, "joints" if "/joint_" in field.name else str(*field.shape))
        for field in state_fields(joints=6)
    ]
    table = text_of("docs/policies.md").partition("| algorithm | file of its update |")[2]
    algorithms = re.findall(r"^\| `(\w+)` \|", table.partition("\n\n")[0], re.MULTILINE)
    assert sorted(algorithms) == sorted(group_choices()["algorithm"])


def members_told(table: str) -> tuple[set[str], set[str]]:
    """The members in a table of docs/policies.md: those one must write, and the optional ones."""
    rows = text_of("docs/policies.md").partition(f"| {table} | |\n|---|---|\n")[2]
    told: tuple[set[str], set[str]] = set(), set()
    for names, meaning in re.findall(r"^\| (.*?) \| (.*)", rows.partition("\n\n")[0], re.MULTILINE):
        told[meaning.startswith("optional")].update(re.findall(r"`(\w+)", names))
    return told


def test_the_tables_of_members_are_those_of_the_protocols():
    must, may = members_told("member of a policy")
    attributes = {**Policy.__annotations__, **ChunkPolicy.__annotations__}
    unset = {name for name in attributes if not hasattr(ChunkPolicy, name)}
    assert must == ChunkPolicy.__abstractmethods__ | unset
    assert may == {*attributes} - unset | {"exploring"}  # which only some have
    must, may = members_told("member of an algorithm")
    functions = {name for name in vars(Algorithm) if callable(getattr(Algorithm, name))}
    assert must == {*Algorithm.__annotations__} | {n for n in functions if n[0] != "_"}
    assert not may


def test_the_python_of_the_readme_plays_the_newest_policy(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = ("demonstrations=2", "cloning.updates=10", "policy.denoiser.hidden=[32]")
    assert cli.main(["collect", *small]) == cli.main(["pretrain"]) == 0
    played = run(sys.executable, "-c", code_of("README.md", "python"), folder=tmp_path)
    assert re.fullmatch(r"(\d (True|False)\n){5}", played)


def test_the_task_that_a_page_builds_can_be_done(tmp_path):
    build_lab("docs/own_task.md", tmp_path)
    words = ("collect", "--config-dir", "lab", "task=hover", "demonstrations=3")
    said = run(sys.executable, "-m", "robot_rl.cli", *words, folder=tmp_path)
    assert "collected 3 demonstrations of hover" in said
