"""Publishes numbers in a namespace until it is killed."""

from __future__ import annotations

import sys
import time

from std_msgs.msg import Float64

from robot_rl.ros import qos
from robot_rl.ros.ros_client import RosClient


def main(namespace):
    client = RosClient("talking", namespace)
    publisher = client.node.create_publisher(Float64, "number", qos.sensor_publisher(20.0))
    while True:
        publisher.publish(Float64(data=time.time()))
        time.sleep(0.05)


if __name__ == "__main__":
    main(sys.argv[1])
