"""Success counts with exact intervals, and the summaries that `evaluations.jsonl` holds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from robot_rl.data.intervals import StatisticsError, clopper_pearson

# One-sided level of the comparisons of a whole run.
NOISE_LEVEL = 0.05


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


@dataclass(frozen=True)
class Comparison:
    """A learned policy beside the cloned one on the same scenes.

    Only scenes that one of the two alone has solved tell them apart. If the two are equally good,
    either is as likely to be that one: an exact sign test, which here is McNemar's (Psychometrika
    12, 1947).

    Attributes:
        lost: Scenes that the cloned policy alone has solved.
        won: Scenes that the learned policy alone has solved.
        level: Chance at or below which a difference is no noise.
    """

    lost: int
    won: int
    level: float = NOISE_LEVEL

    @property
    def chance(self) -> float:
        """Chance of a difference as large, in this direction, between equally good policies."""
        count = self.lost + self.won
        ways = sum(math.comb(count, k) for k in range(max(self.lost, self.won), count + 1))
        return float(ways / 2**count)

    @property
    def beyond_noise(self) -> bool:
        """Whether one of the two is better."""
        return self.chance <= self.level

    @property
    def worse(self) -> bool:
        """Whether the learned policy is worse beyond noise."""
        return self.lost > self.won and self.beyond_noise

    def __str__(self) -> str:
        """Say it in words, for the display."""
        return (
            f"of the same scenes it lost {self.lost} that the cloned policy solves and won"
            f" {self.won} (sign test, p = {self.chance:.2g})"
        )


@dataclass(frozen=True, kw_only=True)
class EvaluationResult:
    """One line of `evaluations.jsonl`: the success of one policy over one set of episodes.

    Attributes:
        environment_steps: Training steps that the policy has seen; the cloned one has seen none.
        gradient_updates: Updates that produced the policy.
        policy: Kind of the policy: diffusion, residual, ...
        episodes: Number of episodes.
        successes: Successful ones.
        success_rate: Their ratio.
        confidence_low: Lower bound of the exact 95 % interval.
        confidence_high: Upper bound.
        mean_seconds_to_success: Task time, averaged over the successful episodes.
        longest_success_run: Longest run of successes in the order of the seeds.
        seed_set: Seeds of the periodic or of the final evaluation.
        first_seed: The first of them; each later episode has the next.
        wall_seconds: How long the evaluation took.
        failures: Numbers of the failed episodes in the order of the seeds, from 0.
        repeated: Attempts that the robot cut, or the operator took back, and that were made again;
            none of them is among the episodes.
        against_cloned: Beside the cloned policy's evaluation, where there is one of these scenes.
    """

    environment_steps: int
    gradient_updates: int
    policy: str
    episodes: int
    successes: int
    success_rate: float
    confidence_low: float
    confidence_high: float
    mean_seconds_to_success: float | None
    longest_success_run: int
    seed_set: Literal["periodic", "final"]
    first_seed: int
    wall_seconds: float
    failures: tuple[int, ...]
    repeated: int = 0
    against_cloned: Comparison | None = None

    @property
    def cloned(self) -> bool:
        """Whether the policy is the cloned one, which nothing was learned on top of."""
        return self.environment_steps == 0

    @property
    def name(self) -> str:
        """Which policy it was."""
        if self.cloned:
            return f"the cloned policy ({self.policy})"
        return f"the learned policy ({self.policy}) after {self.environment_steps:,} steps"

    @property
    def count(self) -> str:
        """How often it succeeded."""
        return f"{self.successes} of {self.episodes}"

    def beside(self, cloned: EvaluationResult, looks: int = 1) -> Comparison | None:
        """Compare it with the cloned policy's evaluation, None where they share no scene.

        Args:
            cloned: That evaluation.
            looks: How often the run is looked at: each look has its share of the level, so that
                all of them together call a policy that is as good worse in one run of twenty.
        """
        first = max(self.first_seed, cloned.first_seed)
        end = min(self.first_seed + self.episodes, cloned.first_seed + cloned.episodes)
        if first >= end:
            return None
        mine = {self.first_seed + number for number in self.failures}
        theirs = {cloned.first_seed + number for number in cloned.failures}
        scenes = set(range(first, end))
        lost, won = len((mine - theirs) & scenes), len((theirs - mine) & scenes)
        return Comparison(lost, won, NOISE_LEVEL / looks)

    @classmethod
    def of_episodes(
        cls,
        successes: npt.ArrayLike,
        seconds: npt.ArrayLike,
        *,
        policy: str,
        seed_set: Literal["periodic", "final"],
        first_seed: int,
        environment_steps: int,
        gradient_updates: int,
        wall_seconds: float,
        repeated: int = 0,
    ) -> EvaluationResult:
        """Summarise finished episodes.

        Args:
            successes: (n,) bool in the order of the seeds, n >= 1.
            seconds: (n,) task time of each episode, from reset to its end.
            policy: Kind of the policy that acted.
            seed_set: Which seeds were used.
            first_seed: The first of them.
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
            first_seed=first_seed,
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
        names = [f.name for f in fields(cls) if f.default is MISSING]
        missing = [name for name in names if name not in content]
        if missing:
            raise StatisticsError(
                f"the evaluation lacks {missing}", got=sorted(content), expected=names
            )
        values = {f.name: content[f.name] for f in fields(cls) if f.name in content}
        against = values.get("against_cloned")
        values["against_cloned"] = None if against is None else Comparison(**against)
        return cls(**{**values, "failures": tuple(values["failures"])})

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


def worse_than_cloned(results: Sequence[EvaluationResult]) -> list[int]:
    """Environment steps of the evaluations that were worse than the cloned policy beyond noise."""
    compared = [(r.environment_steps, r.against_cloned) for r in results]
    return [steps for steps, comparison in compared if comparison and comparison.worse]


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
