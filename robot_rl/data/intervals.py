"""What a count of successes says about a probability, exactly."""

from __future__ import annotations

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
