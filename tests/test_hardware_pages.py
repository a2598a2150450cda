"""The pages in hardware/ configure drivers that exist, with arguments that they take."""

from __future__ import annotations

import re
import shlex
from inspect import signature

import pytest
import yaml

from drivers.arm.base import Arm
from drivers.arm.ur import UrArm
from drivers.camera.base import Camera
from drivers.gripper.base import Gripper
from policies.registry import make
from robot_rl import cli
from robot_rl.config import compose
from robot_rl.errors import MissingExtra
from robot_rl.processes.resources import find_resource
from robot_rl.ros.nodes import node_table

BLOCKS = [
    (page.name, yaml.safe_load(block))
    for page in sorted(find_resource("hardware").glob("*.md"))
    for block in re.findall(r"```yaml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
]
FAMILIES = {"arms.md": Arm, "cameras.md": Camera, "grippers.md": Gripper}


@pytest.mark.parametrize(("page", "driver"), BLOCKS)
def test_a_driver_of_a_page_can_be_made(page, driver):
    try:
        made = make(driver, FAMILIES[page])
    except MissingExtra as missing:
        pytest.skip(str(missing))
    made.close()


def test_the_page_of_arms_tells_the_gain_of_force_mode_that_the_driver_has():
    page = find_resource("hardware/arms.md").read_text(encoding="utf-8")
    (told,) = re.findall(r"`force_mode_gain` \(default ([\d.]+)", page)
    assert float(told) == signature(UrArm).parameters["force_mode_gain"].default


def test_the_command_of_the_page_of_cameras_gives_each_camera_its_node(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = find_resource("hardware/cameras.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"robot-rl (cell .*cameras=.*)\n", page)
    assert cli.main(shlex.split(command)) == 0
    given = [
        "nodes.arm.parameters.driver.host=a",
        "nodes.arm.parameters.reset.pose=[0.4,0,0.3,1,0,0,0]",
        "nodes.arm.parameters.driver.tool=null",
    ]
    table = node_table(compose(["cell=lab", *given]))
    assert [node.name for node in table] == ["arm", "front_camera"]  # the other is by somebody else


def test_the_pages_show_drivers():
    targets = {driver["_target_"].rpartition(".")[2] for _, driver in BLOCKS}
    assert targets >= {"RealSenseCamera", "UvcCamera", "Robotiq2F", "FrankaHand"}
