"""The Robotiq driver against a real Modbus server that speaks the gripper's register map."""

from __future__ import annotations

import math
import threading
import time

import pytest

pytest.importorskip("pymodbus", reason="needs the extra robotiq")
pytest.importorskip("serial", reason="needs the extra robotiq")

from gripper_server import Gripper2F, serve

from drivers.base import DriverError, DriverFault, DriverTimeout
from drivers.gripper.robotiq import Robotiq2F
from drivers.twin.robotiq_gripper import CLOSED_COUNT, OPEN_COUNT


@pytest.fixture
def gripper():
    return Gripper2F()


@pytest.fixture(params=["tcp", "rtu+tcp", "serial"])
def any_line(request, gripper):
    with serve(gripper, request.param) as address:
        yield address


@pytest.fixture
def address(gripper):
    with serve(gripper, "tcp") as address:
        yield address


@pytest.fixture
def driver(address, opened):
    return opened(Robotiq2F(address, timeout_s=5.0))


def settled(driver, polls=12):
    for _ in range(polls):
        state = driver.read()
    return state


def test_a_gripper_is_examined_and_not_moved(driver, gripper):
    assert driver.examine().startswith("is not yet active, at tcp://")
    assert gripper.activations == 0


def test_on_every_line_it_activates_once_moves_and_measures(any_line, gripper, opened):
    driver = opened(Robotiq2F(any_line, timeout_s=5.0))
    driver.connect()
    assert gripper.activations == 1
    assert driver.read().position == 0.0
    driver.command(1.0)
    assert 0.0 < driver.read().position < 1.0
    assert settled(driver).position == 1.0
    assert driver.read().object_held is False
    driver.command(0.5)
    assert settled(driver).position == pytest.approx(0.55, abs=0.01)  # 127.5 of 3 to 228


def test_speed_and_force_reach_the_gripper(address, gripper):
    driver = Robotiq2F(address, speed=0.2, force=0.6, timeout_s=5.0)
    driver.connect()
    driver.command(1.0)
    assert (gripper.request, gripper.speed, gripper.force) == (255, 51, 153)
    driver.close()


def test_an_object_between_the_fingers_is_held(driver, gripper):
    driver.connect()
    gripper.object_at = 120
    driver.command(1.0)
    assert driver.read().object_held is False
    state = settled(driver)
    assert state.object_held is True
    assert state.position == pytest.approx((120 - OPEN_COUNT) / (CLOSED_COUNT - OPEN_COUNT))


def read_for(driver, seconds):
    """As its node does."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        state = driver.read()
        time.sleep(0.02)
    return state


@pytest.mark.parametrize(("object_at", "wanted"), [(None, 1.0), (120, 0.0)])
def test_fingers_that_do_not_move_are_a_fault_until_a_person_has_freed_them(
    driver, gripper, object_at, wanted
):
    driver.connect()
    gripper.object_at = object_at
    driver.command(0.0 if object_at is None else 1.0)
    # Those that hold something may stay where they are.
    at = (settled(driver) if object_at is None else read_for(driver, 1.2)).position
    moving, gripper.go_to = gripper.go_to, lambda goal: None
    driver.command(wanted)
    with pytest.raises(DriverFault, match=r"do not move; got: at .*free them, .*clear_errors"):
        read_for(driver, 5.0)
    gripper.go_to = moving
    driver.close()
    with pytest.raises(DriverFault, match="do not move"):
        driver.connect()
    gripper.status()  # freed, they stay
    driver.clear_errors()
    driver.connect()
    assert driver.read().position == at
    driver.command(wanted)
    assert settled(driver).position == wanted


def test_fingers_that_need_to_move_only_a_little_may_stay_on_what_they_hold(driver, gripper):
    driver.connect()
    gripper.object_at = 120
    driver.command(1.0)
    settled(driver)
    gripper.go_to = lambda goal: None
    driver.command(110 / 255)
    assert read_for(driver, 1.2).object_held is True


def test_fingers_on_an_object_that_are_closed_again_and_again_have_no_fault(driver, gripper):
    driver.connect()
    gripper.object_at = 120
    driver.command(1.0)
    settled(driver)
    gripper.look = lambda: (120, False)  # each new position is a motion at first: gOBJ is 0
    for wanted in 10 * [0.9, 1.0]:
        driver.command(wanted)
        assert read_for(driver, 0.1).position == pytest.approx(0.52, abs=0.01)


def test_fingers_that_were_stopped_on_their_way_hold_an_object_from_inside(driver, gripper):
    driver.connect()
    driver.command(1.0)
    settled(driver)
    driver.command(0.0)
    driver.read()
    gripper.go_to = lambda goal: None
    gripper._rests = True
    assert read_for(driver, 1.2).object_held is True


def test_connecting_again_does_not_move_the_fingers(driver, gripper):
    driver.connect()
    driver.command(1.0)
    settled(driver)
    driver.close()
    driver.connect()
    assert gripper.activations == 1
    assert driver.read().position == 1.0


def test_a_gripper_that_was_switched_off_holds_still_until_a_person_says_so(driver, gripper):
    driver.connect()
    gripper.write([0, 0, 0])  # as after its power came back
    with pytest.raises(DriverFault, match=r"not active.*clear_errors"):
        driver.read()
    driver.close()
    with pytest.raises(DriverFault, match=r"switched off.*clear_errors"):
        driver.connect()
    assert gripper.activations == 1
    driver.clear_errors()
    driver.close()
    driver.connect()
    assert gripper.activations == 2
    assert driver.read().position == 0.0


@pytest.mark.parametrize(
    ("code", "words"), [(0x08, "too hot"), (0x0A, "voltage"), (0x0E, "current"), (0x01, "not list")]
)
def test_a_fault_is_named_and_stays_until_it_is_cleared(driver, gripper, code, words):
    driver.connect()
    gripper.fault = code
    with pytest.raises(DriverFault, match=rf"{words}.*gFLT 0x{code:02X}.*clear_errors"):
        driver.read()
    driver.close()
    with pytest.raises(DriverFault, match=words):
        driver.connect()
    driver.clear_errors()
    driver.connect()
    assert driver.read().position == 0.0
    gripper.fault = code
    driver.clear_errors()
    # So that the node connects again.
    with pytest.raises(DriverFault, match="has not been activated again yet"):
        driver.read()
    driver.connect()
    assert driver.read().position == 0.0
    assert gripper.activations == 3


def test_a_fault_during_activation_ends_it(driver, gripper):
    gripper.activation_left = gripper.activation_polls = 10**6
    real = gripper.write

    def failing(registers):
        real(registers)
        gripper.fault = 0x0D if gripper.active else 0

    gripper.write = failing
    with pytest.raises(DriverFault, match="activation failed"):
        driver.connect()


def test_silence_alone_is_no_fault(driver, gripper):
    gripper.fault = 0x09  # as after it was switched on
    driver.connect()
    assert gripper.activations == 1
    gripper.fault = 0x09
    assert driver.read().position == 0.0


def test_an_activation_that_never_ends_is_a_timeout(address, gripper):
    gripper.activation_left = gripper.activation_polls = 10**6
    driver = Robotiq2F(address, timeout_s=5.0, activation_timeout_s=0.2)
    with pytest.raises(DriverTimeout, match="not active in time; got: state 1"):
        driver.connect()
    driver.close()


def never_active(gripper):
    """Its next activations do not end: something is between its fingers."""
    gripper.activation_polls = 10**6


def test_a_first_activation_that_fails_is_not_repeated_without_a_person(address, gripper):
    driver = Robotiq2F(address, timeout_s=5.0, activation_timeout_s=0.1)
    never_active(gripper)
    with pytest.raises(DriverTimeout, match="not active in time"):
        driver.connect()
    for _ in range(3):  # as a node does it, for ever
        driver.close()
        with pytest.raises(DriverFault, match=r"not active.*activation fail.*clear_errors"):
            driver.connect()
    assert gripper.activations == 1
    driver.close()


def test_clear_errors_that_fails_moves_the_fingers_once(address, gripper):
    driver = Robotiq2F(address, timeout_s=5.0)
    driver.connect()
    driver.close()
    driver.activation_timeout_s = 0.1
    never_active(gripper)
    for times in (1, 2):
        driver.clear_errors()
        with pytest.raises(DriverTimeout, match="not active in time"):
            driver.connect()
        for _ in range(3):
            driver.close()
            with pytest.raises(DriverFault, match="clear_errors"):
                driver.connect()
        assert gripper.activations == 1 + times
    driver.close()


def test_stop_keeps_the_fingers_where_they_are(driver, gripper):
    driver.connect()
    driver.command(1.0)
    driver.read()
    driver.stop()
    where = driver.read().position
    assert 0.0 < where < 1.0
    assert settled(driver).position == where
    driver.command(0.0)
    assert settled(driver).position == 0.0


def test_a_stop_does_not_activate_a_gripper_that_was_switched_off(driver, gripper):
    driver.connect()
    gripper.write([0, 0, 0])
    driver.stop()
    assert gripper.activations == 1


@pytest.mark.parametrize("line", ["open", "closed"])
def test_a_stop_takes_back_what_a_person_had_cleared(driver, gripper, line):
    driver.connect()
    gripper.write([0, 0, 0])
    driver.clear_errors()
    if line == "closed":
        driver.close()
    driver.stop()
    driver.close()
    with pytest.raises(DriverFault, match=r"is not active: .*stopped.*clear_errors"):
        driver.connect()
    assert gripper.activations == 1
    driver.clear_errors()
    driver.connect()
    assert gripper.activations == 2


def test_a_stop_before_the_first_activation_prevents_it(address, gripper):
    driver = Robotiq2F(address, timeout_s=1.0)
    gripper.silent = True
    with pytest.raises(DriverTimeout):
        driver.connect()
    gripper.silent = False
    driver.stop()
    with pytest.raises(DriverFault, match=r"is not active: .*stopped.*clear_errors"):
        driver.connect()
    assert gripper.activations == 0
    driver.close()


@pytest.mark.parametrize("action", [0, 1])  # reset, which is the last before it, and activation
def test_a_stop_during_an_activation_ends_it(driver, gripper, action):
    never_active(gripper)
    real, stopping = gripper.write, []

    def stopped_just_then(registers):
        if not stopping and registers[0] >> 8 == action:
            stopping.append(threading.Thread(target=driver.stop))
            stopping[0].start()
            time.sleep(0.3)  # it waits for the line
        real(registers)

    gripper.write = stopped_just_then
    with pytest.raises(DriverFault, match=r"was stopped .* its activation.*clear_errors"):
        driver.connect()
    stopping[0].join()
    assert not gripper.active
    assert gripper.activations == action


@pytest.mark.parametrize("position", [-0.01, 1.01, math.nan, math.inf])
def test_an_impossible_position_is_not_sent(driver, gripper, position):
    driver.connect()
    sent = len(gripper.commands)
    with pytest.raises(DriverError, match="from 0, open, to 1, closed"):
        driver.command(position)
    assert len(gripper.commands) == sent


def test_a_gripper_that_falls_silent_is_a_timeout(address, gripper):
    driver = Robotiq2F(address, timeout_s=1.0)
    driver.connect()
    gripper.silent = True
    with pytest.raises(DriverTimeout, match=rf"{address} does not answer"):
        driver.read()
    driver.close()


def test_an_empty_address_and_a_wrong_modbus_address(address):
    nobody = Robotiq2F("tcp://127.0.0.1:1", timeout_s=0.2)
    with pytest.raises(DriverTimeout, match=r"tcp://127.0.0.1:1 does not open"):
        nobody.connect()
    with pytest.raises(DriverTimeout, match="/dev/nothing does not open"):
        Robotiq2F("/dev/nothing").connect()
    other = Robotiq2F(address, status_register=0, timeout_s=5.0)
    with pytest.raises(DriverError, match=r"refuses a request.*registers at 0x0000"):
        other.connect()
    other.close()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"address": "gripper"}, "expected: /dev/ttyUSB0, tcp://HOST:PORT"),
        ({"address": "tcp://"}, "cannot be read"),
        ({"address": "tcp://h", "force": 1.5}, "'force' of the gripper is out of range; got: 1.5"),
        ({"address": "tcp://h", "open_count": 230}, "open_count < closed_count"),
    ],
)
def test_a_wrong_configuration_is_one_clear_error(arguments, words):
    with pytest.raises(DriverError, match=words):
        Robotiq2F(**arguments)
