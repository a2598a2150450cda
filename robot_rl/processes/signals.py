"""Clean shutdown on Ctrl-C and SIGTERM: an event to poll instead of an exception anywhere."""

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
# Exit code of a process that a person interrupted, as in a shell.
EXIT_INTERRUPTED = 128 + signal.SIGINT
_TOGETHER_SECONDS = 1.0


class Stopped(Exception):
    """A wait was aborted because the process was asked to stop."""


class Interruption:
    """A signal handler that raises `KeyboardInterrupt` once per burst of signals.

    Closing a terminal sends SIGHUP twice within a millisecond. The second must not abort the clean
    shutdown started by the first. A later signal means: end immediately.
    """

    def __init__(self) -> None:
        self._heard_at = -math.inf

    @property
    def heard(self) -> bool:
        """Whether a signal has arrived."""
        return self._heard_at > -math.inf

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        now = time.monotonic()
        if now - self._heard_at >= _TOGETHER_SECONDS:
            self._heard_at = now
            raise KeyboardInterrupt


class StopEvent:
    """A one-shot `threading.Event` that signal handlers may also set.

    A handler may interrupt the main thread inside `threading.Event.wait`, which holds the lock that
    `set` needs, and would deadlock. `SimpleQueue.put` is safe in handlers.
    """

    def __init__(self) -> None:
        self._set = False
        self._wake: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """Set the event. Any thread or signal handler may call this, also repeatedly."""
        self._set = True
        self._wake.put(None)

    def is_set(self) -> bool:
        """Return whether the event is set."""
        return self._set

    def wait(self, timeout_s: float) -> bool:
        """Wait until the event is set, at most `timeout_s`; return whether it is set."""
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
    """Install a handler for these signals, and restore the previous handlers on exit."""
    previous = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)


@contextmanager
def stop_event() -> Iterator[StopEvent]:
    """Yield an event set by Ctrl-C, SIGTERM or a closed terminal; restore the handlers on exit."""
    stop = StopEvent()

    with handled(ending_signals(), lambda number, frame: stop.set()):
        yield stop


@contextmanager
def deferred_signals() -> Iterator[None]:
    """Defer termination signals until the body is done.

    Only the main thread receives signals; in other threads this is a no-op.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard: list[int] = []
    # Python cannot restore a handler that was not installed from Python.
    numbers = [number for number in ending_signals() if signal.getsignal(number) is not None]
    try:
        with handled(numbers, lambda number, frame: heard.append(number)):
            yield
    finally:
        if heard:
            signal.raise_signal(heard[0])


def ending_signals() -> list[signal.Signals]:
    """Return the signals that ask a process to end.

    SIGHUP is left out under nohup. SIGINT counts even in a background process of a script, which
    ignores it by default: there it is sent on purpose.
    """
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    always = [signal.SIGINT, signal.SIGTERM]
    return always if ignored else [*always, signal.SIGHUP]


def ask_to_end() -> None:
    """Send SIGTERM to this process's main thread, from any thread, so that its waits end.

    The kernel may deliver a process signal to any thread, and the main thread would then finish its
    sleep first.
    """
    signal.pthread_kill(cast("int", threading.main_thread().ident), signal.SIGTERM)


def end_at_once() -> None:
    """Skip the final garbage collection so that this process exits quickly.

    Python would scan all objects once more. With torch, for a low-priority learner on a busy
    machine, that takes half a minute.
    """
    atexit.register(gc.freeze)


def end_with_input() -> None:
    """End this process when its standard input closes, which happens however the parent ends.

    The parent holds the other end of the pipe and never writes to it.
    """

    def watch() -> None:
        while os.read(0, 1):
            pass
        ask_to_end()

    threading.Thread(target=watch, name="end-with-input", daemon=True).start()
