"""Is what was learned better than the cloned policy? Their own episodes on the robot tell."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from robot_rl.data.schema import SOURCE_INTERVENTION
from robot_rl.learning.workbench import Workbench
from robot_rl.replay.sampler import SampleSpec

_LATEST = 12  # episodes of what is learned that count; it changes
_ENOUGH = 20  # episodes of the clone, after which it need not act any more
_LEAST = 6  # episodes of each before either is held for better
_SURE = 0.95  # chance from which on what was learned is held for better, or for worse
_FIRST_SHARE = 0.5  # of the episodes, until _LEAST of the clone are known: it acts without noise
_SHARE = 0.125  # of the episodes after that
_BATCH = 1024
_FIELDS = ("success", "base_alone", "policy_version", "episode_step")


class Trial:
    """Compares episodes of the clone, without noise, with those of what is learned.

    What is learned explores meanwhile, so its successes only approximate those of the averaged
    actor that is deployed. An episode counts if one of the two acted in all of it and no operator
    did a part.

    Args:
        bench: The workbench of the stage that learns.
    """

    def __init__(self, bench: Workbench) -> None:
        spec = SampleSpec(
            _FIELDS, _BATCH, demonstration_share=0.0, next_fields=(), order="episodes"
        )
        self._rows = bench.sampler(spec)
        # Success and return of each episode that counts.
        self._cloned: list[tuple[bool, float]] = []
        self._learned: deque[tuple[bool, float]] = deque(maxlen=_LATEST)

    @property
    def share(self) -> float:
        """Share of the episodes in which the clone acts without noise."""
        known = len(self._cloned)
        if known >= _ENOUGH:
            return 0.0
        return _SHARE if known >= _LEAST else _FIRST_SHARE

    @property
    def proved(self) -> bool:
        """Whether what was learned is held for better than the clone."""
        return self._chance() >= _SURE

    @property
    def lost(self) -> bool:
        """Whether what was learned is held for worse than the clone."""
        return self._chance() <= 1 - _SURE

    def begin_again(self) -> None:
        """Forget the episodes of what was learned."""
        self._learned.clear()

    @property
    def metrics(self) -> dict[str, float]:
        """Share of the counted episodes of each that succeeded, where there are any."""
        counts = zip(("learned_success", "cloned_success"), self._successes(), strict=True)
        return {name: more / of for name, (more, of) in counts if of}

    def count(self, steps: int) -> None:
        """Take in the episodes that ended within the first `steps` environment steps."""
        self._rows.show(steps)
        for episode in self._rows.episodes():
            if (episode["source"] == SOURCE_INTERVENTION).any():
                continue
            score = bool(episode["success"].any()), float(episode["reward"].sum())
            of_clone = episode["base_alone"]
            if of_clone.all():
                self._cloned.append(score)
            elif not of_clone.any() and episode["policy_version"].all():
                self._learned.append(score)

    def _chance(self) -> float:
        """That what was learned is better than the clone."""
        learned, cloned = self._successes()
        known = min(learned[1], cloned[1]) >= _LEAST
        return chance_of_more(*learned, *cloned) if known else 0.5

    def _successes(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """How many of how many episodes have succeeded: of what was learned, and of the clone.

        Where no episode has, those count whose return is above the middle of both medians.
        """
        both = [list(self._learned), self._cloned]
        known = [scores for scores in both if scores]
        if any(success for scores in known for success, _ in scores):
            found = [[success for success, _ in scores] for scores in both]
        else:
            middle = [float(np.median([value for _, value in scores])) for scores in known]
            least = sum(middle) / max(len(middle), 1)
            found = [[value > least for _, value in scores] for scores in both]
        learned, cloned = ((sum(successes), len(successes)) for successes in found)
        return learned, cloned

    def state_dict(self) -> dict[str, Any]:
        """What was counted, as JSON."""
        return {
            "cloned": self._cloned,
            "learned": list(self._learned),
            "sampler": self._rows.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        self._cloned, learned = (
            [(bool(success), float(value)) for success, value in state[name]]
            for name in ("cloned", "learned")
        )
        self._learned = deque(learned, _LATEST)
        self._rows.load_state_dict(state["sampler"])


def chance_of_more(more: int, of_more: int, less: int, of_less: int) -> float:
    """Chance that the rate behind `more` of `of_more` exceeds that behind `less` of `of_less`.

    Each rate is uniform in [0, 1] before anything is seen of it. The sum is that of Miller 2015,
    "Formulas for Bayesian A/B Testing".
    """
    a, b, c, d = less + 1, of_less - less + 1, more + 1, of_more - more + 1
    terms = (
        _log_beta(a + i, b + d) - math.log(d + i) - _log_beta(1 + i, d) - _log_beta(a, b)
        for i in range(c)
    )
    return math.fsum(map(math.exp, terms))


def _log_beta(a: int, b: int) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
