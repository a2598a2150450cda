"""What keeps a stop over the end of its process."""

from __future__ import annotations

import itertools
import socket

import pytest

from robot_rl.safety import StopLatch, StopNotKept, default_stop_folder, kept_stop

SIMULATED = {"_target_": "drivers.arm.sim.SimArm"}
UR = {"_target_": "drivers.arm.ur.UrArm", "host": "192.168.1.10"}


def test_the_first_reason_stays_until_it_is_released(tmp_path):
    latch = StopLatch(tmp_path / "new", "/arm", UR)
    assert latch.reason() is None
    latch.set("the service stop was called")
    latch.set("another")
    assert kept_stop(tmp_path / "new", "/arm", UR) == "the service stop was called"
    begun_anew = StopLatch(tmp_path / "new", "/arm", UR)
    assert begun_anew.reason() == "the service stop was called"
    assert StopLatch(tmp_path / "new", "/other_arm", SIMULATED).reason() is None
    begun_anew.release()
    begun_anew.release()
    assert latch.reason() is None
    assert kept_stop(tmp_path / "new", "/arm", UR) is None
    assert kept_stop(tmp_path / "never_made", "/arm", UR) is None


def file(folder):
    return folder / "stop.host.192.168.1.10"


def arm(host, **settings):
    return {"_target_": "drivers.arm.ur.UrArm", "host": host, **settings}


def assert_one_arm(folder, one, other, nodes=("/arm", "/left/arm")):
    """Either finds the stop of the other, and a person who clears the one clears the other."""
    for (first, its), (second, others) in itertools.permutations(
        zip(nodes, (one, other), strict=True)
    ):
        StopLatch(folder, first, its).set("pressed")
        assert StopLatch(folder, second, others).reason() == "pressed"
        assert kept_stop(folder, second, others) == "pressed"
        StopLatch(folder, second, others).release()
        assert StopLatch(folder, first, its).reason() is None


def test_a_stop_is_that_of_one_arm_whatever_its_node_is_called(tmp_path):
    """Whoever clears a simulated arm, or a twin at another address, does not clear a real one."""
    StopLatch(tmp_path, "/arm", UR).set("the service stop was called")
    for driver in (SIMULATED, {**UR, "host": "127.0.0.1"}):
        other = StopLatch(tmp_path, "/arm", driver)
        assert other.reason() is None
        other.release()
    again = {**UR, "rate_hz": 125.0}  # the same arm with other settings
    assert StopLatch(tmp_path, "/arm", again).reason() == "the service stop was called"


@pytest.mark.parametrize(
    "spelling",
    [
        "127.0.0.1",
        "LOCALHOST",
        "localhost.",
        " localhost ",
        "localhost:30004",
        "[::1]:30004",
        "127.1",
    ],
)
def test_the_spelling_of_a_host_does_not_matter(tmp_path, spelling):
    assert_one_arm(tmp_path, arm("localhost"), arm(spelling))


@pytest.mark.parametrize("spelling", ["UR5.invalid", "ur5.invalid.", "http://ur5.invalid:8080/"])
def test_nor_where_its_address_is_unknown(tmp_path, spelling):
    assert_one_arm(tmp_path, arm("ur5.invalid"), arm(spelling))


def test_a_host_is_known_by_name_and_address(tmp_path, monkeypatch):
    address = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.5", 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: address)
    StopLatch(tmp_path, "/arm", arm("ur5.lab")).set("pressed")
    assert StopLatch(tmp_path, "/arm", arm("10.0.0.5")).reason() == "pressed"

    def unknown(*_):
        raise socket.gaierror("no name server")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)  # the next day, without a network
    assert StopLatch(tmp_path, "/arm", arm("ur5.lab")).reason() == "pressed"
    StopLatch(tmp_path, "/arm", arm("10.0.0.5")).release()
    assert StopLatch(tmp_path, "/arm", arm("ur5.lab")).reason() is None


def test_ros_domain_namespace_and_class_do_not_matter(tmp_path, monkeypatch):
    own = {"_target_": "lab.MyUr", "host": "192.168.1.10", "namespace": "/ur"}
    monkeypatch.setenv("ROS_DOMAIN_ID", "3")
    StopLatch(tmp_path, "/arm", UR).set("pressed")
    monkeypatch.setenv("ROS_DOMAIN_ID", "4")
    assert StopLatch(tmp_path, "/lab/left/arm", own).reason() == "pressed"
    simulated = StopLatch(tmp_path, "/arm", SIMULATED)
    simulated.set("pressed")
    monkeypatch.setenv("ROS_DOMAIN_ID", "3")
    assert StopLatch(tmp_path, "/arm", SIMULATED).reason() == "pressed"
    topics = [
        {"_target_": "drivers.arm.topics.PoseTopicArm", "namespace": n} for n in ("ctl", "/ctl/")
    ]
    assert_one_arm(tmp_path, *topics)


def test_an_arm_on_a_wire_is_known_by_its_device(tmp_path):
    (tmp_path / "link").symlink_to("/dev/null")
    ports = [
        {"_target_": "LeRobotArm", "settings": {"port": p}}
        for p in ("/dev/null", str(tmp_path / "link"))
    ]
    assert_one_arm(tmp_path / "stops", *ports)
    other = {"_target_": "LeRobotArm", "settings": {"port": "/dev/zero"}}
    StopLatch(tmp_path / "stops", "/arm", ports[0]).set("pressed")
    assert StopLatch(tmp_path / "stops", "/arm", other).reason() is None


def test_a_process_that_was_killed_before_it_wrote_the_reason_is_stopped(tmp_path):
    file(tmp_path).touch()
    assert StopLatch(tmp_path, "/arm", UR).reason() == "a stop"


def test_what_cannot_be_kept_says_what_to_do(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StopNotKept, match=r"cannot be made.*stop_folder"):
        StopLatch(tmp_path / "file", "/arm", UR)
    file(tmp_path).mkdir()
    with pytest.raises(StopNotKept, match="cannot be read"):
        StopLatch(tmp_path, "/arm", UR).reason()


def test_it_is_kept_for_the_user(state_home):
    assert default_stop_folder() == state_home / "robot_rl"


def test_a_serial_number_that_yaml_reads_as_a_number_is_the_same(tmp_path):
    assert_one_arm(tmp_path, {**UR, "serial": "840412060000"}, {**UR, "serial": 840412060000})
