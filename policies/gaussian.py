"""Policies with a tanh-squashed Gaussian (SAC, Haarnoja et al. 2018, appendix C)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from policies.critics import CriticEnsemble, prefers
from policies.encoders import Array, ObservationBatch, StateEncoder, build_encoder
from policies.errors import PolicyError
from policies.networks import mlp, seeded, standard_normal
from policies.policy import ChunkPolicy, Policy

_LOG_SQRT_TWO_PI = 0.5 * math.log(2 * math.pi)
# Smallest and largest log standard deviation before the squashing.
_LOW, _HIGH = -5.0, 1.0


class GaussianTanh(nn.Module):
    """MLP to a Gaussian, squashed by tanh into (-1, 1).

    Args:
        features: Width of the input.
        action_dimension: Number of action columns d.
        hidden: Widths of the hidden layers.
        generator: Source of the initial weights.
        layer_norm: LayerNorm in every hidden layer.
        zero_last_layer: Start with mean 0 and `initial_log_std` for every input.
        initial_log_std: Log standard deviation at the middle of the output's range.
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
        """Give mean and log standard deviation before the squashing, (B, d) each."""
        output: Tensor = self.network(features)
        mean, raw = output.chunk(2, -1)
        # A sigmoid keeps a gradient at the bounds, where a clamp would have none.
        log_std: Tensor = _LOW + (_HIGH - _LOW) * torch.sigmoid(raw + self._offset)
        return mean, log_std

    def mean(self, features: Tensor) -> Tensor:
        """Give the squashed mean, (B, d) in (-1, 1)."""
        output: Tensor = self.network(features)
        return torch.tanh(output[..., : self.action_dimension])

    def sample(self, features: Tensor, noise: Tensor | torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw actions (B, d) in (-1, 1) with their log-densities (B,), both differentiable.

        Args:
            features: (B, features).
            noise: (B, d) of N(0, 1), or its source.
        """
        raw, log_std, noise = self._draw(features, noise)
        density = -0.5 * noise.square() - log_std - _LOG_SQRT_TWO_PI
        action = torch.tanh(raw)  # before the slope: gradients are summed in the graph's order
        # log(1 - tanh²(raw)) without cancellation for large |raw|.
        slope = 2 * (math.log(2) - raw - functional.softplus(-2 * raw))
        return action, (density - slope).sum(-1)

    def action(self, features: Tensor, noise: Tensor | torch.Generator) -> Tensor:
        """Draw the action of `sample` without its log-density, (B, d) in (-1, 1)."""
        return torch.tanh(self._draw(features, noise)[0])

    def _draw(
        self, features: Tensor, noise: Tensor | torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Draw before the squashing: value, log standard deviation and noise, (B, d) each."""
        mean, log_std = self.forward(features)
        if isinstance(noise, torch.Generator):
            noise = standard_normal(mean.shape, mean, noise)
        noise = noise.to(mean.device)
        return mean + log_std.exp() * noise, log_std, noise


class GaussianPolicy(Policy):
    """A `GaussianTanh` on encoded observations, and on the base's proposal where there is a base.

    The base is a chunk policy, which is frozen.
    """

    kind: ClassVar[str] = "gaussian"

    def __init__(
        self, encoder: StateEncoder, actor: GaussianTanh, base: ChunkPolicy | None = None
    ) -> None:
        super().__init__()
        self.encoder, self.actor = encoder, actor
        self.action_dimension = actor.action_dimension
        self.base_policy = None if base is None else base.requires_grad_(False)

    @property
    def base(self) -> ChunkPolicy | None:
        """The frozen chunk policy, where there is one."""
        return self.base_policy

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
        """Make a policy of the configured shape; its weights are then loaded."""
        parts = dict(config)
        encoder = build_encoder(parts.pop("encoder"))
        width = int(parts.pop("action_dimension"))
        seen = encoder.features + (width if "base" in parts else 0)
        actor = GaussianTanh(seen, width, generator=seeded(0), **parts.pop("actor"))
        return cls(encoder, actor, **parts)

    def act(
        self,
        observation: ObservationBatch,
        base_action: Array | Tensor | None,
        noise: Array | Tensor | None,
    ) -> Tensor:
        """Choose one action (B, d)."""
        return self.output(self.encoder(observation), noise)

    def output(self, seen: Tensor, noise: Array | Tensor | None) -> Tensor:
        """The actor's output (B, d) in (-1, 1), drawn with noise (B, d) or its mean."""
        if noise is None:
            return self.actor.mean(seen)
        return self.actor.action(seen, torch.as_tensor(noise))


class ResidualPolicy(GaussianPolicy):
    """A correction of the base's action, where critics hold it for better than that action.

    corrected = clip(base_action + scale · tanh(Gaussian(features, base_action)), ±1), as in ResFiT
    (Ankile et al. 2025, arXiv 2509.19301). The choice between the two by their values is that of
    IBRL (Hu et al. 2023, arXiv 2311.02198).
    A residual of zero is exactly the base; an actor with a zero last layer starts there.

    Args:
        encoder: What the residual sees beside the base action.
        actor: From `encoder.features` + d to the residual's direction in (-1, 1).
        base: The chunk policy, which is frozen.
        critics: From `encoder.features` + 2 d (base action, then action) to values.
        scale: Largest residual s, in action units.
        corrects: Whether residuals act at all; without, the base acts alone.
    """

    kind: ClassVar[str] = "residual"
    base_policy: ChunkPolicy

    def __init__(
        self,
        encoder: StateEncoder,
        actor: GaussianTanh,
        base: ChunkPolicy,
        critics: CriticEnsemble,
        scale: float = 0.5,
        corrects: bool = True,
    ) -> None:
        super().__init__(encoder, actor, base)
        if not 0 < scale <= 2:
            raise PolicyError("the residual scale is out of range", got=scale, expected="(0, 2]")
        self.critics, self.scale, self.corrects = critics, float(scale), bool(corrects)

    @property
    def config(self) -> dict[str, Any]:
        """JSON values from which `from_config` makes a policy of the same shape."""
        return {
            **super().config,
            "critics": self.critics.config,
            "scale": self.scale,
            "corrects": self.corrects,
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> GaussianPolicy:
        """Make a policy of the configured shape; its weights are then loaded."""
        critics = CriticEnsemble(**config["critics"], generator=seeded(0))
        return super().from_config({**config, "critics": critics})

    def combine(self, base_action: Tensor, residual: Tensor) -> Tensor:
        """Add a residual in (-1, 1) to the base action, both (B, d), and clip."""
        return (base_action + self.scale * residual).clamp(-1, 1)

    def act(
        self,
        observation: ObservationBatch,
        base_action: Array | Tensor | None,
        noise: Array | Tensor | None,
    ) -> Tensor:
        """Choose one action (B, d): the base's proposal (B, d), or that with a correction."""
        if base_action is None:
            raise PolicyError("a residual policy needs the base action", got="none")
        if not self.corrects:
            return torch.as_tensor(base_action)
        features = self.encoder(observation)
        base_action = torch.as_tensor(base_action).to(features.device)
        seen = torch.cat([features, base_action], -1)
        corrected = self.combine(base_action, self.output(seen, noise))
        values, of_base = (self.critics(torch.cat([seen, a], -1)) for a in (corrected, base_action))
        better = prefers(values, of_base)
        return torch.where(better[:, None], corrected, base_action)
