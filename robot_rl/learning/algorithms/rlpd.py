"""`rlpd`: a tanh-Gaussian actor trained off-policy, half of each batch demonstrations.

Ball et al. 2023, "Efficient Online Reinforcement Learning with Offline Data", arXiv 2302.02948. The
update is `ActorCritic`'s. `algorithm=rlpd_pretrained` is this class with other settings.
"""

from __future__ import annotations

from torch import Tensor

from policies.encoders import StateEncoder
from policies.gaussian import GaussianPolicy, GaussianTanh
from policies.policy import Policy
from robot_rl.learning.algorithms.actor_critic import ActorCritic


class RLPD(ActorCritic):
    """The actor chooses the action itself; the cloned policy only collects the warm-up."""

    def act(self, squashed: Tensor, base_action: Tensor | None) -> Tensor:
        """The actor's output is the action."""
        return squashed

    def policy_of(self, encoder: StateEncoder, actor: GaussianTanh) -> Policy:
        """A Gaussian policy without a base."""
        return GaussianPolicy(encoder, actor)
