"""The tanh-squashed Gaussian of SAC (Haarnoja et al. 2018, appendix C), and its policy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from policies.encoders import Array, ObservationBatch, StateEncoder
from policies.errors import PolicyError
from policies.networks import mlp, seeded, standard_normal
from policies.policy import ChunkPolicy, Policy

_LOG_SQRT_TWO_PI = 0.5 * math.log(2 * math.pi)
# Smallest and largest log standard deviation before squashing.
_LOW, _HIGH = -5.0, 1.0


class GaussianTanh(nn.Module):
    """MLP that outputs a Gaussian, squashed by tanh into (-1, 1).

    Args:
        features: Width of the input.
        action_dimension: Number of action columns d.
        hidden: Widths of the hidden layers.
        generator: Draws the initial weights.
        layer_norm: LayerNorm in every hidden layer.
        zero_last_layer: Start with mean 0 and `initial_log_std` for every input.
        initial_log_std: Log standard deviation for a raw output of 0.
    """

    def __init__(
        self,
        features: int,
        action_dimension: int,
        hidden: Sequence[int] = (256, 256),
        *,
        generator: torch.Generator,
        layer_norm: bool = False,
        zero_last_layer: bool = False,
        initial_log_std: float = -1.0,
    ) -> None:
        super().__init__()
        if not _LOW < initial_log_std < _HIGH:
            raise PolicyError(
                "initial_log_std is out of range",
                got=initial_log_std,
                expected=f"between {_LOW} and {_HIGH}",
            )
        self.action_dimension = int(action_dimension)
        self.config: dict[str, Any] = {
            "hidden": [int(width) for width in hidden],
            "layer_norm": bool(layer_norm),
            "initial_log_std": float(initial_log_std),
        }
        fraction = (initial_log_std - _LOW) / (_HIGH - _LOW)
        self._offset = math.log(fraction / (1 - fraction))
        self.network = mlp(
            features,
            hidden,
            2 * self.action_dimension,
            generator,
            layer_norm=layer_norm,
            zero_last_layer=zero_last_layer,
        )

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log standard deviation before squashing, (B, d) each."""
        output: Tensor = self.network(features)
        mean, raw = output.chunk(2, -1)
        # A sigmoid has a gradient at the bounds; a clamp has none.
        log_std: Tensor = _LOW + (_HIGH - _LOW) * torch.sigmoid(raw + self._offset)
        return mean, log_std

    def mean(self, features: Tensor) -> Tensor:
        """Return the squashed mean, (B, d) in (-1, 1)."""
        output: Tensor = self.network(features)
        return torch.tanh(output[..., : self.action_dimension])

    def output(self, features: Tensor, noise: Array | Tensor | None) -> Tensor:
        """Draw the action of `sample` with noise (B, d); return the squashed mean if it is None."""
        return (
            self.mean(features) if noise is None else self.action(features, torch.as_tensor(noise))
        )

    def sample(self, features: Tensor, noise: Tensor | torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw actions (B, d) in (-1, 1) with their log-densities (B,), both differentiable.

        Args:
            features: (B, features).
            noise: (B, d) of N(0, 1), or a generator for it.
        """
        raw, log_std, noise = self._draw(features, noise)
        density = -0.5 * noise.square() - log_std - _LOG_SQRT_TWO_PI
        action = torch.tanh(raw)  # before slope: autograd sums gradients in graph order
        # log(1 - tanh²(raw)) without cancellation for large |raw|.
        slope = 2 * (math.log(2) - raw - functional.softplus(-2 * raw))
        return action, (density - slope).sum(-1)

    def action(self, features: Tensor, noise: Tensor | torch.Generator) -> Tensor:
        """Draw the action of `sample`, (B, d) in (-1, 1), without its log-density."""
        return torch.tanh(self._draw(features, noise)[0])

    def _draw(
        self, features: Tensor, noise: Tensor | torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Draw before squashing: return value, log standard deviation and noise, (B, d) each."""
        mean, log_std = self.forward(features)
        if isinstance(noise, torch.Generator):
            noise = standard_normal(mean.shape, mean, noise)
        noise = noise.to(mean.device)
        return mean + log_std.exp() * noise, log_std, noise


class GaussianPolicy(Policy):
    """A `GaussianTanh` on encoded observations."""

    kind: ClassVar[str] = "gaussian"

    def __init__(self, encoder: StateEncoder, actor: GaussianTanh) -> None:
        super().__init__()
        self.encoder, self.actor = encoder, actor
        self.action_dimension = actor.action_dimension

    @property
    def base(self) -> ChunkPolicy | None:
        """None, because it does not plan."""
        return None

    @property
    def config(self) -> dict[str, Any]:
        """JSON values from which `from_config` makes a policy of the same shape."""
        return {
            "encoder": self.encoder.config,
            "actor": self.actor.config,
            "action_dimension": self.actor.action_dimension,
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> GaussianPolicy:
        """Make a policy of the configured shape; its weights are loaded afterwards."""
        parts = dict(config)
        encoder, width = (
            StateEncoder.from_config(parts.pop("encoder")),
            int(parts.pop("action_dimension")),
        )
        actor = GaussianTanh(encoder.features, width, generator=seeded(0), **parts.pop("actor"))
        return cls(encoder, actor, **parts)

    def act(
        self,
        observation: ObservationBatch,
        base_action: Array | Tensor | None,
        noise: Array | Tensor | None,
    ) -> Tensor:
        """Choose one action (B, d)."""
        return self.actor.output(self.encoder(observation), noise)
