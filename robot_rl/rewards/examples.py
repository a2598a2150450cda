"""Examples of success and failure: who acts and labels as they are recorded, and their frames."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from policies.runner import Conclusion, Decision
from robot_rl.data.episodes import EpisodeDataset
from robot_rl.data.rows import Active, Instructions, Seen, Slots
from robot_rl.data.schema import Observation
from robot_rl.env.operator import OperatorEvent
from robot_rl.env.robot import gripper_columns
from robot_rl.env.rollout import Controller
from robot_rl.env.task import Outcome, RewardError, RewardSource

Array = npt.NDArray[Any]
Images = dict[str, Array]

TASK, OPERATOR = "task", "operator"
REACTION_FRAMES = "reaction_frames"


@dataclass(frozen=True)
class FrameLabels:
    """The labels of an episode's frames; frames with neither label are unknown."""

    positive: npt.NDArray[np.bool_]  # bool (T + 1,), whether each shows success
    negative: npt.NDArray[np.bool_]  # bool (T + 1,), whether each shows that there is none yet

    @property
    def succeeds(self) -> bool:
        """Whether any frame shows success."""
        return bool(self.positive.any())


@dataclass(frozen=True)
class ExampleEpisode:
    """The frames of an episode that has T actions, and so T + 1 observations."""

    index: int  # of the episode in its dataset
    images: Images  # observation name → uint8 (T + 1, H, W, 3)
    labels: FrameLabels  # of its frames

    def stacked(self, rows: npt.NDArray[np.int64], frames: int) -> Images:
        """Give what a classifier sees at rows (n,) of the episode: uint8 (n, frames, H, W, 3).

        Of the consecutive observations, oldest first, those before the first repeat it.
        """
        seen = (rows[:, None] + np.arange(1 - frames, 1)).clip(0)
        return {name: column[seen] for name, column in self.images.items()}


class Examples:
    """Reads the episodes of a recording one at a time, as all of their images are too many.

    A row's `success` belongs to the observation after it. `REACTION_FRAMES` in the metadata are how
    many frames before the first success are left out: somebody saw it and had yet to say so.
    `cameras` are observation names; None takes all with colour images.

    Raises:
        RewardError: There are no such images.
    """

    def __init__(self, dataset: EpisodeDataset, cameras: Sequence[str] | None = None) -> None:
        self.dataset = dataset
        colour = dataset.schema.colour_cameras
        names = sorted(colour) if cameras is None else list(cameras)
        if not names or not colour.keys() >= set(names):
            raise RewardError(
                f"{dataset.path} lacks images for a success classifier",
                got=sorted(colour),
                expected=names or "images of one camera or more",
                hint="record with classifier.cameras, as robot-rl collect-reward does",
            )
        self.cameras = {name: colour[name] for name in names}
        self._reaction_frames = int(dataset.metadata.get(REACTION_FRAMES, 0))

    def __len__(self) -> int:
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

        The second part has `share` of them.

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
                    hint="record more: robot-rl collect-reward RUN",
                )
            parts[0].extend(found[count:].tolist())
            parts[1].extend(found[:count].tolist())
        return parts


@dataclass(frozen=True)
class CollectionOptions:
    """The settings of `robot-rl collect-reward`."""

    # Whose: ``task``, the task's detector while a scripted expert acts; or ``operator``, who moves
    # the robot and says when it has succeeded.
    labels: str
    positive_frames: int  # frames that show success, in all
    frames_after_success: int  # frames that an episode goes on for from its success on
    negative_episodes: int  # episodes that never reach the goal
    offset: float  # standard deviation of a misplaced expert's error, per axis [m]
    yaw_offset: float  # likewise of its yaw [rad]
    action_noise: float  # standard deviation of a wandering expert's noise on each action column
    stall_steps: int  # most steps before its success at which a stalling expert stops for good
    fidget: float  # standard deviation of the action columns of one that has stopped
    # Longest time [s] that an operator takes to say that it has succeeded; what the frames of that
    # time show, nobody knows.
    reaction_s: float

    def __post_init__(self) -> None:
        if self.labels not in (TASK, OPERATOR):
            raise RewardError(
                "labels come from the task or from an operator",
                got=self.labels,
                expected=f"{TASK}, {OPERATOR}",
            )
        if self.reaction_s < 0:
            raise RewardError(
                "the operator's reaction_s is negative", got=self.reaction_s, expected=">= 0 [s]"
            )


class Lingering(RewardSource):
    """The judgement of the task's own detector, with episodes that go on after their success.

    Attributes:
        frames: Frames from the success on after which the episode ends.
    """

    def __init__(self, frames: int) -> None:
        self.frames = frames
        self._since = 0

    def reset(self, observation: Observation) -> None:
        """Begin an episode."""
        self._since = 0

    def judge(self, observation: Observation, task: Outcome) -> Outcome:
        """The same reward and success, and the end some frames after the first success."""
        if self._since or task.success:
            self._since += 1
        ends = self._since >= self.frames or (task.terminated and not task.success)
        return task._replace(terminated=ends)


class OperatorLabels(Lingering):
    """Takes the operator's word for what the task's detector says, where there is no detector.

    From the event `success` on every frame shows success, until the episode ends some frames later;
    `failure` ends it at once.

    Attributes:
        labelled: Whether the operator has said of the episode that it succeeded or failed.
    """

    def __init__(self, frames: int) -> None:
        super().__init__(frames)
        self.labelled = self._success = False

    def reset(self, observation: Observation) -> None:
        """Begin an episode; what was said before it is about none."""
        super().reset(observation)
        self.labelled = self._success = False

    def label(self, events: Sequence[OperatorEvent]) -> bool | None:
        """Take in what the operator says; `judge` sees to it."""
        self._success |= OperatorEvent.SUCCESS in events
        self.labelled |= self._success or OperatorEvent.FAILURE in events
        return None

    def judge(self, observation: Observation, task: Outcome) -> Outcome:
        """Judge as the operator does."""
        said = Outcome(float(self._success), self.labelled, False, self._success)
        return super().judge(observation, said)


class StallingController:
    """Lets another controller act, and stops for good at a step of the episode.

    What follows are the hardest negatives there are: almost done, from every side and for long.
    Grippers stay as the other controls them; the other columns have a standard deviation of
    `fidget` afterwards. `stalls_at` gives the step by the seed of the episode.
    """

    def __init__(
        self,
        controller: Controller,
        action_names: Sequence[str],
        fidget: float,
        stalls_at: Callable[[int], int],
    ) -> None:
        self._controller = controller
        self._fidget, self._stalls_at = fidget, stalls_at
        self._moving = np.ones(len(action_names), bool)
        self._moving[gripper_columns(action_names)] = False
        self._left = 0
        self._rng = np.random.default_rng(0)

    def reset(
        self, slots: Slots = None, *, seeds: Sequence[int], instructions: Instructions = None
    ) -> None:
        """Begin an episode."""
        self._controller.reset(slots, seeds=seeds, instructions=instructions)
        self._left = self._stalls_at(seeds[0])
        self._rng = np.random.default_rng(seeds[0])

    def act(self, observation: Seen, active: Active = None) -> Decision:
        """Decide as the other does, or hardly move."""
        decision = self._controller.act(observation, active)
        self._left -= 1
        if self._left < 0:
            noise = self._rng.normal(0.0, self._fidget, decision.action.shape)
            np.copyto(decision.action, noise.clip(-1.0, 1.0), "same_kind", self._moving)
        return decision

    def conclude(self, observation: Seen, active: Active = None) -> Conclusion:
        """The conclusion of the other controller."""
        return self._controller.conclude(observation, active)

    def observe_override(self, slots: Slots = None) -> None:
        """Let the other hear of it."""
        self._controller.observe_override(slots)
