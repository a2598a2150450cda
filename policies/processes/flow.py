"""Flow matching (Lipman et al. 2023; Liu et al. 2023, rectified flow): an ODE, and two SDEs.

On the straight path x_t = (1 - t) x_0 + t x_1 from the clean chunk x_0 to the noise x_1 the network
learns the velocity v = dx/dt; its mean over all paths through x_t moves noise into data. `FlowSDE`
and `FlowNoise` explore with the network that `Flow` has learned, and `Flow` deploys theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from policies.denoisers import Denoiser, sinusoidal_embedding
from policies.errors import PolicyError
from policies.networks import mlp, seeded, standard_normal
from policies.processes.base import Process, masked_mean_square

# The embedding's slowest wave is 10,000 · 2π long: t in [0, 1] is spread as diffusion steps are.
TIME_SCALE = 1000.0


class _FlowMatching(Process):
    """What all three share: the loss, and K steps from t = 1 (noise) to t = 0 (data).

    Args:
        denoiser: The network, which gives the velocity.
        steps: K.
        std: (K,) of the transitions; None where they are no constants.
        noise_weights: (K,) what of the noise estimate is in the mean; None for an ODE, where it is
            the time t' = t - 1/K after the step.
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
        """Give the Gaussian of the next entry, one step of 1/K nearer to the data."""
        time, (stays, moves) = self._at(index)
        return stays * x + moves * self.denoiser(x, time, features), self._std[index]

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

    def exploring(self, std: float) -> Process:
        """Give the SDE whose standard deviations are at least `std`."""
        return FlowSDE(self.denoiser, steps=self.steps, std_floor=std)

    def noiseless(self) -> Process:
        """Give the ODE."""
        return Flow(self.denoiser, steps=self.steps)

    def _embed(self, time: Tensor) -> Tensor:
        return sinusoidal_embedding(TIME_SCALE * time, self.denoiser.embedding)


class Flow(_FlowMatching):
    """The ODE dx/dt = v(x, t) from t = 1 to t = 0 in K = `steps` Euler steps."""

    def __init__(self, denoiser: Denoiser, *, steps: int = 10) -> None:
        super().__init__(denoiser, steps, torch.zeros(steps), deterministic=True)
        self.options = {"steps": self.steps}


class FlowSDE(_FlowMatching):
    """The SDE with the ODE's marginals (π_RL, Chen et al. 2025, arXiv 2510.25889: Flow-SDE).

    σ_t = a sqrt(t / (1 - t)); a step of δ = 1/K has the standard deviation s = σ_t sqrt(δ), and
    the mean (1 - t') x̂_0 + (t' - s² / 2t) x̂_1. What the noise adds is taken off the noise estimate,
    but no more than there is of it, so that no `std_floor` throws a step past the clean chunk.

    Args:
        denoiser: The network, which gives the velocity.
        steps: K.
        noise: a.
        std_floor: Least s, in normalised actions; it is in mean and density alike.
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
        # At t = 1 the denominator is that of the next time.
        denominator = torch.where(now < 1, 1 - now, 1 - after)
        std = (noise * (now / denominator / steps).sqrt()).clamp(min=std_floor)
        super().__init__(denoiser, steps, std, (after - std.square() / (2 * now)).clamp(min=0))
        self.options = {
            "steps": self.steps,
            "noise": float(noise),
            "std_floor": float(std_floor),
        }


class FlowNoise(_FlowMatching):
    """The ODE plus noise with a learned standard deviation σ_ψ(t, observation).

    It is that of ReinFlow (Zhang et al. 2025, arXiv 2505.22094) and of π_RL's Flow-Noise: trained
    with the velocity by reinforcement learning, and dropped in deployment (`noiseless`).

    Args:
        denoiser: The network, which gives the velocity.
        steps: K.
        std_bounds: Least and largest standard deviation, in normalised actions. It begins in the
            middle, as a ratio, everywhere.
        hidden: Widths of the hidden layers of the network σ_ψ.
        noise_network: σ_ψ of another process, which is shared; None makes one.
    """

    def __init__(
        self,
        denoiser: Denoiser,
        *,
        steps: int = 10,
        std_bounds: Sequence[float] = (0.08, 0.16),
        hidden: Sequence[int] = (64, 64),
        noise_network: nn.Module | None = None,
    ) -> None:
        bounds = [float(bound) for bound in std_bounds]
        if len(bounds) != 2 or not 0 < bounds[0] <= bounds[1]:
            raise PolicyError(
                "the bounds of the flow's noise are out of order",
                got=bounds,
                expected="two, 0 < the first <= the second",
            )
        low, high = bounds
        super().__init__(denoiser, steps, None)
        self.options = {
            "steps": self.steps,
            "std_bounds": bounds,
            "hidden": [int(width) for width in hidden],
        }
        self._low, self._ratio = low, high / low
        # The last layer is zero at first, so the hidden ones may be the same in every process.
        self.noise_network = noise_network or mlp(
            denoiser.embedding + denoiser.features,
            hidden,
            self.horizon * self.action_dimension,
            seeded(0),
            activation=nn.SiLU,
            zero_last_layer=True,
        )

    def transition(self, x: Tensor, index: int | Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """Give the Gaussian of the next entry: mean of the ODE, learned standard deviation."""
        time, (stays, moves) = self._at(index)
        mean = stays * x + moves * self.denoiser(x, time, features)
        seen = torch.cat([time.expand(len(features), -1), features], -1)
        share = self.noise_network(seen).view(x.shape).sigmoid()
        return mean, self._low * self._ratio**share

    def varied(self, **options: Any) -> Process:
        """Give the same process with some other options; σ_ψ is shared where its shape stays."""
        shared = None if "hidden" in options else self.noise_network
        return super().varied(**{"noise_network": shared} | options)

    def exploring(self, std: float) -> Process:
        """Give the same process with bounds that are at least `std`."""
        return self.varied(std_bounds=[max(bound, std) for bound in self.options["std_bounds"]])


def _times(steps: int) -> tuple[Tensor, Tensor]:
    """The K times at which the velocity is asked for, 1, 1 - 1/K, ..., 1/K, and the next ones."""
    if steps < 1:
        raise PolicyError("a flow needs at least one step", got=steps, expected=">= 1")
    grid = 1 - torch.arange(steps + 1, dtype=torch.float64) / steps
    return grid[:-1], grid[1:]
