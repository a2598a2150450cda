"""One network call from noise to a clean chunk, distilled from a chain on the same noise.

A deterministic chain maps each noise z to one chunk, so a network f can learn that map directly, as
RL-100 does for deployment:

    min_f E_z ‖f(z, s) − chain(z, s)‖²
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from policies.denoisers import Denoiser
from policies.networks import standard_normal
from policies.processes.base import Process, masked_mean_square


class OneStep(Process):
    """The denoiser's output for pure noise is the chunk.

    Args:
        denoiser: The network.
        time: (E,) constant embedded time passed to it; None for zeros.
    """

    def __init__(self, denoiser: Denoiser, *, time: Sequence[float] | None = None) -> None:
        super().__init__(denoiser, 1, deterministic=True)
        asked = [0.0] * denoiser.embedding if time is None else [float(value) for value in time]
        self.options = {"time": asked}
        self.register_buffer("_times", torch.tensor([asked]), persistent=False)
        self.register_buffer("_std", torch.zeros(1, 1, 1), persistent=False)

    @classmethod
    def student(cls, teacher: Process) -> OneStep:
        """Return a student that starts with a copy of the teacher's network.

        It uses the teacher's noisiest time. A network that predicts clean chunks, DDIM's default,
        is nearly right there from the start.
        """
        denoiser = copy.deepcopy(teacher.denoiser).requires_grad_(True)
        return cls(denoiser, time=teacher.first_time.tolist())

    def transition(self, x: Tensor, index: int | Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the clean chunk and a standard deviation of 0."""
        return self.denoiser(x, self._times, features), self._std[index]

    def distillation_loss(
        self, teacher: Process, features: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Return the mean square distance (scalar) to a deterministic teacher's chunks.

        Args:
            teacher: The chain; it gets no gradient.
            features: (B, F) encoded observations.
            generator: Draws the noise.
        """
        noise = standard_normal((len(features), *teacher.noise_shape), features, generator)
        with torch.no_grad():
            taught = teacher.sample(features, noise)[:, -1]
        return (self.sample(features, noise)[:, -1] - taught).square().mean()

    def loss(
        self, actions: Tensor, features: Tensor, valid: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Return the mean square distance to demonstrated chunks.

        If several chunks fit, their mean minimises it, so only use it to keep a distilled policy
        near the demonstrations. Clone multimodal behaviour into a chain, and distil that.
        """
        noise = standard_normal((len(actions), *self.noise_shape), actions, generator)
        return masked_mean_square(self.sample(features, noise)[:, -1] - actions, valid)
