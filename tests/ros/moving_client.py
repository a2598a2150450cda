"""A client in a process of its own that moves an arm at 20 Hz, to be killed by a test."""

from __future__ import annotations

import sys
import time

import numpy as np
from geometry_msgs.msg import PoseStamped

from robot_rl.ros import conversions, qos
from robot_rl.ros.ros_client import RosClient


def main(namespace: str) -> None:
    """Swing to and fro by 6 cm, from where the arm is."""
    client = RosClient("client", namespace)
    poses: list[PoseStamped] = []
    client.node.create_subscription(
        PoseStamped, "current_pose", poses.append, qos.sensor_subscription(1)
    )
    publisher = client.node.create_publisher(
        PoseStamped, "target_pose", qos.command_publisher(20.0)
    )
    while not poses:
        time.sleep(0.01)
    start = conversions.pose_array(poses[-1])
    began = time.monotonic()
    while True:
        target = start.copy()
        target[0] += 0.06 * np.sin(2.0 * (time.monotonic() - began))
        publisher.publish(conversions.pose_message(target, time.time_ns()))
        time.sleep(0.05)


if __name__ == "__main__":
    main(sys.argv[1])
