"""The service `clear_errors`: none of before a stop is carried out after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rclpy.node import Node
from std_srvs.srv import Trigger


class ClearService:
    """`clear_errors` of a device, whose waiting requests a stop refuses.

    Each service has a queue of its own: their order says nothing about that of the requests.

    Args:
        node: The device's node.
        name: Of the service.
        device: What a person is to look at.
        clear: Carries a request out, and returns the answer that it is given.
    """

    def __init__(
        self,
        node: Node,
        name: str,
        device: str,
        clear: Callable[[Trigger.Request, Trigger.Response], Trigger.Response],
    ) -> None:
        """See the class."""
        self._device = device
        self._service = node.create_service(Trigger, name, clear)

    @contextmanager
    def refused_by_stop(self) -> Iterator[None]:
        """Take the requests that wait now, and refuse them when the stop has been carried out.

        Those that come in between are carried out later: who asks then may have heard of the stop.
        """
        taken = self._take()
        try:
            yield
        finally:
            problem = f"a stop came meanwhile; next: look at the {self._device}, and call it again"
            answer = Trigger.Response(success=False, message=problem)
            for request in taken:
                self._service.send_response(answer, request)

    def _take(self) -> list[Any]:
        taken: list[Any] = []
        queue = self._service.handle
        while True:
            with queue:
                _, request = queue.service_take_request(Trigger.Request)
            if request is None:
                return taken
            taken.append(request)
