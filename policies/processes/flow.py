"""Flow matching (Lipman et al. 2023; rectified flow, Liu et al. 2023) with the Euler ODE.

On the straight path x_t = (1 - t) x_0 + t x_1 from the clean chunk x_0 to the noise x_1 the network
learns the velocity v = dx/dt; its mean over all paths through x_t moves noise into data.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from policies.denoisers import Denoiser, sinusoidal_embedding
from policies.errors import PolicyError
from policies.networks import standard_normal
from policies.processes.base import Process, masked_mean_square

# The embedding's slowest wave is 10,000 · 2π long: t in [0, 1] is spread as diffusion steps are.
TIME_SCALE = 1000.0


class Flow(Process):
    """The ODE dx/dt = v(x, t) from t = 1 (noise) to t = 0 (data), in K equal Euler steps.

    Args:
        denoiser: The network, which predicts the velocity.
        steps: Number K of Euler steps at run time.
    """

    density_hint: ClassVar[str] = "an ODE has none; take the process 'ddim' with eta > 0"
    _embeddings: Tensor
    _std: Tensor

    def __init__(self, denoiser: Denoiser, *, steps: int = 10) -> None:
        if steps < 1:
            raise PolicyError("a flow needs at least one step", got=steps, expected=">= 1")
        super().__init__(denoiser, steps, deterministic=True)
        self.register_buffer("_embeddings", self._embed(torch.tensor(self.times)), persistent=False)
        self.register_buffer("_std", torch.zeros(()), persistent=False)

    @property
    def times(self) -> list[float]:
        """The K times at which the chain asks for the velocity: 1, 1 - 1/K, ..., 1/K."""
        return [1 - index / self.steps for index in range(self.steps)]

    @property
    def options(self) -> dict[str, Any]:
        """JSON values of the arguments that the process has beside its denoiser."""
        return {"steps": self.steps}

    def transition(self, x: Tensor, index: int, features: Tensor) -> tuple[Tensor, Tensor]:
        """Give the next entry, one Euler step nearer to the data, and a standard deviation of 0."""
        velocity = self.denoiser(x, self._embeddings[index : index + 1], features)
        return x - velocity / self.steps, self._std

    def loss(
        self, actions: Tensor, features: Tensor, valid: Tensor | None, generator: torch.Generator
    ) -> Tensor:
        """Give the conditional flow-matching loss (Lipman et al. 2023, eq. 14), t uniform."""
        time = torch.rand(len(actions), generator=generator, device=generator.device)
        time = time.to(actions)
        noise = standard_normal(actions.shape, actions, generator)
        noisy = torch.lerp(actions, noise, time[:, None, None])
        velocity = self.denoiser(noisy, self._embed(time), features)
        return masked_mean_square(velocity - (noise - actions), valid)

    def _embed(self, time: Tensor) -> Tensor:
        return sinusoidal_embedding(TIME_SCALE * time, self.denoiser.embedding)
