"""Recorded episodes as examples of success and failure, with a label for each frame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from robot_rl.data.episodes import EpisodeDataset
from robot_rl.rewards.source import RewardError

Array = npt.NDArray[Any]
Images = dict[str, Array]

REACTION_FRAMES = "reaction_frames"


@dataclass(frozen=True)
class FrameLabels:
    """What the frames of an episode show; of those that are neither, nobody knows.

    Attributes:
        positive: bool (T + 1,), whether each shows success.
        negative: bool (T + 1,), whether each shows that there is none yet.
    """

    positive: npt.NDArray[np.bool_]
    negative: npt.NDArray[np.bool_]

    @property
    def succeeds(self) -> bool:
        """Whether any frame shows success."""
        return bool(self.positive.any())


@dataclass(frozen=True)
class ExampleEpisode:
    """The frames of an episode that has T actions, and so T + 1 observations.

    Attributes:
        index: Of the episode in its dataset.
        images: Observation name → uint8 (T + 1, H, W, 3).
        labels: Of its frames.
    """

    index: int
    images: Images
    labels: FrameLabels

    def stacked(self, rows: npt.NDArray[np.int64], frames: int) -> Images:
        """Give what a classifier sees at some rows.

        Args:
            rows: (n,) rows of the episode.
            frames: How many consecutive observations; those before the first repeat it.

        Returns:
            Observation name → uint8 (n, frames, H, W, 3), oldest first.
        """
        wanted = (rows[:, None] + np.arange(1 - frames, 1)).clip(0)
        return {name: column[wanted] for name, column in self.images.items()}


class Examples:
    """Reads the episodes of a recording one at a time, as all of their images are too many.

    Args:
        dataset: The recording; a row's `success` belongs to the observation after it. Its metadata
            `REACTION_FRAMES` are how many frames before the first success are left out: somebody
            saw it and had yet to say so.
        cameras: Observation names; None takes all with colour images.

    Raises:
        RewardError: There are no such images.
    """

    def __init__(self, dataset: EpisodeDataset, cameras: Sequence[str] | None = None) -> None:
        """Find the cameras; see the class."""
        self.dataset = dataset
        colour = {
            f.name: f.shape
            for f in dataset.schema.fields
            if f.name.startswith("images/") and f.shape[-1:] == (3,)
        }
        wanted = sorted(colour) if cameras is None else list(cameras)
        if not wanted or not colour.keys() >= set(wanted):
            raise RewardError(
                f"{dataset.path} lacks images for a success classifier",
                got=sorted(colour),
                expected=wanted or "images of one camera or more",
                hint="record with classifier.cameras, as robot-rl collect-reward does",
            )
        self.cameras = {name: colour[name] for name in wanted}
        self._reaction_frames = int(dataset.metadata.get(REACTION_FRAMES, 0))

    def __len__(self) -> int:
        """Return the number of episodes."""
        return len(self.dataset)

    def episode(self, index: int) -> ExampleEpisode:
        """Read one episode."""
        columns = self.dataset.episode(index)
        positive = np.concatenate([[False], columns["success"][:-1]])
        negative = ~positive
        if positive.any():
            first = int(positive.argmax())
            negative[max(0, first - self._reaction_frames) : first] = False
        images = {name: columns[name] for name in self.cameras}
        return ExampleEpisode(index, images, FrameLabels(positive, negative))

    def split(self, share: float, rng: np.random.Generator) -> tuple[list[int], list[int]]:
        """Split the episodes in two, those that succeed and those that do not alike.

        Args:
            share: Of the episodes, for the second part.
            rng: Decides which.

        Raises:
            RewardError: A part would have no episode of one of the kinds.
        """
        parts: tuple[list[int], list[int]] = ([], [])
        for success in (True, False):
            found = rng.permutation(np.flatnonzero(self.dataset.successes == success))
            count = round(share * len(found))
            if not 0 < count < len(found):
                kind = "that succeed" if success else "that do not"
                raise RewardError(
                    f"there are too few episodes {kind} to split in two",
                    got=f"{len(found)} of {len(self)} episodes in {self.dataset.path}",
                    expected="several of each, for training and for validation",
                    hint="record more: robot-rl collect-reward run=RUN",
                )
            parts[0].extend(found[count:].tolist())
            parts[1].extend(found[:count].tolist())
        return parts
