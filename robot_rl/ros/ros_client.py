"""A ROS node inside a process with other work to do."""

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
# Time-outs of a person's requests; a reset answers only when the arm has arrived.
_ASKED_SECONDS, _CALL_SECONDS = 10.0, 60.0
_DIAGNOSED_SECONDS = 3.0  # time for every node to report its state
_SAID = ("driver", "connection", "fault")  # already in the diagnostic's message
_GONE_SECONDS = 2.0  # a service missing for this long will not return


_TRIGGER = "std_srvs/srv/Trigger"
_PROCESS = re.compile(r"_\d+$")
UNNAMED = "one whose name is still unknown"  # used as a publisher's name


def publisher_names(node: Node, topic: str) -> list[str]:
    """Full names of the nodes that publish on a topic; a killed node stays listed for a while."""
    infos = node.get_publishers_info_by_topic(topic)
    names = (f"{info.node_namespace.rstrip('/')}/{info.node_name}" for info in infos)
    return sorted(UNNAMED if "UNKNOWN" in name else name for name in names)


def source_of(name: str) -> str:
    """Strip the process id from a node's full name, since a restart changes it."""
    return _PROCESS.sub("", name)


def light_executor(context: Context) -> Executor:
    """Return the executor with the lowest CPU time per message.

    `EventsExecutor` needs rclpy 7.1.4. At 500 messages per second it used 0.11 of a core,
    `SingleThreadedExecutor` 0.30, which slows a control loop in the same process. Up to at least
    7.1.6 it fails on coroutine services, which need `SingleThreadedExecutor`. Notebooks also need
    it: their `sys.stderr` is not a file, and `EventsExecutor` prints fatal errors there.
    """
    try:
        from rclpy.experimental.events_executor import EventsExecutor

        return EventsExecutor(context=context)
    except (ImportError, io.UnsupportedOperation):
        return SingleThreadedExecutor(context=context)


class RosClient:
    """A node in its own context, with a thread that runs its callbacks.

    The process id is appended to its name. Publishing with `node` is safe from every thread.
    `executor` creates the executor; see `light_executor` for its limitations.
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
        atexit.register(self.close)  # Python aborts if a thread is inside ROS at exit

    @property
    def running(self) -> bool:
        """Whether the callback thread still runs; `check` raises the reason if not."""
        return self._thread.is_alive()

    def check(self) -> None:
        """Raise `RosUnavailable` if the callback thread has failed, with the error as its cause."""
        if self._problem is not None:
            raise RosUnavailable(
                "the thread of the ROS callbacks has ended", got=repr(self._problem)
            ) from self._problem

    def topic(self, name: str) -> str:
        """The full name of a topic or service, remappings included."""
        return str(self.node.resolve_topic_name(name))

    def check_alone(self, topic: str, *, replacing: bool = False) -> None:
        """Raise `CommandConflict` if other nodes publish on a command topic.

        Does not wait. With `replacing`, an earlier process of the same name, which may stay listed
        for a while, is a conflict that needs no `start`.
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
        """Wait for a service's server. Not for use in the control loop.

        Raises `ServiceFailed` if there is none within `timeout_s` [s].
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
        """Call a service and wait for its answer. Not for use in the control loop.

        Args:
            kind: Type of the service.
            name: Name of the service.
            request: A request of that type.
            timeout_s: Time for the server to appear and answer, in total [s].
            meanwhile: Called while waiting; an error it raises ends the wait, not the service.
            again_s: Repeat the call after this time without an answer [s]; only for services that
                may be called twice. A server that has just discovered the client executes the
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
        """Call a `std_srvs/Trigger` as `call` does; `ServiceFailed` also if it refuses."""
        answer = self.call(Trigger, name, Trigger.Request(), timeout_s, meanwhile)
        if not answer.success:
            meanwhile()  # raises the cause of the refusal, if known
            raise ServiceFailed(f"{self.topic(name)} was refused", got=answer.message)
        return str(answer.message)

    def close(self) -> None:
        """Stop the thread and destroy the node; safe to call repeatedly."""
        if self._ending.is_set():
            return
        atexit.unregister(self.close)
        self._ending.set()
        self._thread.join()
        self._executor.shutdown()
        self.node.destroy_node()
        rclpy.try_shutdown(context=self._context)

    def _server(self, kind: Any, name: str) -> Client:
        """Return a service's client; it is cached so that the server already knows it next time."""
        if name not in self._servers:
            self._servers[name] = self.node.create_client(kind, name)
        return self._servers[name]

    def _spin(self) -> None:
        try:
            while not self._ending.is_set():
                self._executor.spin_once(timeout_sec=_SPIN_SECONDS)
        except ExternalShutdownException as problem:
            self._problem = None if self._ending.is_set() else problem
        except BaseException as problem:  # `check` raises it to the owner
            self._problem = problem


def ask(service: str) -> str:
    """Call a `std_srvs/Trigger` service and return its answer.

    Raises `ServiceFailed` if the service is not available or refuses.
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
    """Wait for a message on a topic and return it as text.

    Raises `SensorLate` if the topic has no publisher, and `RosUnavailable` if no message comes or
    its type is not installed here.
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
        if kind.__name__ == "DiagnosticArray":  # each node publishes its own array
            time.sleep(_DIAGNOSED_SECONDS)
    return _in_words(heard)


def _in_words(heard: list[Any]) -> str:
    """Format messages for a person: a pose as in files, diagnostics with one line per node."""
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
    """Return the class of a ROS type such as `sensor_msgs/msg/Joy`, or raise `RosUnavailable`."""
    package, _, kind = name.split("/")
    try:
        return getattr(importlib.import_module(f"{package}.msg"), kind)
    except (ImportError, AttributeError) as error:
        raise RosUnavailable("the type of the topic is not installed here", got=name) from error


def _asking() -> closing[RosClient]:
    prepare_environment(None)
    return closing(RosClient("asking", "/"))
