"""Success counts with exact intervals, and the summaries that `evaluations.jsonl` holds."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from robot_rl.data.intervals import StatisticsError, clopper_pearson
from robot_rl.run import CLONED_POLICY, LEARNED_POLICY, POLICIES

# One-sided level of the comparisons of a whole run.
NOISE_LEVEL = 0.05
THRESHOLD = 0.97  # success rate that counts as solved
# Of the beta distribution over a coin's bias: larger is quicker to see small biases.
_PRIOR = 2.0


def first_confirmed(
    results: Sequence[EvaluationResult], threshold: float = THRESHOLD
) -> int | None:
    """Environment steps of the first of two evaluations in a row with a success rate."""
    for one, following in itertools.pairwise(results):
        if min(one.success_rate, following.success_rate) >= threshold:
            return one.environment_steps
    return None


@dataclass(frozen=True)
class Comparison:
    """A policy, such as the learned one, beside another, such as the cloned, in the same scenes.

    Only scenes in which one of the two did better tell them apart. If the two are equally good,
    either is as likely to be that one: an exact sign test, which here is McNemar's (Psychometrika
    12, 1947). Where one looks after each scene, and stops when the answer is there, what counts is
    how likely fair coins ever look so unfair.
    """

    lost: int  # scenes in which the other did better: that it alone has solved
    won: int  # scenes in which this policy did better
    level: float = NOISE_LEVEL  # chance at or below which a difference is no noise
    # Most scenes that there may be, fixed before, where one looks after each of them; 0 where one
    # looks once.
    most: int = 0

    @property
    def chance(self) -> float:
        """Chance of a difference as large between equally good policies.

        In this direction where one looks once; ever, and in either, where one looks after each.
        """
        if self.most:
            return _chance_of_ever(max(self.lost, self.won), min(self.lost, self.won), self.most)
        count = self.lost + self.won
        ways = sum(math.comb(count, k) for k in range(max(self.lost, self.won), count + 1))
        return float(ways / 2**count)

    @property
    def beyond_noise(self) -> bool:
        """Whether one of the two is better."""
        return self.chance <= self.level

    @property
    def better(self) -> bool:
        """Whether this policy is better beyond noise."""
        return self.won > self.lost and self.beyond_noise

    @property
    def worse(self) -> bool:
        """Whether this policy is worse beyond noise."""
        return self.lost > self.won and self.beyond_noise

    def settled(self, scenes: int) -> bool:
        """Whether more scenes than these cannot change what is known, where one looks after each.

        A policy is better, or neither would be if it won all that are left.
        """
        left = self.most - scenes
        ends = (replace(self, lost=self.lost + left), replace(self, won=self.won + left))
        return self.beyond_noise or not any(end.beyond_noise for end in ends)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Comparison:
        """Read it from a line of `robot-rl compare`, or raise `StatisticsError`."""
        try:
            return msgspec.convert(record.get("comparison"), cls)
        except msgspec.ValidationError as error:
            raise StatisticsError(
                f"this is no comparison: {error}", got=sorted(record), expected=["comparison"]
            ) from error

    def __str__(self) -> str:
        """Say it in words, for the display."""
        return (
            f"of the same scenes it lost {self.lost} that the other policy solves and won"
            f" {self.won} (sign test, p = {self.chance:.2g})"
        )


@dataclass(frozen=True)
class Labels:
    """The labels of detector and operator for the episodes of an attended robot."""

    # Episodes that the detector, or another reward source, called a success; None where only the
    # operator judges.
    detector_successes: int | None
    operator_successes: int  # those that the operator called so, also after their end
    operator_failures: int  # those that the operator called a failure
    # Numbers of the episodes, from 0, of which the two said different things.
    disputed: tuple[int, ...]

    @classmethod
    def of(cls, episodes: Sequence[Mapping[str, Any]]) -> Labels | None:
        """Count them in the facts of episodes; None where no operator was there."""
        if not any("operator_success" in facts for facts in episodes):
            return None
        said = [facts.get("operator_success") for facts in episodes]
        found = [facts.get("detector_success") for facts in episodes]
        both = enumerate(zip(said, found, strict=True))
        disputed = tuple(n for n, (a, b) in both if None not in (a, b) and a != b)
        detected = None if None in found else found.count(True)
        return cls(detected, said.count(True), said.count(False), disputed)

    def __str__(self) -> str:
        """Say it in words; empty where the operator said nothing."""
        judged = self.operator_successes + self.operator_failures
        if not judged:
            return ""
        first = ", ".join(map(str, self.disputed[:10]))
        otherwise = f" (first numbers {first})" if self.disputed else ""
        return (
            f"the operator judged {judged} episodes, {len(self.disputed)} of them otherwise than"
            f" the detector{otherwise}"
        )


@functools.lru_cache(maxsize=65536)
def _chance_of_ever(more: int, fewer: int, most: int) -> float:
    """Chance that a fair coin, thrown up to `most` times, ever looks as unfair as it does here.

    How unfair it looks is its likelihood ratio against a coin of unknown bias (the prior is a
    symmetric beta distribution): a martingale, whose maximum Ville's inequality bounds. As the
    number of throws is bounded, the chance is counted instead, over all walks; so none of the level
    is wasted, and one may stop at any throw. The sides came up `more` and `fewer` times.
    """
    from scipy.special import gammaln  # late: only evaluation and reports pay for its import

    def evidence(one: npt.ArrayLike, other: npt.ArrayLike) -> Any:
        one, other = np.add(one, _PRIOR), np.add(other, _PRIOR)
        return gammaln(one) + gammaln(other) - gammaln(one + other) + (one + other) * math.log(2)

    seen = evidence(more, fewer) - 1e-9  # rounding
    if evidence(0, 0) >= seen:
        return 1.0
    # Of the walks that go on: the fewest heads, and the probability of these, one more, and so on.
    ever, fewest, walks = 0.0, 0, np.ones(1)
    for throws in range(1, most + 1):
        walks = (np.append(walks, 0.0) + np.append(0.0, walks)) / 2
        heads = fewest + np.arange(len(walks))
        unfair = evidence(heads, throws - heads) >= seen
        ever += float(walks[unfair].sum())
        fewest, walks = int(heads[~unfair][0]), walks[~unfair]
    return ever


@dataclass(frozen=True, kw_only=True)
class EvaluationResult:
    """One line of `evaluations.jsonl`: the success of one policy over one set of episodes."""

    environment_steps: int  # training steps that the policy has seen; the cloned one has seen none
    gradient_updates: int  # updates that produced the policy
    policy: str  # kind of the policy, such as diffusion or residual
    episodes: int  # number of episodes
    successes: int  # successful ones
    success_rate: float  # their ratio
    confidence_low: float  # lower bound of the exact 95 % interval
    confidence_high: float  # upper bound
    mean_seconds_to_success: float | None  # task time, averaged over the successful episodes
    longest_success_run: int  # longest run of successes in the order of the seeds
    seed_set: Literal["periodic", "final"]  # seeds of the periodic or of the final evaluation
    first_seed: int  # the first of them; each later episode has the next
    wall_seconds: float  # how long the evaluation took
    failures: tuple[int, ...]  # numbers of the failed episodes in the order of the seeds, from 0
    # Whether the policy is a checkpoint that training held back, so that what it began with acted.
    held_back: bool = False
    # Of a checkpoint that is evaluated while the run trains: whether it is deployed so far. If not,
    # training holds it back, and what learning began with is. None for other evaluations.
    deployed: bool | None = None
    # Which of the run's `POLICIES` it was, or where its checkpoint lies; None: its steps say which.
    policy_name: str | None = None
    # How many attempts were made again, and none of them is among the episodes: those that the
    # robot has "cut", and by word those that the operator took back.
    made_again: dict[str, int] = field(default_factory=dict)
    operated: int = 0  # episodes in which a person drove; none of them is a success
    labels: Labels | None = None  # of detector and operator; None where no operator was there
    # The simulated robot's, with values that are other than its file's; None for another robot,
    # which has none.
    domain: str | None = None
    # The task, and with the robot what makes the scene of a seed: values by dotted key, as they are
    # typed. None and empty in the records of older versions.
    task: str | None = None
    scenes: dict[str, Any] = field(default_factory=dict)
    # Beside the cloned policy's evaluation, where there is one of these scenes.
    against_cloned: Comparison | None = None
    # Sum of an episode's rewards, averaged, where the environment counts no success; else None.
    mean_return: float | None = None

    @property
    def cloned(self) -> bool:
        """Whether nothing was learned on top of it online: it is the clone, or begins a curve."""
        return self.environment_steps == 0

    @property
    def which(self) -> str:
        """Which of the run's `POLICIES` it was, or where its checkpoint lies."""
        return self.policy_name or (CLONED_POLICY if self.cloned else LEARNED_POLICY)

    @property
    def name(self) -> str:
        """Which policy it was, and how far it had come."""
        after = "" if self.cloned else f" after {self.environment_steps:,} steps"
        name = f"the {self.which} policy" if self.which in POLICIES else self.which
        return f"{name} ({self.policy}){after}"

    @property
    def score(self) -> tuple[int, float]:
        """Orders policies on the same scenes: by successes; where none is counted, by return."""
        return self.successes, self.mean_return or 0.0

    @property
    def count(self) -> str:
        """Its number of successes; where no success is counted, its mean return."""
        if self.mean_return is not None:
            return f"no success counted, mean return {self.mean_return:.4g}"
        return f"{self.successes} of {self.episodes}"

    @property
    def rate(self) -> str:
        """The share that succeeded, or the mean return."""
        if self.mean_return is not None:
            return f"return {self.mean_return:.4g}"
        return f"{100 * self.success_rate:.1f} %"

    @property
    def interval(self) -> str:
        """The bounds of the share that succeeds; empty where no success is counted."""
        if self.mean_return is not None:
            return ""
        return f"{100 * self.confidence_low:.1f} to {100 * self.confidence_high:.1f} %"

    @property
    def conduct(self) -> str:
        """Repeated attempts, interventions and labels in words; empty where there were none."""
        again = ", ".join(f"{count} {why}" for why, count in self.made_again.items())
        parts = (
            again and f"{sum(self.made_again.values())} attempts made again ({again})",
            self.operated and f"the operator drove in {self.operated} episodes",
            self.labels and str(self.labels),
        )
        return ", ".join(filter(None, map(str, filter(None, parts))))

    def beside(self, cloned: EvaluationResult, looks: int = 1) -> Comparison | None:
        """Compare its successes with those of the cloned policy's evaluation.

        None where they share no scene, or count no success: how far returns differ by chance is not
        known here.

        The run is looked at `looks` times: each look has its share of the level, so that all of
        them together call a policy that is as good worse in one run of twenty.
        """
        first = max(self.first_seed, cloned.first_seed)
        end = min(self.first_seed + self.episodes, cloned.first_seed + cloned.episodes)
        if first >= end or self.mean_return is not None:
            return None
        mine = {self.first_seed + number for number in self.failures}
        theirs = {cloned.first_seed + number for number in cloned.failures}
        scenes = set(range(first, end))
        lost, won = len((mine - theirs) & scenes), len((theirs - mine) & scenes)
        return Comparison(lost, won, NOISE_LEVEL / looks)

    @classmethod
    def of_episodes(
        cls, successes: npt.ArrayLike, seconds: npt.ArrayLike, **facts: Any
    ) -> EvaluationResult:
        """Summarise finished episodes.

        Args:
            successes: (n,) bool in the order of the seeds, n >= 1.
            seconds: (n,) task time of each episode, from reset to success.
            **facts: Attributes that do not follow from these.
        """
        won = np.asarray(successes, np.bool_)
        duration = np.asarray(seconds, np.float64)
        count, total = int(won.sum()), len(won)
        low, high = clopper_pearson(count, total)
        runs = itertools.groupby(won.tolist())
        return cls(
            episodes=total,
            successes=count,
            success_rate=count / total,
            confidence_low=low,
            confidence_high=high,
            mean_seconds_to_success=float(duration[won].mean()) if count else None,
            longest_success_run=max(len(list(run)) if success else 0 for success, run in runs),
            failures=tuple(np.flatnonzero(~won).tolist()),
            **facts,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object of this line, equal to what is read back from it."""
        return dict(msgspec.json.decode(msgspec.json.encode(self)))

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> EvaluationResult:
        """Read a JSON object, or raise `StatisticsError`; keys that are not known are ignored."""
        try:
            return msgspec.convert(dict(content), cls)
        except msgspec.ValidationError as error:
            names = [f.name for f in fields(cls)]
            raise StatisticsError(
                f"this is no evaluation: {error}", got=sorted(content), expected=names
            ) from error

    def __str__(self) -> str:
        """Say the result in one line, as `robot-rl evaluate` prints it."""
        time = self.mean_seconds_to_success
        domain = f", domain {self.domain}" if self.domain else ""
        conduct = f", {self.conduct}" if self.conduct else ""
        held = ", held back: the policy it began with acts" if self.held_back else ""
        if self.deployed is False:
            held = ", held back: what it began with stays deployed"
        if self.mean_return is not None:
            mean = f"mean return {self.mean_return:.4g} in {self.episodes} episodes"
            return f"no success is counted; {mean}{conduct}{domain}{held}"
        return (
            f"{self.successes}/{self.episodes} = {self.rate} (95 % interval {self.interval})"
            f", mean time to success {'none' if time is None else f'{time:.1f} s'}"
            f", longest run of successes {self.longest_success_run}{conduct}{domain}{held}"
        )


def worse_than_start(results: Sequence[EvaluationResult]) -> list[int]:
    """Environment steps of evaluations worse, beyond noise, than what learning began with."""
    compared = [(r.environment_steps, r.against_cloned) for r in results]
    return [steps for steps, comparison in compared if comparison and comparison.worse]
