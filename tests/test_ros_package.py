"""`ros2 launch` and `ros2 run` find robot_rl, installed by pip beside ROS or built by colcon."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

JOBS = ("train", "collect", "evaluate", "run", "robot", "sim_robot")
NODES = ("arm_node", "camera_node", "gripper_node", "sim_arm_node", "teleop_node", "twin_node")
ROS_PACKAGES = sysconfig.get_path("purelib")  # beside which robot_rl is installed


def run(*words: str | Path, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """A program in the environment that a ROS installation's setup.bash makes."""
    return subprocess.run(
        list(map(str, words)),
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": ROS_PACKAGES, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def check_ros_finds(prefix: Path, folder: Path, **variables: str) -> None:
    """What `ros2 launch` and `ros2 run` look up is in `prefix`, and the executables start."""
    variables["AMENT_PREFIX_PATH"] = str(prefix)
    lookup = (
        "from ament_index_python.packages import *; "
        "print(get_package_prefix('robot_rl'), get_package_share_directory('robot_rl'))"
    )
    found = run(sys.executable, "-c", lookup, cwd=folder, **variables)
    share = prefix / "share/robot_rl"
    assert found.stdout.split() == [str(prefix), str(share)], found.stderr
    assert (share / "package.xml").is_file()
    assert all((share / f"launch/{job}.launch.py").is_file() for job in JOBS)
    executables = prefix / "lib/robot_rl"
    assert {path.name for path in executables.iterdir()} == {*NODES, "robot-rl"}
    assert all(os.access(path, os.X_OK) for path in executables.iterdir())
    camera = run(executables / "camera_node", cwd=folder, **variables)
    assert "the parameter 'driver' names no driver" in camera.stderr, camera.stderr
    where = run(executables / "robot-rl", "train", "--help", cwd=folder, **variables)
    assert "environment_steps" in where.stdout, where.stderr


@pytest.mark.slow  # makes an environment, and builds and installs a wheel in it
def test_a_normal_installation_beside_ros_is_found(source_tree: Path, tmp_path: Path):
    prefix = tmp_path / "robot"
    made = run(sys.executable, "-m", "venv", "--system-site-packages", prefix, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--ignore-installed")
    done = run(prefix / "bin/pip", "install", *options, source_tree, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (packages,) = prefix.glob("lib/python3*/site-packages")
    check_ros_finds(prefix, tmp_path, PYTHONPATH=f"{packages}{os.pathsep}{ROS_PACKAGES}")


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("colcon") is None,
    reason="needs colcon on the path: pip install colcon-ros, in an environment of its own",
)
def test_colcon_builds_the_package(source_tree: Path, tmp_path: Path):
    (tmp_path / "src").mkdir()
    shutil.copytree(source_tree, tmp_path / "src/robot_rl")
    built = run("colcon", "build", cwd=tmp_path)
    assert built.returncode == 0, built.stdout + built.stderr
    assert "doesn't explicitly install" not in built.stderr
    prefix = tmp_path / "install/robot_rl"
    # In a shell that has sourced the workspace, on the Python that has ROS.
    script = f'. install/local_setup.sh && echo "$PYTHONPATH" && exec "{sys.executable}" -c '
    told = run("sh", "-c", f"{script} 'import robot_rl; print(robot_rl.__file__)'", cwd=tmp_path)
    pythonpath, package = told.stdout.split()
    assert package.startswith(str(prefix)), told.stderr
    for program in (prefix / "bin").iterdir():  # as if colcon ran on that Python
        program.write_text(re.sub("^#!.*", f"#!{sys.executable}", program.read_text()))
    check_ros_finds(prefix, tmp_path, PYTHONPATH=pythonpath)


def test_both_descriptions_of_the_package_agree(checkout: Path):
    project = tomllib.loads((checkout / "pyproject.toml").read_text())["project"]
    package = ElementTree.parse(checkout / "package.xml").getroot()
    told = {element.tag: element for element in package}
    assert told["name"].text == project["name"]
    assert told["version"].text == project["version"]
    assert told["description"].text == project["description"]
    maintainer = told["maintainer"]
    (person,) = project["maintainers"]
    assert (maintainer.text, maintainer.attrib["email"]) == (person["name"], person["email"])
    assert told["license"].text == project["license"] == "Apache-2.0"
