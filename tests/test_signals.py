"""Ctrl-C and SIGTERM to a process that waits."""

import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from robot_rl.processes.signals import StopEvent, deferred_signals

ROUNDS = 1000
WAITS = f"""
from robot_rl.processes.signals import stop_event

for number in range({ROUNDS}):
    with stop_event() as stop:
        print(number, flush=True)
        while not stop.wait(1e-6):
            pass
print("ended")
"""


def test_a_signal_ends_a_process_whatever_its_wait_was_just_doing():
    draws = np.random.default_rng(0)
    with subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE, text=True) as one:
        patience = threading.Timer(60.0, one.kill)
        patience.start()
        for _ in range(ROUNDS):
            one.stdout.readline()
            time.sleep(draws.uniform(0.0, 1e-3))
            one.terminate()
        told = one.stdout.read()
        patience.cancel()
    assert told == "ended\n"


@pytest.mark.usefixtures("default_signals")
def test_a_signal_is_heard_after_what_must_not_be_broken_off():
    done = []

    def work():
        with deferred_signals():
            with deferred_signals():
                signal.raise_signal(signal.SIGINT)
                done.append("the inner part")
            done.append("the outer part")
        done.append("what comes later")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["the inner part", "the outer part"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_waiting_thread_hears_of_a_stop():
    stop, heard = StopEvent(), []
    waiting = [threading.Thread(target=lambda: heard.append(stop.wait(60.0))) for _ in range(3)]
    for thread in waiting:
        thread.start()
    assert not stop.wait(0.0)
    assert not stop.wait(-1.0)
    stop.set()
    stop.set()
    for thread in waiting:
        thread.join()
    assert heard == [True] * 3
    assert stop.wait(0.0)
    assert stop.is_set()
