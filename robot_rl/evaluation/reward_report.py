"""The report of a success classifier: metrics on held-out episodes, and its mistakes."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import image

from robot_rl.evaluation.report import write_page
from robot_rl.rewards.calibration import Limits, Rate, Scored, Validation
from robot_rl.rewards.classifier import TrainedClassifier
from robot_rl.rewards.examples import Examples

_PICTURES = 6


@dataclass(frozen=True)
class RewardRecord:
    """A trained classifier and its validation."""

    trained: TrainedClassifier  # the classifier
    validation: Validation  # metrics on held-out episodes
    warnings: Sequence[str]  # reasons not to trust it yet, if any
    limits: Limits  # limits that its threshold was chosen for
    training_episodes: int  # number of training episodes
    training_positives: int  # success frames in them
    validation_episodes: int  # episodes used for calibration and threshold
    tested_on: str  # the recording that `validation` is computed on
    separate_test: bool  # whether that recording was used for neither training nor any choice

    def to_json(self) -> dict[str, Any]:
        """Return everything except the weights."""
        return {
            "task": self.trained.task,
            "version": self.trained.version,
            **asdict(self.trained.decision),
            "limits": asdict(self.limits),
            "training_episodes": self.training_episodes,
            "training_positives": self.training_positives,
            "validation_episodes": self.validation_episodes,
            "tested_on": self.tested_on,
            "separate_test": self.separate_test,
            "warnings": list(self.warnings),
            "held_out": asdict(self.validation),
        }

    def __str__(self) -> str:
        """Return the result in a few lines, as `robot-rl train-reward` prints it."""
        result = self.validation
        seen = result.true_positives + result.false_negatives
        early, missed = result.early_episodes, result.missed_episodes
        return (
            f"threshold {self.trained.decision.threshold:.3f},"
            f" {self.limits.consecutive_frames} frames in a row\n"
            f"false positives: {_words(result.false_frames)} of frames,"
            f" {_words(result.false_episodes)} of episodes\n"
            f"frames of success that are seen: {result.true_positives} of {seen}; episodes:"
            f" {missed.trials - missed.count} of {missed.trials}, {early.count} of them too early"
        )


def write_reward_report(
    run: Path, record: RewardRecord, examples: Examples, scored: Sequence[Scored]
) -> Path:
    """Write `reward.html` into a run directory.

    `examples` is the held-out recording, for images; `scored` its episodes with probabilities.
    """
    decision, result = record.trained.decision, record.validation
    cameras = ", ".join(name.removeprefix("images/") for name in examples.cameras)
    facts = {
        "Cameras": f"{cameras}, {record.trained.network.frames} frame(s)",
        "Threshold": f"{decision.threshold:.3f}, {record.limits.consecutive_frames} frames in a"
        " row",
        "Trained on": f"{record.training_episodes} episodes, {record.training_positives} frames of"
        " success",
        "Calibrated on": f"{record.validation_episodes} other episodes",
        "Judged on": record.tested_on
        if record.separate_test
        else "the episodes that it was calibrated on",
        "Version": record.trained.version,
    }
    content = {
        "title": f"Success classifier · {record.trained.task}",
        "subtitle": f"Run {run.name}",
        "notes": list(record.warnings),
        "frames": _cell(result.false_frames),
        "episodes": _cell(result.false_episodes),
        "result": result,
        "negatives": result.false_frames.trials - result.false_frames.count,
        "limits": record.limits,
        "facts": list(facts.items()),
        "galleries": _galleries(examples, scored, decision.threshold),
    }
    return write_page(run / "reward.html", "reward.html.jinja", content)


def _galleries(
    examples: Examples, scored: Sequence[Scored], threshold: float
) -> list[dict[str, Any]]:
    """Images of mistakes and correct results, the most telling ones first."""
    frames = [
        (float(e.scores[row]), bool(e.labels.positive[row]), e.index, row)
        for e in scored
        for row in np.flatnonzero(e.labels.positive | e.labels.negative).tolist()
    ]
    galleries = []
    for title, taken, success in (
        ("Taken for success, and is none", True, False),
        ("Success that is not seen", False, True),
        ("No success, and nearest to being taken for one", False, False),
        ("Success, the least certain first", True, True),
    ):
        found = [f for f in frames if (f[0] >= threshold, f[1]) == (taken, success)]
        pictures = list(_pictures(examples, sorted(found, reverse=not success)))
        galleries.append({"title": title, "count": len(found), "pictures": pictures})
    return galleries


def _pictures(
    examples: Examples, frames: Iterable[tuple[float, bool, int, int]]
) -> Iterable[dict[str, str]]:
    """One image of each of the first episodes, all cameras side by side."""
    shown: set[int] = set()
    for probability, _, index, row in frames:
        if index in shown:
            continue
        if len(shown) == _PICTURES:
            return
        shown.add(index)
        images = examples.episode(index).images
        pictures = [column[row] for column in images.values()]
        height = max(picture.shape[0] for picture in pictures)
        padded = [np.pad(p, ((0, height - p.shape[0]), (0, 0), (0, 0))) for p in pictures]
        file = io.BytesIO()
        image.imsave(file, np.concatenate(padded, 1), format="png")
        yield {
            "uri": f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}",
            "words": f"episode {index}, frame {row}: {100 * probability:.1f} %",
        }


def _cell(rate: Rate) -> Mapping[str, str]:
    return {
        "rate": "–" if rate.rate is None else f"{100 * rate.rate:.2f} %",
        "count": f"{rate.count} of {rate.trials}",
        "bound": f"95 % bound {100 * rate.bound:.2f} %",
    }


def _words(rate: Rate) -> str:
    return f"{rate.count} of {rate.trials} (upper 95 % bound {100 * rate.bound:.2f} %)"
