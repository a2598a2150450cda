"""Exact confidence intervals for success probabilities."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

import numpy as np

from robot_rl.errors import RobotRLError

_MOST_TRIALS = 10**9
_DRAWS = 100_000


class StatisticsError(RobotRLError):
    """Counts or records that do not describe an evaluation."""


def clopper_pearson(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Exact confidence interval of a success probability: its lower and upper bound.

    The Clopper-Pearson interval (Biometrika 26, 1934) has at least its nominal coverage for every
    true p. Its bounds solve P(X >= successes | p) = a/2 and P(X <= successes | p) = a/2
    for binomial X, with a = 1 - confidence; they are quantiles of beta distributions.

    Args:
        successes: Successful episodes, 0 <= successes <= trials.
        trials: All episodes; with 0 trials the interval is (0, 1).
        confidence: Level in (0, 1).

    Raises:
        StatisticsError: The counts or the level are invalid.
    """
    _check(successes, trials, confidence)
    from scipy.special import betaincinv  # late import: only evaluation and reports need it

    tail = (1.0 - confidence) / 2.0
    failures = trials - successes
    low = betaincinv(successes, failures + 1, tail) if successes else 0.0
    high = betaincinv(successes + 1, failures, 1.0 - tail) if failures else 1.0
    return float(low), float(high)


def anytime_interval(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Interval of a success probability that stays valid under repeated looks and any stopping.

    It contains the p under which the observed count is likely enough: (trials + 1) P(X = successes
    | p) > 1 - confidence for binomial X. By Ville's inequality the true p is ever excluded with
    probability at most 1 - confidence (Robbins, Ann. Math. Statist. 41, 1970). Otherwise as
    `clopper_pearson`, which is narrower but needs a number of trials fixed in advance.
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
    """Interval of the expected success rate of another training seed, on new scenes.

    Each run's rate is one draw from an unknown distribution on [0, 1], whose mean is estimated. The
    bounds are quantiles of the mean of the rates and an extra 0, or 1, with weights that are
    uniform on the simplex (Gaffke 2005; Learned-Miller and Thomas, arXiv 1905.06208). If all rates
    are 0 or 1, they equal the bounds of Clopper and Pearson. Validity for every distribution is a
    conjecture, supported by simulations.

    Args:
        rates: (k,) success rate of each run, each with its own training seed, k >= 1.
        confidence: Level in (0, 1).

    Returns:
        Lower and upper bound, to about 0.002: the quantiles are sampled with a fixed seed.

    Raises:
        StatisticsError: No rates, or an invalid rate or level.
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
    """Most failures with which `trials` trials prove a success probability of at least `claim`.

    The claim is proved if the lower bound of a one-sided Clopper-Pearson interval reaches it. The
    number of trials is fixed in advance. Returns -1 if even zero failures do not suffice. Raises
    `StatisticsError` if the claim or the level is not in (0, 1).
    """
    _check(0, 0, claim)
    _check(0, trials, confidence)
    from scipy.special import bdtr

    most = 1.0 - confidence
    return bisect_left(range(trials), True, key=lambda k: bdtr(k, trials, 1.0 - claim) > most) - 1


def trials_needed(claim: float, confidence: float = 0.95, failures: int = 0) -> int:
    """Fewest trials that prove a success probability with `failures`: see `failures_allowed`.

    Without a failure this is the least n with claim ** n <= 1 - confidence.
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
