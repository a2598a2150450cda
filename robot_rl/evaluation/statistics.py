"""Success counts with exact intervals, and the summaries that `evaluations.jsonl` holds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from robot_rl.errors import RobotRLError


class StatisticsError(RobotRLError):
    """Counts or records that describe no evaluation."""


def clopper_pearson(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Exact confidence interval of a success probability.

    The interval of Clopper and Pearson (Biometrika 26, 1934) holds its level for every true
    probability p. Its bounds solve P(X >= successes | p) = a/2 and P(X <= successes | p) = a/2
    for binomial X, with a = 1 - confidence; they are quantiles of beta distributions.

    Args:
        successes: Successful episodes, 0 <= successes <= trials.
        trials: All episodes; with none, nothing is known and the interval is (0, 1).
        confidence: Level in (0, 1).

    Returns:
        Lower and upper bound.

    Raises:
        StatisticsError: The counts or the level are impossible.
    """
    if not 0 <= successes <= trials:
        raise StatisticsError(
            "impossible counts", got=f"{successes} of {trials}", expected="0 <= successes <= trials"
        )
    if not 0.0 < confidence < 1.0:
        raise StatisticsError("impossible confidence", got=confidence, expected="a level in (0, 1)")
    from scipy.special import betaincinv  # late: only evaluation and reports pay for its import

    tail = (1.0 - confidence) / 2.0
    failures = trials - successes
    low = betaincinv(successes, failures + 1, tail) if successes else 0.0
    high = betaincinv(successes + 1, failures, 1.0 - tail) if failures else 1.0
    return float(low), float(high)


def longest_run(successes: Iterable[bool]) -> int:
    """Length of the longest run of successes in a row."""
    longest = current = 0
    for success in successes:
        current = current + 1 if success else 0
        longest = max(longest, current)
    return longest


def first_confirmed(
    steps: Sequence[int], rates: Sequence[float], threshold: float = 0.97
) -> int | None:
    """Environment steps of the first of two consecutive evaluations at or above `threshold`.

    Args:
        steps: Environment steps of each evaluation, in order of time.
        rates: Success rate of each evaluation, in [0, 1].
        threshold: Rate that both have to reach.

    Returns:
        The steps of the first of the two, or None where no two in a row reached it.

    Raises:
        StatisticsError: The sequences differ in length.
    """
    if len(steps) != len(rates):
        raise StatisticsError(
            "each evaluation needs its steps and its rate",
            got=f"{len(steps)} steps and {len(rates)} rates",
        )
    for step, rate, following in zip(steps, rates, rates[1:], strict=False):
        if rate >= threshold and following >= threshold:
            return int(step)
    return None


@dataclass(frozen=True, kw_only=True)
class EvaluationResult:
    """One line of `evaluations.jsonl`: the success of one policy over one set of episodes.

    Attributes:
        environment_steps: Training steps that the policy has seen.
        gradient_updates: Updates that produced the policy.
        policy: The cloned policy or the one under reinforcement learning.
        episodes: Number of episodes.
        successes: Successful ones.
        success_rate: Their ratio.
        confidence_low: Lower bound of the exact 95 % interval.
        confidence_high: Upper bound.
        mean_seconds_to_success: Task time, averaged over the successful episodes.
        longest_success_run: Longest run of successes in the order of the seeds.
        seed_set: Seeds of the periodic or of the final evaluation.
        wall_seconds: How long the evaluation took.
        failures: Numbers of the failed episodes in the order of the seeds, from 0.
        repeated: Attempts that the robot cut, or the operator took back, and that were made again;
            none of them is among the episodes.
    """

    environment_steps: int
    gradient_updates: int
    policy: Literal["bc", "rl"]
    episodes: int
    successes: int
    success_rate: float
    confidence_low: float
    confidence_high: float
    mean_seconds_to_success: float | None
    longest_success_run: int
    seed_set: Literal["periodic", "final"]
    wall_seconds: float
    failures: tuple[int, ...] = ()
    repeated: int = 0

    @classmethod
    def of_episodes(
        cls,
        successes: npt.ArrayLike,
        seconds: npt.ArrayLike,
        *,
        policy: Literal["bc", "rl"],
        seed_set: Literal["periodic", "final"],
        environment_steps: int,
        gradient_updates: int,
        wall_seconds: float,
        repeated: int = 0,
    ) -> EvaluationResult:
        """Summarise finished episodes.

        Args:
            successes: (n,) bool in the order of the seeds, n >= 1.
            seconds: (n,) task time of each episode, from reset to its end.
            policy: Which policy acted.
            seed_set: Which seeds were used.
            environment_steps: Training steps that the policy has seen.
            gradient_updates: Updates that produced the policy.
            wall_seconds: How long the evaluation took.
            repeated: See the class.

        Raises:
            StatisticsError: No episodes, or arrays of different lengths.
        """
        won = np.asarray(successes, np.bool_)
        duration = np.asarray(seconds, np.float64)
        if won.ndim != 1 or won.shape != duration.shape or not len(won):
            raise StatisticsError(
                "an evaluation needs one success and one duration per episode",
                got=f"{won.shape} and {duration.shape}",
                expected="(n,) and (n,) with n >= 1",
            )
        count, total = int(won.sum()), len(won)
        low, high = clopper_pearson(count, total)
        return cls(
            environment_steps=environment_steps,
            gradient_updates=gradient_updates,
            policy=policy,
            episodes=total,
            successes=count,
            success_rate=count / total,
            confidence_low=low,
            confidence_high=high,
            mean_seconds_to_success=float(duration[won].mean()) if count else None,
            longest_success_run=longest_run(won.tolist()),
            seed_set=seed_set,
            wall_seconds=wall_seconds,
            failures=tuple(np.flatnonzero(~won).tolist()),
            repeated=repeated,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object of this line, equal to what is read back from it."""
        return {**asdict(self), "failures": list(self.failures)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> EvaluationResult:
        """Read a JSON object; keys that are not known are ignored.

        Raises:
            StatisticsError: A key is missing.
        """
        names = [f.name for f in fields(cls) if f.name not in ("failures", "repeated")]
        missing = [name for name in names if name not in content]
        if missing:
            raise StatisticsError(
                f"the evaluation lacks {missing}", got=sorted(content), expected=names
            )
        # Records of before there were these two lack them.
        failures, repeated = tuple(content.get("failures", ())), int(content.get("repeated", 0))
        values = {name: content[name] for name in names}
        return cls(**values, failures=failures, repeated=repeated)

    def __str__(self) -> str:
        """Say the result in one line, as `robot-rl evaluate` prints it."""
        time = self.mean_seconds_to_success
        again = f", {self.repeated} attempts cut and made again" if self.repeated else ""
        return (
            f"{self.successes}/{self.episodes} = {100 * self.success_rate:.1f} % "
            f"(95 % interval {100 * self.confidence_low:.1f} to {100 * self.confidence_high:.1f} %)"
            f", mean time to success {'none' if time is None else f'{time:.1f} s'}"
            f", longest run of successes {self.longest_success_run}{again}"
        )


@dataclass(frozen=True, kw_only=True)
class PooledResult:
    """Evaluations of several training seeds, counted together.

    The interval treats all episodes as draws from one probability: it says how well the mixture
    of these training runs is known, not how much runs differ; `lowest_rate` and
    `highest_rate` show that.

    Attributes:
        runs: Number of evaluations.
        episodes: Episodes in all.
        successes: Successful ones in all.
        success_rate: Their ratio.
        confidence_low: Lower bound of the exact 95 % interval.
        confidence_high: Upper bound.
        lowest_rate: Success rate of the worst run.
        highest_rate: Success rate of the best run.
        mean_seconds_to_success: Averaged over all successful episodes.
        longest_success_run: The longest of any run.
    """

    runs: int
    episodes: int
    successes: int
    success_rate: float
    confidence_low: float
    confidence_high: float
    lowest_rate: float
    highest_rate: float
    mean_seconds_to_success: float | None
    longest_success_run: int

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object of the fields."""
        return asdict(self)


def pool(results: Sequence[EvaluationResult]) -> PooledResult:
    """Count the episodes of several evaluations together.

    Raises:
        StatisticsError: There are no evaluations.
    """
    if not results:
        raise StatisticsError("there is nothing to pool", expected="at least one evaluation")
    successes = sum(r.successes for r in results)
    episodes = sum(r.episodes for r in results)
    low, high = clopper_pearson(successes, episodes)
    rates = [r.success_rate for r in results]
    seconds = math.fsum(
        r.mean_seconds_to_success * r.successes
        for r in results
        if r.mean_seconds_to_success is not None
    )
    return PooledResult(
        runs=len(results),
        episodes=episodes,
        successes=successes,
        success_rate=successes / episodes,
        confidence_low=low,
        confidence_high=high,
        lowest_rate=min(rates),
        highest_rate=max(rates),
        mean_seconds_to_success=seconds / successes if successes else None,
        longest_success_run=max(r.longest_success_run for r in results),
    )
