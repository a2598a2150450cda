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

    The correction acts only where the critics hold it for better than the proposal itself, as in
    IBRL (Hu et al. 2023, arXiv 2311.02198). Whether all of it is better than the clone is found on
    the robot: see `robot_rl.learning.trial`.

    Beside the arguments of `ActorCritic` it takes `scale`, the largest correction in action units.
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
    ) -> None:
        super().__init__(base, encoding, schedule, settings, seed)
        self._policy = self.policy_class(
            encoding.encoder, self.actor.learned, base, self.critics.target, scale
        )

    def begin_again(self) -> None:
        """See `Correction`."""
        self.actor.begin_again()

    def act(self, squashed: Tensor, base_action: Tensor | None) -> Tensor:
        """The base's proposal plus the scaled correction, limited to [-1, 1]."""
        assert base_action is not None
        return self._policy.combine(base_action, squashed)

    def next_outputs(self, following: Seen, action: Tensor, heads: Tensor | None) -> Tensor:
        """The outputs (H, B, outputs) for the correction where it is preferred, else the base."""
        assert following.base is not None
        outputs = super().next_outputs(following, action, None)
        of_base = super().next_outputs(following, following.base, None)
        mean = self.critics.target.value.mean
        better = prefers(mean(outputs), mean(of_base))
        chosen = torch.where(better[:, None], outputs, of_base)
        return chosen if heads is None else chosen[heads]

    def policy_of(self, encoder: StateEncoder, actor: GaussianTanh) -> Policy:
        """A residual policy on the same base."""
        mine = self._policy
        critics = copy.deepcopy(self.critics.target)
        return self.policy_class(encoder, actor, mine.base_policy, critics, mine.scale)
