"""`calql` and `wsrl`: critics pessimistic about untried actions, but not below observed returns.

Cal-QL (Nakamoto et al. 2023, "Cal-QL: Calibrated Offline RL Pre-Training for Efficient Online
Fine-Tuning", arXiv 2303.05479) is CQL (Kumar et al. 2020, arXiv 2006.04779) with the values of the
policy's actions bounded below by the observed return. WSRL (Zhou et al. 2024, "Efficient Online
Reinforcement Learning Fine-Tuning Need Not Retain Offline Data", arXiv 2412.07762) learns like this
offline, drops the data, runs the policy unchanged for a while, and continues with soft
actor-critic. It is this class with other settings.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from policies.policy import ChunkPolicy
from robot_rl.learning.algorithms.actor_critic import ActorCriticSettings
from robot_rl.learning.algorithms.base import Batch, Schedule, check_settings
from robot_rl.learning.algorithms.rlpd import RLPD
from robot_rl.learning.algorithms.training import check_batch, encoded, step


@dataclass(frozen=True)
class Conservatism:
    """Strength of the critics' pessimism."""

    weight: float  # α of the regulariser during offline updates
    online_weight: float  # α afterwards
    actions: int  # number of actions of each kind whose values are pushed down

    def __post_init__(self) -> None:
        check_settings(self, weight=0, online_weight=0, actions=1)


@dataclass(frozen=True)
class ConservativeSettings(ActorCriticSettings):
    """Settings of soft actor-critic with pessimistic critics."""

    conservative: Conservatism


class CalQL(RLPD):
    """`RLPD` with pessimistic critics."""

    settings: ConservativeSettings

    def __init__(
        self, base: ChunkPolicy, schedule: Schedule, settings: ConservativeSettings, seed: int
    ) -> None:
        super().__init__(base, schedule, settings, seed)
        self.required = replace(self.required, returns=True)

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """Update the critics and, when due, actor and temperature.

        The critics' loss is `RLPD`'s plus α · mean(log Σ exp Q(s, ·) − Q(s, a)) (CQL, eq. 4;
        Cal-QL, eq. 5.1), over all heads. The sum is over actions drawn uniformly, from π(s) and
        from π(s'), each weighted by the inverse of its density (CQL, appendix F). If the episode
        terminated, values of the policy's actions are bounded below by the return from s. If it was
        cut, its return may be higher than observed, and the bound is the lowest possible return.
        """
        offline = self.updates < self.schedule.offline_updates
        conservative = self.settings.conservative
        weight = conservative.weight if offline else conservative.online_weight
        if weight == 0:
            return super().update(batch)
        check_batch(batch, self.required)
        self.updates += 1
        draws, critics = self._generator, self.critics
        names = ("action", "reward", "discount", "return", "return/valid")
        action, reward, discount, returned, ended = (self.tensor(batch[name]) for name in names)
        state, next_state = encoded(self.encoder, batch)
        with torch.no_grad():
            entropy = None
            if self.settings.entropy_in_target:
                chosen, log_prob = self.actor.learned.sample(next_state, draws)
                entropy = -self.actor.log_temperature.exp() * log_prob
            else:
                chosen = self.actor.learned.action(next_state, draws)
            heads = critics.target_heads(draws)
            value = critics.target(torch.cat([next_state, chosen], -1), heads).amin(0)
            target = critics.backup(reward, discount, value, entropy)

        count, size, width = conservative.actions, len(state), action.shape[-1]
        values = critics.network(torch.cat([state, action], -1))
        with torch.no_grad():
            shape = (count * size, width)
            uniform = 2 * torch.rand(shape, generator=draws, device=draws.device) - 1
            tried = [uniform.to(state)]
            density = [torch.full((count * size,), -width * math.log(2))]
            for at in (state, next_state):
                drawn, log_prob = self.actor.learned.sample(at.repeat(count, 1), draws)
                tried.append(drawn)
                density.append(log_prob)
            least = torch.where(ended, critics.share(returned), 0.0).repeat(2 * count)
        inputs = torch.cat([state.repeat(3 * count, 1), torch.cat(tried)], -1)
        of_chance, of_policy = critics.network(inputs).split([count * size, 2 * count * size], -1)
        calibrated = torch.cat([of_chance, torch.maximum(of_policy, least)], -1)
        calibrated = calibrated - torch.cat([each.to(state) for each in density])
        above = calibrated.unflatten(-1, (3 * count, size)).logsumexp(1)
        doubt = weight * (above - values).mean(1).sum()
        loss = (values - target).square().mean(1).sum()
        step(critics.optimizer, loss + doubt)
        critics.follow()
        metrics = {"critic_loss": loss.detach(), "q_mean": critics.mean_return(values)}
        metrics["conservatism"] = doubt.detach()
        return metrics | self.update_actor(state, action, batch["source"])
