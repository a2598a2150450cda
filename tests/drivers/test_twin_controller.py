"""The twin of UR's controller by itself: its arm, force mode, and what stops it."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest
from omegaconf import OmegaConf

from drivers.arm.base import pose_of
from drivers.base import DriverError
from drivers.twin.ur_controller import UrController
from policies import registry
from robot_rl.config import compose
from robot_rl.processes.waiting import wait_until

# UR's published Denavit-Hartenberg parameters of the UR5e: a [m], d [m], alpha [rad].
DH = (
    (0.0, 0.1625, np.pi / 2),
    (-0.425, 0.0, 0.0),
    (-0.3922, 0.0, 0.0),
    (0.0, 0.1333, np.pi / 2),
    (0.0, 0.0997, -np.pi / 2),
    (0.0, 0.0996, 0.0),
)
TOOL = 0.1034  # m, from the flange to the TCP
FORCE_MODE, DAMPING = 6, 20
HOST = f"127.2.0.{1 + os.getpid() % 250}"


def flange(joints):
    pose = np.eye(4)
    for angle, (a, d, alpha) in zip(joints, DH, strict=True):
        cos, sin, ca, sa = np.cos(angle), np.sin(angle), np.cos(alpha), np.sin(alpha)
        rows = [[cos, -sin * ca, sin * sa, a * cos], [sin, cos * ca, -cos * sa, a * sin]]
        pose = pose @ np.array([*rows, [0, sa, ca, d], [0, 0, 0, 1]])
    return pose


def make_controller():
    config = compose(["robot=twin_ur5e", "task=peg_insert"])
    driver = OmegaConf.to_container(config.nodes.twin.parameters.driver, resolve=True)
    return registry.make(driver, UrController, host=HOST)


@pytest.fixture
def controller(opened):
    made = opened(make_controller())
    made.connect()
    made.take_program()
    until(lambda: made.outputs()["runtime_state"] == 2)
    return made


def until(true):
    assert wait_until(true, 30.0), "it did not happen"


def push(controller, force):
    """Press down with so much force [N], in the axes of the base, at a quarter of a metre/s."""
    doubles = [*[0.0] * 6, 0.0, 0.0, -force, *[0.0] * 3, *[0.25] * 3, *[1.0] * 3]
    registers = {f"input_double_register_{i}": value for i, value in enumerate(doubles)}
    registers |= {f"input_int_register_{i}": 1 for i in range(2, 8)}
    controller.take({"input_int_register_0": DAMPING, "input_double_register_0": 0.025})
    controller.take({"input_int_register_0": FORCE_MODE, **registers})


def height(controller):
    return controller.outputs()["actual_TCP_pose"][2]


def test_its_arm_has_the_published_kinematics(controller):
    outputs = controller.outputs()
    expected = flange(outputs["actual_q"])
    tcp = pose_of(outputs["actual_TCP_pose"])
    np.testing.assert_allclose(tcp[:3], expected[:3, 3] + TOOL * expected[:3, 2], atol=1e-6)
    assert outputs["target_TCP_pose"] == outputs["actual_TCP_pose"]


def test_in_contact_force_mode_presses_with_the_commanded_force(controller):
    push(controller, 20.0)
    until(lambda: abs(controller.outputs()["actual_TCP_force"][2] - 20.0) < 1.0)
    assert controller.fault is None


def test_too_much_force_is_a_protective_stop_and_nothing_moves_until_it_is_unlocked(controller):
    push(controller, 200.0)
    until(lambda: controller.fault is not None)
    assert "protective stop: a contact force of " in controller.fault
    assert controller.answer("unlock protective stop").startswith("Cannot unlock")
    time.sleep(0.5)
    before = height(controller)
    push(controller, -50.0)  # nobody reads it: the program has ended
    time.sleep(0.5)
    assert height(controller) == pytest.approx(before, abs=1e-4)
    outputs = controller.outputs()
    assert (outputs["safety_mode"], outputs["runtime_state"]) == (3, 1)


def test_after_an_emergency_stop_a_person_has_to_switch_it_on(controller):
    controller.emergency_stop()
    controller.take_program()
    time.sleep(0.6)
    until(lambda: controller.outputs()["robot_mode"] == 3)
    assert controller.outputs()["runtime_state"] == 1
    controller.switch_on()
    controller.take_program()
    until(lambda: controller.outputs()["runtime_state"] == 2)


def test_ports_that_somebody_else_has_are_named(controller):
    other = make_controller()
    with pytest.raises(DriverError, match=f"port 30004 of {HOST}.*next: .*another address"):
        other.connect()
