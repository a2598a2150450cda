"""Probabilities that mean what they say, and the threshold, both from held-out episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from robot_rl.data.intervals import clopper_pearson
from robot_rl.rewards.classifier import Decision
from robot_rl.rewards.examples import FrameLabels

Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Scored:
    """What a classifier made of the frames of an episode that it was not trained on.

    Attributes:
        index: Of the episode in its dataset.
        scores: (T + 1,), logits or probabilities.
        labels: Of the frames.
    """

    index: int
    scores: Values
    labels: FrameLabels

    @property
    def positives(self) -> Values:
        """Scores of the frames that show success."""
        return self.scores[self.labels.positive]

    @property
    def negatives(self) -> Values:
        """Scores of the frames that show that there is none yet."""
        return self.scores[self.labels.negative]


@dataclass(frozen=True)
class Limits:
    """What a threshold may lead to on held-out data: upper 95 % bounds.

    Attributes:
        frames: Of the rate of frames that show no success and are taken for one.
        episodes: Of the rate of episodes without success in which it is seen all the same.
        consecutive_frames: Frames in a row that it takes.
    """

    frames: float
    episodes: float
    consecutive_frames: int


def upper_bound(count: int, trials: int) -> float:
    """The upper 95 % bound of a rate (Clopper and Pearson's one-sided bound)."""
    return clopper_pearson(count, trials, 0.90)[1]


def fit_platt(logits: Values, labels: npt.NDArray[np.bool_]) -> tuple[float, float]:
    """Scale and offset of a sigmoid by maximum likelihood (Platt 1999, with his smoothed targets).

    The smoothing keeps the sigmoid finite where a threshold parts the two kinds without a mistake.

    Args:
        logits: (n,).
        labels: (n,).
    """
    from scipy.optimize import minimize  # late: only training pays for its import

    positive = int(labels.sum())
    negative = len(labels) - positive
    targets = np.where(labels, (positive + 1) / (positive + 2), 1 / (negative + 2))

    def loss(parameters: Values) -> tuple[float, Values]:
        scaled = parameters[0] * logits + parameters[1]
        value = np.logaddexp(0.0, scaled) - targets * scaled
        slope = 1.0 / (1.0 + np.exp(-np.clip(scaled, -60.0, 60.0))) - targets
        return float(value.mean()), np.array([(slope * logits).mean(), slope.mean()])

    found = minimize(loss, np.array([1.0, 0.0]), jac=True, method="L-BFGS-B")
    return float(found.x[0]), float(found.x[1])


def calibrate(episodes: Sequence[Scored], limits: Limits) -> Decision:
    """Choose calibration and threshold on held-out episodes.

    Args:
        episodes: With logits as scores.
        limits: What the threshold may lead to.
    """
    scale, offset = fit_platt(*known_frames(episodes))
    decision = Decision(scale, offset)
    scored = [Scored(e.index, decision.probability(e.scores), e.labels) for e in episodes]
    return Decision(scale, offset, choose_threshold(scored, limits))


def known_frames(episodes: Sequence[Scored]) -> tuple[Values, npt.NDArray[np.bool_]]:
    """Scores (n,) of all frames that show success or none, and which of the two they show (n,)."""
    positives = np.concatenate([episode.positives for episode in episodes])
    scores = np.concatenate([positives, *(episode.negatives for episode in episodes)])
    return scores, np.arange(len(scores)) < len(positives)


def choose_threshold(episodes: Sequence[Scored], limits: Limits) -> float:
    """The threshold halfway, in logits, from the worst mistake to be avoided to the successes.

    Of a success one run of frames must be seen, not each frame: what is missed is seen a step
    later, and what is seen wrongly ends an episode with a reward that nobody has earned. So the
    success that counts is the weakest episode's best run. Of those no better than the worst mistake
    none can be kept. Where there is too little data to show that the limits hold, no mistake is
    allowed.

    Args:
        episodes: With probabilities as scores.
        limits: What it may lead to.
    """
    negatives = np.sort(np.concatenate([e.negatives for e in episodes]))[::-1]
    failed = [e for e in episodes if not e.labels.succeeds]
    # An episode is lost to a threshold at or below the best run of frames that it has.
    runs = np.sort([best_run(e.scores, limits.consecutive_frames) for e in failed])[::-1]
    floor = 0.5
    for values, rate in ((negatives, limits.frames), (runs, limits.episodes)):
        allowed = most_mistakes(len(values), rate)
        if allowed < len(values):
            floor = max(floor, float(values[allowed]))
    solved = (best_run(e.positives, limits.consecutive_frames) for e in episodes)
    ends = np.array([floor, min((best for best in solved if best > floor), default=1.0)])
    between = _logit(ends).mean()
    return float(min(1.0 / (1.0 + np.exp(-between)), 1.0 - 1e-6))


def _logit(probability: Values) -> Values:
    """Finite for 0 and 1 too."""
    inside = probability.clip(1e-6, 1.0 - 1e-6)
    return np.asarray(np.log(inside) - np.log1p(-inside))


def most_mistakes(trials: int, rate: float) -> int:
    """Most mistakes in so many trials that keep the upper bound at a rate; 0 if none do."""
    count = 0
    while count < trials and upper_bound(count + 1, trials) <= rate:
        count += 1
    return count


def best_run(scores: Values, length: int) -> float:
    """Largest score that so many frames in a row reach; 0 where there are fewer."""
    if len(scores) < length:
        return 0.0
    windows = np.lib.stride_tricks.sliding_window_view(scores, length)
    return float(windows.min(-1).max())
