"""What every generative process is: a chain of Gaussian transitions from noise to a chunk.

DDIM's transitions are drawn or deterministic; those of a flow's ODE are deterministic.

A chain has K + 1 entries: `chain[:, 0]` is pure noise (x^K of the papers), `chain[:, K]` the
clean chunk (x^0). Transition `index` in 0 ... K-1 leads from entry `index` to `index + 1`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from policies import registry
from policies.denoisers import Denoiser
from policies.errors import PolicyError

_LOG_SQRT_TWO_PI = 0.5 * math.log(2 * math.pi)


class Process(nn.Module, ABC):
    """Sampler and scorer over one `transition`, so that they cannot disagree on the grid.

    Args:
        denoiser: The network, for chunks of `horizon` H by `action_dimension` d.
        steps: Number K of transitions.
        deterministic: Whether every transition has a standard deviation of zero.

    Attributes:
        options: JSON values of the arguments that the process has beside its denoiser.
        noise_shape: Of the noise of one sample: the start, then one draw for each transition.
    """

    options: Mapping[str, Any]

    def __init__(self, denoiser: Denoiser, steps: int, deterministic: bool) -> None:
        super().__init__()
        self.denoiser = denoiser
        self.steps = int(steps)
        self.deterministic = deterministic
        self.horizon, self.action_dimension = denoiser.horizon, denoiser.action_dimension
        draws = 1 if deterministic else self.steps + 1
        self.noise_shape = (draws, self.horizon, self.action_dimension)

    @abstractmethod
    def transition(self, x: Tensor, index: int, features: Tensor) -> tuple[Tensor, Tensor]:
        """Give the Gaussian of the next entry of the chain.

        Args:
            x: (B, H, d) entry `index` of the chain.
            index: 0 ... K-1.
            features: (B, F) encoded observation.

        Returns:
            Mean (B, H, d) and standard deviation, broadcastable to it.
        """

    @abstractmethod
    def loss(
        self, actions: Tensor, features: Tensor, valid: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Give the imitation loss (scalar) of normalised clean chunks (B, H, d).

        Of them `valid` (B, H) actions count; diffusion steps and noise come from the generator.
        """

    @property
    def config(self) -> dict[str, Any]:
        """JSON values that describe the process, its network included."""
        return {
            registry.CLASS: registry.name_of(type(self)),
            "horizon": self.horizon,
            "action_dimension": self.action_dimension,
            "denoiser": self.denoiser.config,
            **self.options,
        }

    def varied(self, **options: Any) -> Process:
        """Give a process of the same class on the same network, with some other options.

        Raises:
            RegistryError: It has no such option.
        """
        mine = {registry.CLASS: registry.name_of(type(self)), **self.options, **options}
        return registry.build(Process, mine, denoiser=self.denoiser)

    def exploring(self, std: float) -> Process:
        """Give a process on the same network whose every transition is drawn, and has a density.

        Each has a standard deviation of `std` or more, in normalised actions.

        Raises:
            PolicyError: This process has no such form.
        """
        raise PolicyError(
            f"{type(self).__name__} has no form that explores",
            hint="take the process DDIM or Flow",
        )

    def sample(self, features: Tensor, noise: Tensor) -> Tensor:
        """Run the chain: (B, K + 1, H, d), noise first.

        Args:
            features: (B, F).
            noise: (B, *noise_shape) of N(0, 1).
        """
        chain = [noise[:, 0]]
        for index in range(self.steps):
            mean, std = self.transition(chain[-1], index, features)
            chain.append(mean if self.deterministic else mean + std * noise[:, index + 1])
        return torch.stack(chain, 1)

    def log_prob(self, chain: Tensor, features: Tensor) -> Tensor:
        """Score every transition of a chain: log-densities (B, K, H, d), not reduced.

        Args:
            chain: (B, K + 1, H, d) from `sample`.
            features: (B, F).

        Raises:
            PolicyError: A transition is deterministic and so has no density.
        """
        scores = []
        for index in range(self.steps):
            mean, std = self.transition(chain[:, index], index, features)
            if not bool((std > 0).all()):
                raise PolicyError(
                    f"transition {index} is deterministic and has no density",
                    got="standard deviation 0",
                    hint="take the process DDIM with eta > 0, or std_bounds with a positive floor",
                )
            scaled = (chain[:, index + 1] - mean) / std
            scores.append(-0.5 * scaled.square() - std.log() - _LOG_SQRT_TWO_PI)
        return torch.stack(scores, 1)


def masked_mean_square(error: Tensor, valid: Tensor) -> Tensor:
    """Average the squares of (B, H, d) over the valid (B, H) actions."""
    weight = valid.to(error.dtype)
    total = (error.square().mean(-1) * weight).sum()
    return total / weight.sum().clamp(min=1)


def build_process(config: Mapping[str, Any], features: int, generator: torch.Generator) -> Process:
    """Make a process and its denoiser from what `Process.config` gives.

    `features` is the width of the encoded observation; weights come from the generator.

    Raises:
        RegistryError: A class that is not in the registry, or options that do not fit it.
    """
    options = dict(config)
    shape = {name: int(options.pop(name)) for name in ("horizon", "action_dimension")}
    given = {"features": features, "generator": generator, **shape}
    denoiser = registry.build(Denoiser, options.pop("denoiser"), **given)
    return registry.build(Process, options, denoiser=denoiser)
