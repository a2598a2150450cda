"""What a count of successes says about a probability, exactly."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from robot_rl.errors import RobotRLError

_MOST_TRIALS = 10**9
_DRAWS = 100_000


class StatisticsError(RobotRLError):
    """Counts or records that describe no evaluation."""


def clopper_pearson(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Exact confidence interval of a success probability: its lower and upper bound.

    The interval of Clopper and Pearson (Biometrika 26, 1934) holds its level for every true
    probability p. Its bounds solve P(X >= successes | p) = a/2 and P(X <= successes | p) = a/2
    for binomial X, with a = 1 - confidence; they are quantiles of beta distributions.

    Args:
        successes: Successful episodes, 0 <= successes <= trials.
        trials: All episodes; with none, nothing is known and the interval is (0, 1).
        confidence: Level in (0, 1).

    Raises:
        StatisticsError: The counts or the level are impossible.
    """
    _check(successes, trials, confidence)
    from scipy.special import betaincinv  # late: only evaluation and reports pay for its import

    tail = (1.0 - confidence) / 2.0
    failures = trials - successes
    low = betaincinv(successes, failures + 1, tail) if successes else 0.0
    high = betaincinv(successes + 1, failures, 1.0 - tail) if failures else 1.0
    return float(low), float(high)


def anytime_interval(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Interval of a success probability that holds whenever one looks, and however one stops.

    It holds those p under which what was seen is likely enough: (trials + 1) P(X = successes | p)
    > 1 - confidence for binomial X. By Ville's inequality a true p is ever left out with
    probability 1 - confidence at the most (Robbins, Ann. Math. Statist. 41, 1970). All else is as
    of `clopper_pearson`, which is narrower, and holds for a number of trials that was fixed before.
    """
    _check(successes, trials, confidence)
    from scipy.optimize import brentq
    from scipy.special import gammaln, xlog1py, xlogy

    failures = trials - successes
    ways = gammaln(trials + 2) - gammaln(successes + 1) - gammaln(failures + 1)

    def surplus(p: float) -> float:
        likely = ways + xlogy(successes, p) + xlog1py(failures, -p)
        return float(max(likely, -1e9) - math.log1p(-confidence))

    seen = successes / trials if trials else 0.5
    low = brentq(surplus, 0.0, seen) if successes else 0.0
    high = brentq(surplus, seen, 1.0) if failures else 1.0
    return float(low), float(high)


def interval_over_runs(rates: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Interval of the success rate to expect of a further training seed, on further scenes.

    Each run's rate is one draw of an unknown distribution on [0, 1], of which this is the mean. The
    bounds are quantiles of the mean of the rates and one that is 0, or 1, with weights that are
    uniform on the simplex (Gaffke 2005; Learned-Miller and Thomas, arXiv 1905.06208). With rates of
    0 and 1 alone they are those of Clopper and Pearson. That they hold for every distribution is a
    conjecture, which simulations support.

    Args:
        rates: (k,) success rate of each run, each with a training seed of its own, k >= 1.
        confidence: Level in (0, 1).

    Returns:
        Lower and upper bound, to about 0.002: their quantiles are drawn, always the same.

    Raises:
        StatisticsError: No rates, or impossible ones, or the level is.
    """
    _check(0, 0, confidence)
    if not rates or not all(0.0 <= rate <= 1.0 for rate in rates):
        raise StatisticsError("impossible rates", got=rates, expected="one or more in [0, 1]")
    weights = np.random.default_rng(0).dirichlet(np.ones(len(rates) + 1), _DRAWS)
    tail = (1.0 - confidence) / 2.0
    low = np.quantile(weights @ [0.0, *rates], tail)
    high = np.quantile(weights @ [1.0, *rates], 1.0 - tail)
    return float(low), min(float(high), 1.0)


def failures_allowed(trials: int, claim: float, confidence: float = 0.95) -> int:
    """Most failures with which so many trials prove a success probability of at least `claim`.

    The claim is proved where the lower bound of a one-sided interval of Clopper and Pearson reaches
    it. The number of trials is fixed before the first of them. -1: even without a failure too
    little. `StatisticsError` where the claim or the level is not in (0, 1).
    """
    _check(0, 0, claim)
    _check(0, trials, confidence)
    from scipy.special import bdtr

    most = 1.0 - confidence
    return bisect_left(range(trials), True, key=lambda k: bdtr(k, trials, 1.0 - claim) > most) - 1


def trials_needed(claim: float, confidence: float = 0.95, failures: int = 0) -> int:
    """Fewest trials that prove a success probability with so many failures: see `failures_allowed`.

    Without a failure they are the least n with claim ** n <= 1 - confidence.
    """
    enough = range(failures + 1, _MOST_TRIALS)
    proved = bisect_left(
        enough, True, key=lambda n: failures_allowed(n, claim, confidence) >= failures
    )
    return failures + 1 + proved


def _check(successes: int, trials: int, confidence: float) -> None:
    if not 0 <= successes <= trials:
        raise StatisticsError(
            "impossible counts", got=f"{successes} of {trials}", expected="0 <= successes <= trials"
        )
    if not 0.0 < confidence < 1.0:
        raise StatisticsError("impossible confidence", got=confidence, expected="a level in (0, 1)")
