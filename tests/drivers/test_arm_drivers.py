"""Drivers of real arms without their hardware: settings, addresses, and what their errors say."""

import contextlib
import functools
import json
import os
import re
import socket
import struct
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from drivers.arm import franka, ur, xarm
from drivers.arm.base import Arm, Spring, Tool, pose_of, reset_waypoints
from drivers.base import DriverError, DriverFault, DriverTimeout
from policies import registry
from robot_rl.config import compose
from robot_rl.errors import RobotRLError
from robot_rl.ros.nodes import Driver, node_table
from robot_rl.safety import ArmLimits, refuse_stiff_contact

NOBODY = "127.0.0.9"  # where a twin on this machine does not listen
NOWHERE = "192.0.2.1"  # reserved for documentation: packets to it vanish
POSE = np.array([0.4, 0.0, 0.3, 1.0, 0.0, 0.0, 0.0])
ARMS = {
    "ur": ("drivers.arm.ur.UrArm", "rtde_control", 30004),
    "franka": ("drivers.arm.franka.FrankaArm", "franky", 1337),
    "xarm": ("drivers.arm.xarm.XArm", "xarm", 502),
}


def made(name, host=NOBODY, **settings):
    target, module, _ = ARMS[name]
    pytest.importorskip(module, reason=f"needs the extra {name}")
    return registry.make({"_target_": target, "host": host, "timeout_s": 0.3, **settings}, Driver)


@pytest.mark.parametrize("name", ARMS)
def test_a_refused_connection_names_the_address_and_the_port(name):
    with pytest.raises(DriverError, match=rf"{NOBODY}:{ARMS[name][2]} cannot be reached"):
        made(name).connect()


@pytest.mark.parametrize("name", ARMS)
def test_an_unreachable_address_is_given_up_in_time(name):
    with pytest.raises(DriverError, match=NOWHERE.replace(".", r"\.")) as problem:
        made(name, NOWHERE).connect()
    assert "next:" in str(problem.value)


@pytest.mark.parametrize("name", ARMS)
def test_an_arm_that_is_not_connected_neither_moves_nor_hides_it(name):
    arm = made(name)
    with pytest.raises(DriverTimeout, match="not connected"):
        arm.read()
    with pytest.raises((DriverFault, DriverTimeout)):
        arm.clear_errors()
    arm.hold()
    arm.stop()
    with pytest.raises(DriverFault, match="stopped"):
        arm.command(POSE)
    arm.close()
    arm.close()


def test_a_franka_whose_cable_is_out_is_stopped_and_let_go():
    arm = made("franka")
    franky = pytest.importorskip("franky", reason="needs the extra `franka`")

    def rethrow():
        raise franky.NetworkException("UDP receive: timeout")

    for end in (arm.stop, arm.close):
        arm._robot, arm._tracker = object(), SimpleNamespace(stop=rethrow)
        end()
        assert "UDP receive" in arm.fault
        with pytest.raises(DriverFault):
            arm.command(POSE)
    with pytest.raises(DriverTimeout, match="not connected"):
        arm.read()


class OlderControl:
    """A Franka control unit that speaks another version of libfranka's protocol."""

    def __init__(self, host, version):
        self._version = version
        self.listener = socket.create_server((host, ARMS["franka"][2]))
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        with contextlib.suppress(OSError):  # the listener is closed
            while True:
                connection, _ = self.listener.accept()
                header = connection.recv(12)  # command, id, size; nothing of who only looks
                if len(header) == 12:
                    command, identity, _ = struct.unpack("<III", header)
                    connection.recv(4)
                    answer = struct.pack("<IIIBH", command, identity, 15, 1, self._version)
                    connection.sendall(answer)


def test_a_franka_with_other_firmware_names_what_to_install(monkeypatch):
    host = f"127.9.{1 + os.getpid() % 250}.{1 + time.monotonic_ns() % 250}"
    arm = made("franka", host, timeout_s=20.0)
    franky = pytest.importorskip("franky", reason="needs the extra `franka`")
    # The library asks the kernel first, and here there is no real-time one.
    loose = functools.partial(franky.Robot, realtime_config=franky.RealtimeConfig.Ignore)
    monkeypatch.setattr(franky, "Robot", loose)
    control = OlderControl(host, version=5)
    try:
        with pytest.raises(
            DriverError, match=r"\(server version: 5, library version: 10\)"
        ) as error:
            arm.connect()
    finally:
        control.listener.shutdown(socket.SHUT_RDWR)
    (hint,) = re.findall("next: (.*)", str(error.value))
    assert "a Panda has server version 5 or lower" in hint
    assert "hardware/arms.md" in hint


def test_an_xarm_that_does_not_confirm_its_stop_says_so():
    arm = made("xarm")
    arm._api = SimpleNamespace(set_state=lambda state: 3)
    with pytest.raises(DriverError, match="does not confirm its stop; got: code 3"):
        arm.stop()
    with pytest.raises(DriverFault, match="stopped"):
        arm.command(POSE)


class ControlBox:
    """What UFACTORY's SDK asks of its controller: an error, which its reports do not tell yet."""

    def __init__(self, can_be_cleared):
        self.error = 19
        self._can_be_cleared = can_be_cleared

    def clean_err(self):
        self.error = 0 if self._can_be_cleared else self.error
        return [0]

    def get_err_code(self):
        return [0, self.error, 0]

    def get_state(self):
        return [0, 2]  # standing

    def __getattr__(self, name):
        return lambda *arguments, **options: [0]


def arm_with_an_error(can_be_cleared):
    arm = made("xarm")
    arm._api = arm._sdk.XArmAPI(do_not_open=True, is_radian=True)
    inside = arm._api._arm
    inside.arm_cmd, inside._stream = ControlBox(can_be_cleared), SimpleNamespace(connected=True)
    inside._error_code = 19  # as the SDK's last report said
    arm.fault = "controller error 19"
    return arm


def test_an_xarms_error_that_is_gone_is_cleared_by_the_first_call():
    arm = arm_with_an_error(can_be_cleared=True)
    arm.clear_errors()
    assert arm.fault is None


def test_an_xarms_error_that_stays_is_named():
    arm = arm_with_an_error(can_be_cleared=False)
    with pytest.raises(DriverFault, match="error stays; got: controller error 19"):
        arm.clear_errors()
    assert arm.fault is not None


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("ur", {"max_speed": 50.0}),
        ("ur", {"watchdog_hz": 0.0}),
        ("franka", {"collision_force": -1.0}),
        ("franka", {"max_error_translation": float("nan")}),
        ("xarm", {"collision_sensitivity": 0}),
        ("xarm", {"max_speed": 3.0}),
    ],
)
def test_a_setting_out_of_range_is_named(name, setting):
    (key,) = setting
    with pytest.raises(DriverError, match=f"'{key}' .* out of range.*expected: "):
        made(name, **setting)


def test_compliance_decides_on_contact_tasks():
    corners = {"workspace_low": (0.3, -0.2, 0.0), "workspace_high": (0.6, 0.2, 0.4)}
    limits = ArmLimits(**corners, max_force=None)
    for arm in (ur.UrArm, franka.FrankaArm):
        refuse_stiff_contact(arm.compliance, limits)
    with pytest.raises(Exception, match="needs a wrench limit"):
        refuse_stiff_contact(xarm.XArm.compliance, limits)


@pytest.mark.parametrize("scale", [1.0, 1000.0])
def test_vendor_poses_become_ours(scale):
    turn = Rotation.from_euler("xyz", [0.3, -2.0, 1.1])
    pose = pose_of([0.4 * scale, -0.1 * scale, 0.2 * scale, *turn.as_rotvec()], scale)
    np.testing.assert_allclose(pose[:3], [0.4, -0.1, 0.2])
    assert (Rotation.from_quat(pose[3:]) * turn.inv()).magnitude() < 1e-9


def test_a_spring_pulls_to_its_target_with_bounded_force():
    spring = Spring(stiffness_translation=1000.0, max_force=30.0, max_torque=2.0)
    pose = np.array([0.4, 0.0, 0.2, 1.0, 0.0, 0.0, 0.0])
    near = pose + np.array([0.01, 0, 0, 0, 0, 0, 0])
    np.testing.assert_allclose(spring.wrench(near, pose, np.zeros(6)), [10, 0, 0, 0, 0, 0])
    far = pose + np.array([1.0, 0, 1.0, 0, 0, 0, 0])
    assert np.linalg.norm(spring.wrench(far, pose, np.zeros(6))[:3]) == pytest.approx(30.0)
    turned = np.concatenate(
        [pose[:3], (Rotation.from_rotvec([0, 0, 0.02]) * Rotation.from_quat(pose[3:])).as_quat()]
    )
    np.testing.assert_allclose(spring.wrench(turned, pose, np.zeros(6)), [0, 0, 0, 0, 0, 1.0])
    falling = np.array([0, 0, -0.1, 0, 0, 0])
    assert spring.wrench(pose, pose, falling)[2] == pytest.approx(7.0)
    with pytest.raises(RobotRLError, match="max_force"):
        Spring(max_force=0.0)


LIMITS = ArmLimits(workspace_low=(0.3, -0.2, 0.0), workspace_high=(0.6, 0.2, 0.4))


@pytest.mark.parametrize("name", ["ur", "xarm"])
def test_an_arm_without_kinematics_refuses_to_be_reset_to_joint_positions(name):
    driver = made(name)
    assert len(reset_waypoints(driver, [], LIMITS)) == 0
    with pytest.raises(DriverError, match=r"reset\.joints for .*; next: use reset\.pose"):
        reset_waypoints(driver, [0.1] * len(driver.joint_names), LIMITS)


def test_a_ur_arm_of_a_known_type_knows_where_its_joints_lead():
    driver = made("ur", type="ur5e")
    assert reset_waypoints(driver, [0.1] * 12, LIMITS).shape == (2, 6)
    half = 0.5 * np.pi
    for joints, position in (
        (np.zeros(6), [-0.8172, -0.2329, 0.0628]),  # stretched out, and straight up
        (np.array([0, -half, 0, -half, 0, 0]), [0.0, -0.2329, 1.0794]),
    ):
        pose = driver.forward_kinematics(joints)
        np.testing.assert_allclose(pose[:3], position, atol=1e-9)
        axis = Rotation.from_quat(pose[3:]).apply([0, 0, 1])
        np.testing.assert_allclose(axis, [0, -1, 0], atol=1e-9)
    with pytest.raises(DriverError, match="got: ur7; expected: ur3, ur5"):
        made("ur", type="ur7")


def test_the_tool_that_an_xarm_reports_is_understood():
    angles = [0.3, -0.2, 0.5]
    pose = xarm._tcp_of([1.0, 2.0, 150.0, *angles])
    turn = Rotation.from_euler("xyz", angles).as_quat()  # about the fixed axes
    np.testing.assert_allclose(pose, [0.001, 0.002, 0.15, *turn], atol=1e-12)
    with pytest.raises(DriverError, match=r"another TCP .* next: set it at the controller"):
        Tool([0, 0, 0.15, 0, 0, 0, 1], 1.0).check(pose, 1.0)


@pytest.mark.parametrize("name", ARMS)
def test_each_arm_has_a_configuration_that_its_driver_takes(name):
    address = "nodes.arm.parameters.driver.host=127.0.0.1"
    start = "nodes.arm.parameters.reset.pose=[0.4, 0, 0.3, 1, 0, 0, 0]"
    config = compose([f"robot={name}", "task=reach", address, start])
    (arm,) = (node for node in node_table(config) if node.name == "arm")
    assert arm.parameters["reset.pose"] == [0.4, 0.0, 0.3, 1.0, 0.0, 0.0, 0.0]
    pytest.importorskip(ARMS[name][1], reason=f"needs the extra {name}")
    driver = registry.make(json.loads(arm.parameters["driver"]), Arm)
    assert list(driver.joint_names) == list(config.robot.joint_names)
