"""What `robot-rl compare` gets wrong, and what it saves, with policies whose success is known."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from omegaconf import DictConfig
from scipy.stats import binom

from robot_rl.evaluation.statistics import Comparison

_REPETITIONS = 10_000
_EQUAL = (0.5, 0.7, 0.9, 0.98)
_PAIRS = ((0.5, 0.7), (0.7, 0.9), (0.9, 0.98))


def run(config: DictConfig) -> dict[str, Any]:
    """Simulate comparisons with the settings `proof`; the two succeed independently of each other.

    Policies that succeed in the same scenes, as those of one task mostly do, disagree in fewer, and
    need fewer than here in the classical test and in ours.

    Returns:
        `false_positives`: for equal rates, the share in which one of the two was called better.
        `pairs`: for different rates, that share for the better one (`power`) and for the other
        (`wrong`), the scenes that it took, the number of scenes with which an exact McNemar test,
        made once, has the same power, and the share of them that is saved.
    """
    most, level = int(config.proof.scenes), round(1.0 - float(config.proof.confidence), 9)
    rng = np.random.default_rng(config.seed)
    equal = {p: contests(p, p, most, level, rng) for p in _EQUAL}
    return {
        "scenes": most,
        "level": level,
        "repetitions": _REPETITIONS,
        "false_positives": {p: float(np.mean(won != 0)) for p, (won, _) in equal.items()},
        "pairs": [_saved(*pair, most, level, rng) for pair in _PAIRS],
    }


def contests(
    p: float, q: float, most: int, level: float, rng: np.random.Generator, count: int = _REPETITIONS
) -> tuple[Any, Any]:
    """Compare policies with success rates p and q `count` times.

    Returns:
        (count,) who was called better, -1, 0 (nobody) or 1; and (count,) after how many scenes.
    """
    called, scenes = np.zeros(count, int), np.zeros(count, int)
    for number in range(count):
        gains = (rng.random(most) < q).astype(int) - (rng.random(most) < p)
        won, lost = np.cumsum(gains > 0).tolist(), np.cumsum(gains < 0).tolist()
        for scene in range(most):
            verdict = _verdict(lost[scene], won[scene], scene + 1, most, level)
            if verdict is not None:
                called[number], scenes[number] = verdict, scene + 1
                break
    return called, scenes


@functools.cache
def _verdict(lost: int, won: int, scenes: int, most: int, level: float) -> int | None:
    compared = Comparison(lost, won, level, most)
    if not compared.settled(scenes):
        return None
    return 0 if not compared.beyond_noise else 1 if won > lost else -1


def _saved(
    p: float, q: float, most: int, level: float, rng: np.random.Generator
) -> dict[str, float]:
    called, scenes = contests(p, q, most, level, rng)
    power, mean = float(np.mean(called > 0)), float(scenes.mean())
    fixed = next(n for n in range(5, 5000) if _power(p, q, n, level) >= power)
    return {
        "rates": (p, q),
        "power": power,
        "wrong": float(np.mean(called < 0)),
        "mean_scenes": mean,
        "median_scenes": float(np.median(scenes)),
        "most_of_nine_in_ten": float(np.quantile(scenes, 0.9)),
        "fixed_scenes": fixed,
        "saved": 1.0 - mean / fixed,
    }


def _power(p: float, q: float, scenes: int, level: float) -> float:
    """Of an exact two-sided McNemar test after so many scenes."""
    differ, gain = p * (1 - q) + q * (1 - p), q * (1 - p)
    discordant = np.arange(scenes + 1)
    # Fewest wins that are called better, for each number of discordant scenes.
    least = binom.isf(level / 2, discordant, 0.5) + 1
    return float(
        binom.pmf(discordant, scenes, differ) @ binom.sf(least - 1, discordant, gain / differ)
    )
