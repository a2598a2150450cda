"""Policies learned on top of a cloned policy, which acts while they are disabled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from policies.columns import Plan
from policies.critics import CriticEnsemble, prefers
from policies.encoders import Array, ObservationBatch, StateEncoder
from policies.errors import PolicyError
from policies.gaussian import GaussianTanh
from policies.networks import seeded
from policies.policy import ChunkPolicy, Policy, build, describe


class FallbackPolicy(ChunkPolicy):
    """Plans with the improved policy, or with the clone unless `enabled`.

    Its base is the clone, so that episodes of both can be compared.

    Args:
        policy: The improved policy.
        base: The frozen clone, with chunks and actions of the same shape.
        enabled: Whether the improved policy plans; otherwise the clone does.
    """

    kind: ClassVar[str] = "improved"

    def __init__(self, policy: ChunkPolicy, base: ChunkPolicy, enabled: bool = True) -> None:
        super().__init__()
        self.policy, self.base_policy = policy, base.requires_grad_(False)
        self.enabled = bool(enabled)
        self.horizon, self.action_dimension = policy.horizon, policy.action_dimension
        self.extras = policy.extras  # also if the clone plans: all rows have the same columns
        if (self.horizon, self.action_dimension) != (base.horizon, base.action_dimension):
            raise PolicyError(
                "the improved policy has other chunks than its clone",
                got=(self.horizon, self.action_dimension),
                expected=(base.horizon, base.action_dimension),
            )

    @property
    def encoder(self) -> StateEncoder:  # type: ignore[override]
        """The encoder of the improved policy."""
        return self.policy.encoder

    @property
    def base(self) -> ChunkPolicy:
        """The clone."""
        return self.base_policy

    @property
    def acting(self) -> ChunkPolicy:
        """The policy that plans."""
        return self.policy if self.enabled else self.base_policy

    @property
    def noise_shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """The noise shape of the policy that plans."""
        return self.acting.noise_shape

    @property
    def exploring(self) -> ChunkPolicy:
        """The policy that plans during exploration."""
        explores: ChunkPolicy = getattr(self.acting, "exploring", self.acting)
        return explores

    @property
    def config(self) -> dict[str, Any]:
        """JSON values from which `from_config` makes a policy of the same shape."""
        return {"policy": describe(self.policy), "enabled": self.enabled}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> FallbackPolicy:
        """Make a policy of the configured shape; its weights are loaded afterwards."""
        policy = build(config["policy"])
        if not isinstance(policy, ChunkPolicy):
            raise PolicyError("an improved policy plans chunks", got=policy.kind)
        return cls(policy, config["base"], config["enabled"])

    def plan(self, observation: ObservationBatch, noise: Array | Tensor) -> Plan:
        """Map observations (B, n, ...) and noise (B, *noise_shape) to chunks (B, H, d)."""
        return self.acting.plan(observation, noise)

    def loss(self, batch: Mapping[str, Any], generator: torch.Generator) -> Tensor:
        """Return the imitation loss (scalar) of the improved policy."""
        return self.policy.loss(batch, generator)


class ResidualPolicy(Policy):
    """Corrects the base's action if the critics prefer the corrected action.

    corrected = clip(base_action + scale · tanh(Gaussian(features, base_action)), ±1), as in ResFiT
    (Ankile et al. 2025, arXiv 2509.19301). Choosing the better of the two by value follows IBRL
    (Hu et al. 2023, arXiv 2311.02198).
    A residual of zero is exactly the base; an actor with a zero last layer starts there.

    Args:
        encoder: Encoder of the observations that the residual sees besides the base action.
        actor: Maps `encoder.features` + d to the residual's direction in (-1, 1).
        base: The frozen chunk policy.
        critics: Map `encoder.features` + 2 d (base action, then action) to values.
        scale: Largest residual s, in action units.
        enabled: Whether residuals act; otherwise only the base acts.
    """

    kind: ClassVar[str] = "residual"

    def __init__(
        self,
        encoder: StateEncoder,
        actor: GaussianTanh,
        base: ChunkPolicy,
        critics: CriticEnsemble,
        scale: float = 0.5,
        enabled: bool = True,
    ) -> None:
        super().__init__()
        if not 0 < scale <= 2:
            raise PolicyError("the residual scale is out of range", got=scale, expected="(0, 2]")
        self.encoder, self.actor, self.critics = encoder, actor, critics
        self.base_policy = base.requires_grad_(False)
        self.action_dimension = actor.action_dimension
        self.scale, self.enabled = float(scale), bool(enabled)

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
            "critics": self.critics.config,
            "scale": self.scale,
            "enabled": self.enabled,
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> ResidualPolicy:
        """Make a policy of the configured shape; its weights are loaded afterwards."""
        encoder, base = StateEncoder.from_config(config["encoder"]), config["base"]
        width = base.action_dimension
        actor = GaussianTanh(
            encoder.features + width, width, generator=seeded(0), **config["actor"]
        )
        critics = CriticEnsemble(**config["critics"], generator=seeded(0))
        return cls(encoder, actor, base, critics, config["scale"], config["enabled"])

    def combine(self, base_action: Tensor, residual: Tensor) -> Tensor:
        """Add a residual in (-1, 1) to the base action, both (B, d), and clip."""
        return (base_action + self.scale * residual).clamp(-1, 1)

    def act(
        self,
        observation: ObservationBatch,
        base_action: Array | Tensor | None,
        noise: Array | Tensor | None,
    ) -> Tensor:
        """Choose one action (B, d): the base's proposal (B, d), with or without a correction."""
        if base_action is None:
            raise PolicyError("a residual policy needs the base action", got="none")
        proposal = torch.as_tensor(base_action)
        if not self.enabled:
            return proposal
        features = self.encoder(observation)
        proposal = proposal.to(features.device)
        seen = torch.cat([features, proposal], -1)
        corrected = self.combine(proposal, self.actor.output(seen, noise))
        values, of_base = (self.critics(torch.cat([seen, a], -1)) for a in (corrected, proposal))
        return torch.where(prefers(values, of_base)[:, None], corrected, proposal)
