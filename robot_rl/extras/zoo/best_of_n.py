"""`best_of_n`: the cloned policy stays, and critics choose among the chunks that it samples.

IDQL (Hansen-Estruch et al. 2023, "IDQL: Implicit Q-Learning as an Actor-Critic Method with
Diffusion Policies", arXiv 2304.10573): critics of IQL, and the best of N actions of a cloned
diffusion policy. Ours takes the best of them while it learns too, for its process is drawn.
"""

from __future__ import annotations

import copy

from torch import Tensor

from policies.best_of_n import BestOfN
from policies.improved import ImprovedPolicy
from policies.policy import ChunkPolicy, Policy
from robot_rl.learning.algorithms.base import Batch, Schedule, check_range
from robot_rl.learning.algorithms.generative import GenerativeSettings, Seen
from robot_rl.learning.algorithms.iql import ImplicitQ


class BestOfNCritics(ImplicitQ):
    """Beside the arguments of `ImplicitQ` it takes the number N of `candidates`."""

    def __init__(
        self,
        base: ChunkPolicy,
        schedule: Schedule,
        settings: GenerativeSettings,
        expectile: float,
        seed: int,
        candidates: int,
    ) -> None:
        check_range("candidates", candidates, 1)
        super().__init__(base, schedule, settings, expectile, seed)
        self._candidates = candidates

    def improve(self, batch: Batch, seen: Seen) -> dict[str, Tensor]:
        """Leave the policy alone."""
        return {}

    def acting_policy(self) -> Policy:
        """The same as is deployed."""
        return self.policy()

    def policy(self) -> Policy:
        """The best of chunks that the process draws as it explores: else all are nearly one."""
        parts = copy.deepcopy(self.average)
        sampled = parts.under(parts.process.exploring(self.settings.exploration_std))
        critics = copy.deepcopy(self.critics.target)
        return ImprovedPolicy(BestOfN(sampled, critics, self._candidates), self._base)
