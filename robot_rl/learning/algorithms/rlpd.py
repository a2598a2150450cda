"""`rlpd`: a tanh-Gaussian actor trained off-policy, half of each batch demonstrations.

Ball et al. 2023, "Efficient Online Reinforcement Learning with Offline Data", arXiv 2302.02948. The
update is `ActorCritic`'s. `algorithm=rlpd_pretrained` is this class with other settings.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from policies.encoders import StateEncoder
from policies.gaussian import GaussianPolicy, GaussianTanh
from policies.networks import seeded
from policies.policy import ChunkPolicy, Policy
from robot_rl.learning.algorithms.actor_critic import ActorCritic, ActorCriticSettings
from robot_rl.learning.algorithms.base import Schedule
from robot_rl.learning.algorithms.encoding import Encoding


class RLPD(ActorCritic):
    """The actor chooses the action itself; the cloned policy only collects the warm-up.

    Args:
        base: The cloned policy.
        encoding: From what it sees to what actor and critics see.
        schedule: See `Schedule`.
        settings: See `ActorCriticSettings`.
        actor_hidden: Hidden widths of the actor.
        actor_layer_norm: LayerNorm in the actor's hidden layers.
        initial_log_std: Log standard deviation of the actor at the start.
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
        seed: int,
    ) -> None:
        """See the class."""
        actor = GaussianTanh(
            encoding.encoder.features,
            base.action_dimension,
            actor_hidden,
            generator=seeded(seed + 1),
            layer_norm=actor_layer_norm,
            initial_log_std=initial_log_std,
        )
        super().__init__(encoding, actor, False, schedule, settings, seed)

    def act(self, squashed: Tensor, base_action: Tensor | None) -> Tensor:
        """The actor's output is the action."""
        return squashed

    def policy_of(self, encoder: StateEncoder, actor: GaussianTanh, *, averaged: bool) -> Policy:
        """A Gaussian policy without a base."""
        return GaussianPolicy(encoder, actor)
