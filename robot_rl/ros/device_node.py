"""Base class of all driver nodes: a lifecycle node that keeps its device connected.

    configure   creates the driver from the parameter `driver` and starts connecting
    activate    polls the device and publishes
    deactivate  stops publishing; the device stays connected
    cleanup     closes the device; topics and services stay

An unreachable device is reported in `/diagnostics` and retried indefinitely.
"""

from __future__ import annotations

import contextlib
import functools
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import yaml
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor
from rclpy.exceptions import ParameterException
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.service import Service
from rclpy.timer import Timer
from std_srvs.srv import Trigger

from policies import registry
from robot_rl.errors import RobotRLError, described
from robot_rl.ros import qos
from robot_rl.ros.connection import CONNECTED, DeviceConnection, Freshness
from robot_rl.ros.sole_source import SoleSubscription

# Interval between diagnostics, and the shortest one after a fault has come or gone.
_DIAGNOSTICS_SECONDS, _NEWS_SECONDS = 1.0, 0.1
# Log interval for a fault whose text changes at every poll, for example with an age.
_LOG_SECONDS = 1.0


def _explained(transition: Any) -> Any:
    """Log exceptions in a transition: rclpy turns them into a silent failed transition."""

    @functools.wraps(transition)
    def run(node: DeviceNode, state: LifecycleState) -> Any:
        try:
            return transition(node, state)
        except Exception as error:
            node.get_logger().error(traceback.format_exc())
            node.trouble = described(error)
            raise

    return run


class DeviceNode(LifecycleNode, ABC):
    """A lifecycle node over one driver.

    A subclass creates its topics and services in `make_topics`, and reads and publishes in `poll`.
    All callbacks run in one thread. Only the driver's `connect` runs in another; meanwhile no other
    thread uses the driver.

    ROS parameters: `driver`, a YAML or JSON mapping with `_target_`; `rate_hz`, the polling rate;
    `stale_after_s`, the age at which the latest measurement is reported as stale;
    `reconnect_after_s`, how long the device may fail before the node reconnects it.
    """

    driver_family: ClassVar[type[Any]]  # required class or protocol of the driver
    default_rate_hz: ClassVar[float] = 100.0
    highest_rate_hz: ClassVar[float] = 1000.0

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name, **options)
        self.trouble = ""  # why the last failed transition failed
        self.refusals, self.last_refusal = 0, ""  # count of refused commands; last reason
        self._commands: list[SoleSubscription] = []
        self._connection: DeviceConnection | None = None
        self._has_topics = self._was_connected = False
        self._quiet_until = 0.0  # on the steady clock [s]
        self._told_level, self._told_at = DiagnosticStatus.OK, 0.0
        self._timer: Timer | None = None
        self._driver_config: str = self.parameter("driver", "", "a mapping with _target_")
        self.rate_hz: float = self.parameter(
            "rate_hz", self.default_rate_hz, "polls per second", low=0.1, high=self.highest_rate_hz
        )
        text = "age at which the newest measurement is reported as stale"
        stale: float = self.parameter("stale_after_s", 0.5, text, low=0.001, high=3600.0)
        text = "how long the device may fail before it is connected again"
        self._patience = self.parameter("reconnect_after_s", 1.0, text, low=0.0, high=3600.0)
        self.freshness = Freshness(stale)
        self._diagnostics = self.create_publisher(DiagnosticArray, "/diagnostics", 10)
        self._diagnostics_timer = self.create_timer(_DIAGNOSTICS_SECONDS, self.publish_diagnostics)

    @property
    def driver_settings(self) -> dict[str, Any]:
        """The parameter `driver`: the class as `_target_`, and its arguments."""
        try:
            found = yaml.safe_load(self._driver_config)
        except yaml.YAMLError as error:
            found = error
        if not isinstance(found, dict):
            raise RobotRLError(
                "the parameter 'driver' names no driver",
                got=found or "nothing",
                expected="a YAML mapping such as {_target_: drivers.camera.sim.SimCamera, ...}",
            )
        return found

    def setup(self) -> None:
        """Prepare for the newly created driver; called at each configure."""

    @abstractmethod
    def make_topics(self) -> None:
        """Create publishers, subscriptions and services, at the first configure, after `setup`."""

    @abstractmethod
    def poll(self) -> None:
        """Read the connected device and publish new measurements; called at `rate_hz` while active.

        A `RobotRLError` is reported; if it persists, the device is reconnected.
        """

    def activating(self) -> None:
        """Polling is about to start."""

    def deactivated(self) -> None:
        """Polling has stopped."""

    def connected(self) -> None:
        """The device has just connected or reconnected."""

    def disconnected(self) -> None:
        """The device has just disconnected."""

    def commanded_by_several(self, problem: str) -> None:
        """Several publishers, named in `problem`, have sent commands."""

    def facts(self) -> Mapping[str, object]:
        """Return extra diagnostic values, such as counts of refusals."""
        return {}

    def warning(self) -> str | None:
        """Return a problem that is not a device fault; by default the last refused command."""
        return self.last_refusal or None

    @property
    def driver(self) -> Any:
        """The driver, created at configure; use it in `poll`, or if `is_connected`."""
        assert self._connection is not None, "the node is not configured"
        return self._connection.driver

    @property
    def is_configured(self) -> bool:
        """Whether there is a driver."""
        return self._connection is not None

    @property
    def is_connected(self) -> bool:
        """Whether the device is connected, as far as known."""
        return self._connection is not None and self._connection.state == CONNECTED

    @property
    def fault(self) -> str:
        """The fault of the device; empty without one."""
        return (self._connection.fault if self._connection else None) or ""

    @property
    def is_polling(self) -> bool:
        """Whether the node is active."""
        return self._timer is not None

    def parameter(
        self,
        name: str,
        default: Any,
        description: str,
        *,
        low: float | None = None,
        high: float | None = None,
        read_only: bool = True,
    ) -> Any:
        """Declare a parameter with the type of its default, and return its value.

        A list default means a list of floats. Numbers must lie from `low` to `high`. A `read_only`
        parameter can only be set at startup. Raises a `RobotRLError` that names an invalid one.
        """
        descriptor = ParameterDescriptor(description=description, read_only=read_only)
        # Accept an integer for a float; rclpy's own type check would refuse it.
        descriptor.dynamic_typing = isinstance(default, float | list)
        span = None if low is None or high is None else (low, high)
        if span and isinstance(default, int):
            least, most = map(int, span)
            descriptor.integer_range = [IntegerRange(from_value=least, to_value=most)]
        elif span:
            reach = FloatingPointRange(from_value=float(span[0]), to_value=float(span[1]))
            descriptor.floating_point_range = [reach]
        plural = isinstance(default, list)
        kind = float if plural else type(default)
        try:
            found = self.declare_parameter(name, default, descriptor).value
            parts = list(found) if plural else [found]
            parts = [float(part) if kind is float and type(part) is int else part for part in parts]
        except (ParameterException, TypeError) as error:
            found, parts = error, [error]
        if any(type(p) is not kind or (span and not span[0] <= p <= span[1]) for p in parts):
            limits = "" if span is None else f" from {low:g} to {high:g}"
            node = self.get_fully_qualified_name()
            raise RobotRLError(
                f"the parameter {name!r} of {node} cannot have this value",
                got=found,
                expected=f"{kind.__name__}{'s' * plural}{limits}",
            )
        return parts if plural else parts[0]

    def serve(self, name: str, do: Callable[[], str]) -> Service:
        """Serve a `std_srvs/Trigger`: `do` returns the message; an exception becomes a refusal."""

        def answer(request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
            try:
                response.success, response.message = True, do()
            except Exception as error:
                response.success, response.message = False, described(error)
                self.get_logger().error(f"{name}: {response.message}")
            return response

        return self.create_service(Trigger, name, answer)

    @contextlib.contextmanager
    def refusing(self, service: Service, device: str) -> Iterator[None]:
        """Refuse requests already queued at a service, after the body has carried out a stop.

        Each service has its own queue, so the order of requests to two services is unknown.
        Requests that arrive during the body are served later: their clients may know of the stop.
        """
        taken: list[Any] = []
        queue = service.handle
        with queue:
            while (request := queue.service_take_request(Trigger.Request)[1]) is not None:
                taken.append(request)
        try:
            yield
        finally:
            problem = f"a stop came meanwhile; next: look at the {device}, and call it again"
            for request in taken:
                service.send_response(Trigger.Response(success=False, message=problem), request)

    def subscribe_to_commands(self, kind: Any, topic: str, take: Callable[[Any], None]) -> None:
        """Follow one command publisher; if a second appears, none until `forget_commanders`."""

        def check(message: Any) -> None:
            if not (self.is_connected and self.is_polling):
                return  # drop it, so that it cannot cause motion later
            try:
                take(message)
            except RobotRLError as refusal:
                self._refuse(str(refusal))
            else:
                self.last_refusal = ""

        def refused(problem: str) -> None:
            self._refuse(problem)
            if commands.rivals:
                self.commanded_by_several(problem)

        profile = qos.command_subscription()
        commands = SoleSubscription(self, kind, topic, check, profile, refused=refused)
        self._commands.append(commands)

    def forget_commanders(self) -> None:
        """Accept a sole publisher again, after a person has checked."""
        for commands in self._commands:
            commands.forget()

    def _refuse(self, reason: str) -> None:
        self.refusals += 1
        if reason != self.last_refusal:
            self.get_logger().warning(f"refused: {reason}", throttle_duration_sec=1.0)
        self.last_refusal = reason

    def publish_diagnostics(self) -> None:
        """Publish rate, age and fault of the device."""
        status = DiagnosticStatus(name=self.get_fully_qualified_name().lstrip("/"))
        status.level, status.message = self._health()
        self._told_level, self._told_at = status.level, time.monotonic()
        values: dict[str, object] = {
            "driver": self._target(),
            "connection": self._connection.state if self._connection else "not configured",
            "fault": self.fault,
            **self.freshness.facts(),
            **self.facts(),
        }
        status.values = [KeyValue(key=key, value=str(value)) for key, value in values.items()]
        message = DiagnosticArray(status=[status])
        message.header.stamp = self.get_clock().now().to_msg()
        self._diagnostics.publish(message)

    @_explained
    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Create the driver and start connecting."""
        try:
            driver = registry.make(self.driver_settings, self.driver_family)
            self._connection = DeviceConnection(driver, self._patience)
            self.setup()
            if not self._has_topics:
                self.make_topics()
                self._has_topics = True
        except RobotRLError as error:
            self.trouble = str(error)
            self.get_logger().error(self.trouble)
            self._connection = None
            return TransitionCallbackReturn.FAILURE
        self._connection.begin()
        return TransitionCallbackReturn.SUCCESS

    @_explained
    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Start polling."""
        self.activating()
        self._timer = self.create_timer(1.0 / self.rate_hz, self._tick)
        return TransitionCallbackReturn.SUCCESS

    @_explained
    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Stop polling."""
        self._stop_polling()
        self.deactivated()
        return TransitionCallbackReturn.SUCCESS

    @_explained
    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Close the device; also called at shutdown and after a transition that raised."""
        self._stop_polling()
        if self._connection is not None:
            self._connection.close()
            if self._connection.news is not None:
                self.get_logger().warning(self._connection.news)
        was_connected, self._was_connected = self._was_connected, False
        self._connection = None
        if was_connected:
            self.disconnected()
        return TransitionCallbackReturn.SUCCESS

    on_shutdown = on_cleanup

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Close the device after a transition that raised, so that it is not left running."""
        self.get_logger().error(f"a transition from {state.label} failed; the device is closed")
        self.on_cleanup(state)
        return TransitionCallbackReturn.SUCCESS

    def _tick(self) -> None:
        connection = self._connection
        assert connection is not None
        connected = connection.update()
        if connected != self._was_connected:
            self._was_connected = connected
            (self.connected if connected else self.disconnected)()
            if connected:
                self.get_logger().info(f"connected: {self._target()}")
        now = time.monotonic()
        if connection.news is not None and now >= self._quiet_until:
            self.get_logger().warning(connection.news)
            connection.news, self._quiet_until = None, now + _LOG_SECONDS
        if connected:
            try:
                self.poll()
            except RobotRLError as error:
                connection.failed(error)
            else:
                connection.succeeded()
        # Clients that miss measurements check the diagnostics: publish a change at once.
        if self._health()[0] != self._told_level and now - self._told_at >= _NEWS_SECONDS:
            self.publish_diagnostics()

    def _health(self) -> tuple[bytes, str]:
        connection = self._connection
        if connection is None:
            return DiagnosticStatus.WARN, "not configured"
        if connection.fault is not None:
            return DiagnosticStatus.ERROR, connection.fault
        if connection.state != CONNECTED:
            return DiagnosticStatus.WARN, connection.state
        if self.is_polling and (old := self.freshness.staleness()) is not None:
            return DiagnosticStatus.STALE, old
        warning = self.warning() or self.freshness.warning
        return (DiagnosticStatus.WARN, warning) if warning else (DiagnosticStatus.OK, "running")

    def _stop_polling(self) -> None:
        if self._timer is not None:
            self.destroy_timer(self._timer)
            self._timer = None

    def _target(self) -> str:
        with contextlib.suppress(RobotRLError):
            return str(self.driver_settings.get("_target_"))
        return "none"
