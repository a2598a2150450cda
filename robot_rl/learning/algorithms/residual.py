"""`residual`: a per-step correction of the frozen diffusion policy's chunks, learned off-policy.

After ResFiT (Ankile et al. 2025, "Residual Off-Policy RL for Finetuning Behavior Cloning
Policies", arXiv 2509.19301), with soft actor-critic settings that learn within thousands of steps.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from policies.encoders import StateEncoder
from policies.gaussian import GaussianTanh
from policies.networks import seeded
from policies.policy import ChunkPolicy, Policy
from policies.residual import ResidualPolicy
from robot_rl.learning.algorithms.actor_critic import ActorCritic, ActorCriticSettings
from robot_rl.learning.algorithms.base import Schedule
from robot_rl.learning.algorithms.encoding import Encoding


class Residual(ActorCritic):
    """The actor corrects the base's proposal; actor and critics see that proposal.

    Args:
        base: The frozen cloned policy.
        encoding: From what it sees to what actor and critics see.
        schedule: See `Schedule`.
        settings: See `ActorCriticSettings`.
        actor_hidden: Hidden widths of the actor.
        actor_layer_norm: LayerNorm in the actor's hidden layers.
        initial_log_std: Log standard deviation of the actor at the start.
        scale: Largest correction, in action units.
        seed: Seed of weights and draws.
    """

    def __init__(
        self,
        base: ChunkPolicy,
        encoding: Encoding,
        schedule: Schedule,
        settings: ActorCriticSettings,
        actor_hidden: Sequence[int],
        actor_layer_norm: bool,
        initial_log_std: float,
        scale: float,
        seed: int,
    ) -> None:
        """See the class."""
        self._policy = ResidualPolicy.create(
            encoding.encoder,
            base,
            generator=seeded(seed + 1),
            hidden=actor_hidden,
            scale=scale,
            layer_norm=actor_layer_norm,
            initial_log_std=initial_log_std,
        )
        super().__init__(encoding, self._policy.actor, True, schedule, settings, seed)

    def act(self, squashed: Tensor, base_action: Tensor | None) -> Tensor:
        """The base's proposal plus the scaled correction, limited to [-1, 1]."""
        assert base_action is not None
        return self._policy.combine(base_action, squashed)

    def policy_of(self, encoder: StateEncoder, actor: GaussianTanh, *, averaged: bool) -> Policy:
        """A residual policy on the same base."""
        return ResidualPolicy(encoder, actor, self._policy.base, self._policy.scale)
