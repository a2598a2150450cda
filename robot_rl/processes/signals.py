"""A clean end on Ctrl-C and SIGTERM: an event to look at, in place of an exception anywhere."""

from __future__ import annotations

import atexit
import gc
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from types import FrameType
from typing import cast

# Set for the children of `train`: they end when their standard input closes.
ENDS_WITH_INPUT = "ROBOT_RL_ENDS_WITH_INPUT"
# Exit code of a process that a person asked to end, as in a shell.
EXIT_INTERRUPTED = 128 + signal.SIGINT
_TOGETHER_SECONDS = 1.0


class Stopped(Exception):
    """A wait was given up because the process was asked to stop."""


class Interruption:
    """A signal handler that raises `KeyboardInterrupt`, once for signals that come together.

    A terminal that is closed sends SIGHUP twice within a millisecond: the second must not break off
    the clean end that the first has started. A later one is a wish to end now.
    """

    def __init__(self) -> None:
        self._heard_at = -math.inf

    @property
    def heard(self) -> bool:
        """Whether there has been a signal."""
        return self._heard_at > -math.inf

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Take a signal."""
        now = time.monotonic()
        if now - self._heard_at >= _TOGETHER_SECONDS:
            self._heard_at = now
            raise KeyboardInterrupt


class StopEvent:
    """A `threading.Event` that signal handlers may set too, once.

    A handler may interrupt the main thread inside `threading.Event.wait`, which holds the lock that
    `set` needs: it would wait for ever. A queue's `put` is made for handlers.
    """

    def __init__(self) -> None:
        self._set = False
        self._wake: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """Set it; may be called again, by any thread and by a signal handler."""
        self._set = True
        self._wake.put(None)

    def is_set(self) -> bool:
        """Whether it is set."""
        return self._set

    def wait(self, timeout_s: float) -> bool:
        """Wait until it is set, or for so long [s]; tells whether it is set."""
        if not self._set:
            try:
                self._wake.get(timeout=max(timeout_s, 0.0))
            except Empty:
                return self._set
            self._wake.put(None)  # for the next waiting thread
        return True


@contextmanager
def handled(
    numbers: Iterable[int], handler: Callable[[int, FrameType | None], None]
) -> Iterator[None]:
    """Give these signals a handler, and restore the former ones at the end."""
    previous = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)


@contextmanager
def stop_event() -> Iterator[StopEvent]:
    """Give an event that Ctrl-C, SIGTERM and a closed terminal set; then restore the handlers."""
    stop = StopEvent()

    with handled(ending_signals(), lambda number, frame: stop.set()):
        yield stop


@contextmanager
def deferred_signals() -> Iterator[None]:
    """Defer signals that ask the process to end until the body is done.

    Only the main thread gets signals; elsewhere this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard: list[int] = []
    # A handler that is not Python's could not be put back.
    numbers = [number for number in ending_signals() if signal.getsignal(number) is not None]
    try:
        with handled(numbers, lambda number, frame: heard.append(number)):
            yield
    finally:
        if heard:
            signal.raise_signal(heard[0])


def ending_signals() -> list[signal.Signals]:
    """Signals that ask a process to end.

    A closed terminal does not, where nohup has said so. Ctrl-C does even in a process that a script
    has started in the background, which ignores it by default: there it is sent on purpose.
    """
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    always = [signal.SIGINT, signal.SIGTERM]
    return always if ignored else [*always, signal.SIGHUP]


def ask_to_end() -> None:
    """Send SIGTERM to the main thread of this process, from any thread, so that its waits end.

    The kernel may deliver a signal for the process to any thread; a sleep of the main one would
    then go on to its end first.
    """
    signal.pthread_kill(cast("int", threading.main_thread().ident), signal.SIGTERM)


def end_at_once() -> None:
    """Let this process end quickly once it has done its work.

    Python would look through all objects for garbage once more: with torch, and on a busy machine
    for a learner, which leaves the processor to others, that takes half a minute.
    """
    atexit.register(gc.freeze)


def end_with_input() -> None:
    """Ask this process to end when its standard input closes: however its parent ends.

    The parent holds the other end and never writes to it.
    """

    def watch() -> None:
        while os.read(0, 1):
            pass
        ask_to_end()

    threading.Thread(target=watch, name="end-with-input", daemon=True).start()
