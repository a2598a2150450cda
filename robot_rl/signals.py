"""A clean end on Ctrl-C and SIGTERM: an event to look at, in place of an exception anywhere."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# Set for the children of `train`: they end when their standard input closes.
ENDS_WITH_INPUT = "ROBOT_RL_ENDS_WITH_INPUT"


class Stopped(Exception):
    """A wait was given up because the process was asked to stop."""


@contextmanager
def stop_event() -> Iterator[threading.Event]:
    """Give an event that Ctrl-C, SIGTERM and a closed terminal set; then restore the handlers."""
    stop = threading.Event()

    def request_stop(number: int, frame: FrameType | None) -> None:
        stop.set()

    # A signal that is ignored, as nohup does with SIGHUP, stays ignored.
    numbers = [n for n in ending_signals() if signal.getsignal(n) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, request_stop) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def ending_signals() -> tuple[signal.Signals, ...]:
    """Signals that ask a process to end."""
    return (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def end_with_input() -> None:
    """Send SIGTERM to this process when its standard input closes.

    A parent holds the other end and never writes to it: however the parent ends, kill -9
    included, this process is asked to end as well.
    """

    def watch() -> None:
        while os.read(0, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="end-with-input", daemon=True).start()
