"""The package installs whole, is found from everywhere, and starts light."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from robot_rl.errors import RobotRLError
from robot_rl.processes.resources import RESOURCE_FOLDERS, find_resource

_FIND = (
    "import sys; sys.path.insert(0, {packages!r})\n"
    "import robot_rl; from robot_rl.processes.resources import find_resource\n"
    "assert robot_rl.__file__.startswith({packages!r}), robot_rl.__file__\n"
    "print(find_resource('configs/config.yaml'))"
)


def _python(code: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def _pip(*words: str | Path) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def wheel(source_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    _pip("wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", folder, source_tree)
    (built,) = folder.glob("*.whl")
    return built


def test_wheel_carries_every_module_and_every_resource(wheel: Path, source_tree: Path):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    modules = {
        path.relative_to(source_tree).as_posix()
        for package in ("robot_rl", "drivers", "policies")
        for path in (source_tree / package).rglob("*.*")
    }
    assert modules - names == set(), "a package lacks its __init__.py, or package-data a pattern"
    resources = {
        f"share/robot_rl/{path.relative_to(source_tree).as_posix()}"
        for folder in RESOURCE_FOLDERS
        for path in (source_tree / folder).rglob("*.*")
        if path.is_file()
    }
    shipped = {name.partition(".data/data/")[2] for name in names}
    assert resources - shipped == set(), "add the folder to tool.setuptools.data-files"
    ros = {f"lib/robot_rl/{path.name}" for path in (source_tree / "launch/lib").iterdir()}
    ros |= {"share/robot_rl/package.xml", "share/ament_index/resource_index/packages/robot_rl"}
    assert ros - shipped == set()
    launch_files = {name for name in names if ".data/data/" in name}
    top_level = {name.partition("/")[0] for name in names - launch_files if name.endswith(".py")}
    assert top_level == {"robot_rl", "drivers", "policies"}


@pytest.mark.parametrize("option", ["--target", "--prefix"])
def test_installed_wheel_finds_its_own_resources(wheel: Path, tmp_path: Path, option: str):
    root = tmp_path / "install"
    _pip("install", "--no-deps", "--no-index", option, root, "--ignore-installed", wheel)
    (package,) = root.rglob("robot_rl/processes/resources.py")
    done = _python(_FIND.format(packages=str(package.parents[2])), tmp_path)
    assert done.stdout.strip() == str(root / "share/robot_rl/configs/config.yaml"), done.stderr


def test_ros_prefix_is_searched(checkout: Path, tmp_path: Path):
    for name in ("robot_rl", "policies"):
        shutil.copytree(checkout / name, tmp_path / "packages" / name)
    share = tmp_path / "ros/share/robot_rl"
    shutil.copytree(checkout / "configs", share / "configs")
    code = _FIND.format(packages=str(tmp_path / "packages"))
    prefixes = os.pathsep.join(["/nowhere", str(tmp_path / "ros")])
    done = _python(code, tmp_path, AMENT_PREFIX_PATH=prefixes)
    assert done.stdout.strip() == str(share / "configs/config.yaml"), done.stderr


def test_checkout_finds_its_own_resources(checkout: Path):
    assert find_resource("launch") == checkout / "launch"
    assert all(not (find_resource(name) / "__init__.py").exists() for name in RESOURCE_FOLDERS)


def test_missing_resource_says_where_it_was_searched(checkout: Path):
    with pytest.raises(RobotRLError, match=r"configs/nothing\.yaml") as caught:
        find_resource("configs/nothing.yaml")
    assert str(checkout) in str(caught.value)
    assert "next:" in str(caught.value)
    with pytest.raises(RobotRLError, match="configs, hardware, launch"):
        find_resource("../secrets")


@pytest.mark.parametrize(
    "module",
    [
        "robot_rl",
        "robot_rl.env",
        "robot_rl.safety",
        "robot_rl.data",
        "robot_rl.replay.client, robot_rl.replay.server",
        "policies.registry",
        "robot_rl.run",
        "robot_rl.cli",
        "drivers",
        "drivers.camera.realsense, drivers.camera.sim, drivers.camera.uvc",
        "drivers.gripper.robotiq, drivers.gripper.sim, drivers.gripper.topics",
    ],
)
def test_import_is_light(module: str, tmp_path: Path):
    heavy = ("torch", "hydra", "rclpy")
    code = f"import sys, {module}; print([m for m in {heavy} if m in sys.modules])"
    done = _python(code, tmp_path)
    assert done.stdout.strip() == "[]", done.stderr


def test_make_without_a_usable_python_says_so(source_tree: Path, tmp_path: Path):
    for name in ("python3.12", "python3.11", "python3"):  # as a pyenv shim without its version
        shim = tmp_path / name
        shim.write_text("#!/bin/sh\necho no such version >&2\nexit 127\n")
        shim.chmod(0o755)
    for tool in ("make", "bash", "rm", "uname"):
        (tmp_path / tool).symlink_to(str(shutil.which(tool)))
    done = subprocess.run(
        ["make", "install"],
        cwd=source_tree,
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "no Python 3.11 or 3.12" in done.stderr
    assert not (source_tree / ".venv").exists()


def test_editable_install_is_found_from_the_folder_above(source_tree: Path, tmp_path: Path):
    """The clone, which is called robot_rl too, is not taken for the package there."""
    clone = tmp_path / "robot_rl"
    shutil.copytree(source_tree, clone)
    build = f"from setuptools.build_meta import build_editable; build_editable({str(tmp_path)!r})"
    done = _python(build, clone)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site-packages")
    code = "import site, importlib.util; site.addsitedir('site-packages')"
    code += "\nprint(importlib.util.find_spec('robot_rl').origin)"
    found = subprocess.run(
        [sys.executable, "-S", "-c", code],
        cwd=tmp_path,
        env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == str(clone / "robot_rl/__init__.py")
