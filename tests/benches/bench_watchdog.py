"""How soon the arm holds when a process of a run over ROS 2 topics dies or hangs, and who goes on.

A whole `robot-rl train robot=ros_sim` runs, with two camera nodes. Its actor and a camera node are
killed (SIGKILL) and frozen (SIGSTOP, for a second) in motion, in turn.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from omegaconf import DictConfig
from topics import BenchFailed, own_domain, shared_memory
from training_runs import processes, training_run

if TYPE_CHECKING:
    from arm_watch import ArmWatch

# Victim → its process, and within which time the arm must hold [s].
VICTIMS = {"actor": ("actor", 0.25), "camera": ("front_camera", 0.3)}
SIGNALS = (signal.SIGKILL, signal.SIGSTOP)
_FROZEN_SECONDS = 1.0
_MOVES_SECONDS = 1.0
_HOLD_SECONDS = 10.0
_RESUME_SECONDS = 180.0


@dataclass
class _Case:
    """What happened to one victim with one signal."""

    within: float
    holds: list[float] = field(default_factory=list)
    resumes: list[float] = field(default_factory=list)
    times: int = 0

    def figures(self) -> dict[str, object]:
        milliseconds = 1e3 * np.array(self.holds)
        return {
            "times": self.times,
            "median_hold_ms": float(np.median(milliseconds)) if self.holds else None,
            "max_hold_ms": float(milliseconds.max()) if self.holds else None,
            f"held_within_{1e3 * self.within:.0f}_ms": sum(t <= self.within for t in self.holds),
            "resumed": len(self.resumes),
            "median_resume_s": float(np.median(self.resumes)) if self.resumes else None,
            "max_resume_s": max(self.resumes, default=None),
        }


def run(config: DictConfig) -> dict[str, object]:
    """Kill and freeze actor and camera node `bench.kills` times each.

    Returns:
        For each victim and signal: `times`; `median_hold_ms` and `max_hold_ms` from the signal to
        the arm's holding, seen in another process: the node says so, or, for a camera, the last
        command is the measured pose; `held_within_…_ms`; how often the run `resumed`, so that the
        actor moved the arm again, and after which time from the signal, or from SIGCONT. Beside
        them Fast DDS's `shared_memory` at the start and at the end of the run.

    Raises:
        BenchFailed: The actor did not come to move the arm.
    """
    kills = int(config.bench.kills)
    rng = np.random.default_rng(int(config.seed))
    cases = {
        f"{victim}_{number.name.lower()}": _Case(within)
        for victim, (_, within) in VICTIMS.items()
        for number in SIGNALS
    }
    with own_domain(), training_run(config) as watch:
        before = shared_memory()
        for _ in range(kills):
            for victim, (process, _) in VICTIMS.items():
                for number in SIGNALS:
                    case = cases[f"{victim}_{number.name.lower()}"]
                    _strike(watch, process, number, case, float(rng.random()))
        after = shared_memory()
    figures = {name: case.figures() for name, case in cases.items()}
    return {**figures, "shared_memory": {"start": before, "end": after}}


def _strike(
    watch: ArmWatch, process: str, number: signal.Signals, case: _Case, pause: float
) -> None:
    """Send one signal in motion, and wait until the run goes on."""
    if not watch.follows_for(_MOVES_SECONDS + pause, _RESUME_SECONDS):
        raise BenchFailed("the actor does not move the arm", got=watch.mode)
    victim = processes()[process]
    struck = time.monotonic()
    os.kill(victim.pid, number)
    case.times += 1
    held = watch.held_after(struck, _HOLD_SECONDS, told=process != "actor")
    if held is not None:
        case.holds.append(held)
    waiting_since = struck if held is None else struck + held
    if number == signal.SIGSTOP:
        time.sleep(_FROZEN_SECONDS)
        waiting_since = struck = time.monotonic()
        os.kill(victim.pid, signal.SIGCONT)
    if watch.following_since(waiting_since, _RESUME_SECONDS):
        case.resumes.append(time.monotonic() - struck)
