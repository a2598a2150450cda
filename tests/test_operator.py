"""The inbox where the operator's events and motion meet the loop."""

from __future__ import annotations

import math
import subprocess
import sys
import threading

import numpy as np
import pytest

from robot_rl.env.operator import NOTHING, OperatorError, OperatorEvent, OperatorInbox

RIGHT = (0.0, -0.5, 0.0, 0.0, 0.0, 0.0)
UP = (0.0, 0.0, 1.0, 0.0, 0.0, 0.0)
REST = (0.0,) * 6


class Clock:
    def __init__(self):
        self.seconds = 100.0

    def __call__(self):
        return self.seconds


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def inbox(clock):
    return OperatorInbox(0.25, clock=clock)


def test_events_come_once_and_in_order(inbox):
    assert inbox.poll() == (NOTHING.events, pytest.approx(NOTHING.motion), None, False)
    inbox.post("take_over")
    inbox.post(OperatorEvent.SUCCESS)
    assert inbox.poll().events == ("take_over", "success")
    assert inbox.poll().events == ()


@pytest.mark.parametrize(
    ("halt", "end", "why"),
    [("stop", "clear_errors", "said stop"), ("pause", "resume", "said pause")],
)
def test_who_asks_for_a_start_that_would_be_lost_is_told_why(inbox, halt, end, why):
    inbox.ask("start")
    inbox.post(halt)
    with pytest.raises(OperatorError, match=f"nothing can start yet.*{why}.*say {end}, then start"):
        inbox.ask("start")
    inbox.ask(end)
    inbox.ask("start")
    assert inbox.poll().events == ("start", halt, end, "start")


def test_who_asks_for_a_start_of_an_arm_that_was_stopped_elsewhere_is_told_why(inbox):
    inbox.note_stopped("/left", "a protective stop")
    with pytest.raises(OperatorError, match=r"a protective stop.*say clear_errors, then start"):
        inbox.ask("start")
    inbox.note_stopped("/left", None)
    inbox.ask("start")


def test_a_motion_counts_until_the_source_rests_or_falls_silent(inbox, clock):
    inbox.jog(RIGHT)
    clock.seconds += 0.2
    seen = inbox.poll()
    np.testing.assert_array_equal(seen.motion, RIGHT)
    assert seen.moving
    clock.seconds += 0.1  # a SpaceMouse that was pulled out
    assert not inbox.poll().moving
    inbox.jog(RIGHT)
    inbox.jog(REST)
    assert not inbox.poll().motion.any()


def test_without_a_timeout_a_motion_counts_for_ever(clock):
    inbox = OperatorInbox(math.inf, clock=clock)
    inbox.jog(UP)
    clock.seconds += 1e6
    assert inbox.poll().moving


def test_a_device_at_rest_does_not_hinder_another(inbox, clock):
    inbox.jog(UP, source="console")
    clock.seconds += 0.01
    inbox.jog(REST, source="spacemouse")
    np.testing.assert_array_equal(inbox.poll().motion, UP)
    clock.seconds += 0.01
    inbox.jog(RIGHT, source="spacemouse")
    np.testing.assert_array_equal(inbox.poll().motion, RIGHT)


def test_a_gripper_command_is_told_once_and_is_never_lost(inbox):
    inbox.jog(REST, 1.0)
    inbox.jog(REST)
    seen = inbox.poll()
    assert (seen.gripper, seen.moving) == (1.0, True)
    seen = inbox.poll()
    assert (seen.gripper, seen.moving) == (None, False)


@pytest.mark.parametrize(
    "motion", [(0.0,) * 5, (math.nan, *REST[1:]), (1.5, *REST[1:]), [[0.0] * 6]]
)
def test_what_is_no_motion_is_refused_and_moves_nothing(inbox, motion):
    with pytest.raises(OperatorError, match="6 numbers in"):
        inbox.jog(motion)
    with pytest.raises(OperatorError, match="gripper"):
        inbox.jog(UP, math.nan)
    assert not inbox.poll().moving


def test_an_unknown_event_is_answered_with_the_known_ones(inbox):
    with pytest.raises(OperatorError, match=r"sucess.*success.*clear_errors"):
        inbox.post("sucess")


def test_events_that_nobody_reads_are_an_error_of_the_writer(inbox):
    for _ in range(256):
        inbox.post("start")
    with pytest.raises(OperatorError, match="nobody reads"):
        inbox.post("start")
    assert len(inbox.poll().events) == 256
    inbox.post("stop")
    assert inbox.poll().events == ("stop",)


def test_a_stop_waits_for_a_loop_that_reads_again(inbox):
    for _ in range(256):
        inbox.post("start")
    with pytest.raises(OperatorError, match="nobody reads"):
        inbox.post("stop")
    inbox.note_stopped("arm", "a reflex")
    assert inbox.poll().events[256:] == ("stop", "stop")


def test_a_stop_is_told_at_once_to_what_can_stop_by_itself_even_if_no_loop_reads(inbox):
    told = []
    inbox.listen(told.append)
    inbox.post("stop")
    assert told == ["stop"]
    with pytest.raises(OperatorError, match="nobody reads"):  # noqa: PT012
        for _ in range(257):
            inbox.post("stop")
    assert len(told) == 257
    inbox.poll()
    inbox.note_stopped("arm", "a reflex")
    inbox.note_stopped("arm", None)
    assert inbox.poll().events == ("stop", "clear_errors")
    assert len(told) == 257


def test_of_several_stopped_arms_the_last_one_to_be_cleared_ends_the_stop(inbox):
    inbox.note_stopped("left", "a reflex")
    inbox.note_stopped("right", "a reflex")
    inbox.note_stopped("left", None)
    assert inbox.poll().events == ("stop", "stop")
    inbox.note_stopped("right", None)
    assert inbox.poll().events == ("clear_errors",)


def test_nothing_is_lost_while_several_threads_write():
    inbox = OperatorInbox()
    count = 40

    def write(name):
        for _ in range(count):
            inbox.post("success")
            inbox.jog(UP, source=name)

    writers = [threading.Thread(target=write, args=(f"device {n}",)) for n in range(4)]
    for writer in writers:
        writer.start()
    heard = 0
    while any(writer.is_alive() for writer in writers):
        heard += len(inbox.poll().events)
    assert heard + len(inbox.poll().events) == 4 * count


def test_it_loads_no_heavy_package():
    code = "import sys, robot_rl.env.operator; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"torch", "hydra", "rclpy"} & set(loaded)
