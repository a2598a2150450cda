"""How soon an operator's word counts: taking over, and stop, from the event at the device on.

A whole `robot-rl train` runs in simulation with the keyboard of a virtual display. This process
strikes the keys; when the loop of the actor acted upon them, the stamps in its store tell.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import numpy as np
from omegaconf import DictConfig

from robot_rl.bench._stored_actions import (
    Halt,
    Rows,
    StoredActions,
    first_of_operator,
    halt_of_operator,
)
from robot_rl.bench._training import BenchFailed, training
from robot_rl.bench._virtual_keyboard import virtual_keyboard

_Answer = TypeVar("_Answer")

BEYOND_PERIOD_MS = 20.0
STOP_MS = 250.0
_MOTION_KEYS = ("w", "s", "a", "d")
_MOTION_SECONDS = 0.3
_TAP_SECONDS = 0.05
_STOPPED_SECONDS = 0.5
_PAUSE_SECONDS = 0.3  # some control periods, for events at all moments of one
_MOST_MISSED = 10


def run(config: DictConfig) -> dict[str, object]:
    """Take over and stop `bench.events` times each.

    Returns:
        `period_ms` of the control loop.
    """
    rng = np.random.default_rng(int(config.seed))
    return {
        "period_ms": 1e3 / float(config.control_rate_hz),
        "simulation": _in_simulation(config, rng),
    }


class _Repeated(Generic[_Answer]):
    """What came of an event that was made again and again while the policy acted.

    Args:
        actions: Of the run.
        rng: Draws the moments.
        make: Makes the event, and lets the policy act again; returns when the event was made,
            system clock [ns].
        read: Finds what came of it in the rows of the newest episodes, see `_stored_actions`.
        times: How often something is to have come of it.

    Attributes:
        answers: Each of them, with the moment of its event [ns].
        missed: How many events met no policy that acted, for an episode had just ended.

    Raises:
        BenchFailed: Nothing comes of it.
    """

    def __init__(
        self,
        actions: StoredActions,
        rng: np.random.Generator,
        make: Callable[[], int],
        read: Callable[[Sequence[Rows], int], _Answer | None],
        times: int,
    ) -> None:
        self.answers: list[tuple[int, _Answer]] = []
        self.missed = 0
        actions.wait_for_policy()
        while len(self.answers) < times:
            time.sleep(rng.uniform(0.0, _PAUSE_SECONDS))
            made = make()
            actions.wait_for_policy()
            answer = read(actions.newest(), made)
            if answer is not None:
                self.answers.append((made, answer))
                continue
            self.missed += 1
            if self.missed > _MOST_MISSED + times:
                raise BenchFailed(
                    "nothing comes of the operator's events",
                    got=f"{len(self.answers)} answers to {self.missed + len(self.answers)} events",
                )


def _in_simulation(config: DictConfig, rng: np.random.Generator) -> dict[str, object]:
    words = ["clock=realtime", "teleop=keyboard", "evaluation.periodic=false"]
    with (
        virtual_keyboard() as keyboard,
        tempfile.TemporaryDirectory() as folder,
        training(config, folder, words, seen=_rate(config)) as check,
    ):
        actions, times = StoredActions(folder, check), int(config.bench.events)

        def move() -> int:
            return keyboard.hold(str(rng.choice(_MOTION_KEYS)), _MOTION_SECONDS)

        def stop() -> int:
            struck = keyboard.hold("Escape", _TAP_SECONDS)
            time.sleep(_STOPPED_SECONDS)
            keyboard.hold("c", _TAP_SECONDS)
            return struck

        moved = _Repeated(actions, rng, move, first_of_operator, times)
        stopped = _Repeated(actions, rng, stop, halt_of_operator, times)
    return {
        "take_over_by_key": _take_over_figures(config, moved),
        "stop_by_key": _halt_figures(stopped),
    }


def _take_over_figures(config: DictConfig, moved: _Repeated[int]) -> dict[str, object]:
    milliseconds = [1e-6 * (sent - made) for made, sent in moved.answers]
    limit = 1e3 / float(config.control_rate_hz) + BEYOND_PERIOD_MS
    return {**_latency(milliseconds, limit), "missed_events": moved.missed}


def _halt_figures(halted: _Repeated[Halt]) -> dict[str, object]:
    told = [1e-6 * (halt.sent_ns - made) for made, halt in halted.answers]
    seen = [1e-6 * (halt.seen_ns - made) for made, halt in halted.answers]
    halts = [halt for _, halt in halted.answers]
    return {
        **_latency(seen, STOP_MS),
        "median_told_ms": float(np.median(told)),
        "max_told_ms": max(told),
        "median_speed_before_mm_per_s": 1e3 * float(np.median([h.speed_before for h in halts])),
        "largest_speed_after_mm_per_s": 1e3 * max(halt.speed for halt in halts),
        "missed_events": halted.missed,
    }


def _latency(milliseconds: Sequence[float], limit_ms: float) -> dict[str, object]:
    return {
        "times": len(milliseconds),
        "median_ms": float(np.median(milliseconds)),
        "max_ms": max(milliseconds),
        f"within_{limit_ms:.0f}_ms": sum(value <= limit_ms for value in milliseconds),
    }


def _rate(config: DictConfig) -> list[str]:
    return [f"control_rate_hz={config.control_rate_hz}"]
