"""PPO on denoising steps, with the outcomes of executed chunks: RL-100 online, and DPPO.

A chunk is one step of the outer decision process, so advantages are per chunk: generalised
advantage estimation (Schulman et al. 2016, arXiv 1506.02438, eq. 16) with decay γ^m λ for a chunk
with m executed actions. With m = 1 this is the single-step method.

Recorded rows do not store the chains. But the noise of an episode's plans follows from its seed, so
the policy that acted can recompute chunk and chain: `executed_chunks`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from policies.behaviour import Behaviour
from policies.columns import INSTRUCTION
from policies.critics import CriticEnsemble
from policies.diffusion import DiffusionPolicy
from policies.policy import ChunkPolicy
from policies.runner import RunningEpisode
from robot_rl.extras.zoo.denoising_ppo import ChainSettings, standardised
from robot_rl.learning.algorithms.base import AlgorithmError, check_settings
from robot_rl.learning.algorithms.generative import generative
from robot_rl.learning.algorithms.training import Training, adam, finite_means, means, step

# Maximum difference between a recorded and a recomputed action, in action units. A batch is summed
# in a different order than a single plan.
_TOLERANCE = 1e-3


class Chunks(NamedTuple):
    """N executed chunks, in execution order."""

    features: Tensor  # (N, F) features of the observations they were planned for
    chain: Tensor  # (N, K + 1, H, d)
    reward: Tensor  # (N,) Σ γ^j r_{t+j} over the m executed actions
    discount: Tensor  # (N,) γ^m; 0 if the last action terminated the episode
    following: Tensor  # (N, F) features of the observations after them
    continued: Tensor  # (N,) bool, whether the next entry is the episode's next chunk


@dataclass(frozen=True)
class OnlineSettings:
    """Settings of online PPO."""

    trace: float  # λ
    epochs: int  # passes over an iteration's chunks
    batch_size: int  # chunks per minibatch
    actor_rate: float  # Adam step size of the policy
    critic_rate: float  # Adam step size of V
    critic_hidden: Sequence[int]  # hidden widths of V
    critic_only_updates: int  # initial updates of V only
    value_clip: float  # maximum change of V per iteration
    exploration_std: float  # minimum standard deviation of each transition

    def __post_init__(self) -> None:
        shares = ("trace", "actor_rate", "critic_rate", "exploration_std")
        check_settings(self, **dict.fromkeys(shares, (0, 1)))
        check_settings(self, epochs=1, batch_size=1, critic_only_updates=0, value_clip=0)


class OnlinePPO(Training):
    """Improves a copy of a generative policy using the chunks it has executed.

    Attributes:
        learned: The policy. `explores` is its process with a density, sharing the network.
        iterations: Number of `learn` calls so far.

    Raises:
        AlgorithmError: The policy is not `generative`.
    """

    def __init__(
        self, base: ChunkPolicy, settings: OnlineSettings, chain: ChainSettings, seed: int
    ) -> None:
        super().__init__(seed)
        self._settings, self._chain = settings, chain
        self.iterations = 0
        self.learned = copy.deepcopy(generative(base)).requires_grad_(True)
        self.explores = self.learned.process.exploring(settings.exploration_std)
        width = base.encoder.features
        self.value = CriticEnsemble(width, settings.critic_hidden, 1, self._generator)
        self._actor_optimizer = adam((self.learned.parameters(), settings.actor_rate))
        self._value_optimizer = adam((self.value.parameters(), settings.critic_rate))
        self.modules = {"learned": self.learned, "value": self.value}
        self.optimizers = {"actor": self._actor_optimizer, "value": self._value_optimizer}
        self.beside = [self.explores]

    def acting_policy(self) -> DiffusionPolicy:
        """Return a copy that explores."""
        return copy.deepcopy(self.learned.under(self.explores))

    def policy(self) -> DiffusionPolicy:
        """Return a copy that acts with the clone's original process."""
        return copy.deepcopy(self.learned)

    def learn(self, chunks: Chunks, executed_steps: int) -> dict[str, float]:
        """Make the updates of one iteration. Returns mean metrics.

        `executed_steps` is the planned number of executed actions per chunk.
        """
        settings = self._settings
        with torch.no_grad():
            value, following = (self.value(f)[0] for f in (chunks.features, chunks.following))
            advantage = advantages(chunks, value, following, settings.trace)
            returns = advantage + value
            before = self._scores(chunks, executed_steps)
        normalised = standardised(advantage)
        found: list[dict[str, Tensor]] = []
        for _ in range(settings.epochs):
            order = torch.randperm(len(value), generator=self._generator).to(self.device)
            for part in order.split(settings.batch_size):
                self.updates += 1
                batch = Chunks(*(column[part] for column in chunks))
                metrics = self._update_value(batch, value[part], returns[part])
                if self.updates > settings.critic_only_updates:
                    metrics |= self._update_policy(
                        batch, before[part], normalised[part], executed_steps
                    )
                found.append(metrics)
        self.iterations += 1
        explained = 1 - (returns - value).var() / returns.var().clamp(min=1e-8)
        found.append({"value": value.mean(), "explained_variance": explained})
        return finite_means(found, f"update {self.updates}")

    def _scores(self, chunks: Chunks, executed: int) -> Tensor:
        """Return the reduced log-densities (N, parts) of the chains."""
        chain = self._chain
        parts = chain.parts(self.explores.steps)
        every = [index for part in parts for index in part]
        scores = self.explores.log_prob(chunks.chain, chunks.features, every)
        split = scores.split([len(part) for part in parts], dim=1)
        return torch.stack([chain.reduced(each, executed) for each in split], 1)

    def _update_policy(
        self, batch: Chunks, before: Tensor, advantage: Tensor, executed: int
    ) -> dict[str, Tensor]:
        chain, steps = self._chain, self.explores.steps
        log_ratios = self._scores(batch, executed) - before
        losses, found = [], []
        for part, log_ratio in zip(chain.parts(steps), log_ratios.unbind(1), strict=True):
            loss, metrics = chain.loss(log_ratio, advantage, part[-1], steps, self.updates)
            losses.append(loss)
            found.append(metrics)
        total = torch.stack(losses).mean()
        step(self._actor_optimizer, total, chain.gradient_clip)
        return {"actor_loss": total.detach(), **means(found)}

    def _update_value(self, batch: Chunks, old: Tensor, returns: Tensor) -> dict[str, Tensor]:
        """Regress V on the returns, with PPO's value clipping around the previous V."""
        value = self.value(batch.features)[0]
        clip = self._settings.value_clip
        clipped = old + (value - old).clamp(-clip, clip)
        errors = torch.maximum((value - returns).square(), (clipped - returns).square())
        loss = 0.5 * errors.mean()
        step(self._value_optimizer, loss)
        return {"value_loss": loss.detach()}


def advantages(chunks: Chunks, value: Tensor, following: Tensor, trace: float) -> Tensor:
    """A_t = δ_t + γ^m λ A_{t+m}, δ_t = R_t + γ^m V(s_{t+m}) - V(s_t), for each chunk (N,).

    After a chunk that is not continued, only V counts. After a termination, nothing counts.
    """
    delta = chunks.reward + chunks.discount * following - value
    decay = trace * chunks.discount * chunks.continued
    found = torch.zeros_like(delta)
    later = delta.new_zeros(())
    for at in range(len(delta) - 1, -1, -1):
        later = delta[at] + decay[at] * later
        found[at] = later
    return found


@torch.no_grad()
def executed_chunks(
    columns: Mapping[str, npt.NDArray[Any]],
    behaviour: Behaviour,
    seed: int,
    instruction: str,
    gamma: float,
) -> Chunks:
    """Return the chunks of an episode executed by this behaviour, without operator involvement.

    Args:
        columns: Columns of the episode's T + 1 rows.
        behaviour: The behaviour that acted.
        seed: Seed of the episode.
        instruction: Instruction of the episode.
        gamma: Discount per control step.

    Raises:
        AlgorithmError: The recomputed actions differ from the recorded ones.
    """
    policy = behaviour.policy
    assert isinstance(policy, DiffusionPolicy)
    steps = len(columns["is_last"]) - 1
    begins = np.flatnonzero(columns["chunk_index"][:steps] == 0)
    ends = np.append(begins[1:], steps)
    columns = {**columns, **behaviour.features(columns, [instruction] * (steps + 1))}
    # Histories of the planned rows and the last row. Before the episode's start, repeat its first
    # row.
    history = np.arange(1 - policy.encoder.observation_steps, 1)
    rows = np.maximum(np.append(begins, steps)[:, None] + history, 0)
    windows = {name: columns[name][rows] for name in policy.observation}
    if policy.conditioned:
        windows[INSTRUCTION] = np.array([instruction] * len(rows))
    observed: Tensor = policy.encoder(windows)
    source = RunningEpisode.begin(behaviour, seed, instruction).plan_noise
    draws = [source.standard_normal(policy.noise_shape, np.float32) for _ in begins]
    chain = policy.process.sample(observed[:-1], torch.from_numpy(np.stack(draws)).to(observed))
    actions = policy.action_normalizer.denormalize(chain[:, -1]).clamp(-1, 1).cpu().numpy()
    alone = np.ones(len(begins), bool)
    rewards, discounts = np.zeros((2, len(begins)), np.float32)
    for number, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
        alone[number] = not columns["intervened"][begin:end].any()
        powers = gamma ** np.arange(end - begin)
        rewards[number] = (powers * columns["reward"][begin:end]).sum()
        discounts[number] = gamma ** (end - begin) * (not columns["terminated"][end - 1])
        planned, done = actions[number, : end - begin], columns["policy_action"][begin:end]
        if alone[number] and not np.allclose(planned, done, atol=_TOLERANCE):
            raise AlgorithmError(
                "the recorded actions are not what the policy makes of this episode's noise",
                got=f"actions up to {np.abs(planned - done).max():.3g} apart at step {begin}",
                expected=f"at most {_TOLERANCE}",
                hint="learn from episodes that this very policy has acted in, without extra noise",
            )
    # The last chunk before a take-over bootstraps from the state where the operator started.
    continued = np.append(alone[1:], False)
    kept = torch.from_numpy(alone).to(observed.device)
    like: dict[str, Any] = {"device": observed.device}
    every = Chunks(
        observed[:-1],
        chain,
        torch.tensor(rewards, **like),
        torch.tensor(discounts, **like),
        observed[1:],
        torch.tensor(continued, **like),
    )
    return Chunks(*(column[kept] for column in every))


def joined(parts: list[Chunks]) -> Chunks:
    """Concatenate the chunks of several episodes."""
    return Chunks(*(torch.cat(columns) for columns in zip(*parts, strict=True)))
