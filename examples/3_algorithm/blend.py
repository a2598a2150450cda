"""An algorithm of one's own: soft actor-critic whose actor is mixed with the cloned policy.

The executed action is (1 - share) · base + share · actor, where `residual` adds to the base.
"""

from __future__ import annotations

import torch
from torch import Tensor

from policies.encoders import StateEncoder
from policies.gaussian import GaussianTanh, ResidualPolicy
from policies.policy import ChunkPolicy, Policy
from robot_rl.learning.algorithms.actor_critic import ActorCritic, ActorCriticSettings
from robot_rl.learning.algorithms.base import Schedule
from robot_rl.learning.algorithms.encoding import Encoding


class BlendPolicy(ResidualPolicy):
    """What acts, and what a checkpoint holds."""

    kind = "blend"

    def combine(self, base_action: Tensor, residual: Tensor) -> Tensor:
        """Mix the base's action with the actor's, both (B, d)."""
        return torch.lerp(base_action, residual, self.scale)


class Blend(ActorCritic):
    """How it learns.

    Args:
        base: The frozen cloned policy.
        encoding: From observations to what actor and critics see.
        schedule: When it is updated, and on what.
        settings: Of the actor-critic.
        seed: Seed of weights and draws.
        share: Of the actor in the executed action, in [0, 1].
    """

    uses_base = True  # actor and critics see what the base proposes

    def __init__(
        self,
        base: ChunkPolicy,
        encoding: Encoding,
        schedule: Schedule,
        settings: ActorCriticSettings,
        seed: int,
        share: float,
    ) -> None:
        super().__init__(base, encoding, schedule, settings, seed)
        self._policy = BlendPolicy(encoding.encoder, self.actor, base, share)

    def act(self, squashed: Tensor, base_action: Tensor | None) -> Tensor:
        """The executed action (B, d) for the actor's output (B, d)."""
        assert base_action is not None
        return self._policy.combine(base_action, squashed)

    def policy_of(self, encoder: StateEncoder, actor: GaussianTanh, *, averaged: bool) -> Policy:
        """The policy with these networks."""
        return BlendPolicy(encoder, actor, self._policy.base_policy, self._policy.scale)
