"""Base class of generative processes: chains of Gaussian transitions from noise to a chunk.

A chain has K + 1 entries: `chain[:, 0]` is pure noise (x^K in the papers), `chain[:, K]` the
clean chunk (x^0). Transition `index` in 0 ... K-1 leads from entry `index` to `index + 1`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from policies import registry
from policies.denoisers import Denoiser
from policies.errors import PolicyError

_LOG_SQRT_TWO_PI = 0.5 * math.log(2 * math.pi)


class Process(nn.Module, ABC):
    """Sampler and scorer that share one `transition`, so they use the same time grid.

    Args:
        denoiser: The network, for chunks of `horizon` H by `action_dimension` d.
        steps: Number K of transitions.
        deterministic: Whether every transition has a standard deviation of zero.

    Attributes:
        options: JSON values of the process's arguments besides the denoiser.
        noise_shape: Noise shape of one sample: the start, then one draw for each transition.
    """

    options: Mapping[str, Any]
    _floats: list[list[float]]
    _table: Tensor
    _times: Tensor
    _std: Tensor

    def __init__(self, denoiser: Denoiser, steps: int, deterministic: bool) -> None:
        super().__init__()
        self.denoiser = denoiser
        self.steps = int(steps)
        self.deterministic = deterministic
        self.horizon, self.action_dimension = denoiser.horizon, denoiser.action_dimension
        draws = 1 if deterministic else self.steps + 1
        self.noise_shape = (draws, self.horizon, self.action_dimension)

    @abstractmethod
    def transition(self, x: Tensor, index: int | Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the Gaussian of the next entry of the chain.

        Args:
            x: (B, H, d) entry `index` of the chain.
            index: 0 ... K-1, for the whole batch, or (B,) for each row.
            features: (B, F) encoded observation.

        Returns:
            Mean (B, H, d) and standard deviation, broadcastable to it.
        """

    @abstractmethod
    def loss(
        self, actions: Tensor, features: Tensor, valid: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Return the imitation loss (scalar) of normalised clean chunks (B, H, d).

        Only `valid` (B, H) actions count. The generator draws diffusion steps and noise.
        """

    @property
    def config(self) -> dict[str, Any]:
        """JSON values that describe the process and its network."""
        return {
            registry.CLASS: registry.name_of(type(self)),
            "horizon": self.horizon,
            "action_dimension": self.action_dimension,
            "denoiser": self.denoiser.config,
            **self.options,
        }

    def varied(self, **options: Any) -> Process:
        """Return a process of the same class on the same network, with some options changed.

        Raises:
            RegistryError: It has no such option.
        """
        mine = {registry.CLASS: registry.name_of(type(self)), **self.options, **options}
        return registry.build(Process, mine, denoiser=self.denoiser)

    def exploring(self, std: float) -> Process:
        """Return a process on the same network with random transitions, so that all have a density.

        Each has a standard deviation of at least `std`, in normalised actions.

        Raises:
            PolicyError: This process has no such form.
        """
        raise PolicyError(
            f"{type(self).__name__} has no form that explores",
            hint="take the process DDIM or Flow",
        )

    def noiseless(self) -> Process:
        """Return the deterministic process on the same network, for deployment.

        Raises:
            PolicyError: This process has no such form.
        """
        if self.deterministic:
            return self
        raise PolicyError(f"{type(self).__name__} has no form without noise")

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

    def log_prob(
        self, chain: Tensor, features: Tensor, indices: Sequence[int] | Tensor | None = None
    ) -> Tensor:
        """Score transitions of a chain: log-densities (B, n, H, d) in float32, not reduced.

        Args:
            chain: (B, K + 1, H, d) from `sample`.
            features: (B, F).
            indices: Transitions to score, (n,), or (B, n) for different ones in each row; None
                for all K. They are scored in one pass of the network.

        Raises:
            PolicyError: A transition does not exist, or is deterministic and so has no density.
        """
        chosen = torch.as_tensor(range(self.steps) if indices is None else indices)
        if chosen.numel() and not 0 <= int(chosen.min()) <= int(chosen.max()) < self.steps:
            raise PolicyError(
                "the process has no such transition",
                got=f"indices {int(chosen.min())} ... {int(chosen.max())}",
                expected=f"0 ... {self.steps - 1}",
            )
        index = chosen.to(chain.device).expand(len(chain), -1)
        rows = torch.arange(len(chain), device=chain.device)[:, None]
        before, after = (chain[rows, at].flatten(0, 1) for at in (index, index + 1))
        seen = features.repeat_interleave(index.shape[1], 0)
        mean, std = self.transition(before, index.flatten(), seen)
        # Always float32: bfloat16 would round away the ratio of two policies.
        mean, std = mean.float(), std.float()
        if not bool((std > 0).all()):
            raise PolicyError(
                "a transition is deterministic and has no density",
                got="standard deviation 0",
                hint="take the process that `exploring` gives, or DDIM with eta > 0 and std_bounds"
                " with a positive floor",
            )
        scaled = (after.float() - mean) / std
        scores = -0.5 * scaled.square() - std.log() - _LOG_SQRT_TWO_PI
        return scores.view(*index.shape, *scores.shape[1:])

    @property
    def first_time(self) -> Tensor:
        """The embedded time (E,) of pure noise."""
        return self._times[0]

    def _tabulate(self, times: Tensor, std: Tensor | None, *coefficients: Tensor) -> None:
        """Store the constants of the K transitions; `_at` returns them.

        Args:
            times: (K, E) embedded times passed to the network.
            std: (K,) standard deviations; None if they are not constant.
            *coefficients: (K,) each.
        """
        table = torch.stack([c.double() for c in coefficients], -1)
        # Python floats are cheaper operands than one-element tensors.
        self._floats = table.tolist()
        self.register_buffer("_table", table.float(), persistent=False)
        self.register_buffer("_times", times.float(), persistent=False)
        kept = None if std is None else std.float()[:, None, None]
        self.register_buffer("_std", kept, persistent=False)

    def _at(self, index: int | Tensor) -> tuple[Tensor, Sequence[Any]]:
        """Return embedded times, (1, E) or (B, E), and coefficients of transitions, as operands."""
        if isinstance(index, int):
            return self._times[index : index + 1], self._floats[index]
        return self._times[index], self._table[index][..., None, None].unbind(1)


def masked_mean_square(error: Tensor, valid: Tensor) -> Tensor:
    """Average the squares of (B, H, d) over the `valid` (B, H) actions."""
    weight = valid.to(error.dtype)
    total = (error.square().mean(-1) * weight).sum()
    return total / weight.sum().clamp(min=1)


def build_process(config: Mapping[str, Any], features: int, generator: torch.Generator) -> Process:
    """Make a process and its denoiser from `Process.config`.

    `features` is the width of the encoded observation; the generator draws the weights.

    Raises:
        RegistryError: A class that is not in the registry, or options that do not fit it.
    """
    options = dict(config)
    shape = {name: int(options.pop(name)) for name in ("horizon", "action_dimension")}
    given = {"features": features, "generator": generator, **shape}
    denoiser = registry.build(Denoiser, options.pop("denoiser"), **given)
    return registry.build(Process, options, denoiser=denoiser)
