"""Compare the learned policy with the clone on episodes from the robot."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from robot_rl.data.schema import SOURCE_INTERVENTION
from robot_rl.learning.workbench import Rows

_EXPLORING = 12  # latest exploring episodes that count, since the learned policy changes
_NOISELESS = 20  # latest episodes without noise that count
# Latest episodes of both kinds that count together. If the clone solves 86 % of the scenes, 20
# episodes of a perfect policy prove nothing. With 40, in simulated runs of 80 episodes, an
# exploring policy that solved 98 % counted as better at the end in 71 instead of 39 % of the runs.
# A worse policy (85 against 90 %) acts 5 instead of 3 % of the time.
_EITHER = 40
_LATEST = 60  # latest episodes of the learned policy that are stored
_ENOUGH = 20  # clone episodes after which it need not act any more
_LEAST = 6  # minimum episodes of each before comparing
_SURE = 0.95  # probability from which the learned policy counts as better (or worse)
# A policy that counts as better stays so above this probability. With a single threshold, each
# episode could flip the decision. In simulated runs a better policy (95 against 60 %) then acts
# 72 instead of 56 % of the time, a worse one (50 against 60 %) 2 instead of 1 %.
_STILL = 0.8
_FIRST_SHARE = 0.5  # fraction of episodes run by the noiseless clone, up to _LEAST
_SHARE = 0.125  # fraction of episodes after that
_HOPELESS = 0.2  # below this probability the learned policy is not tried without noise
_NOISELESS_SHARE = 1 / 3  # fraction otherwise, until exploring episodes prove it
_FIELDS = ("source", "success", "base_alone", "noiseless", "policy_version")


_Score = tuple[bool, float]  # success and return of an episode


class OnlineComparison:
    """Compares noiseless episodes of the clone with episodes of the learned policy.

    The learned policy explores, which costs successes: it may fail most episodes of a precise task
    that it would solve without noise. So if its exploring episodes are inconclusive, its noiseless
    episodes can decide, or both kinds together. An episode counts only if one policy acted in one
    mode from start to end, without an operator.

    Attributes:
        proved: Whether the learned policy counts as better than the clone.
    """

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._counted = -1  # number of the last episode processed
        # Success and return of each counted episode. Learned episodes also store whether they
        # explored.
        self._cloned: list[_Score] = []
        self._learned: deque[tuple[_Score, bool]] = deque(maxlen=_LATEST)
        self._first_version = 1  # first weights whose episodes count as learned
        self.proved = False

    @property
    def share(self) -> float:
        """Fraction of episodes in which the clone acts without noise."""
        known = len(self._cloned)
        if known >= _ENOUGH:
            return 0.0
        return _SHARE if known >= _LEAST else _FIRST_SHARE

    @property
    def noiseless_share(self) -> float:
        """Fraction of episodes in which the learned policy acts without noise."""
        exploring, *_ = self._chances()
        open_ = exploring is not None and _HOPELESS <= exploring < _SURE
        return _NOISELESS_SHARE if open_ else 0.0

    @property
    def lost(self) -> bool:
        """Whether the learned policy counts as worse than the clone."""
        exploring, noiseless, _ = self._chances()
        worse = exploring is not None and exploring <= 1 - _SURE
        return worse and (noiseless is None or noiseless <= 0.5)

    def restart(self, version: int) -> None:
        """Drop the episodes of all weights before `version`."""
        self._learned.clear()
        self._first_version, self.proved = version, False

    @property
    def metrics(self) -> dict[str, float]:
        """Success rate of each kind of episode that has occurred.

        `base` is the policy that learning started from: the clone, or one accepted by a gate.
        """
        exploring, noiseless, _, cloned = self._successes()
        named = {"exploring": exploring, "learned": noiseless, "base": cloned}
        return {f"{name}_success": more / of for name, (more, of) in named.items() if of}

    def __str__(self) -> str:
        names = (
            "learned, exploring",
            "without noise",
            f"of its latest {_EITHER}",
            "what it began with",
        )
        counts = zip(names, self._successes(), strict=True)
        return "; ".join(f"{name}: {more} of {of}" for name, (more, of) in counts if of)

    def count(self) -> None:
        """Process the episodes that are now visible in the rows, and decide."""
        for number, columns in self._rows.episodes(_FIELDS, self._counted):
            self._counted = number
            known = ~np.isnan(columns["reward"][:-1])  # skip rows without an annotation
            episode = {name: column[:-1][known] for name, column in columns.items()}
            if not known.any() or (episode["source"] == SOURCE_INTERVENTION).any():
                continue
            score = bool(episode["success"].any()), float(episode["reward"].sum())
            base_alone = episode["base_alone"]
            if base_alone.all():
                self._cloned.append(score)
            elif not base_alone.any() and episode["policy_version"].min() >= self._first_version:
                noiseless = episode["noiseless"]
                if noiseless.all() or not noiseless.any():
                    self._learned.append((score, not noiseless.any()))
        exploring, *others = self._chances()
        if exploring is None or exploring < _HOPELESS:
            self.proved = False  # the other episodes are outdated
        else:
            best = max(exploring, *(chance or 0.0 for chance in others))
            self.proved = best >= (_STILL if self.proved else _SURE)

    def _chances(self) -> list[float | None]:
        """Probability that the learned policy is better: exploring, without noise, both together.

        None if there are too few episodes.
        """
        *learned, cloned = self._successes()
        return [
            chance_of_more(*each, *cloned) if min(each[1], cloned[1]) >= _LEAST else None
            for each in learned
        ]

    def _successes(self) -> list[tuple[int, int]]:
        """(successes, episodes): exploring, without noise, both together, and of the clone.

        If no episode has succeeded, count those whose return exceeds the mean of the groups'
        medians.
        """
        exploring = [score for score, explored in self._learned if explored][-_EXPLORING:]
        noiseless = [score for score, explored in self._learned if not explored][-_NOISELESS:]
        either = [score for score, _ in self._learned][-_EITHER:]
        groups = [exploring, noiseless, either, self._cloned]
        known = [scores for scores in groups if scores]
        if any(success for scores in known for success, _ in scores):
            found = [[success for success, _ in scores] for scores in groups]
        else:
            middle = [float(np.median([value for _, value in scores])) for scores in known]
            least = sum(middle) / max(len(middle), 1)
            found = [[value > least for _, value in scores] for scores in groups]
        return [(sum(successes), len(successes)) for successes in found]

    def state_dict(self) -> dict[str, Any]:
        """Return all counts, as JSON."""
        return {
            "cloned": self._cloned,
            "learned": list(self._learned),
            "first_version": self._first_version,
            "proved": self.proved,
            "counted": self._counted,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a `state_dict`."""
        self._cloned, self._learned = list(state["cloned"]), deque(state["learned"], _LATEST)
        self._first_version, self.proved = state["first_version"], state["proved"]
        self._counted = state["counted"]


def chance_of_more(more: int, of_more: int, less: int, of_less: int) -> float:
    """Probability that the rate behind `more` of `of_more` exceeds that of `less` of `of_less`.

    Both rates have a uniform prior on [0, 1]. The sum is from Miller 2015, "Formulas for Bayesian
    A/B Testing".
    """
    a, b, c, d = less + 1, of_less - less + 1, more + 1, of_more - more + 1
    terms = (
        _log_beta(a + i, b + d) - math.log(d + i) - _log_beta(1 + i, d) - _log_beta(a, b)
        for i in range(c)
    )
    return math.fsum(map(math.exp, terms))


def _log_beta(a: int, b: int) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
