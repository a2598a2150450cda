"""Bold or with caution: which of the two succeeds more often, tried on the robot in turn."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from robot_rl.data.schema import SOURCE_INTERVENTION
from robot_rl.learning.algorithms.base import Choosing
from robot_rl.learning.workbench import Workbench
from robot_rl.replay.sampler import SampleSpec

_LATEST = 20  # episodes of each way that count
_IN_TURN = 2  # whole episodes of one way before the next is drawn
_LEAST = 5  # episodes of each way before who succeeds more often acts more often
_SURE = 0.7  # chance from which on boldness is held for better
_STREAM = 1024  # of random numbers, apart from those that batches are drawn with
_BATCH = 1024
_FIELDS = ("success", "policy_version", "episode_step")


class Trial:
    """Lets the weights that act be bold or cautious in turn, and the algorithm hear what is better.

    Who acts next is drawn by Thompson sampling (Thompson 1933, Biometrika 25): the chance of a way
    is that of being the better one. An episode counts if all of it was acted one way and no
    operator did a part of it.

    Args:
        bench: The workbench of the stage that learns.
        algorithm: What learns.
    """

    def __init__(self, bench: Workbench, algorithm: Choosing) -> None:
        self._algorithm = algorithm
        spec = SampleSpec(
            _FIELDS, _BATCH, demonstration_share=0.0, next_fields=(), order="episodes"
        )
        self._rows = bench.sampler(spec)
        self._rng = np.random.default_rng([int(bench.config.seed), _STREAM])
        self._bold = False  # who acts with the weights that are published next
        self._in_turn = 0  # episodes since it was drawn
        self._published: dict[int, bool] = {}  # policy version → whether it was bold
        # Success and return of the latest episodes.
        self._scores: dict[bool, deque[tuple[bool, float]]] = {
            bold: deque(maxlen=_LATEST) for bold in (False, True)
        }
        self._decide()

    @property
    def metrics(self) -> dict[str, float]:
        """Share of the counted episodes of each way that succeeded, where there are any."""
        names = {"cautious_success": False, "bold_success": True}
        counts = {name: self._successes(bold) for name, bold in names.items()}
        return {name: more / of for name, (more, of) in counts.items() if of}

    def note_published(self, version: int) -> None:
        """Remember how the weights act that were just published."""
        self._published[version] = self._bold

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
            ways = {self._published.get(int(v)) for v in set(columns["policy_version"][rows])}
            way = ways.pop()
            if way is None or ways or (columns["source"][rows] == SOURCE_INTERVENTION).any():
                continue
            score = bool(columns["success"][rows].any()), float(columns["reward"][rows].sum())
            self._scores[way].append(score)
            self._in_turn += way == self._bold
        if self._in_turn >= _IN_TURN:
            self._bold, self._in_turn = self._next(), 0
        self._decide()

    def _next(self) -> bool:
        if min(len(scores) for scores in self._scores.values()) < _LEAST:
            return not self._bold
        chances = []
        for bold in (False, True):
            more, of = self._successes(bold)
            chances.append(self._rng.beta(more + 1, of - more + 1))
        return chances[1] > chances[0]

    def _decide(self) -> None:
        bold, cautious = self._successes(True), self._successes(False)
        self._algorithm.choose(
            acting_boldly=self._bold, boldly=chance_of_more(*bold, *cautious) >= _SURE
        )

    def _successes(self, bold: bool) -> tuple[int, int]:
        """How many of how many episodes of one way have succeeded.

        Where no episode has, those count whose return is above the middle of both ways' medians.
        """
        ways = [scores for scores in self._scores.values() if scores]
        if any(success for scores in ways for success, _ in scores):
            successes = [success for success, _ in self._scores[bold]]
        else:
            middle = [float(np.median([value for _, value in scores])) for scores in ways]
            successes = [value > sum(middle) / len(middle) for _, value in self._scores[bold]]
        return sum(successes), len(successes)

    def state_dict(self) -> dict[str, Any]:
        """What was counted and who acts, as JSON."""
        return {
            "bold": self._bold,
            "in_turn": self._in_turn,
            "published": list(self._published.items()),
            "scores": [list(self._scores[bold]) for bold in (False, True)],
            "rng": self._rng.bit_generator.state,
            "sampler": self._rows.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        self._bold, self._in_turn = bool(state["bold"]), int(state["in_turn"])
        self._published = {int(version): bool(bold) for version, bold in state["published"]}
        for bold, scores in zip((False, True), state["scores"], strict=True):
            self._scores[bold].clear()
            self._scores[bold].extend((bool(success), float(value)) for success, value in scores)
        self._rng.bit_generator.state = state["rng"]
        self._rows.load_state_dict(state["sampler"])
        self._decide()


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
