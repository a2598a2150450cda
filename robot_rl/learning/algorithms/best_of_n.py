"""`best_of_n`: the cloned policy stays, and critics choose among the chunks that it samples.

IDQL (Hansen-Estruch et al. 2023, "IDQL: Implicit Q-Learning as an Actor-Critic Method with
Diffusion Policies", arXiv 2304.10573): critics of IQL, and the best of N actions of a cloned
diffusion policy. Ours takes the best of them where it explores too, for its process is drawn.
"""

from __future__ import annotations

import copy
import math

from torch import Tensor

from policies.best_of_n import BestOfN
from policies.diffusion import DiffusionPolicy
from policies.policy import ChunkPolicy, Policy
from robot_rl.learning.algorithms.base import Batch, Schedule, check_settings
from robot_rl.learning.algorithms.generative import GenerativeSettings, Seen
from robot_rl.learning.algorithms.iql import ImplicitQ, ValueSettings


class BestOfNCritics(ImplicitQ):
    """Beside the arguments of `ImplicitQ` it takes the number N of `candidates`."""

    def __init__(
        self,
        base: ChunkPolicy,
        schedule: Schedule,
        settings: GenerativeSettings,
        value: ValueSettings,
        seed: int,
        candidates: int,
    ) -> None:
        check_settings(candidates=(candidates, 1, math.inf))
        super().__init__(base, schedule, settings, value, seed)
        self._candidates = candidates

    def improve(self, batch: Batch, seen: Seen) -> dict[str, Tensor]:
        """Leave the policy alone."""
        return {}

    def acting_policy(self) -> Policy:
        """The best chunks of the exploring process."""
        return self.policy()

    def policy(self) -> Policy:
        """The same: without exploration the chunks of a policy are all but one."""
        sampled = super().acting_policy()
        assert isinstance(sampled, DiffusionPolicy)
        return BestOfN(sampled, copy.deepcopy(self.target_critics), self._candidates)
