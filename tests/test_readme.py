"""The README must not name what is not there."""

import re

import pytest

from robot_rl.cli import bench_names
from robot_rl.config import compose, group_choices
from robot_rl.stages.table import STAGES

FOLDERS = ("robot_rl/", "policies", "configs", "hardware", "drivers", "launch", "docs/")


@pytest.fixture
def readme(checkout):
    return (checkout / "README.md").read_text(encoding="utf-8")


def test_every_file_that_is_named_exists(checkout, readme):
    named = set(re.findall(rf"`((?:{'|'.join(FOLDERS)})[\w./]*)`", readme))
    named |= set(re.findall(r"\]\(([\w./]+)\)", readme))
    paths = {name for name in named if "/" in name or name in FOLDERS}
    assert len(paths) > 10
    missing = {
        path
        for path in paths
        if not (checkout / path).exists() and not (checkout / path.replace(".", "/")).exists()
    }
    assert not missing


def test_the_table_of_stages_is_complete(readme):
    rows = re.findall(r"^\| (`[a-z`, A-Z-]+`) \|", readme, re.MULTILINE)
    named = {word for row in rows for word in re.findall(r"[a-z-]+", row)}
    assert set(STAGES) <= named


def test_benches_and_choices_that_are_named_exist(readme):
    for name in bench_names():
        assert f"`{name}`" in readme
    choices = group_choices()
    for group, choice in re.findall(r"\b(task|algorithm|policy)=(\w+)", readme):
        assert choice in choices[group]


def test_the_training_command_of_the_readme_composes(readme):
    arguments = re.search(r'make train ARGS="([^"]+)"', readme)
    assert arguments is not None
    compose(arguments.group(1).split())
