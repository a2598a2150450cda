"""Flow matching with a learned noise standard deviation, for ReinFlow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from policies.denoisers import Denoiser
from policies.errors import PolicyError
from policies.networks import mlp, seeded
from policies.processes.base import Process
from policies.processes.flow import FlowMatching


class FlowNoise(FlowMatching):
    """The ODE plus noise with a learned standard deviation σ_ψ(t, observation).

    The noise of ReinFlow (Zhang et al. 2025, arXiv 2505.22094) and of π_RL's Flow-Noise. It is
    trained with the velocity by reinforcement learning, and dropped in deployment (`noiseless`).

    Args:
        denoiser: The network that predicts the velocity.
        steps: Number of steps K.
        std_bounds: Minimum and maximum standard deviation, in normalised actions. The initial value
            is their geometric mean everywhere.
        hidden: Hidden widths of the network σ_ψ.
        noise_network: A shared σ_ψ from another process. None creates a new one.
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
        # The last layer starts at zero, so every process may start with the same hidden layers.
        self.noise_network = noise_network or mlp(
            denoiser.embedding + denoiser.features,
            hidden,
            self.horizon * self.action_dimension,
            seeded(0),
            activation=nn.SiLU,
            zero_last_layer=True,
        )

    def transition(self, x: Tensor, index: int | Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the Gaussian of the next entry: the ODE's mean, the learned standard deviation."""
        time, (stays, moves) = self._at(index)
        mean = stays * x + moves * self.denoiser(x, time, features)
        seen = torch.cat([time.expand(len(features), -1), features], -1)
        share = self.noise_network(seen).view(x.shape).sigmoid()
        return mean, self._low * self._ratio**share

    def varied(self, **options: Any) -> Process:
        """Return the process with some options changed. σ_ψ is shared if its shape is unchanged."""
        shared = None if "hidden" in options else self.noise_network
        return super().varied(**{"noise_network": shared} | options)

    def exploring(self, std: float) -> Process:
        """Return the same process with bounds of at least `std`."""
        return self.varied(std_bounds=[max(bound, std) for bound in self.options["std_bounds"]])
