"""`denoising_ppo`: PPO on a generative policy's denoising steps, from recorded observations.

RL-100 (Lei et al. 2025, arXiv 2510.14830), stage "iterative offline RL". Each transition of the
chain is an action of an inner decision process with known density. All of them share the advantage
of the resulting action (as in DPPO, Ren et al. 2024, arXiv 2409.00588). The chain is sampled from
an older copy of the policy, which is the reference of PPO's ratio. `online_ppo` does the same with
the real outcome of each chain.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from policies.networks import standard_normal
from policies.policy import ChunkPolicy, Policy
from robot_rl.extras.zoo.implicit_q import ImplicitQ, ImplicitSettings
from robot_rl.learning.algorithms.base import (
    AlgorithmError,
    Batch,
    Schedule,
    check_range,
    check_settings,
)
from robot_rl.learning.algorithms.training import means, step

# Limit between clip ranges for averaged log-densities (about .01) and for summed ones (about .2).
_LARGEST_AVERAGED_CLIP = 0.05


@dataclass(frozen=True)
class ChainSettings:
    """How a chain's transitions are scored and clipped. RL-100, DPPO and ReinFlow differ here.

    The log-densities (B, L, H, d) of the last L transitions are reduced to one number per
    transition, or to a single one. The clip range depends on that choice.
    """

    transitions: int | None  # last transitions L of the chain that learn; None: all K
    reduce: str  # over executed steps and action columns: "sum" or "mean"
    joint: bool  # whether the chain has one ratio over all its transitions, as in ReinFlow
    executed_only: bool  # whether actions of a chunk that are not executed are left out
    # Clip range of the ratio at the noisiest and at the last learning transition.
    clip: Sequence[float]
    # Policy updates over which the clip range falls linearly to 0. 0: constant.
    clip_updates: int
    denoising_discount: float  # discount of the advantage per remaining transition
    log_density_range: Sequence[float] | None  # clamps each log-density, as in DPPO
    gradient_clip: float  # maximum norm of the policy's gradient

    def __post_init__(self) -> None:
        """Check the values, and that the clip range fits the reduction."""
        clips = [float(value) for value in self.clip]
        check_range("transitions", 1 if self.transitions is None else self.transitions, 1)
        check_settings(self, clip_updates=0, denoising_discount=(0, 1), gradient_clip=0)
        if self.reduce not in ("sum", "mean"):
            problem = "the setting 'reduce' is unknown"
            raise AlgorithmError(problem, got=self.reduce, expected="one of sum, mean")
        averaged = self.reduce == "mean"
        low, high = (0.0, _LARGEST_AVERAGED_CLIP) if averaged else (_LARGEST_AVERAGED_CLIP, 1.0)
        if len(clips) != 2 or not all(c > 0 and low <= c <= high for c in clips):
            raise AlgorithmError(
                f"the clip range does not fit a {self.reduce} of log-densities",
                got=clips,
                expected=f"two numbers from {low:g} to {high:g}",
                hint="a sum has a clip of about .2, a mean over the chunk one of about .01",
            )

    def indices(self, steps: int) -> list[int]:
        """Return the learning transitions of K = `steps`, noisiest first."""
        count = steps if self.transitions is None else min(self.transitions, steps)
        return list(range(steps - count, steps))

    def parts(self, steps: int) -> list[list[int]]:
        """Return the groups of transitions that share a ratio."""
        indices = self.indices(steps)
        return [indices] if self.joint else [[index] for index in indices]

    def reduced(self, scores: Tensor, executed_steps: int) -> Tensor:
        """Reduce the log-densities (B, n, H, d) of one ratio to (B,)."""
        if self.executed_only:
            scores = scores[:, :, :executed_steps]
        if self.log_density_range is not None:
            scores = scores.clamp(*self.log_density_range)
        return scores.flatten(1).sum(1) if self.reduce == "sum" else scores.flatten(1).mean(1)

    def loss(
        self, log_ratio: Tensor, advantage: Tensor, last: int, steps: int, updates: int
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """PPO's loss, -E min(r A, clip(r, 1 ± c) A) (Schulman et al. 2017, eq. 7), and its metrics.

        It covers a part that ends with transition `last` of K = `steps`, after `updates` policy
        updates (DPPO, appendix C).
        """
        noisiest, finest = self.clip
        first = self.indices(steps)[0]
        share = 1.0 if self.joint or steps - 1 == first else (last - first) / (steps - 1 - first)
        clip = noisiest * (finest / noisiest) ** share
        clip *= max(0.0, 1.0 - updates / self.clip_updates) if self.clip_updates else 1.0
        if not self.joint:
            advantage = advantage * self.denoising_discount ** (steps - 1 - last)
        ratio = log_ratio.exp()
        gain = torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
        outside = ((ratio - 1).abs() > clip).float().mean()
        change = log_ratio.detach().abs().mean()
        return -gain.mean(), {"clipped_share": outside, "log_ratio": change}


def standardised(advantage: Tensor) -> Tensor:
    """Return advantages (B,) normalised to mean 0 and standard deviation 1."""
    return (advantage - advantage.mean()) / (advantage.std(unbiased=False) + 1e-8)


@dataclass(frozen=True)
class DenoisingSettings(ImplicitSettings):
    """Settings of PPO on denoising chains."""

    chain: ChainSettings
    refresh_every: int  # policy updates between two refreshes of π_old

    def __post_init__(self) -> None:
        super().__post_init__()
        check_settings(self, refresh_every=1)


class DenoisingPPO(ImplicitQ):
    """Optimises the policy for the critics' advantage of its own chains."""

    settings: DenoisingSettings

    def __init__(
        self, base: ChunkPolicy, schedule: Schedule, settings: DenoisingSettings, seed: int
    ) -> None:
        super().__init__(base, schedule, settings, seed)
        self.old = copy.deepcopy(self.learned).requires_grad_(False)
        self._drawing = self.old.process.exploring(settings.exploration_std)
        self._learning = self.learned.process.exploring(settings.exploration_std)
        self.modules["old"] = self.old
        self.beside += [self._drawing, self._learning]

    def restart(self, policy: Policy) -> None:
        """Continue from another policy, which also becomes π_old."""
        super().restart(policy)
        self.old.load_state_dict(policy.state_dict())

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """Update the critics. When due, sample chains from π_old and make one step per ratio."""
        seen = self.begin_update(batch)
        metrics, turn = self.update_critics(seen), self.turn
        if turn is None:
            return metrics
        if turn % self.settings.refresh_every == 0:
            self.old.load_state_dict(self.learned.state_dict())
        chain, executed = self.settings.chain, self.settings.executed_steps
        steps = self._learning.steps
        features = seen.features
        with torch.no_grad():
            shape = (len(features), *self._drawing.noise_shape)
            noise = standard_normal(shape, features, self._generator)
            drawn = self._drawing.sample(features, noise)
            action = self.old.action_normalizer.denormalize(drawn[:, -1]).clamp(-1, 1)
            raw = self.advantage(features, action[:, :executed])
            advantage = standardised(raw)
        found: list[dict[str, Tensor]] = []
        for part in chain.parts(steps):
            with torch.no_grad():
                before = chain.reduced(self._drawing.log_prob(drawn, features, part), executed)
            now = chain.reduced(self._learning.log_prob(drawn, features, part), executed)
            loss, of_part = chain.loss(now - before, advantage, part[-1], steps, turn)
            step(self.optimizer, loss, chain.gradient_clip)
            found.append({"actor_loss": loss.detach(), **of_part})
        self.follow()
        spread = {"advantage": raw.mean(), "advantage_std": raw.std(unbiased=False)}
        return metrics | means(found) | spread
