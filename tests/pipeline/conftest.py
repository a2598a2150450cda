"""A cloned policy to start from, and `robot-rl train` as a process."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tiny_runs import TINY, RunServer, ServerProcess, Train, starting

from robot_rl import cli

# What a shell, a settings grammar or a file system may misread: runs are made and trained there.
ODD_NAME = "Jürgen's lab (2), x=y"


@pytest.fixture(scope="session")
def cloned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `runs/latest`: demonstrations and a cloned policy of the tiny configuration."""
    folder = tmp_path_factory.mktemp("cloned") / ODD_NAME
    folder.mkdir()
    before = Path.cwd()
    os.chdir(folder)
    try:
        assert cli.main(["collect", *TINY]) == 0
        assert cli.main(["pretrain"]) == 0
    finally:
        os.chdir(before)
    return folder


@pytest.fixture
def folder(cloned: Path, tmp_path: Path) -> Path:
    """A working directory with a copy of `cloned`."""
    shutil.copytree(cloned / "runs", tmp_path / "runs", symlinks=True)
    return tmp_path


@pytest.fixture
def server(folder: Path) -> Iterator[RunServer]:
    """The replay server of the copied run."""
    server = RunServer((folder / "runs/latest").resolve())
    yield server
    server.close()


@pytest.fixture
def server_process(folder: Path) -> Iterator[ServerProcess]:
    """The same as a process of its own."""
    server = ServerProcess((folder / "runs/latest").resolve())
    yield server
    server.kill()


@pytest.fixture
def start_train() -> Iterator[Callable[..., Train]]:
    """Start `robot-rl train` in a folder; whatever a failed test leaves is killed."""
    with starting(Train) as start:
        yield start
