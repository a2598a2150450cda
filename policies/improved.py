"""A chunk policy that was improved, beside the clone that it was made from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from policies.columns import Plan
from policies.encoders import Array, ObservationBatch, StateEncoder
from policies.errors import PolicyError
from policies.policy import ChunkPolicy, build, describe


class ImprovedPolicy(ChunkPolicy):
    """Plans with the improved policy; with the clone where that is held back.

    Its base is the clone, so that episodes of both can be compared.

    Args:
        policy: The improved policy.
        base: The clone, with chunks and actions of the same shape; it is frozen.
        corrects: Whether the improved policy acts at all.
    """

    kind: ClassVar[str] = "improved"

    def __init__(self, policy: ChunkPolicy, base: ChunkPolicy, corrects: bool = True) -> None:
        super().__init__()
        self.policy, self.base_policy = policy, base.requires_grad_(False)
        self.corrects = bool(corrects)
        self.horizon, self.action_dimension = policy.horizon, policy.action_dimension
        self.extras = policy.extras  # whoever plans: all rows of a run have the same columns
        if (self.horizon, self.action_dimension) != (base.horizon, base.action_dimension):
            raise PolicyError(
                "the improved policy has other chunks than its clone",
                got=(self.horizon, self.action_dimension),
                expected=(base.horizon, base.action_dimension),
            )

    @property
    def encoder(self) -> StateEncoder:  # type: ignore[override]
        """That of the improved policy."""
        return self.policy.encoder

    @property
    def base(self) -> ChunkPolicy:
        """The clone."""
        return self.base_policy

    @property
    def acting(self) -> ChunkPolicy:
        """The policy that plans."""
        return self.policy if self.corrects else self.base_policy

    @property
    def noise_shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """Of the policy that plans."""
        return self.acting.noise_shape

    @property
    def exploring(self) -> ChunkPolicy:
        """What plans while it explores."""
        explores: ChunkPolicy = getattr(self.acting, "exploring", self.acting)
        return explores

    @property
    def config(self) -> dict[str, Any]:
        """JSON values from which `from_config` makes a policy of the same shape."""
        return {"policy": describe(self.policy), "corrects": self.corrects}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> ImprovedPolicy:
        """Make a policy of the configured shape; its weights are then loaded."""
        policy = build(config["policy"])
        if not isinstance(policy, ChunkPolicy):
            raise PolicyError("an improved policy plans chunks", got=policy.kind)
        return cls(policy, config["base"], config["corrects"])

    def plan(self, observation: ObservationBatch, noise: Array | Tensor) -> Plan:
        """Map observations (B, n, ...) and noise (B, *noise_shape) to chunks (B, H, d)."""
        return self.acting.plan(observation, noise)

    def loss(self, batch: Mapping[str, Any], generator: torch.Generator) -> Tensor:
        """Give the imitation loss (scalar) of the improved policy."""
        return self.policy.loss(batch, generator)
