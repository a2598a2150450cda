"""How good a success classifier is on episodes that it was not trained on, frame and episode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from robot_rl.rewards.calibration import Limits, Scored, known_frames, upper_bound


@dataclass(frozen=True)
class Rate:
    """A count with its upper 95 % bound.

    Attributes:
        count: How often it happened.
        trials: How often it could have.
    """

    count: int
    trials: int

    @property
    def rate(self) -> float | None:
        """The share, None without a trial."""
        return self.count / self.trials if self.trials else None

    @property
    def bound(self) -> float:
        """Upper 95 % bound (Clopper-Pearson, one-sided)."""
        return upper_bound(self.count, self.trials)

    def to_json(self) -> dict[str, Any]:
        """Count, trials, rate and bound."""
        return {**asdict(self), "rate": self.rate, "upper_95": self.bound}


@dataclass(frozen=True)
class Validation:
    """What a threshold does to episodes.

    Attributes:
        true_positives: Frames of success that are seen.
        false_negatives: Frames of success that are not.
        false_frames: Frames without success that are taken for one, of all without.
        false_episodes: Episodes without success in which it is seen, of all without.
        early_episodes: Episodes with success in which it is seen before, of all with.
        missed_episodes: Episodes with success in which it is not seen, of all with.
        delay_frames: Median frames from success to its being seen, None where it never is.
        bins: Calibration: for each tenth of probability its mean, the share of frames that show
            success, and how many frames there are.
    """

    true_positives: int
    false_negatives: int
    false_frames: Rate
    false_episodes: Rate
    early_episodes: Rate
    missed_episodes: Rate
    delay_frames: float | None
    bins: tuple[tuple[float, float, int], ...]

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON values."""
        content = asdict(self)
        rates = {name: rate.to_json() for name, rate in vars(self).items() if type(rate) is Rate}
        return {**content, **rates, "bins": [list(row) for row in self.bins]}


def validate(episodes: Sequence[Scored], threshold: float, consecutive: int) -> Validation:
    """Judge a threshold.

    Args:
        episodes: With probabilities as scores.
        threshold: Probability from which a frame shows success.
        consecutive: Frames in a row that make an episode's success.
    """
    scores, labels = known_frames(episodes)
    shown = scores >= threshold
    found = {e.index: first_success(e.scores >= threshold, consecutive) for e in episodes}
    failed = [e for e in episodes if not e.labels.succeeds]
    solved = [(e.labels, found[e.index]) for e in episodes if e.labels.succeeds]
    seen = [(kind, at - int(kind.positive.argmax()), at) for kind, at in solved if at is not None]
    delays = [delay for _, delay, _ in seen if delay >= 0]
    return Validation(
        true_positives=int((shown & labels).sum()),
        false_negatives=int((~shown & labels).sum()),
        false_frames=Rate(int((shown & ~labels).sum()), int((~labels).sum())),
        false_episodes=Rate(sum(found[e.index] is not None for e in failed), len(failed)),
        early_episodes=Rate(sum(d < 0 and bool(k.negative[at]) for k, d, at in seen), len(solved)),
        missed_episodes=Rate(len(solved) - len(seen), len(solved)),
        delay_frames=float(np.median(delays)) if delays else None,
        bins=_bins(scores, labels),
    )


def first_success(shown: npt.NDArray[np.bool_], consecutive: int) -> int | None:
    """Frame at which so many in a row have shown success, None if they never do."""
    run = 0
    for index, success in enumerate(shown.tolist()):
        run = run + 1 if success else 0
        if run == consecutive:
            return index
    return None


def weaknesses(result: Validation, limits: Limits) -> list[str]:
    """Say where held-out data are too few, or the classifier too poor, to train a policy on."""
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


def _bins(
    scores: npt.NDArray[np.float64], labels: npt.NDArray[np.bool_]
) -> tuple[tuple[float, float, int], ...]:
    places = (scores * 10).astype(int).clip(0, 9)
    rows = []
    for place in range(10):
        inside = places == place
        if inside.any():
            rows.append(
                (float(scores[inside].mean()), float(labels[inside].mean()), int(inside.sum()))
            )
    return tuple(rows)
