"""Stage `Vision`: train the image encoder on demonstrations and exploration, then freeze it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from policies import registry
from policies.columns import FEATURES
from policies.compute import explained_memory
from policies.policy import ChunkPolicy
from policies.vision import ImageEncoder, observed_keys, random_shift
from robot_rl.config import Settings
from robot_rl.data.episodes import EpisodeDataset, EpisodeWriter
from robot_rl.data.schema import SOURCE_POLICY
from robot_rl.env.factory import observed_widths
from robot_rl.env.rollout import SeedStream
from robot_rl.learning.algorithms.base import AlgorithmError, check_settings
from robot_rl.learning.algorithms.behavior_cloning import CloningOptions
from robot_rl.learning.recipe import Stage
from robot_rl.learning.stages.clone import (
    POSE,
    behaviour_of,
    fit_with_progress,
    make_image_encoder,
    untrained,
)
from robot_rl.learning.workbench import Workbench
from robot_rl.replay.row_sources import EpisodeRows
from robot_rl.run import DEMONSTRATIONS, VISION, RunDirectory


class Vision(Stage):
    """Trains an encoder for the demonstrations' cameras together with a policy, which is discarded.

    An encoder trained only on successes is off by centimetres elsewhere in the workspace. So the
    policy then explores with noise for some episodes, and training continues with those images too.
    The outcome of these episodes does not matter.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.makes = (VISION,) if settings.sees else ()

    @property
    def needs(self) -> Sequence[str]:
        """Return the demonstrations. Raise `AlgorithmError` if a training constant is invalid."""
        options = registry.make(self.settings.observation["vision_training"], VisionTraining)
        if options.exploration_episodes and not options.motion_weight:
            raise AlgorithmError(
                "exploration teaches an image encoder nothing but motion",
                got=f"exploration_episodes={options.exploration_episodes} with motion_weight=0",
                hint="set observation.vision_training.exploration_episodes=0 too",
            )
        return (DEMONSTRATIONS,)

    def done(self, run: RunDirectory, *, recorded: bool) -> bool:
        """Return whether the encoder exists."""
        return run.has_folder(VISION)

    @explained_memory("lower observation.vision_training.cloning.batch_size, or add device=cpu")
    def run(self, bench: Workbench) -> None:
        """Train, explore, train again."""
        settings, dataset = self.settings, bench.demonstrations()
        schema, observation = dataset.schema, settings.observation
        states = observed_widths(settings.environment, schema)
        generator = bench.generator("vision")
        vision = make_image_encoder(observation, schema, generator).to(bench.device)
        options = registry.make(observation["vision_training"], VisionTraining)
        fields = (*states, *vision.cameras, "action")
        rows = EpisodeRows.of_datasets([dataset], fields, only_successful=True)
        if options.motion_weight:
            poses = dataset.arrays([POSE])[POSE]
            rows.arrays[REMAINING_MOTION] = remaining_motion(poses, dataset.episode_ends)
        policy = untrained(settings, rows, observed_keys(states, vision), generator)

        def trained(student: SeeingPolicy, words: str) -> SeeingPolicy:
            torch.set_num_threads(options.threads)
            taught = fit_with_progress(student, rows, options.cloning, settings.seed, words)
            torch.set_num_threads(1)
            return taught

        taught = trained(SeeingPolicy(policy, vision, options), "training the image encoder")
        if options.exploration_episodes:
            explored = _explore(bench, dataset, taught, options)
            taught.requires_grad_(True)  # averaging had disabled it
            student = SeeingPolicy(taught.policy, taught.vision, options, explored)
            taught = trained(student, "training it on the exploration too")
        steps = settings.execute_steps
        bench.checkpoint(VISION, behaviour_of(taught.policy, schema, steps, taught.vision))


def _explore(
    bench: Workbench, dataset: EpisodeDataset, taught: SeeingPolicy, options: VisionTraining
) -> Explored:
    """Run the policy with noise, record all episodes, and return their images."""
    steps = bench.settings.execute_steps
    acting = behaviour_of(taught.policy, dataset.schema, steps, taught.vision)
    acting = acting.exploring("mean", "uniform", options.exploration_noise)
    count, path = options.exploration_episodes, bench.run.exploration
    with EpisodeWriter(path, dataset.schema) as writer:
        # Resume an interrupted recording where it stopped.
        known = len(writer)
        for episode in bench.gather(
            acting, count, SeedStream.EXPLORATION, "exploring for the image encoder", done=known
        ):
            episode.keep(writer, SOURCE_POLICY)
    recorded = EpisodeDataset(path)
    arrays = recorded.arrays([POSE, *taught.vision.cameras])
    return Explored(arrays.pop(POSE), arrays, recorded.episode_ends)


REMAINING_MOTION = "remaining_motion"

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class VisionTraining:
    """Training constants of an image encoder."""

    cloning: CloningOptions  # optimisation settings
    random_shift: int  # maximum random shift of an image [pixels]
    # Weight of the auxiliary loss, see `SeeingPolicy`. 0: the encoder estimates no motion.
    motion_weight: float
    exploration_episodes: int  # exploration episodes after the first training; 0 for none
    exploration_noise: float  # half width of the uniform action noise
    threads: int  # CPU threads; with more than one the summation order varies, so bits differ

    def __post_init__(self) -> None:
        check_settings(self, motion_weight=0)


class Explored:
    """Images from episodes without a known goal pose.

    Poses (rows, 7) are TCP poses in the base frame. Images are by camera, (rows, H, W, 3).
    `episode_ends` (episodes,) are exclusive and cumulative.
    """

    def __init__(self, poses: Array, images: Mapping[str, Array], episode_ends: Array) -> None:
        self._poses, self._images = poses, images
        lengths = np.diff(episode_ends, prepend=0)
        self._starts = torch.from_numpy(np.repeat(episode_ends - lengths, lengths))
        self._lengths = torch.from_numpy(np.repeat(lengths, lengths))

    def __deepcopy__(self, memo: object) -> Explored:
        """Return itself. A policy's average needs no copy of the images."""
        return self

    def pairs(
        self, count: int, generator: torch.Generator
    ) -> tuple[dict[str, Array], dict[str, Array], Tensor]:
        """Draw pairs of rows, each pair from one episode.

        Returns the images (count, H, W, 3) of the first and of the second rows, and the TCP motion
        from first to second (count, 6): translation [m] and rotation vector [rad], base frame.
        """
        first = torch.randint(len(self._starts), (count,), generator=generator)
        share = torch.rand(count, generator=generator)
        second = self._starts[first] + (share * self._lengths[first]).long()
        begin, end = first.numpy(), second.numpy()
        images = [{n: i[rows] for n, i in self._images.items()} for rows in (begin, end)]
        moved = motion(self._poses[begin], self._poses[end])
        return images[0], images[1], torch.from_numpy(moved)


class SeeingPolicy(nn.Module):
    """A policy and the image encoder that provides its features, cloned end to end.

    In the auxiliary loss the encoder estimates, from images only, the motion remaining to the end
    of the demonstration. The labels are the robot's own poses. An exploring episode has no known
    goal, but for any goal the estimates of two rows must differ by the motion between them.
    """

    def __init__(
        self,
        policy: ChunkPolicy,
        vision: ImageEncoder,
        options: VisionTraining,
        explored: Explored | None = None,
    ) -> None:
        super().__init__()
        self.policy, self.vision = policy, vision
        self.horizon, self.observation_steps = policy.horizon, policy.observation_steps
        self._shift, self._motion_weight = options.random_shift, options.motion_weight
        self._pairs = max(1, options.cloning.batch_size // 2)
        self._explored = explored

    @property
    def cloning_fields(self) -> tuple[str, ...]:
        """Names of the batch columns that `loss` reads."""
        states = (name for name in self.policy.cloning_fields if name != FEATURES)
        motion = [REMAINING_MOTION] * bool(self._motion_weight)
        return (*states, *self.vision.cameras, *motion)

    def loss(self, batch: Mapping[str, Array], generator: torch.Generator) -> Tensor:
        """Return the policy's loss plus the weighted auxiliary loss, with random shifts and noise.

        The batch has state names and cameras (B, n, ...), "action" (B, H, d), "valid" (B, H) and,
        if the encoder estimates it, "remaining_motion" (B, 6) [m, rad].
        """
        features: Tensor = self.vision(self._images(batch, generator))
        loss = self.policy.loss({**batch, FEATURES: features}, generator)
        if not self._motion_weight:
            return loss
        left = torch.as_tensor(batch[REMAINING_MOTION]).to(features)
        estimate = self.vision.remaining_motion(features[:, -1])
        error = _error(estimate, self.vision.scaled_motion(left))
        if self._explored is not None:
            # How far the estimates of two rows of an episode are from implying the same goal.
            first, second, moved = self._explored.pairs(self._pairs, generator)
            both = {name: np.concatenate([first[name], second[name]]) for name in first}
            seen = self.vision(self._images(both, generator))
            here, there = self.vision.remaining_motion(seen).split(self._pairs)
            # Rotation vectors only add up about a common axis. The hand stays nearly upright.
            error = error + _error(here - there, self.vision.scaled_motion(moved.to(seen)))
        return loss + self._motion_weight * error

    def _images(self, batch: Mapping[str, Array], generator: torch.Generator) -> dict[str, Array]:
        """Return the batch's camera columns, shifted at random."""
        images = {name: batch[name] for name in self.vision.cameras}
        for name, seen in images.items() if self._shift else ():
            flat = seen.reshape(-1, *seen.shape[-3:])
            images[name] = random_shift(flat, self._shift, generator).reshape(seen.shape)
        return images


def _error(estimate: Tensor, motion: Tensor) -> Tensor:
    return functional.smooth_l1_loss(estimate, motion, beta=0.02)


def remaining_motion(poses: Array, episode_ends: Array) -> npt.NDArray[np.float32]:
    """Return the TCP motion remaining to the end of each row's episode, (rows, 6).

    Poses are (rows, 7). The ends (episodes,) are exclusive and cumulative.
    """
    return motion(poses, poses[np.repeat(episode_ends - 1, np.diff(episode_ends, prepend=0))])


def motion(begin: Array, end: Array) -> npt.NDArray[np.float32]:
    """Motion between poses (rows, 7): translation [m] and rotation vector [rad], base frame."""
    from scipy.spatial.transform import Rotation  # takes a second to import and is needed only here

    turn = Rotation.from_quat(end[:, 3:]) * Rotation.from_quat(begin[:, 3:]).inv()
    return np.concatenate([end[:, :3] - begin[:, :3], turn.as_rotvec()], 1, dtype=np.float32)
