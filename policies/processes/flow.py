"""Flow matching (Lipman et al. 2023; Liu et al. 2023, rectified flow): an ODE and an SDE.

The network learns the velocity v = dx/dt on the straight path x_t = (1 - t) x_0 + t x_1 from the
clean chunk x_0 to the noise x_1. The mean velocity over all paths through x_t moves noise to data.
`FlowSDE` explores with the network that `Flow` has learned, and `Flow` deploys it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from policies.denoisers import Denoiser, sinusoidal_embedding
from policies.errors import PolicyError
from policies.networks import standard_normal
from policies.processes.base import Process, masked_mean_square

# The embedding's slowest wave is 10,000 · 2π long, so t in [0, 1] is scaled like diffusion steps.
TIME_SCALE = 1000.0


class FlowMatching(Process):
    """Base class of flows: the loss, and K steps from t = 1 (noise) to t = 0 (data).

    Args:
        denoiser: The network, which predicts the velocity.
        steps: Number of steps K.
        std: (K,) standard deviations of the transitions; None if they are not constant.
        noise_weights: (K,) weights of the noise estimate in the mean; None for an ODE, where the
            weight is the time t' = t - 1/K after the step.
    """

    def __init__(
        self,
        denoiser: Denoiser,
        steps: int,
        std: Tensor | None,
        noise_weights: Tensor | None = None,
        *,
        deterministic: bool = False,
    ) -> None:
        super().__init__(denoiser, steps, deterministic)
        now, after = _times(self.steps)
        weight = after if noise_weights is None else noise_weights
        # mean = (1 - t') x̂_0 + weight x̂_1, where x̂_0 = x - t v and x̂_1 = x + (1 - t) v.
        stays, moves = 1 - after + weight, (1 - now) * weight - now * (1 - after)
        self._tabulate(self._embed(now.float()), std, stays, moves)

    def transition(self, x: Tensor, index: int | Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the Gaussian of the next entry, one step of 1/K closer to the data."""
        time, (stays, moves) = self._at(index)
        return stays * x + moves * self.denoiser(x, time, features), self._std[index]

    def loss(
        self, actions: Tensor, features: Tensor, valid: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Return the conditional flow-matching loss (Lipman et al. 2023, eq. 14), t uniform."""
        drawn = torch.rand(len(actions), generator=generator, device=generator.device)
        time = drawn.to(actions)
        noise = standard_normal(actions.shape, actions, generator)
        noisy = torch.lerp(actions, noise, time[:, None, None])
        velocity = self.denoiser(noisy, self._embed(time), features)
        return masked_mean_square(velocity - (noise - actions), valid)

    def exploring(self, std: float) -> Process:
        """Return the SDE with standard deviations of at least `std`."""
        return FlowSDE(self.denoiser, steps=self.steps, std_floor=std)

    def noiseless(self) -> Process:
        """Return the ODE."""
        return Flow(self.denoiser, steps=self.steps)

    def _embed(self, time: Tensor) -> Tensor:
        return sinusoidal_embedding(TIME_SCALE * time, self.denoiser.embedding)


class Flow(FlowMatching):
    """The ODE dx/dt = v(x, t) from t = 1 to t = 0 in K = `steps` Euler steps."""

    def __init__(self, denoiser: Denoiser, *, steps: int = 10) -> None:
        super().__init__(denoiser, steps, torch.zeros(steps), deterministic=True)
        self.options = {"steps": self.steps}


class FlowSDE(FlowMatching):
    """The SDE with the ODE's marginals (π_RL, Chen et al. 2025, arXiv 2510.25889: Flow-SDE).

    σ_t = a sqrt(t / (1 - t)); a step of δ = 1/K has the standard deviation s = σ_t sqrt(δ), and
    the mean (1 - t') x̂_0 + (t' - s² / 2t) x̂_1. The weight of the noise estimate shrinks by as much
    as the noise adds, but never below 0, so that `std_floor` cannot push a step past the clean
    chunk.

    Args:
        denoiser: The network, which predicts the velocity.
        steps: Number of steps K.
        noise: Noise level a.
        std_floor: Smallest s, in normalised actions, applied in both mean and density.
    """

    def __init__(
        self, denoiser: Denoiser, *, steps: int = 10, noise: float = 0.5, std_floor: float = 0.0
    ) -> None:
        if noise <= 0 or std_floor < 0:
            raise PolicyError(
                "the flow's noise is out of range",
                got=f"noise {noise}, std_floor {std_floor}",
                expected="noise > 0, std_floor >= 0",
                hint="take the process Flow for none",
            )
        now, after = _times(steps)
        # At t = 1 use the denominator of the next time.
        denominator = torch.where(now < 1, 1 - now, 1 - after)
        std = (noise * (now / denominator / steps).sqrt()).clamp(min=std_floor)
        super().__init__(denoiser, steps, std, (after - std.square() / (2 * now)).clamp(min=0))
        self.options = {
            "steps": self.steps,
            "noise": float(noise),
            "std_floor": float(std_floor),
        }


def _times(steps: int) -> tuple[Tensor, Tensor]:
    """Return the K times of the velocity, 1, 1 - 1/K, ..., 1/K, and the times after each step."""
    if steps < 1:
        raise PolicyError("a flow needs at least one step", got=steps, expected=">= 1")
    grid = 1 - torch.arange(steps + 1, dtype=torch.float64) / steps
    return grid[:-1], grid[1:]
