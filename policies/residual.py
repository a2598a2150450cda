"""A per-step residual on a frozen chunk policy (ResFiT, Ankile et al. 2025, arXiv 2509.19301)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from policies.encoders import ObservationBatch, StateEncoder, build_encoder
from policies.errors import PolicyError
from policies.gaussian import GaussianTanh, base_config, build_base, frozen_base
from policies.networks import seeded
from policies.policy import ChunkPolicy, Policy


class ResidualPolicy(Policy):
    """action = clip(base_action + scale · tanh(Gaussian(features, base_action)), ±1).

    A residual of zero is exactly the base; `create` starts there, with a zero last layer.

    Args:
        encoder: What the residual sees beside the base action.
        actor: From `encoder.features` + d to the residual's direction in (-1, 1).
        base: The frozen chunk policy.
        scale: Largest residual s, in action units.
    """

    kind: ClassVar[str] = "residual"

    def __init__(
        self, encoder: StateEncoder, actor: GaussianTanh, base: ChunkPolicy, scale: float = 0.5
    ) -> None:
        """Join the parts; see the class for the arguments."""
        super().__init__()
        expected = encoder.features + actor.action_dimension
        if actor.features != expected:
            raise PolicyError(
                "the residual actor's input does not fit encoder and base action",
                got=actor.features,
                expected=expected,
            )
        if not 0 < scale <= 2:
            raise PolicyError("the residual scale is out of range", got=scale, expected="(0, 2]")
        self.encoder = encoder
        self.actor = actor
        self.action_dimension = actor.action_dimension
        self.scale = float(scale)
        self.base_policy = frozen_base(base, self.action_dimension)

    @classmethod
    def create(
        cls,
        encoder: StateEncoder,
        base: ChunkPolicy,
        *,
        generator: torch.Generator,
        hidden: Sequence[int] = (256, 256),
        scale: float = 0.5,
        **actor: Any,
    ) -> ResidualPolicy:
        """Make a residual that equals its base; further options are those of `GaussianTanh`."""
        width = base.action_dimension
        network = GaussianTanh(
            encoder.features + width,
            width,
            hidden,
            generator=generator,
            zero_last_layer=True,
            **actor,
        )
        return cls(encoder, network, base, scale)

    @property
    def base(self) -> ChunkPolicy:
        """The frozen chunk policy."""
        return self.base_policy

    @property
    def config(self) -> dict[str, Any]:
        """JSON values from which `from_config` makes a policy of the same shape."""
        return {
            "encoder": self.encoder.config,
            "actor": self.actor.config,
            "action_dimension": self.action_dimension,
            "scale": self.scale,
            "base": base_config(self.base_policy),
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> ResidualPolicy:
        """Make a policy of the configured shape; its weights are then loaded."""
        encoder = build_encoder(config["encoder"])
        width = int(config["action_dimension"])
        actor = GaussianTanh(
            encoder.features + width, width, generator=seeded(0), **config["actor"]
        )
        base = build_base(config["base"])
        if base is None:
            raise PolicyError("a residual policy needs a base", got="none", expected="diffusion")
        return cls(encoder, actor, base, float(config["scale"]))

    def with_actor(self, actor: GaussianTanh) -> ResidualPolicy:
        """Give the same policy with another actor, for example its average; the rest is shared."""
        return ResidualPolicy(self.encoder, actor, self.base_policy, self.scale)

    def combine(self, base_action: Tensor, residual: Tensor) -> Tensor:
        """Add a residual in (-1, 1) to the base action, both (B, d), and clip."""
        return (base_action + self.scale * residual).clamp(-1, 1)

    def mean(self, features: Tensor, base_action: Tensor) -> Tensor:
        """Give the action (B, d) of the mean residual."""
        seen = torch.cat([features, base_action], -1)
        return self.combine(base_action, self.actor.mean(seen))

    def sample(
        self,
        features: Tensor,
        base_action: Tensor,
        generator: torch.Generator | None = None,
        *,
        noise: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Draw an action by the reparametrisation trick.

        Args:
            features: (B, encoder.features).
            base_action: (B, d).
            generator: Source of the noise.
            noise: (B, d) of N(0, 1) in place of a generator.

        Returns:
            Action (B, d) in [-1, 1], and the log-density (B,) of the residual in (-1, 1) before
            scale and clip: a clipped action has no density, and the scale adds a constant only.
        """
        seen = torch.cat([features, base_action], -1)
        residual, log_prob = self.actor.sample(seen, generator, noise=noise)
        return self.combine(base_action, residual), log_prob

    def act(
        self, observation: ObservationBatch, base_action: Tensor | None, noise: Tensor | None
    ) -> Tensor:
        """Choose one action (B, d) around the base's proposal (B, d)."""
        if base_action is None:
            raise PolicyError("a residual policy needs the base action", got="none")
        features = self.encoder(observation)
        base_action = base_action.to(features.device)
        if noise is None:
            return self.mean(features, base_action)
        return self.sample(features, base_action, noise=noise)[0]
