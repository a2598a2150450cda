"""What a person asks a robot's nodes from the command line, where there is no `ros2` tool."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rclpy.qos import DurabilityPolicy
from std_srvs.srv import Trigger

from robot_rl.processes.waiting import wait_until
from robot_rl.ros import qos
from robot_rl.ros.client import RosClient
from robot_rl.ros.environment import prepare_environment
from robot_rl.ros.errors import RosUnavailable, SensorLate, ServiceFailed

_SECONDS = 10.0
# A reset of an arm answers when it has arrived.
_CALL_SECONDS = 60.0


def call(service: str) -> str:
    """Call a `std_srvs/Trigger` service, and return what it answers.

    Raises:
        ServiceFailed: Nobody serves it, or it says no.
    """
    with _client() as client:
        if not wait_until(client.node.create_client(Trigger, service).service_is_ready, _SECONDS):
            raise ServiceFailed(
                f"nobody serves {service}",
                hint="the arm's node serves stop and clear_errors; start, pause and what else an"
                " operator can say are served while collect, train or evaluate moves the robot",
            )
        answer = client.call(Trigger, service, Trigger.Request(), _CALL_SECONDS)
    if not answer.success:
        raise ServiceFailed(f"{service} was refused", got=answer.message)
    return f"{service}: {answer.message}"


def newest(topic: str) -> str:
    """Wait for a message of a topic, and return it in words.

    Raises:
        SensorLate: None comes.
        RosUnavailable: Its type is not installed here.
    """
    with _client() as client:
        publishers = wait_until(
            lambda: client.node.get_publishers_info_by_topic(client.topic(topic)), _SECONDS
        )
        if not publishers:
            raise SensorLate(topic, float("inf"), _SECONDS, "nobody publishes it")
        latched = publishers[0].qos_profile.durability == DurabilityPolicy.TRANSIENT_LOCAL
        profile = qos.latched() if latched else qos.sensor_subscription(1)
        heard: list[Any] = []
        kind = _message_type(publishers[0].topic_type)
        client.node.create_subscription(kind, topic, heard.append, profile)
        if not wait_until(lambda: heard, _SECONDS):
            raise SensorLate(topic, float("inf"), _SECONDS)
    return str(heard[-1])


@contextmanager
def _client() -> Iterator[RosClient]:
    prepare_environment(None)
    client = RosClient("asking", "/")
    try:
        yield client
    finally:
        client.close()


def _message_type(name: str) -> Any:
    package, _, kind = name.split("/")
    try:
        return getattr(importlib.import_module(f"{package}.msg"), kind)
    except (ImportError, AttributeError) as error:
        raise RosUnavailable("the type of the topic is not installed here", got=name) from error
