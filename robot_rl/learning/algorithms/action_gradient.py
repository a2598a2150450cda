"""`action_gradient`: clone a generative policy from actions improved by its critics.

Based on DIPO (Yang et al. 2023, "Policy Representation via Diffusion Probability Model for
Reinforcement Learning", arXiv 2305.13122): actions move along the critics' gradient, and the policy
is cloned from the result. Unlike DIPO, we improve actions of the policy itself instead of actions
in replay, so the policy changes in small steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from policies.policy import ChunkPolicy
from robot_rl.learning.algorithms.base import Batch, Schedule, check_settings
from robot_rl.learning.algorithms.generative import Generative, GenerativeSettings, critic_input


@dataclass(frozen=True)
class Ascent:
    """Step count, step size and limit of the action improvement."""

    steps: int  # steps along the gradient
    size: float  # RMS of one step over the executed actions, in action units
    limit: float  # maximum change of an action column

    def __post_init__(self) -> None:
        check_settings(self, steps=1, size=(0, 2), limit=(0, 2))


@dataclass(frozen=True)
class AscentSettings(GenerativeSettings):
    """Settings of the policy, its critics and the ascent."""

    ascent: Ascent


class ActionGradient(Generative):
    """Clones the policy from its own chunks, improved along the critics' gradient."""

    settings: AscentSettings

    def __init__(
        self, base: ChunkPolicy, schedule: Schedule, settings: AscentSettings, seed: int
    ) -> None:
        super().__init__(base, schedule, settings, seed)
        self.critics = self.chunk_critics()

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """Update the critics and, when due, the policy.

        Raises:
            AlgorithmError: The batch lacks a required field.
        """
        seen, critics = self.begin_update(batch), self.critics
        features, executed = seen.features, self.settings.executed_steps

        # y = Σ γ^j r + γ^m min_e Q'_e(s', a') over a random subset of heads, with a' from the
        # policy.
        with torch.no_grad():
            next_action = self.drawn(seen.next_features)[:, :executed]
            heads = critics.target_heads(self._generator)
            value = critics.target(critic_input(seen.next_features, next_action), heads).amin(0)
            target = critics.backup(seen.reward, seen.discount, value)
        metrics = critics.learn(critic_input(features, seen.executed), target)
        if self.turn is None:
            return metrics

        # The policy's own chunks ascend the mean of the critics, a ← a + η ∇_a Q(s, a) (DIPO), with
        # a fixed step size and within a limit.
        with torch.no_grad():
            chunk = self.drawn(features)
        start, ascent = chunk[:, :executed], self.settings.ascent
        low, high = (start - ascent.limit).clamp(-1, 1), (start + ascent.limit).clamp(-1, 1)
        action = start
        for _ in range(ascent.steps):
            action = action.detach().requires_grad_()
            value = critics(critic_input(features, action)).mean(0).sum()
            (gradient,) = torch.autograd.grad(value, action)
            size = gradient.square().mean((1, 2), keepdim=True).sqrt().clamp(min=1e-8)
            action = torch.minimum(torch.maximum(action + ascent.size * gradient / size, low), high)
        action = action.detach()
        # Shift the later actions with the last executed one, so the chunk has no jump.
        rest = (chunk[:, executed:] + (action - start)[:, -1:]).clamp(-1, 1)
        better = torch.cat([action, rest], 1)

        # Clone the policy from them.
        clean = self.learned.action_normalizer.normalize(better)
        valid = torch.ones(clean.shape[:2], dtype=torch.bool, device=self.device)
        loss = self.learned.process.loss(clean, features, valid, self._generator)
        self.step_imitating(batch, features, loss)
        change = (better - chunk).square().mean().sqrt()
        return metrics | {"actor_loss": loss.detach(), "change": change}
