"""`residual`: a per-step correction of the frozen diffusion policy's chunks, learned off-policy.

After ResFiT (Ankile et al. 2025, "Residual Off-Policy RL for Finetuning Behavior Cloning
Policies", arXiv 2509.19301), with soft actor-critic settings that learn within thousands of steps.
"""

from __future__ import annotations

from torch import Tensor

from policies.encoders import StateEncoder
from policies.gaussian import GaussianTanh, ResidualPolicy
from policies.policy import ChunkPolicy, Policy
from robot_rl.learning.algorithms.actor_critic import ActorCritic, ActorCriticSettings
from robot_rl.learning.algorithms.base import Schedule
from robot_rl.learning.algorithms.encoding import Encoding


class Residual(ActorCritic):
    """The actor corrects the base's proposal; actor and critics see that proposal.

    Args:
        base: See `ActorCritic`.
        encoding: See `ActorCritic`.
        schedule: See `Schedule`.
        settings: See `ActorCriticSettings`.
        seed: See `ActorCritic`.
        scale: Largest correction, in action units.
    """

    uses_base = True
    starts_at_zero = True

    def __init__(
        self,
        base: ChunkPolicy,
        encoding: Encoding,
        schedule: Schedule,
        settings: ActorCriticSettings,
        seed: int,
        scale: float,
    ) -> None:
        super().__init__(base, encoding, schedule, settings, seed)
        self._policy = ResidualPolicy(encoding.encoder, self.actor, base, scale)

    def act(self, squashed: Tensor, base_action: Tensor | None) -> Tensor:
        """The base's proposal plus the scaled correction, limited to [-1, 1]."""
        assert base_action is not None
        return self._policy.combine(base_action, squashed)

    def policy_of(self, encoder: StateEncoder, actor: GaussianTanh, *, averaged: bool) -> Policy:
        """A residual policy on the same base."""
        return ResidualPolicy(encoder, actor, self._policy.base_policy, self._policy.scale)
