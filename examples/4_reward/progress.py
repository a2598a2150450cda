"""A progress model's server, to copy for a real one, with a toy model in it.

    python examples/4_reward/progress.py tcp://127.0.0.1:5600 DEMONSTRATIONS.zarr

The toy compares images with the last ones of successful demonstrations, pixel by pixel.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

from robot_rl.data.episodes import EpisodeDataset
from robot_rl.extras.progress.progress_model import (
    Images,
    PairScores,
    ProgressError,
    Values,
    serve_progress,
)
from robot_rl.processes.signals import stop_event


class GoalImages:
    """A toy: the nearer the pixels are to those of a goal, the nearer the goal.

    Args:
        goals: Observation name → uint8 (k, H, W, 3), what reaching the goal looked like.
        starts: The same of the beginnings, from which progress is counted.
    """

    version = 1

    def __init__(self, goals: Images, starts: Images) -> None:
        self._goals = {name: images.astype(np.float32) for name, images in goals.items()}
        self._whole = max(float(self._distance(starts).mean()), 1e-6)

    @classmethod
    def of_dataset(cls, dataset: EpisodeDataset) -> GoalImages:
        """Take first and last images of the successful episodes of a recording.

        Raises:
            ProgressError: It has no images, or no success.
        """
        chosen = np.flatnonzero(dataset.successes)
        names = [f.name for f in dataset.schema.fields if f.name.startswith("images/")]
        if not len(chosen) or not names:
            raise ProgressError(
                f"{dataset.path} shows no goal",
                got=f"{len(chosen)} successes, cameras {names}",
                expected="a successful episode, recorded with a camera",
            )
        episodes = [dataset.episode(int(index)) for index in chosen]
        ends: list[Images] = [
            {name: np.stack([episode[name][at] for episode in episodes]) for name in names}
            for at in (-1, 0)
        ]
        return cls(*ends)

    def compare(self, pairs: Images, instruction: str) -> PairScores:
        """See `ProgressModel`."""
        before = self._distance({name: images[:, 0] for name, images in pairs.items()})
        after = self._distance({name: images[:, 1] for name, images in pairs.items()})
        delta = ((before - after) / self._whole).clip(-1.0, 1.0)
        certain = np.abs(before - after) / np.maximum(np.maximum(before, after), 1e-6)
        return PairScores(delta.astype(np.float32), certain.astype(np.float32))

    def done(self, images: Images, instruction: str) -> Values:
        """See `ProgressModel`."""
        left = self._distance(images) / self._whole
        return np.exp(-5.0 * left).astype(np.float32)

    def _distance(self, images: Images) -> npt.NDArray[np.float64]:
        """Mean difference of pixels from the nearest goal, (n,)."""
        total = np.zeros(1)
        for name, goals in self._goals.items():
            apart = images[name][:, None].astype(np.float32) - goals[None]
            total = total + np.abs(apart).mean((2, 3, 4)).astype(np.float64)
        nearest: npt.NDArray[np.float64] = total.min(-1)
        return nearest


if __name__ == "__main__":
    address, dataset = sys.argv[1:]
    model = GoalImages.of_dataset(EpisodeDataset(Path(dataset)))
    with stop_event() as stop:
        serve_progress(model, address, stop, lambda at: print(f"listening at {at}", flush=True))
