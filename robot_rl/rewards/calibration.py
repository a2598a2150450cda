"""Calibration, threshold and statistics of a success classifier, from held-out episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from robot_rl.data.intervals import clopper_pearson
from robot_rl.rewards.classifier import Calibration
from robot_rl.rewards.examples import FrameLabels

Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Scored:
    """Classifier scores for an episode outside its training set."""

    index: int  # index of the episode in its dataset
    scores: Values  # (T + 1,), logits or probabilities
    labels: FrameLabels  # of the frames

    @property
    def positives(self) -> Values:
        """Scores of the frames that show success."""
        return self.scores[self.labels.positive]

    @property
    def negatives(self) -> Values:
        """Scores of the frames that show no success yet."""
        return self.scores[self.labels.negative]


@dataclass(frozen=True)
class Limits:
    """Limits on upper 95 % bounds that a threshold must keep on held-out data."""

    frames: float  # for the false-positive rate of frames
    episodes: float  # for the false-positive rate of episodes without success
    consecutive_frames: int  # frames in a row required for success


def upper_bound(count: int, trials: int) -> float:
    """The upper 95 % bound of a rate (Clopper and Pearson's one-sided bound)."""
    return clopper_pearson(count, trials, 0.90)[1]


def fit_platt(logits: Values, labels: npt.NDArray[np.bool_]) -> tuple[float, float]:
    """Scale and offset of a sigmoid by maximum likelihood, from logits (n,) and labels (n,).

    Platt 1999, with his smoothed targets, which keep the parameters finite if the two classes are
    perfectly separable.
    """
    from scipy.optimize import minimize  # late import: only training needs it

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


def calibrate(episodes: Sequence[Scored], limits: Limits) -> Calibration:
    """Choose calibration and threshold on held-out episodes, whose scores are logits."""
    scale, offset = fit_platt(*known_frames(episodes))
    decision = Calibration(scale, offset)
    scored = [Scored(e.index, decision.probability(e.scores), e.labels) for e in episodes]
    return Calibration(scale, offset, choose_threshold(scored, limits))


def known_frames(episodes: Sequence[Scored]) -> tuple[Values, npt.NDArray[np.bool_]]:
    """Scores (n,) of all labelled frames, and whether each shows success (n,)."""
    positives = np.concatenate([episode.positives for episode in episodes])
    scores = np.concatenate([positives, *(episode.negatives for episode in episodes)])
    return scores, np.arange(len(scores)) < len(positives)


def choose_threshold(episodes: Sequence[Scored], limits: Limits) -> float:
    """Choose the threshold halfway, in logits, between the worst false positive and the successes.

    A success needs one run of frames above the threshold, not every frame: a miss costs a step, but
    a false positive ends the episode with a false reward. So the success side is the best run of
    the weakest episode; episodes whose best run is below the worst false positive are ignored. With
    too little data to verify the limits, no false positive is allowed. Scores are probabilities.
    """
    negatives = np.sort(np.concatenate([e.negatives for e in episodes]))[::-1]
    failed = [e for e in episodes if not e.labels.succeeds]
    # An episode is a false positive for thresholds at or below its best run of frames.
    runs = np.sort([best_run(e.scores, limits.consecutive_frames) for e in failed])[::-1]
    floor = 0.5
    for values, rate in ((negatives, limits.frames), (runs, limits.episodes)):
        allowed = most_mistakes(len(values), rate)
        if allowed < len(values):
            floor = max(floor, float(values[allowed]))
    solved = (best_run(e.positives, limits.consecutive_frames) for e in episodes)
    ends = np.array([floor, min((best for best in solved if best > floor), default=1.0)])
    inside = ends.clip(1e-6, 1.0 - 1e-6)  # the logits of 0 and 1 are not finite
    between = (np.log(inside) - np.log1p(-inside)).mean()
    return float(min(1.0 / (1.0 + np.exp(-between)), 1.0 - 1e-6))


def most_mistakes(trials: int, rate: float) -> int:
    """Largest number of mistakes in `trials` whose upper bound is at most `rate`; 0 if none is."""
    count = 0
    while count < trials and upper_bound(count + 1, trials) <= rate:
        count += 1
    return count


def best_run(scores: Values, length: int) -> float:
    """Largest score that `length` frames in a row all reach; 0 if there are fewer frames."""
    if len(scores) < length:
        return 0.0
    windows = np.lib.stride_tricks.sliding_window_view(scores, length)
    return float(windows.min(-1).max())


@dataclass(frozen=True)
class Rate:
    """A count with its upper 95 % bound."""

    count: int  # how often it happened
    trials: int  # how often it could have
    rate: float | None  # count / trials, None without trials
    bound: float  # upper 95 % bound (Clopper-Pearson, one-sided)

    @classmethod
    def of(cls, count: int, trials: int) -> Rate:
        """Make the rate and its bound from a count."""
        return cls(count, trials, count / trials if trials else None, upper_bound(count, trials))


@dataclass(frozen=True)
class Validation:
    """Performance of a threshold on episodes."""

    true_positives: int  # success frames detected
    false_negatives: int  # success frames missed
    false_frames: Rate  # false positives among frames without success
    false_episodes: Rate  # false positives among episodes without success
    early_episodes: Rate  # episodes with success detected too early, of all with success
    missed_episodes: Rate  # episodes with success not detected, of all with success
    # Median frames from success to its detection, None without any detection.
    delay_frames: float | None
    # Calibration: per tenth of probability, the mean probability, the fraction of frames that show
    # success, and the number of frames.
    bins: tuple[tuple[float, float, int], ...]


def validate(episodes: Sequence[Scored], threshold: float, consecutive: int) -> Validation:
    """Evaluate a threshold on episodes whose scores are probabilities.

    `consecutive` frames in a row at or above the threshold count as success of the episode.
    """
    scores, labels = known_frames(episodes)
    shown = scores >= threshold
    found = {e.index: first_success(e.scores >= threshold, consecutive) for e in episodes}
    failed = [e for e in episodes if not e.labels.succeeds]
    solved = [(e.labels, found[e.index]) for e in episodes if e.labels.succeeds]
    seen = [(kind, at - int(kind.positive.argmax()), at) for kind, at in solved if at is not None]
    delays = [delay for _, delay, _ in seen if delay >= 0]
    tenths = (scores * 10).astype(int).clip(0, 9)
    early = sum(delay < 0 and bool(kind.negative[at]) for kind, delay, at in seen)
    return Validation(
        true_positives=int((shown & labels).sum()),
        false_negatives=int((~shown & labels).sum()),
        false_frames=Rate.of(int((shown & ~labels).sum()), int((~labels).sum())),
        false_episodes=Rate.of(sum(found[e.index] is not None for e in failed), len(failed)),
        early_episodes=Rate.of(early, len(solved)),
        missed_episodes=Rate.of(len(solved) - len(seen), len(solved)),
        delay_frames=float(np.median(delays)) if delays else None,
        bins=tuple(
            (float(scores[part].mean()), float(labels[part].mean()), int(part.sum()))
            for part in (tenths == tenth for tenth in np.unique(tenths))
        ),
    )


def first_success(shown: npt.NDArray[np.bool_], consecutive: int) -> int | None:
    """Frame that completes `consecutive` frames of success in a row; None if there is none."""
    ends = np.flatnonzero(np.convolve(shown, np.ones(consecutive)) == consecutive)
    return int(ends[0]) if ends.size else None


def weaknesses(result: Validation, limits: Limits) -> list[str]:
    """List where held-out data are too few, or the classifier too poor, to train a policy."""
    notes = []
    checks = (
        ("frames without success", result.false_frames, limits.frames),
        ("episodes without success", result.false_episodes, limits.episodes),
    )
    for what, rate, limit in checks:
        if upper_bound(0, rate.trials) > limit:
            notes.append(
                f"only {rate.trials} held-out {what}: even without a mistake the false-positive"
                f" rate may be {100 * upper_bound(0, rate.trials):.1f} %, and {100 * limit:g} % is"
                " the limit. Record more of them."
            )
        elif rate.bound > limit:
            notes.append(
                f"{rate.count} of {rate.trials} held-out {what} are taken for success: the rate may"
                f" be {100 * rate.bound:.1f} %, and {100 * limit:g} % is the limit. Record more"
                " that look like them."
            )
    missed = result.missed_episodes
    if missed.trials < 5 or missed.count > 0.2 * missed.trials:
        notes.append(
            f"success was seen in {missed.trials - missed.count} of {missed.trials} held-out"
            " episodes that have it: too few to learn from. Record more successes."
        )
    return notes
