"""A ROS node inside a process that has other things to do."""

from __future__ import annotations

import atexit
import importlib
import io
import math
import os
import re
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import rclpy
from rclpy import Context
from rclpy.client import Client
from rclpy.executors import Executor, ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy
from rclpy.signals import SignalHandlerOptions
from rclpy.task import Future
from std_srvs.srv import Trigger

from robot_rl.errors import did_you_mean
from robot_rl.processes.waiting import wait_until
from robot_rl.ros import qos
from robot_rl.ros.environment import prepare_environment
from robot_rl.ros.faults import CommandConflict, RosUnavailable, SensorLate, ServiceFailed

_SPIN_SECONDS = 0.1
_POLL_SECONDS = 0.005
# Time-outs of a person's requests; a reset answers when the arm has arrived.
_ASKED_SECONDS, _CALL_SECONDS = 10.0, 60.0
_DIAGNOSED_SECONDS = 3.0  # in which every node reports its state
_SAID = ("driver", "connection", "fault")  # values that the message of a diagnostic repeats
_GONE_SECONDS = 2.0  # after which a service that has vanished does not come back


_TRIGGER = "std_srvs/srv/Trigger"
_PROCESS = re.compile(r"_\d+$")
UNNAMED = "one whose name is still unknown"  # among the names of publishers


def publisher_names(node: Node, topic: str) -> list[str]:
    """Full names of the nodes that publish on a topic; one that was killed stays a while."""
    infos = node.get_publishers_info_by_topic(topic)
    names = (f"{info.node_namespace.rstrip('/')}/{info.node_name}" for info in infos)
    return sorted(UNNAMED if "UNKNOWN" in name else name for name in names)


def source_of(name: str) -> str:
    """The full name of a node without the number of its process, which a restarted one changes."""
    return _PROCESS.sub("", name)


def light_executor(context: Context) -> Executor:
    """The executor that takes the least processor time per message.

    `EventsExecutor` came with rclpy 7.1.4. At 500 messages a second it took 0.11 of a core where
    `SingleThreadedExecutor` took 0.30, which a control loop in the same process feels. Until 7.1.6
    at least it fails at services that are coroutines: those need `SingleThreadedExecutor`. So does
    a notebook, whose `sys.stderr` is no file: `EventsExecutor` prints fatal errors there.
    """
    try:
        from rclpy.experimental.events_executor import EventsExecutor

        return EventsExecutor(context=context)
    except (ImportError, io.UnsupportedOperation):
        return SingleThreadedExecutor(context=context)


class RosClient:
    """A node in a context of its own, and the thread that runs its callbacks.

    The process id is added to its name. Publishing with `node` is safe from every thread.
    `executor` makes the executor; `light_executor` says what it cannot run.
    """

    def __init__(
        self, name: str, namespace: str, executor: Callable[..., Executor] = light_executor
    ) -> None:
        self._context = rclpy.Context()
        rclpy.init(args=[], context=self._context, signal_handler_options=SignalHandlerOptions.NO)
        self.node = rclpy.create_node(
            f"{name}_{os.getpid()}", namespace=namespace, context=self._context
        )
        self.namespace = str(self.node.get_namespace())
        self._executor = executor(context=self._context)
        self._executor.add_node(self.node)
        self._servers: dict[str, Client] = {}
        self._problem: BaseException | None = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._spin, name="ros", daemon=True)
        self._thread.start()
        atexit.register(self.close)  # a thread inside of ROS at the end of Python aborts it

    @property
    def running(self) -> bool:
        """Whether the callbacks still run; `check` says why not."""
        return self._thread.is_alive()

    def check(self) -> None:
        """Raise `RosUnavailable` where the callbacks do not run any more; its cause is why."""
        if self._problem is not None:
            raise RosUnavailable(
                "the thread of the ROS callbacks has ended", got=repr(self._problem)
            ) from self._problem

    def topic(self, name: str) -> str:
        """The full name of a topic or service, remappings included."""
        return str(self.node.resolve_topic_name(name))

    def check_alone(self, topic: str, *, replacing: bool = False) -> None:
        """Raise `CommandConflict` where others than this node publish on a topic of commands.

        It does not wait. A process that is `replacing` one of its name, which may be listed for a
        while, needs no `start` for that one.
        """
        topic = self.topic(topic)
        if self.node.count_publishers(topic) < 2:
            return
        names, mine = publisher_names(self.node, topic), self.node.get_fully_qualified_name()
        others = set(names) - {mine}
        if others:
            conflict = CommandConflict(
                f"{topic} has several publishers, but the arm can follow only one",
                got=", ".join(names),
                expected="this process alone",
                hint="end the other node, or give this robot another namespace; one that was"
                " killed is listed for up to 20 s",
            )
            strangers = {source_of(name) for name in others} - {source_of(mine), UNNAMED}
            conflict.needs_start = not replacing or bool(strangers)
            raise conflict

    def wait_for(
        self, server: Client, timeout_s: float, meanwhile: Callable[[], None] = lambda: None
    ) -> None:
        """Wait for a service's server. Not for the control loop.

        Raises `ServiceFailed` without one within `timeout_s` [s].
        """

        def served() -> bool:
            if server.service_is_ready():
                return True
            self.check()
            meanwhile()
            return False

        if not wait_until(served, timeout_s, every_s=_POLL_SECONDS):
            raise ServiceFailed(
                f"nobody serves {server.service_name}",
                hint="start the arm's node, or list it in `nodes`: docs/topics.md, section An arm"
                " of your own",
            )

    def call(
        self,
        kind: Any,
        name: str,
        request: Any,
        timeout_s: float,
        meanwhile: Callable[[], None] = lambda: None,
        again_s: float = math.inf,
    ) -> Any:
        """Call a service and wait for its answer. Not for the control loop.

        Args:
            kind: Type of the service.
            name: Of the service.
            request: Of that type.
            timeout_s: For the server to be there, and for its answer from now on [s].
            meanwhile: Called while waiting; what it raises ends the waiting, not the service.
            again_s: Time without an answer after which it is called again [s], for services that
                may be called twice. A server that has just discovered the client carries out the
                request but may lose the answer (https://github.com/ros2/ros2/issues/1253).

        Raises:
            ServiceFailed: No server, or no answer in time.
        """
        deadline = time.monotonic() + timeout_s
        server = self._server(kind, name)
        self.wait_for(server, timeout_s, meanwhile)
        calls: list[Future] = []
        next_call = -math.inf
        try:
            while not (answered := [call for call in calls if call.done()]):
                now = time.monotonic()
                if now > deadline:
                    raise ServiceFailed(
                        f"{self.topic(name)} does not answer",
                        got=f"nothing within {timeout_s:g} s",
                        hint="see the log of the arm's node",
                    )
                if now > next_call:
                    calls.append(server.call_async(request))
                    next_call = now + again_s
                self.check()
                meanwhile()
                time.sleep(_POLL_SECONDS)
            return answered[0].result()
        finally:
            for call in calls:
                server.remove_pending_request(call)

    def trigger(
        self, name: str, timeout_s: float, meanwhile: Callable[[], None] = lambda: None
    ) -> str:
        """Call a `std_srvs/Trigger` as `call` does; `ServiceFailed` also where it refuses."""
        answer = self.call(Trigger, name, Trigger.Request(), timeout_s, meanwhile)
        if not answer.success:
            meanwhile()  # raises the cause of the refusal, where it is known
            raise ServiceFailed(f"{self.topic(name)} was refused", got=answer.message)
        return str(answer.message)

    def close(self) -> None:
        """End the thread and the node; may be called again."""
        if self._ending.is_set():
            return
        atexit.unregister(self.close)
        self._ending.set()
        self._thread.join()
        self._executor.shutdown()
        self.node.destroy_node()
        rclpy.try_shutdown(context=self._context)

    def _server(self, kind: Any, name: str) -> Client:
        """The client of a service; it is kept, so that its server knows it at the next call."""
        if name not in self._servers:
            self._servers[name] = self.node.create_client(kind, name)
        return self._servers[name]

    def _spin(self) -> None:
        try:
            while not self._ending.is_set():
                self._executor.spin_once(timeout_sec=_SPIN_SECONDS)
        except ExternalShutdownException as problem:
            self._problem = None if self._ending.is_set() else problem
        except BaseException as problem:  # raised to the owner by `check`
            self._problem = problem


def ask(service: str) -> str:
    """Call a `std_srvs/Trigger` service, and return what it answers.

    Raises `ServiceFailed` where nobody serves it, or it says no.
    """
    with _asking() as client:
        served = client.node.create_client(Trigger, service).service_is_ready
        if not wait_until(served, _ASKED_SECONDS):
            every = client.node.get_service_names_and_types()
            known = [n for n, kinds in every if _TRIGGER in kinds and client.node.count_services(n)]
            close = did_you_mean(client.topic(service), known, "")
            raise ServiceFailed(
                f"nobody serves {service}",
                got=f"services {', '.join(known)}" if known else "no such service at all",
                hint=(f"{close} " if close else "")
                + "The arm's node serves stop and clear_errors; start, pause and what else an"
                " operator can say are served while a command such as train or run moves the robot",
            )
        seen = time.monotonic()

        def check_served() -> None:
            nonlocal seen
            now = time.monotonic()
            seen = now if served() else seen
            if now - seen > _GONE_SECONDS:
                raise ServiceFailed(
                    f"{service} is gone, and nobody will answer",
                    hint="the process that served it has ended; call it again once that runs",
                )

        return f"{service}: {client.trigger(service, _CALL_SECONDS, check_served)}"


def newest_message(topic: str) -> str:
    """Wait for a message of a topic, and return it in words.

    Raises `SensorLate` where none comes, `RosUnavailable` where its type is not installed here.
    """
    with _asking() as client:
        publishers = wait_until(
            lambda: client.node.get_publishers_info_by_topic(client.topic(topic)), _ASKED_SECONDS
        )
        if not publishers:
            raise SensorLate(topic, float("inf"), _ASKED_SECONDS, "nobody publishes it")
        latched = publishers[0].qos_profile.durability == DurabilityPolicy.TRANSIENT_LOCAL
        profile = qos.latched() if latched else qos.sensor_subscription(10)
        heard: list[Any] = []
        kind = message_type(publishers[0].topic_type)
        client.node.create_subscription(kind, topic, heard.append, profile)
        if not wait_until(lambda: heard, _ASKED_SECONDS):
            names = ", ".join(publisher_names(client.node, client.topic(topic)))
            raise RosUnavailable(
                f"no message on {topic}",
                got=f"nothing within {_ASKED_SECONDS:g} s, though {names} publishes it",
                hint="perhaps nothing was published since; else see topic=/diagnostics",
            )
        if kind.__name__ == "DiagnosticArray":  # each node has its own
            time.sleep(_DIAGNOSED_SECONDS)
    return _in_words(heard)


def _in_words(heard: list[Any]) -> str:
    """Messages for a person: a pose as files have it, diagnostics with a line for each node."""
    newest = heard[-1]
    if hasattr(newest, "pose") and hasattr(newest.pose, "orientation"):
        at, turn = newest.pose.position, newest.pose.orientation
        numbers = (at.x, at.y, at.z, turn.x, turn.y, turn.z, turn.w)
        return str([round(number, 4) for number in numbers])
    if hasattr(newest, "status") and isinstance(newest.status, list):
        lines = {}
        for status in (status for message in heard for status in message.status):
            facts = ((item.key, item.value) for item in status.values)
            shown = ", ".join(f"{key} {v}" for key, v in facts if v and key not in _SAID)
            lines[status.name] = "  ".join(filter(None, [status.message, shown]))
        width = max(map(len, lines), default=0)
        return "\n".join(f"{name:<{width}}  {lines[name]}" for name in sorted(lines))
    return str(newest)


def message_type(name: str) -> Any:
    """The class of a ROS type such as `sensor_msgs/msg/Joy`, or `RosUnavailable`."""
    package, _, kind = name.split("/")
    try:
        return getattr(importlib.import_module(f"{package}.msg"), kind)
    except (ImportError, AttributeError) as error:
        raise RosUnavailable("the type of the topic is not installed here", got=name) from error


def _asking() -> closing[RosClient]:
    prepare_environment(None)
    return closing(RosClient("asking", "/"))
