"""`residual`: a per-step correction of the frozen diffusion policy's chunks, learned off-policy.

After ResFiT (Ankile et al. 2025, "Residual Off-Policy RL for Finetuning Behavior Cloning
Policies", arXiv 2509.19301), with soft actor-critic settings that learn within thousands of steps.
"""

from __future__ import annotations

import copy
from typing import ClassVar

import torch
from torch import Tensor

from policies.critics import prefers
from policies.encoders import StateEncoder
from policies.gaussian import GaussianTanh, ResidualPolicy
from policies.policy import ChunkPolicy, Policy
from robot_rl.learning.algorithms.actor_critic import ActorCritic, ActorCriticSettings, Seen
from robot_rl.learning.algorithms.base import Schedule
from robot_rl.learning.algorithms.encoding import Encoding


class Residual(ActorCritic):
    """The actor corrects the base's proposal; actor and critics see that proposal.

    The correction acts only where the critics hold it for better than the proposal itself. Boldly,
    their mean decides, as it does in the target. With caution they must agree. On some tasks
    boldness learns more, on others it ruins a good clone; episodes of both tell which of the two
    is deployed: see `robot_rl.learning.trial`.

    Args:
        base: See `ActorCritic`.
        encoding: See `ActorCritic`.
        schedule: See `Schedule`.
        settings: See `ActorCriticSettings`.
        seed: See `ActorCritic`.
        scale: Largest correction, in action units.
        caution: Standard deviations between the critics by which the mean gain of a correction
            must exceed 0 for them to agree.
    """

    uses_base = True
    starts_at_zero = True
    policy_class: ClassVar[type[ResidualPolicy]] = ResidualPolicy

    def __init__(
        self,
        base: ChunkPolicy,
        encoding: Encoding,
        schedule: Schedule,
        settings: ActorCriticSettings,
        seed: int,
        scale: float,
        caution: float,
    ) -> None:
        super().__init__(base, encoding, schedule, settings, seed)
        self._policy = self.policy_class(
            encoding.encoder, self.actor, base, self.target_critics, scale, caution
        )
        self._most_caution = self._acting_caution = caution

    def choose(self, *, acting_boldly: bool, boldly: bool) -> None:
        """See `Choosing`."""
        self._acting_caution, self._policy.caution = (
            0.0 if bold else self._most_caution for bold in (acting_boldly, boldly)
        )

    def act(self, squashed: Tensor, base_action: Tensor | None) -> Tensor:
        """The base's proposal plus the scaled correction, limited to [-1, 1]."""
        assert base_action is not None
        return self._policy.combine(base_action, squashed)

    def next_values(self, following: Seen, action: Tensor, heads: Tensor | None) -> Tensor:
        """The values (H, B) of the correction where it is preferred, else of the proposal."""
        assert following.base is not None
        values = super().next_values(following, action, None)
        of_base = super().next_values(following, following.base, None)
        chosen = torch.where(prefers(values, of_base, caution=0.0), values, of_base)
        return chosen if heads is None else chosen[heads]

    def policy_of(self, encoder: StateEncoder, actor: GaussianTanh, *, averaged: bool) -> Policy:
        """A residual policy on the same base."""
        mine = self._policy
        critics = copy.deepcopy(self.target_critics)
        caution = mine.caution if averaged else self._acting_caution
        return self.policy_class(encoder, actor, mine.base_policy, critics, mine.scale, caution)
