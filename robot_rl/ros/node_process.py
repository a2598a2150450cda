"""Runs one device node as a process: the `main` of every `drivers/*/node.py`."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.lifecycle import TransitionCallbackReturn
from rclpy.signals import SignalHandlerOptions

from robot_rl.errors import RobotRLError
from robot_rl.processes.signals import ENDS_WITH_INPUT, StopEvent, end_with_input, stop_event
from robot_rl.ros.device_node import DeviceNode
from robot_rl.ros.environment import clean_shared_memory, leave_shared_memory, prepare_environment

_SPIN_SECONDS = 0.1
_LEAVE_SECONDS = 20.0
_EXIT_ERROR = 2


def run_node(make: Callable[[], DeviceNode], *, sends_pictures: bool = False) -> int:
    """Run a node until it is asked to end: the `main` of every `drivers/*/node.py`.

    The node configures and activates itself; set the parameter `autostart` to false if a lifecycle
    manager does this. On Ctrl-C or SIGTERM it closes its device and exits. With `sends_pictures` it
    uses shared memory, for messages too large for UDP.

    Returns the exit code: 0, or 2 after an error that the user can fix.
    """
    ends_with_input = os.environ.pop(ENDS_WITH_INPUT, None)
    prepare_environment()
    if not sends_pictures:
        leave_shared_memory()
    clean_shared_memory()
    try:
        rclpy.init(args=sys.argv, signal_handler_options=SignalHandlerOptions.NO)
    except Exception as error:  # rclpy has moved this exception class between releases
        _tell(f"the arguments after --ros-args cannot be read; got: {error}")
        return _EXIT_ERROR
    try:
        with stop_event() as stop:
            if ends_with_input:
                end_with_input()
            _spin(make(), stop)
    except RobotRLError as error:
        _tell(str(error))
        return _EXIT_ERROR
    finally:
        rclpy.try_shutdown()
    return 0


def _spin(node: DeviceNode, stop: StopEvent) -> None:
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    try:
        # Skipped if a lifecycle manager does it.
        if node.parameter("autostart", True, "configure and activate without a manager"):
            for step in ("configure", "activate"):
                if getattr(node, f"trigger_{step}")() != TransitionCallbackReturn.SUCCESS:
                    raise RobotRLError(
                        f"{node.get_fully_qualified_name()} cannot be {step}d",
                        got=node.trouble,
                        hint="correct its parameters; its log above may say more",
                    )
        while not stop.is_set():
            executor.spin_once(timeout_sec=_SPIN_SECONDS)
    finally:
        # Exit even if the device's library or Fast DDS hangs: on an overloaded machine, Fast DDS
        # 2.14 can deadlock if another participant's lease expires just as that participant leaves.
        timer = threading.Timer(_LEAVE_SECONDS, os._exit, [0])
        timer.daemon = True
        timer.start()
        node.trigger_shutdown()
        executor.shutdown()
        node.destroy_node()


def _tell(problem: str) -> None:
    sys.stderr.write(f"{Path(sys.argv[0]).name}: {problem}\n")
