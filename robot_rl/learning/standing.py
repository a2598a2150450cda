"""How the episodes of the learned policy do beside those of the cloned one."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from robot_rl.data.schema import SOURCE_INTERVENTION
from robot_rl.learning.workbench import Workbench
from robot_rl.replay.sampler import SampleSpec

_LATEST = 20  # learned episodes that count
_SURE = 0.95  # chance from which on it is held for better
_BATCH = 1024
_FIELDS = ("success", "policy_version", "episode_step")
Score = tuple[float, float]


class Standing:
    """Counts each online episode of a run once, from its store.

    Episodes in which an operator acted say nothing of a policy and are left out.

    Args:
        bench: The workbench of the stage that learns.
    """

    def __init__(self, bench: Workbench) -> None:
        spec = SampleSpec(
            _FIELDS, _BATCH, demonstration_share=0.0, next_fields=(), order="episodes"
        )
        self._rows = bench.sampler(spec)
        self._cloned: list[Score] = []
        self._learned: deque[Score] = deque(maxlen=_LATEST)

    @property
    def proved(self) -> bool:
        """Whether the learned policy most likely succeeds more often than the cloned one did.

        Of the rates only the episodes are known; all rates are held for equally likely before.
        """
        cloned, learned = self._successes()
        return chance_of_more(sum(learned), len(learned), sum(cloned), len(cloned)) >= _SURE

    @property
    def metrics(self) -> dict[str, float]:
        """Share of the counted episodes that succeeded, for each of the two that has any."""
        names = ("cloned_success", "learned_success")
        both = zip(names, self._successes(), strict=True)
        return {name: sum(each) / len(each) for name, each in both if each}

    def _successes(self) -> tuple[list[bool], list[bool]]:
        """Of the episodes that count; without any, those with more return than the clone's half."""
        both = self._cloned, list(self._learned)
        if any(success for scores in both for success, _ in scores):
            cloned, learned = ([success > 0 for success, _ in scores] for scores in both)
        else:
            usual = float(np.median([value for _, value in self._cloned] or [0.0]))
            cloned, learned = ([value > usual for _, value in scores] for scores in both)
        return cloned, learned

    def count(self, steps: int) -> None:
        """Take in the episodes that ended within the first `steps` environment steps."""
        self._rows.show(steps)
        parts = []
        for batch in self._rows.batches(math.ceil(self._rows.left / _BATCH)):
            names = (*_FIELDS, "reward", "source")
            parts.append({name: batch[name][batch["drawn"]] for name in names})
        if not parts:
            return
        columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        begins = np.flatnonzero(np.diff(columns["episode_step"]) <= 0) + 1
        for rows in np.split(np.arange(len(columns["reward"])), begins):
            if (columns["source"][rows] == SOURCE_INTERVENTION).any():
                continue
            of_clone = columns["policy_version"][rows[0]] == 0
            score = float(columns["success"][rows].any()), float(columns["reward"][rows].sum())
            (self._cloned if of_clone else self._learned).append(score)

    def state_dict(self) -> dict[str, Any]:
        """What was counted, as JSON."""
        counted = {"cloned": list(self._cloned), "learned": list(self._learned)}
        return {**counted, "sampler": self._rows.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        self._cloned = [cast("Score", tuple(score)) for score in state["cloned"]]
        self._learned.clear()
        self._learned.extend(cast("Score", tuple(score)) for score in state["learned"])
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
