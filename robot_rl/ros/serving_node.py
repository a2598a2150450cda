"""What every node of ours can do: declare a parameter with its limits, and serve a trigger."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor
from rclpy.exceptions import ParameterException
from rclpy.lifecycle import LifecycleNode
from rclpy.service import Service
from std_srvs.srv import Trigger

from robot_rl.errors import RobotRLError, described


class ParameterError(RobotRLError):
    """A parameter of a node that is missing, of another type, or out of range."""


class ServingNode(LifecycleNode):
    """A lifecycle node whose parameters are checked, and whose services answer with errors."""

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
        """Declare a parameter, and return its value.

        Its default decides the type; a list is one of floats. A number lies from `low` to `high`.
        One that is `read_only` may only be given at the start. The `ParameterError` names it where
        the value is out of range or of another type.
        """
        # A whole number serves as a float too: rclpy's own check of types would refuse it.
        descriptor = ParameterDescriptor(
            description=description,
            read_only=read_only,
            dynamic_typing=isinstance(default, float | list),
        )
        if low is not None and high is not None:
            if isinstance(default, int):
                limits = IntegerRange(from_value=int(low), to_value=int(high))
                descriptor.integer_range = [limits]
            else:
                limits = FloatingPointRange(from_value=float(low), to_value=float(high))
                descriptor.floating_point_range = [limits]
        try:
            value = self.declare_parameter(name, default, descriptor).value
            if isinstance(default, list):
                value = [float(item) if type(item) is int else item for item in value]
            elif isinstance(default, float) and type(value) is int:
                value = float(value)
        except (ParameterException, TypeError) as error:
            value = error
        parts = value if isinstance(value, list) and isinstance(default, list) else [value]
        kind = float if isinstance(default, list) else type(default)
        in_range = low is None or high is None or (type(value) is kind and low <= value <= high)
        if not in_range or not all(type(part) is kind for part in parts):
            limits = "" if low is None else f" from {low:g} to {high:g}"
            node = self.get_fully_qualified_name()
            raise ParameterError(
                f"the parameter {name!r} of {node} cannot have this value",
                got=value,
                expected=f"{kind.__name__}{'s' * isinstance(default, list)}{limits}",
            )
        return value

    def serve(self, name: str, do: Callable[[], str]) -> Service:
        """Serve a `std_srvs/Trigger`: `do` does it, and says what was done.

        Whatever it raises, a vendor's own errors too, is the answer: the node goes on.
        """

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
        """Refuse the requests of a service that wait now, when what a stop does has been done.

        Each service has a queue of its own: their order says nothing about that of the requests.
        Those that come in between are carried out later: who asks then may have heard of the stop.
        A person is told to look at the `device`.
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
