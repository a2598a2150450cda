"""How soon an operator's word counts: taking over, and stop, from the event at the device on.

A whole `robot-rl train` runs, in simulation with the keyboard of a virtual display, then over ROS 2
topics. This process strikes the keys, publishes and calls; when the actor's loop acted upon that,
the stamps in its store tell.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np
from omegaconf import DictConfig
from stored_actions import (
    Halt,
    Rows,
    StoredActions,
    first_of_operator,
    halt_of_operator,
    was_ignored,
)
from topics import NAMESPACE, BenchFailed, own_domain
from training_runs import training
from virtual_keyboard import virtual_keyboard

if TYPE_CHECKING:
    from operator_topics import ArmStop

_Answer = TypeVar("_Answer")

BEYOND_PERIOD_MS = 20.0
STOP_MS = 250.0
_MOTION_KEYS = ("w", "s", "a", "d")
_MOTION_SECONDS = 0.3
_TAP_SECONDS = 0.05
_HALTED_SECONDS = 1.0
_PUSH_SPEED = 0.1  # m/s: the largest action of `teleop=twist`
_PAUSE_SECONDS = 0.3  # some control periods, for events at all moments of one
_MOST_IN_VAIN = 10


def run(config: DictConfig) -> dict[str, object]:
    """Take over and stop `bench.events` times each, at random moments, while the policy acts.

    Returns:
        `period_ms` of the control loop; then in `simulation` by a key, and over `ros`:

        - `take_over_…`: from the key's press, or the first message of a velocity, to the moment at
          which the loop sent the operator's action; `…_at_the_arm`: to hearing from the arm's node
          that it follows that command, one way more;
        - `stop_by_key`, `pause_by_service_of_the_actor`: to the observation at the end of the first
          period in which the robot was held; `told_ms`: to the moment at which it was told to;
        - `stop_by_service_of_the_arm`: to hearing from its node that it is stopped.

        Each `median_ms`, `max_ms` and how many were `within_…_ms`: a period and 20 ms, or 250 ms;
        `largest_speed_after_mm_per_s`: of that observation, or of the arm from 250 ms on;
        `still_ms`: until the arm was slower than 10 mm/s for good; `largest_distance_mm`: how far
        it came from where it was;
        `ignored_events`: those of which nothing came; `missed_events`: those that met the end of an
        episode, and were made again.

    Raises:
        BenchFailed: There is no virtual display, or nothing comes of the events.
        RosUnavailable: ROS 2 is not installed.
    """
    rng = np.random.default_rng(int(config.seed))
    with own_domain():
        return {
            "period_ms": 1e3 / float(config.control_rate_hz),
            "simulation": _in_simulation(config, rng),
            "ros": _over_topics(config, rng),
        }


@dataclass
class _Repeated(Generic[_Answer]):
    """What came of an event that was made again and again."""

    # Each of them, with the moment of its event, system clock [ns].
    answers: list[tuple[int, _Answer]] = field(default_factory=list)
    ignored: int = 0  # events at which the policy acted, and went on
    missed: int = 0  # events that met no policy that acted, for an episode had just ended

    @property
    def events(self) -> dict[str, object]:
        """Those that nothing came of."""
        return {"ignored_events": self.ignored, "missed_events": self.missed}


def _repeat(
    actions: StoredActions,
    rng: np.random.Generator,
    make: Callable[[], int],
    read: Callable[[Sequence[Rows], int], _Answer | None],
    times: int,
) -> _Repeated[_Answer]:
    """Make an event at random moments while the policy acts, until so much has come of it.

    `make` makes the event, lets the policy act again, and returns when the event was made, system
    clock [ns]; `read` finds what came of it in the rows of the newest episodes, see
    `stored_actions`. `BenchFailed` where nothing comes of it.
    """
    made: _Repeated[_Answer] = _Repeated()
    actions.wait_for_policy()
    while len(made.answers) < times:
        time.sleep(rng.uniform(0.0, _PAUSE_SECONDS))
        moment = make()
        actions.wait_for_policy()
        episodes = actions.newest()
        answer = read(episodes, moment)
        if answer is not None:
            made.answers.append((moment, answer))
        elif was_ignored(episodes, moment):
            made.ignored += 1
        else:
            made.missed += 1
        if made.ignored + made.missed > times + _MOST_IN_VAIN:
            raise BenchFailed("nothing comes of the operator's events", got=made)
    return made


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
            time.sleep(_HALTED_SECONDS)
            keyboard.hold("c", _TAP_SECONDS)
            return struck

        moved = _repeat(actions, rng, move, first_of_operator, times)
        stopped = _repeat(actions, rng, stop, halt_of_operator, times)
    return {
        "take_over_by_key": _take_over_figures(config, moved, moved.answers),
        "stop_by_key": _halt_figures(stopped),
    }


def _over_topics(config: DictConfig, rng: np.random.Generator) -> dict[str, object]:
    # ROS is loaded where it is known to be there.
    from operator_topics import OperatorTopics

    place = [f"{key}.namespace={NAMESPACE}" for key in ("robot", "teleop.device")]
    words = ["robot=ros_sim", "teleop=twist", *place]
    with (
        tempfile.TemporaryDirectory() as folder,
        training(config, folder, words, seen=_rate(config)) as check,
    ):
        actions, times = StoredActions(folder, check), int(config.bench.events)
        topics = OperatorTopics(NAMESPACE, "teleop/command")

        def move() -> int:
            velocity = np.zeros(6)
            velocity[rng.integers(2)] = rng.choice((-1.0, 1.0)) * _PUSH_SPEED
            return topics.push(velocity, _MOTION_SECONDS)

        def halt(name: str, end: str) -> Callable[[], int]:
            def made() -> int:
                called = topics.call(name)
                time.sleep(_HALTED_SECONDS)
                topics.call(end)
                return called

            return made

        def stopped_arm(_: Sequence[Rows], called_ns: int) -> ArmStop | None:
            return topics.arm_stop(called_ns, 1e-3 * STOP_MS, _HALTED_SECONDS)

        try:
            actions.wait_for_policy()
            topics.wait()
            moved = _repeat(actions, rng, move, first_of_operator, times)
            taken = [(made, topics.arm_took(sent)) for made, sent in moved.answers]
            stopped = _repeat(actions, rng, halt("stop", "clear_errors"), stopped_arm, times)
            paused = _repeat(actions, rng, halt("pause", "resume"), halt_of_operator, times)
        finally:
            topics.close()
    heard = [(made, at) for made, at in taken if at is not None]
    return {
        "take_over_by_twist": _take_over_figures(config, moved, moved.answers),
        "take_over_by_twist_at_the_arm": _take_over_figures(config, moved, heard),
        "stop_by_service_of_the_arm": _arm_stop_figures(stopped),
        "pause_by_service_of_the_actor": _halt_figures(paused),
    }


def _take_over_figures(
    config: DictConfig, moved: _Repeated[int], answers: Sequence[tuple[int, int]]
) -> dict[str, object]:
    milliseconds = [1e-6 * (acted - made) for made, acted in answers]
    limit = 1e3 / float(config.control_rate_hz) + BEYOND_PERIOD_MS
    return {**_latency(milliseconds, limit), **moved.events}


def _arm_stop_figures(stopped: _Repeated[ArmStop]) -> dict[str, object]:
    stops = [stop for _, stop in stopped.answers]
    return {
        **_latency([1e-6 * (stop.heard_ns - made) for made, stop in stopped.answers], STOP_MS),
        **_speeds([stop.speed_before for stop in stops], [stop.speed for stop in stops]),
        "median_still_ms": 1e3 * float(np.median([stop.still_s for stop in stops])),
        "max_still_ms": 1e3 * max(stop.still_s for stop in stops),
        "largest_distance_mm": 1e3 * max(stop.distance for stop in stops),
        **stopped.events,
    }


def _halt_figures(halted: _Repeated[Halt]) -> dict[str, object]:
    told = [1e-6 * (halt.sent_ns - made) for made, halt in halted.answers]
    seen = [1e-6 * (halt.seen_ns - made) for made, halt in halted.answers]
    halts = [halt for _, halt in halted.answers]
    return {
        **_latency(seen, STOP_MS),
        "median_told_ms": float(np.median(told)),
        "max_told_ms": max(told),
        **_speeds([halt.speed_before for halt in halts], [halt.speed for halt in halts]),
        **halted.events,
    }


def _speeds(before: Sequence[float], after: Sequence[float]) -> dict[str, object]:
    return {
        "median_speed_before_mm_per_s": 1e3 * float(np.median(before)),
        "largest_speed_after_mm_per_s": 1e3 * max(after),
    }


def _latency(milliseconds: Sequence[float], limit_ms: float) -> dict[str, object]:
    return {
        "times": len(milliseconds),
        "median_ms": float(np.median(milliseconds)) if milliseconds else None,
        "max_ms": max(milliseconds, default=None),
        f"within_{limit_ms:.0f}_ms": sum(value <= limit_ms for value in milliseconds),
    }


def _rate(config: DictConfig) -> list[str]:
    return [f"control_rate_hz={config.control_rate_hz}"]
