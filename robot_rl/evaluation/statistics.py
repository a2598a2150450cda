"""Success rates with exact confidence intervals, and the records in `evaluations.jsonl`."""

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

# One-sided significance level for all comparisons of a run together.
NOISE_LEVEL = 0.05
THRESHOLD = 0.97  # success rate that counts as solved
# Parameter of the symmetric beta prior over a coin's bias: larger detects small biases sooner.
_PRIOR = 2.0


def first_confirmed(
    results: Sequence[EvaluationResult], threshold: float = THRESHOLD
) -> int | None:
    """Return the environment steps of the first of two consecutive evaluations at the threshold."""
    for one, following in itertools.pairwise(results):
        if min(one.success_rate, following.success_rate) >= threshold:
            return one.environment_steps
    return None


@dataclass(frozen=True)
class Comparison:
    """Paired comparison of two policies, such as learned against cloned, in the same scenes.

    Only scenes that exactly one policy solved (or did better in) carry information. If the policies
    are equally good, each is equally likely to win such a scene: an exact sign test, here McNemar's
    test (Psychometrika 12, 1947). When the comparison is checked after every scene and may stop
    early, the p-value is the probability that a fair coin ever looks this unfair.
    """

    lost: int  # scenes in which the other policy did better: only the other solved them
    won: int  # scenes in which this policy did better
    level: float = NOISE_LEVEL  # a p-value at or below this is significant
    # Maximum number of scenes, fixed in advance, for a test after every scene; 0 for a single test
    # at the end.
    most: int = 0

    @property
    def chance(self) -> float:
        """The p-value: probability of a difference this large between equally good policies.

        One-sided for a single test. For a test after every scene: two-sided, and at any time within
        `most` scenes.
        """
        if self.most:
            return _chance_of_ever(max(self.lost, self.won), min(self.lost, self.won), self.most)
        count = self.lost + self.won
        ways = sum(math.comb(count, k) for k in range(max(self.lost, self.won), count + 1))
        return float(ways / 2**count)

    @property
    def beyond_noise(self) -> bool:
        """Whether the difference is significant."""
        return self.chance <= self.level

    @property
    def better(self) -> bool:
        """Whether this policy is significantly better."""
        return self.won > self.lost and self.beyond_noise

    @property
    def worse(self) -> bool:
        """Whether this policy is significantly worse."""
        return self.lost > self.won and self.beyond_noise

    def settled(self, scenes: int) -> bool:
        """Whether more scenes cannot change the result of a test after every scene.

        True if the difference is significant, or if neither policy could make it so by winning all
        remaining scenes.
        """
        left = self.most - scenes
        ends = (replace(self, lost=self.lost + left), replace(self, won=self.won + left))
        return self.beyond_noise or not any(end.beyond_noise for end in ends)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Comparison:
        """Read the comparison from a line of `robot-rl compare`, or raise `StatisticsError`."""
        try:
            return msgspec.convert(record.get("comparison"), cls)
        except msgspec.ValidationError as error:
            raise StatisticsError(
                f"this is no comparison: {error}", got=sorted(record), expected=["comparison"]
            ) from error

    def __str__(self) -> str:
        """Return the result as text for display."""
        return (
            f"of the same scenes it lost {self.lost} that the other policy solves and won"
            f" {self.won} (sign test, p = {self.chance:.2g})"
        )


@dataclass(frozen=True)
class Labels:
    """Success labels of the detector and the operator for the episodes of an attended robot."""

    # Episodes that the detector, or another reward source, labelled a success; None if only the
    # operator labels.
    detector_successes: int | None
    operator_successes: int  # labelled a success by the operator, also after the end
    operator_failures: int  # labelled a failure by the operator
    # Numbers of the episodes, from 0, on which detector and operator disagree.
    disputed: tuple[int, ...]

    @classmethod
    def of(cls, episodes: Sequence[Mapping[str, Any]]) -> Labels | None:
        """Count the labels in the episodes' facts; None if no operator was present."""
        if not any("operator_success" in facts for facts in episodes):
            return None
        said = [facts.get("operator_success") for facts in episodes]
        found = [facts.get("detector_success") for facts in episodes]
        both = enumerate(zip(said, found, strict=True))
        disputed = tuple(n for n, (a, b) in both if None not in (a, b) and a != b)
        detected = None if None in found else found.count(True)
        return cls(detected, said.count(True), said.count(False), disputed)

    def __str__(self) -> str:
        """Return the counts as text; empty if the operator labelled no episode."""
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
    """Return the probability that a fair coin ever looks this unfair within `most` tosses.

    The measure of unfairness is the likelihood ratio against a coin of unknown bias (symmetric beta
    prior). It is a martingale, so Ville's inequality bounds its maximum. Because the number of
    tosses is bounded, this function instead sums over all walks, which gives the exact probability:
    the test uses the whole level and may stop at any toss. The sides came up `more` and `fewer`
    times.
    """
    from scipy.special import gammaln  # late import: only evaluation and reports need it

    def evidence(one: npt.ArrayLike, other: npt.ArrayLike) -> Any:
        one, other = np.add(one, _PRIOR), np.add(other, _PRIOR)
        return gammaln(one) + gammaln(other) - gammaln(one + other) + (one + other) * math.log(2)

    seen = evidence(more, fewer) - 1e-9  # margin for rounding
    if evidence(0, 0) >= seen:
        return 1.0
    # Walks still below the bound: the fewest heads, then the probability of each number of heads.
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
    """One line of `evaluations.jsonl`: the success rate of one policy over a set of episodes."""

    environment_steps: int  # training steps behind the policy; 0 for the cloned policy
    gradient_updates: int  # gradient updates that produced the policy
    policy: str  # kind of the policy, such as diffusion or residual
    episodes: int  # number of episodes
    successes: int  # number of successful episodes
    success_rate: float  # successes / episodes
    confidence_low: float  # lower bound of the exact 95 % confidence interval
    confidence_high: float  # upper bound
    mean_seconds_to_success: float | None  # task time, mean over the successful episodes
    longest_success_run: int  # longest run of successes in seed order
    seed_set: Literal["periodic", "final"]  # periodic or final evaluation
    first_seed: int  # seed of the first episode; later episodes count up by 1
    wall_seconds: float  # duration of the evaluation
    failures: tuple[int, ...]  # numbers of the failed episodes, from 0 in seed order
    # Whether training had not deployed this checkpoint, so that the policy it started with acted.
    held_back: bool = False
    # Whether a checkpoint evaluated during training is deployed at that time. If not, the policy
    # that learning started with stays deployed. None for other evaluations.
    deployed: bool | None = None
    # Which of the run's `POLICIES`, or the path of its checkpoint. None: `environment_steps`
    # decides.
    policy_name: str | None = None
    # Number of repeated attempts by reason: "cut" by the robot, or the operator event that
    # discarded them. They are not among the episodes.
    made_again: dict[str, int] = field(default_factory=dict)
    operated: int = 0  # episodes in which a person drove; never a success
    labels: Labels | None = None  # of detector and operator; None if no operator was present
    # Domain of the simulated robot, with values that differ from its file; None for robots without
    # domains.
    domain: str | None = None
    # The task, and the settings that together with the robot determine a seed's scene, by dotted
    # key in override syntax. None and empty in records of older versions.
    task: str | None = None
    scenes: dict[str, Any] = field(default_factory=dict)
    # Comparison with the cloned policy's evaluation, if that covers the same scenes.
    against_cloned: Comparison | None = None
    # Mean return per episode if the environment reports no success; else None.
    mean_return: float | None = None

    @property
    def cloned(self) -> bool:
        """Whether no online learning is behind the policy: the clone, or the start of a curve."""
        return self.environment_steps == 0

    @property
    def which(self) -> str:
        """Which of the run's `POLICIES` it is, or the path of its checkpoint."""
        return self.policy_name or (CLONED_POLICY if self.cloned else LEARNED_POLICY)

    @property
    def name(self) -> str:
        """Display name of the policy, with its environment steps."""
        after = "" if self.cloned else f" after {self.environment_steps:,} steps"
        name = f"the {self.which} policy" if self.which in POLICIES else self.which
        return f"{name} ({self.policy}){after}"

    @property
    def score(self) -> tuple[int, float]:
        """Sort key for policies on the same scenes: successes, or the return if uncounted."""
        return self.successes, self.mean_return or 0.0

    @property
    def count(self) -> str:
        """Number of successes as text, or the mean return if no success is counted."""
        if self.mean_return is not None:
            return f"no success counted, mean return {self.mean_return:.4g}"
        return f"{self.successes} of {self.episodes}"

    @property
    def rate(self) -> str:
        """Success rate as text, or the mean return."""
        if self.mean_return is not None:
            return f"return {self.mean_return:.4g}"
        return f"{100 * self.success_rate:.1f} %"

    @property
    def interval(self) -> str:
        """Confidence interval of the success rate as text; empty if no success is counted."""
        if self.mean_return is not None:
            return ""
        return f"{100 * self.confidence_low:.1f} to {100 * self.confidence_high:.1f} %"

    @property
    def conduct(self) -> str:
        """Repeated attempts, interventions and labels as text; empty if there were none."""
        again = ", ".join(f"{count} {why}" for why, count in self.made_again.items())
        parts = (
            again and f"{sum(self.made_again.values())} attempts made again ({again})",
            self.operated and f"the operator drove in {self.operated} episodes",
            self.labels and str(self.labels),
        )
        return ", ".join(filter(None, map(str, filter(None, parts))))

    def beside(self, cloned: EvaluationResult, looks: int = 1) -> Comparison | None:
        """Compare this evaluation with the cloned policy's evaluation.

        Returns None if they share no scene or count no success: there is no noise model for
        returns.

        The run is tested `looks` times, each at level / `looks` (Bonferroni). All tests together
        call an equally good policy worse in at most 1 of 20 runs.
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
            successes: (n,) bool in seed order, n >= 1.
            seconds: (n,) task time of each episode, from reset to success.
            **facts: The remaining attributes.
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
        """Return this line's JSON object; `from_json` restores an equal result."""
        return dict(msgspec.json.decode(msgspec.json.encode(self)))

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> EvaluationResult:
        """Read a JSON object and ignore unknown keys; `StatisticsError` if it is invalid."""
        try:
            return msgspec.convert(dict(content), cls)
        except msgspec.ValidationError as error:
            names = [f.name for f in fields(cls)]
            raise StatisticsError(
                f"this is no evaluation: {error}", got=sorted(content), expected=names
            ) from error

    def __str__(self) -> str:
        """Return the result as one line, as `robot-rl evaluate` prints it."""
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
    """Return the steps of evaluations significantly worse than the start of learning."""
    compared = [(r.environment_steps, r.against_cloned) for r in results]
    return [steps for steps, comparison in compared if comparison and comparison.worse]
