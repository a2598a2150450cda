"""A device node as a process of its own says why it cannot run."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytest.importorskip("rclpy", reason="needs ROS 2")

import listening  # a ROS domain of this test process's own, which the node inherits


def run_gripper_node(driver):
    assert listening  # imported for what it sets
    words = ["--ros-args", "-p", f"driver:={json.dumps(json.dumps(driver))}"]
    return subprocess.run(
        [sys.executable, "-m", "drivers.gripper.node", *words],
        capture_output=True,
        text=True,
        timeout=60.0,
    )


@pytest.mark.parametrize(
    ("driver", "reason"),
    [
        ({"_target_": "drivers.gripper.nothing.Nothing"}, "drivers.gripper.nothing"),
        # Of the constructor, and no error of this package.
        ({"_target_": "fractions.Fraction", "numerator": 1, "denominator": 0}, "ZeroDivisionError"),
    ],
)
def test_a_driver_that_cannot_be_made_ends_the_node_with_the_reason(driver, reason):
    ended = run_gripper_node(driver)
    assert ended.returncode == 2
    last = ended.stderr.strip().splitlines()[-1]
    assert "/gripper_node cannot be configured" in last
    assert reason in last
