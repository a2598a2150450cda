"""Examples of success and failure: controllers and labels for recording, and their frames."""

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
    """Labels of an episode's frames; frames with neither label are unknown."""

    positive: npt.NDArray[np.bool_]  # bool (T + 1,), whether each shows success
    negative: npt.NDArray[np.bool_]  # bool (T + 1,), whether each shows no success yet

    @property
    def succeeds(self) -> bool:
        """Whether any frame shows success."""
        return bool(self.positive.any())


@dataclass(frozen=True)
class ExampleEpisode:
    """Frames of an episode with T actions and T + 1 observations."""

    index: int  # index of the episode in its dataset
    images: Images  # observation name → uint8 (T + 1, H, W, 3)
    labels: FrameLabels  # of its frames

    def stacked(self, rows: npt.NDArray[np.int64], frames: int) -> Images:
        """Return the classifier's input at rows (n,) of the episode: uint8 (n, frames, H, W, 3).

        Frames are oldest first; the first observation fills in for those before it.
        """
        seen = (rows[:, None] + np.arange(1 - frames, 1)).clip(0)
        return {name: column[seen] for name, column in self.images.items()}


class Examples:
    """Reads the episodes of a recording one at a time, since all images do not fit in memory.

    A row's `success` belongs to the observation after it. `REACTION_FRAMES` in the metadata is the
    number of frames before the first success that are left out: the operator's reaction time.
    `cameras` are observation names; None for all with colour images.

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
        """Split the episodes in two, stratified by success.

        The second part has the fraction `share` of them.

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
    """Settings of `robot-rl collect-reward`."""

    # Label source: ``task``, the task's detector while a scripted expert acts; or ``operator``, who
    # moves the robot and signals success.
    labels: str
    positive_frames: int  # total number of frames that show success
    frames_after_success: int  # frames that an episode continues after its success
    negative_episodes: int  # episodes that never reach the goal
    offset: float  # standard deviation of a misplaced expert's error, per axis [m]
    yaw_offset: float  # standard deviation of its yaw error [rad]
    action_noise: float  # standard deviation of a wandering expert's noise on each action column
    stall_steps: int  # a stalling expert stops for good at most this many steps before its success
    fidget: float  # standard deviation of the action columns after it has stopped
    # Longest time an operator takes to signal success [s]; frames in that time are unlabelled.
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
    """Uses the task's own detector, but continues episodes after success.

    Attributes:
        frames: Number of frames from the first success until the episode ends.
    """

    def __init__(self, frames: int) -> None:
        self.frames = frames
        self._since = 0

    def reset(self, observation: Observation) -> None:
        """Start an episode."""
        self._since = 0

    def judge(self, observation: Observation, task: Outcome) -> Outcome:
        """Keep reward and success; end the episode `frames` frames after the first success."""
        if self._since or task.success:
            self._since += 1
        ends = self._since >= self.frames or (task.terminated and not task.success)
        return task._replace(terminated=ends)


class OperatorLabels(Lingering):
    """Uses the operator's labels instead of a task detector.

    After the event `success` every frame shows success, until the episode ends some frames later;
    `failure` ends it at once.

    Attributes:
        labelled: Whether the operator has labelled the episode as success or failure.
    """

    def __init__(self, frames: int) -> None:
        super().__init__(frames)
        self.labelled = self._success = False

    def reset(self, observation: Observation) -> None:
        """Start an episode; earlier labels do not count."""
        super().reset(observation)
        self.labelled = self._success = False

    def label(self, events: Sequence[OperatorEvent]) -> bool | None:
        """Store the operator's label for `judge`; always return None."""
        self._success |= OperatorEvent.SUCCESS in events
        self.labelled |= self._success or OperatorEvent.FAILURE in events
        return None

    def judge(self, observation: Observation, task: Outcome) -> Outcome:
        """Judge by the operator's label."""
        said = Outcome(float(self._success), self.labelled, False, self._success)
        return super().judge(observation, said)


class StallingController:
    """Runs another controller until a given step, then stalls for the rest of the episode.

    The frames after that are the hardest negatives: almost done, from every side and for long.
    Grippers still follow the other controller; the other columns then have noise with a standard
    deviation of `fidget`. `stalls_at` maps the episode's seed to the step.
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
        """Start an episode."""
        self._controller.reset(slots, seeds=seeds, instructions=instructions)
        self._left = self._stalls_at(seeds[0])
        self._rng = np.random.default_rng(seeds[0])

    def act(self, observation: Seen, active: Active = None) -> Decision:
        """Decide as the other controller, or barely move after the stall."""
        decision = self._controller.act(observation, active)
        self._left -= 1
        if self._left < 0:
            noise = self._rng.normal(0.0, self._fidget, decision.action.shape)
            np.copyto(decision.action, noise.clip(-1.0, 1.0), "same_kind", self._moving)
        return decision

    def conclude(self, observation: Seen, active: Active = None) -> Conclusion:
        """Return the other controller's conclusion."""
        return self._controller.conclude(observation, active)

    def observe_override(self, slots: Slots = None) -> None:
        """Notify the other controller."""
        self._controller.observe_override(slots)
