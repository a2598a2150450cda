"""What behaviour cloning trains where a policy sees images: its image encoder along with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from policies.policy import ChunkPolicy
from policies.vision import FEATURES, ImageEncoder, random_shift
from robot_rl.algorithms.behavior_cloning import CloningOptions
from robot_rl.env import rotations

REMAINING_MOTION = "remaining_motion"
_POSE = "state/tcp_pose"

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class VisionTraining:
    """Constants of the training of an image encoder.

    Attributes:
        cloning: Of the optimisation.
        random_shift: Largest random shift of an image [pixels].
        motion_weight: Weight of the auxiliary loss; see `SeeingPolicy`.
        threads: Computing threads; with several the sums are in another order, so bits differ.
    """

    cloning: CloningOptions
    random_shift: int
    motion_weight: float
    threads: int


class SeeingPolicy(nn.Module):
    """A policy and its image encoder, to be cloned end to end.

    The auxiliary loss has the encoder estimate, from the images alone, the motion that is left to
    the end of the demonstration. Its labels are the robot's own poses.

    Args:
        policy: Sees the encoder's features.
        vision: The image encoder.
        shift: Largest random shift of an image [pixels].
        motion_weight: Weight of the auxiliary loss.
    """

    def __init__(
        self, policy: ChunkPolicy, vision: ImageEncoder, shift: int, motion_weight: float
    ) -> None:
        """See the class."""
        super().__init__()
        self.policy, self.vision = policy, vision
        self.horizon, self.observation_steps = policy.horizon, policy.observation_steps
        self._shift, self._motion_weight = shift, motion_weight

    @property
    def cloning_fields(self) -> tuple[str, ...]:
        """Names of the batch columns that `loss` reads."""
        states = (name for name in self.policy.cloning_fields if name != FEATURES)
        return (*states, *self.vision.cameras, REMAINING_MOTION)

    def loss(self, batch: Mapping[str, Array], generator: torch.Generator) -> Tensor:
        """Give the policy's loss plus the weighted auxiliary loss.

        Args:
            batch: State names and cameras (B, n, ...), "action" (B, H, d), "valid" (B, H),
                "remaining_motion" (B, H, 6) [m, rad].
            generator: Source of shifts, diffusion steps and noise.
        """
        images = {
            name: self._shifted(batch[name], generator) if self._shift else batch[name]
            for name in self.vision.cameras
        }
        features = self.vision(images)
        loss = self.policy.loss({**batch, FEATURES: features}, generator)
        motion = torch.as_tensor(batch[REMAINING_MOTION][:, 0]).to(features)
        estimate = self.vision.remaining_motion(features[:, -1])
        error = functional.smooth_l1_loss(estimate, self.vision.scaled_motion(motion), beta=0.02)
        return loss + self._motion_weight * error

    def _shifted(self, images: Array, generator: torch.Generator) -> Array:
        flat = images.reshape(-1, *images.shape[-3:])
        return random_shift(flat, self._shift, generator).reshape(images.shape)


def remaining_motion(poses: Array, episode_ends: Array) -> npt.NDArray[np.float32]:
    """The motion of the TCP that is left to the end of each row's episode.

    Args:
        poses: (rows, 7) TCP poses, base frame.
        episode_ends: (episodes,) exclusive, cumulative.

    Returns:
        (rows, 6) translation [m] and rotation vector [rad], base frame.
    """
    last = np.repeat(episode_ends - 1, np.diff(episode_ends, prepend=0))
    motion = np.empty((len(poses), 6), np.float32)
    for row, end in enumerate(poses[last].astype(np.float64)):
        pose = poses[row].astype(np.float64)
        turn = rotations.multiply(end[3:], rotations.conjugate(pose[3:]))
        motion[row] = [*(end[:3] - pose[:3]), *rotations.to_rotation_vector(turn)]
    return motion
