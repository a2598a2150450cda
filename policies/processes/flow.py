"""Flow matching (Lipman et al. 2023; rectified flow, Liu et al. 2023) with the Euler ODE.

On the straight path x_t = (1 - t) x_0 + t x_1 from the clean chunk x_0 to the noise x_1 the network
learns the velocity v = dx/dt; its mean over all paths through x_t moves noise into data.
"""

from __future__ import annotations

import torch
from torch import Tensor

from policies.denoisers import Denoiser, sinusoidal_embedding
from policies.errors import PolicyError
from policies.networks import standard_normal
from policies.processes.base import Process, masked_mean_square

# The embedding's slowest wave is 10,000 · 2π long: t in [0, 1] is spread as diffusion steps are.
TIME_SCALE = 1000.0


class Flow(Process):
    """The ODE dx/dt = v(x, t) from t = 1 (noise) to t = 0 (data), in K = `steps` Euler steps."""

    _embeddings: Tensor
    _std: Tensor

    def __init__(self, denoiser: Denoiser, *, steps: int = 10) -> None:
        if steps < 1:
            raise PolicyError("a flow needs at least one step", got=steps, expected=">= 1")
        super().__init__(denoiser, steps, deterministic=True)
        self.options = {"steps": self.steps}
        # The K times at which the chain asks for the velocity: 1, 1 - 1/K, ..., 1/K.
        times = torch.tensor([1 - index / self.steps for index in range(self.steps)])
        self.register_buffer("_embeddings", self._embed(times), persistent=False)
        self.register_buffer("_std", torch.zeros(()), persistent=False)

    def transition(self, x: Tensor, index: int, features: Tensor) -> tuple[Tensor, Tensor]:
        """Give the next entry, one Euler step nearer to the data, and a standard deviation of 0."""
        velocity = self.denoiser(x, self._embeddings[index : index + 1], features)
        return x - velocity / self.steps, self._std

    def loss(
        self, actions: Tensor, features: Tensor, valid: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Give the conditional flow-matching loss (Lipman et al. 2023, eq. 14), t uniform."""
        drawn = torch.rand(len(actions), generator=generator, device=generator.device)
        time = drawn.to(actions)
        noise = standard_normal(actions.shape, actions, generator)
        noisy = torch.lerp(actions, noise, time[:, None, None])
        velocity = self.denoiser(noisy, self._embed(time), features)
        return masked_mean_square(velocity - (noise - actions), valid)

    def _embed(self, time: Tensor) -> Tensor:
        return sinusoidal_embedding(TIME_SCALE * time, self.denoiser.embedding)
