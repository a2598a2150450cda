"""`calql` and `wsrl`: critics that doubt what nobody has tried, but no less than it has returned.

Cal-QL (Nakamoto et al. 2023, "Cal-QL: Calibrated Offline RL Pre-Training for Efficient Online
Fine-Tuning", arXiv 2303.05479), which is CQL (Kumar et al. 2020, arXiv 2006.04779) with values of
the policy's actions held above the observed return. WSRL (Zhou et al. 2024, "Efficient Online
Reinforcement Learning Fine-Tuning Need Not Retain Offline Data", arXiv 2412.07762) learns so
offline, drops the data, lets the policy act as it is for a while, and goes on with soft
actor-critic: it is this class with other settings.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from policies.policy import ChunkPolicy
from robot_rl.learning.algorithms.actor_critic import ActorCriticSettings, Seen
from robot_rl.learning.algorithms.base import Batch, Schedule, check_settings
from robot_rl.learning.algorithms.encoding import Encoding
from robot_rl.learning.algorithms.rlpd import RLPD


@dataclass(frozen=True)
class Conservatism:
    """How much the critics doubt."""

    weight: float  # α of the regulariser in the offline updates
    online_weight: float  # α afterwards
    actions: int  # actions of each kind at which values are pushed down

    def __post_init__(self) -> None:
        check_settings(self, weight=0, online_weight=0, actions=1)


class CalQL(RLPD):
    """Beside the arguments of `ActorCritic` it takes `conservative`."""

    def __init__(
        self,
        base: ChunkPolicy,
        encoding: Encoding,
        schedule: Schedule,
        settings: ActorCriticSettings,
        conservative: Conservatism,
        seed: int,
    ) -> None:
        super().__init__(base, encoding, schedule, settings, seed)
        self._conservative = conservative
        self.required = replace(self.required, returns=True)

    def conservatism(
        self, batch: Batch, seen: Seen, following: Seen, values: Tensor
    ) -> Tensor | None:
        """α · mean(log Σ exp Q(s, ·) − Q(s, a)) (CQL, eq. 4; Cal-QL, eq. 5.1), over all heads.

        The sum is over actions drawn uniformly, from π(s) and from π(s'), each by the inverse of
        its density (CQL, appendix F). Values of the policy's are no less than the return from s,
        where the episode terminated; a cut one may return more, and says only the least.
        """
        offline = self.updates <= self.schedule.offline_updates
        weight = self._conservative.weight if offline else self._conservative.online_weight
        if weight == 0:
            return None
        count, width = self._conservative.actions, self.actor.learned.action_dimension
        size = len(seen.features)
        with torch.no_grad():
            shape, device = (count * size, width), self._generator.device
            uniform = 2 * torch.rand(shape, generator=self._generator, device=device) - 1
            drawn = [(uniform.to(seen.features), torch.full((count * size,), -width * math.log(2)))]
            for state in (seen.features, following.features):
                drawn.append(self.actor.learned.sample(state.repeat(count, 1), self._generator))
            actions = torch.cat([action for action, _ in drawn])
            density = torch.cat([log_prob.to(actions) for _, log_prob in drawn])
            share = self.critics.share(self.tensor(batch["return"]))
            least = torch.where(self.tensor(batch["return/valid"]), share, 0.0).repeat(2 * count)
        tried = self.critics.network(torch.cat([seen.features.repeat(3 * count, 1), actions], -1))
        of_chance, of_policy = tried.split([count * size, 2 * count * size], -1)
        calibrated = torch.cat([of_chance, torch.maximum(of_policy, least)], -1) - density
        above = calibrated.unflatten(-1, (3 * count, size)).logsumexp(1)
        loss: Tensor = weight * (above - values).mean(1).sum()
        return loss
