"""The Franka Hand: the real library against a hand that speaks its protocol, and settings."""

from __future__ import annotations

import os
import threading
import time

import franka_hand_server as server
import pytest

from drivers.base import DriverError, DriverFault, DriverTimeout
from drivers.gripper import franka
from drivers.gripper.franka import FrankaHand


@pytest.fixture
def host():
    return f"127.1.{1 + os.getpid() % 250}.{1 + time.monotonic_ns() % 250}"


@pytest.fixture
def hand(host):
    hand = server.Hand()
    with server.serve(hand, host):
        yield hand


@pytest.fixture
def driver(hand, host):
    pytest.importorskip("franky", reason="needs the extra franka")
    driver = FrankaHand(host)
    yield driver
    hand.end_motions(server.SUCCEEDED)
    driver.close()


def until(true):
    deadline = time.monotonic() + 20.0
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_it_closes_by_a_grasp_opens_by_a_move_and_measures(driver, hand):
    driver.connect()
    assert driver.read().position == 0.0
    driver.command(1.0)
    until(lambda: driver.read().position == 1.0)
    driver.command(0.0)
    until(lambda: driver.read().position == 0.0)
    assert [command for _, command in hand.requests] == [server.GRASP, server.MOVE]


@pytest.mark.parametrize("endless", [False, True], ids=["done", "going on"])
def test_a_command_that_wavers_changes_nothing_before_it_is_clearly_the_other(
    driver, hand, endless
):
    """As of a policy that has doubts: each motion would stop the one before."""
    hand.endless = endless
    driver.connect()
    for position in (0.4, 0.6, 0.9, 0.45, 0.55, 1.0, 0.35, 0.65, 0.8, 0.1, 0.6, 0.5, 0.0):
        driver.command(position)
        time.sleep(0.05)
    until(lambda: hand.count(server.MOVE) == 1)
    assert hand.count(server.GRASP) == 1
    assert hand.count(server.STOP) == endless  # of the grasp, when it is clear that it is to open


def test_a_stop_ends_the_motion_that_goes_on_and_is_no_fault(driver, hand):
    hand.endless = True
    driver.connect()
    driver.command(1.0)
    until(lambda: hand.count(server.GRASP) == 1)
    driver.stop()
    hand.endless = False
    driver.command(1.0)
    until(lambda: driver.read().position == 1.0)


@pytest.mark.parametrize("other", ["stop", "open", "close"])
def test_a_motion_that_is_taken_back_before_it_begins_never_begins(driver, hand, other):
    driver.connect()
    hand.telling.clear()  # a motion begins with the width, for which it now waits
    driver.command(1.0)
    time.sleep(0.2)
    if other == "stop":
        driver.stop()
    elif other == "open":
        driver.command(0.0)
    else:
        threading.Timer(0.1, hand.telling.set).start()
        driver.close()
    hand.telling.set()
    time.sleep(0.5)
    assert hand.count(server.GRASP) == 0


def test_a_stop_that_overtakes_its_motion_is_sent_again(driver, hand):
    hand.endless = True
    driver.connect()
    driver.command(1.0)
    until(lambda: hand.count(server.GRASP) == 1)
    hand.early_stops = 1  # as if the motion came after it
    driver.stop()
    assert hand.count(server.STOP) == 2
    assert not hand.moving


def test_fingers_that_do_not_stop_are_reported(driver, hand):
    hand.endless = True
    driver.connect()
    driver.command(1.0)
    until(lambda: hand.count(server.GRASP) == 1)
    hand.early_stops = 1000
    with pytest.raises(DriverTimeout, match="does not stop"):
        driver.stop()


def test_a_stop_that_is_sent_late_does_not_end_the_motion_that_follows(driver, hand, monkeypatch):
    stop = driver._franky.Gripper.stop

    def late(gripper):  # as where the thread of who commands has to wait for a processor
        hand.end_motions(server.SUCCEEDED)
        time.sleep(0.5)
        stop(gripper)

    monkeypatch.setattr(driver._franky.Gripper, "stop", late)
    hand.endless = True
    driver.connect()
    driver.command(1.0)
    until(lambda: hand.count(server.GRASP) == 1)
    driver.command(0.0)
    until(lambda: hand.count(server.MOVE) == 1)
    time.sleep(0.2)
    assert hand.moving
    driver.read()


def test_a_stop_takes_back_the_homing_that_a_person_asked_for(driver, hand):
    driver.clear_errors()
    with pytest.raises(DriverError, match="not connected"):
        driver.stop()
    driver.connect()
    assert hand.count(server.HOMING) == 0


def test_a_stop_just_before_the_homing_ends_it(driver, hand, monkeypatch):
    homing, stopping = driver._franky.Gripper.homing, []

    def late(gripper):
        stopping.append(threading.Thread(target=driver.stop))
        stopping[0].start()
        time.sleep(0.3)
        return homing(gripper)

    monkeypatch.setattr(driver._franky.Gripper, "homing", late)
    hand.endless = True
    driver.clear_errors()
    with pytest.raises(DriverFault, match="clear_errors"):
        driver.connect()
    stopping[0].join()
    assert not hand.moving
    assert hand.count(server.HOMING) == 1


def test_a_motion_that_hung_changes_nothing_of_a_later_connection(driver, hand, monkeypatch):
    monkeypatch.setattr(franka, "_JOIN_S", 0.1)
    hand.endless = True
    driver.connect()
    driver.command(1.0)
    until(lambda: hand.count(server.GRASP) == 1)
    driver.close()
    driver.connect()
    hand.endless = False
    hand.end_motions(server.FAILED)
    time.sleep(0.2)
    for position in (0.0, 1.0, 0.0, 1.0):
        driver.command(position)
        until(lambda position=position: driver.read().position == position)
    assert {number for number, _ in hand.requests[1:]} == {1}


def test_a_hand_that_was_never_homed_is_homed_when_a_person_says_so(driver, hand):
    hand.max_width = 0.0
    with pytest.raises(DriverFault, match=r"does not know its width.*clear_errors"):
        driver.connect()
    assert hand.count(server.HOMING) == 0
    driver.clear_errors()
    driver.connect()
    assert driver.read().position == 0.0
    driver.close()
    driver.connect()
    assert hand.count(server.HOMING) == 1
    driver.clear_errors()
    # So that the node connects again.
    with pytest.raises(DriverFault, match="has not been homed yet"):
        driver.read()
    driver.connect()
    assert driver.read().position == 0.0
    assert hand.count(server.HOMING) == 2


@pytest.mark.parametrize(
    ("status", "words"),
    [(server.FAILED, "Command failed"), (server.UNSUCCESSFUL, r"was not homed.*clear_errors")],
)
def test_a_homing_that_fails_is_a_fault_and_moves_the_fingers_once(driver, hand, status, words):
    hand.max_width, hand.homing_status = 0.0, status
    driver.clear_errors()
    with pytest.raises(DriverFault, match=words):
        driver.connect()
    for _ in range(3):  # as a node does it, for ever
        driver.close()
        with pytest.raises(DriverFault, match="clear_errors"):
            driver.connect()
    assert hand.count(server.HOMING) == 1


def test_an_empty_address_is_a_timeout_that_names_it():
    pytest.importorskip("franky", reason="needs the extra franka")
    hand = FrankaHand("127.0.0.1")
    with pytest.raises(DriverTimeout, match=r"Hand at 127.0.0.1 does not answer.*FCI"):
        hand.connect()
    with pytest.raises(DriverError, match="not connected"):
        hand.read()
    hand.close()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"speed": 1.0}, "'speed' of the Franka Hand is out of range; got: 1.0; .* to 0.2"),
        ({"force": float("nan")}, "'force' of the Franka Hand is out of range; got: nan"),
    ],
)
def test_numbers_out_of_range_are_refused(options, words):
    with pytest.raises(DriverError, match=words):
        FrankaHand("arm", **options)
