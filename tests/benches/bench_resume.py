"""Bench of resuming: trainings are killed at random moments, and must learn the same weights.

Of three tasks a tiny run is trained without an interruption. Then it is trained again and again,
and actor, learner, replay server or all three are killed with SIGKILL while it learns. At the end
each tensor and each stored row is compared with the uninterrupted run's, bit for bit.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
from killable_run import NAMES, KillableRun
from omegaconf import DictConfig

from robot_rl.processes.waiting import wait_until

TASKS = ("reach", "peg_insert", "push_t")
_WORDS = (
    "demonstrations=4",
    "cloning.updates=60",
    "policy.denoiser.hidden=[64,64]",
    "algorithm.settings.actor_hidden=[64,64]",
    "algorithm.settings.critic_hidden=[64,64]",
    "environment_steps=600",
    "block_steps=25",
    "algorithm.schedule.warmup_steps=75",
    "algorithm.schedule.critic_only_updates=20",
    "algorithm.schedule.updates_per_step=1",
    "algorithm.schedule.batch_size=32",
    "evaluation.every_steps=100",
    "evaluation.periodic=false",
    "device=cpu",
)
_PAUSE_SECONDS = (0.0, 3.0)
# Of the kills, those that wait until something was done since the last one; others meet a start.
_AT_WORK = 0.75
_WORK_SECONDS = 120.0
_MOST_KILLS = 8  # of one training


def run(config: DictConfig) -> dict[str, object]:
    """Kill `bench.kills` times; `seed` draws whom and when.

    Returns:
        Counts of kills, of those that met a training after further steps, of trainings that were
        killed, and of those that came to the same weights and rows as the uninterrupted one;
        `different` tells the others' first differences.
    """
    rng = np.random.default_rng(int(config.seed))
    started, kills, different = time.monotonic(), Counter[str](), []
    trainings = at_work = 0
    with tempfile.TemporaryDirectory(prefix="resume-") as folder:
        for number, task in enumerate(TASKS):
            base = _prepared(Path(folder) / task, task)
            expected, _ = _trained(base, "whole", [], rng, kills)
            wanted = int(config.bench.kills) * (number + 1) // len(TASKS)
            while (left := wanted - kills.total()) > 0:
                victims = _victims(rng, min(left, _MOST_KILLS))
                found, of_it = _trained(base, f"killed-{trainings}", victims, rng, kills)
                trainings, at_work = trainings + 1, at_work + of_it
                names = sorted(expected.keys() | found.keys())
                differ = [name for name in names if expected.get(name) != found.get(name)]
                if differ:
                    different.append({"task": task, "tensors": differ[:3], "of": len(differ)})
                sys.stderr.write(f"{task}: {kills.total()} kills, {len(different)} different\n")
    return {
        "kills": dict(kills),
        "kills_at_work": at_work,
        "trainings": trainings,
        "bit_identical": trainings - len(different),
        "different": different,
        "seconds": time.monotonic() - started,
    }


def _prepared(folder: Path, task: str) -> Path:
    """Record and clone demonstrations."""
    folder.mkdir()
    for words in (["collect", f"task={task}", *_WORDS], ["pretrain", "run=latest"]):
        subprocess.run(
            [sys.executable, "-m", "robot_rl.cli", *words],
            cwd=folder,
            check=True,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    return folder


def _victims(rng: np.random.Generator, kills: int) -> list[tuple[str, ...]]:
    kinds = [(name,) for name in NAMES] + [NAMES]
    return [kinds[index] for index in rng.integers(len(kinds), size=kills)]


def _trained(
    base: Path,
    name: str,
    victims: list[tuple[str, ...]],
    rng: np.random.Generator,
    kills: Counter[str],
) -> tuple[dict[str, bytes], int]:
    """Train a copy of a prepared run, killing these processes on the way.

    Returns:
        What it has come to, and how many kills met it after further steps.
    """
    at_work, folder = 0, base.with_name(f"{base.name}-{name}")
    shutil.copytree(base, folder, symlinks=True)
    training = KillableRun(folder)
    try:
        for names in victims:
            before = training.steps()
            training.start()
            if rng.random() < _AT_WORK:
                wait_until(lambda n=before: training.steps() > n, _WORK_SECONDS, every_s=0.05)
            if training.ends_within(rng.uniform(*_PAUSE_SECONDS)):
                break
            training.kill(names)
            kills["all" if names == NAMES else names[0]] += 1
            at_work += training.steps() > before
        training.finish()
        return training.result(), at_work
    finally:
        training.kill()
        shutil.rmtree(folder)
