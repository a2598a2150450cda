"""Demonstrations that have gone to LeRobot's layout and back, made once."""

import shutil
from pathlib import Path

import pytest
from demonstrations import run, write_demonstrations


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory, checkout: Path) -> Path:
    """Demonstrations as they were recorded, exported, and imported again."""
    folder = tmp_path_factory.mktemp("interchange")
    write_demonstrations(folder / "recorded.zarr", checkout)
    assert run("export", folder / "recorded.zarr", folder / "lerobot", "format=lerobot") == 0
    assert run("import", folder / "lerobot", folder / "imported.zarr") == 0
    return folder


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    """A copy of the exported dataset, to damage."""
    shutil.copytree(folder / "lerobot", tmp_path / "lerobot")
    return tmp_path / "lerobot"
