"""The tanh-squashed Gaussian actor (SAC, Haarnoja et al. 2018, appendix C)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from policies.encoders import ObservationBatch, StateEncoder, build_encoder
from policies.errors import PolicyError
from policies.networks import mlp, seeded, standard_normal
from policies.policy import ChunkPolicy, Policy, build, describe

_LOG_SQRT_TWO_PI = 0.5 * math.log(2 * math.pi)


class GaussianTanh(nn.Module):
    """MLP to a Gaussian, squashed by tanh into (-1, 1).

    Args:
        features: Width of the input.
        action_dimension: Number of action columns d.
        hidden: Widths of the hidden layers.
        generator: Source of the initial weights.
        layer_norm: LayerNorm in every hidden layer.
        zero_last_layer: Start with mean 0 and `initial_log_std` for every input.
        log_std_bounds: Smallest and largest log standard deviation before the squashing.
        initial_log_std: Log standard deviation at the middle of the output's range.
        activation: Name of the hidden activation.
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
        log_std_bounds: tuple[float, float] = (-5.0, 1.0),
        initial_log_std: float = -1.0,
        activation: str = "relu",
    ) -> None:
        """Make the network; see the class for the arguments."""
        super().__init__()
        low, high = (float(bound) for bound in log_std_bounds)
        if not low < initial_log_std < high:
            raise PolicyError(
                "initial_log_std must lie inside log_std_bounds",
                got=initial_log_std,
                expected=f"between {low} and {high}",
            )
        self.features = int(features)
        self.action_dimension = int(action_dimension)
        self.config: dict[str, Any] = {
            "hidden": [int(width) for width in hidden],
            "layer_norm": bool(layer_norm),
            "log_std_bounds": [low, high],
            "initial_log_std": float(initial_log_std),
            "activation": activation,
        }
        self._low, self._span = low, high - low
        fraction = (initial_log_std - low) / (high - low)
        self._offset = math.log(fraction / (1 - fraction))
        self.network = mlp(
            self.features,
            hidden,
            2 * self.action_dimension,
            generator,
            activation=activation,
            layer_norm=layer_norm,
            zero_last_layer=zero_last_layer,
        )

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Give mean and log standard deviation before the squashing, (B, d) each."""
        output: Tensor = self.network(features)
        mean, raw = output.chunk(2, -1)
        # A sigmoid keeps a gradient at the bounds, where a clamp would have none.
        log_std: Tensor = self._low + self._span * torch.sigmoid(raw + self._offset)
        return mean, log_std

    def mean(self, features: Tensor) -> Tensor:
        """Give the squashed mean, (B, d) in (-1, 1)."""
        output: Tensor = self.network(features)
        return torch.tanh(output[..., : self.action_dimension])

    def sample(
        self,
        features: Tensor,
        generator: torch.Generator | None = None,
        *,
        noise: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Draw an action by the reparametrisation trick.

        Args:
            features: (B, features).
            generator: Source of the noise.
            noise: (B, d) of N(0, 1) in place of a generator.

        Returns:
            Action (B, d) in (-1, 1) and its log-density (B,), both differentiable.
        """
        raw, log_std, noise = self._draw(features, generator, noise)
        density = -0.5 * noise.square() - log_std - _LOG_SQRT_TWO_PI
        return torch.tanh(raw), (density - _log_slope(raw)).sum(-1)

    def action(self, features: Tensor, generator: torch.Generator) -> Tensor:
        """Draw the action of `sample` without its log-density, (B, d) in (-1, 1)."""
        return torch.tanh(self._draw(features, generator, None)[0])

    def log_prob(self, features: Tensor, action: Tensor) -> Tensor:
        """Give the log-density (B,) of actions (B, d) in [-1, 1]."""
        mean, log_std = self.forward(features)
        limit = 1 - 1e-6  # atanh(±1) is infinite; a stored float32 action may be ±1
        raw = torch.atanh(action.clamp(-limit, limit))
        density = -0.5 * ((raw - mean) * (-log_std).exp()).square() - log_std - _LOG_SQRT_TWO_PI
        return (density - _log_slope(raw)).sum(-1)

    def _draw(
        self, features: Tensor, generator: torch.Generator | None, noise: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Draw before the squashing: value, log standard deviation and noise, (B, d) each."""
        mean, log_std = self.forward(features)
        if noise is None:
            if generator is None:
                raise PolicyError("sampling needs a generator or noise", got="neither")
            noise = standard_normal(mean.shape, mean, generator)
        noise = noise.to(mean.device)
        return mean + log_std.exp() * noise, log_std, noise


def _log_slope(raw: Tensor) -> Tensor:
    """Give log(1 - tanh²(raw)) without cancellation for large |raw|."""
    slope: Tensor = 2 * (math.log(2) - raw - functional.softplus(-2 * raw))
    return slope


class GaussianPolicy(Policy):
    """A `GaussianTanh` on encoded observations.

    Args:
        encoder: What the actor sees.
        actor: From `encoder.features` to the action.
        base: A frozen chunk policy that collects the warm-up and whose proposals are recorded.
    """

    kind: ClassVar[str] = "gaussian"

    def __init__(
        self, encoder: StateEncoder, actor: GaussianTanh, base: ChunkPolicy | None = None
    ) -> None:
        """Join the parts; see the class for the arguments."""
        super().__init__()
        if actor.features != encoder.features:
            raise PolicyError(
                "the actor's input does not fit the encoder",
                got=actor.features,
                expected=encoder.features,
            )
        self.encoder = encoder
        self.actor = actor
        self.action_dimension = actor.action_dimension
        self.base_policy = None if base is None else frozen_base(base, self.action_dimension)

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
            "action_dimension": self.action_dimension,
            "base": base_config(self.base_policy),
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> GaussianPolicy:
        """Make a policy of the configured shape; its weights are then loaded."""
        encoder = build_encoder(config["encoder"])
        actor = GaussianTanh(
            encoder.features, config["action_dimension"], generator=seeded(0), **config["actor"]
        )
        return cls(encoder, actor, build_base(config["base"]))

    def with_actor(self, actor: GaussianTanh) -> GaussianPolicy:
        """Give the same policy with another actor, for example its average; the rest is shared."""
        return GaussianPolicy(self.encoder, actor, self.base_policy)

    def act(
        self, observation: ObservationBatch, base_action: Tensor | None, noise: Tensor | None
    ) -> Tensor:
        """Choose one action (B, d); the base's proposal is not used."""
        features = self.encoder(observation)
        if noise is None:
            return self.actor.mean(features)
        return self.actor.sample(features, noise=noise)[0]


def frozen_base(base: ChunkPolicy, action_dimension: int) -> ChunkPolicy:
    """Check that a base fits and take its parameters out of every gradient.

    Raises:
        PolicyError: It has another number of action columns.
    """
    if base.action_dimension != action_dimension:
        raise PolicyError(
            "the base has another number of action columns",
            got=base.action_dimension,
            expected=action_dimension,
        )
    return base.requires_grad_(False)


def base_config(base: ChunkPolicy | None) -> dict[str, Any] | None:
    """Describe a base as JSON."""
    return None if base is None else describe(base)


def build_base(config: Mapping[str, Any] | ChunkPolicy | None) -> ChunkPolicy | None:
    """Make a base from what `base_config` gave, or take one as it is.

    Raises:
        PolicyError: It is not a chunk policy.
    """
    if config is None or isinstance(config, ChunkPolicy):
        return config
    base = build(config)
    if not isinstance(base, ChunkPolicy):
        raise PolicyError("a base must be a chunk policy", got=base.kind, expected="diffusion")
    return base
