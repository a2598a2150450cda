"""Who runs the callbacks of a node."""

from __future__ import annotations

from rclpy import Context
from rclpy.executors import Executor, SingleThreadedExecutor


def light_executor(context: Context) -> Executor:
    """One that takes a third of the processor time per message, where this rclpy has it.

    `EventsExecutor` came with rclpy 7.1.4. At 500 messages a second it took 0.11 of a core where
    `SingleThreadedExecutor` took 0.30, which a control loop in the same process feels. Until 7.1.6
    at least it fails at callbacks that take a message's info too, and at services that are
    coroutines: those need `SingleThreadedExecutor`.

    Args:
        context: Of the nodes.
    """
    try:
        from rclpy.experimental.events_executor import EventsExecutor
    except ImportError:
        return SingleThreadedExecutor(context=context)
    return EventsExecutor(context=context)
