"""`action_gradient`: a generative policy learns to do what its critics' gradient makes of it.

After DIPO (Yang et al. 2023, "Policy Representation via Diffusion Probability Model for
Reinforcement Learning", arXiv 2305.13122): actions are improved along the gradient of the critics,
and the policy is cloned from the improved ones. Ours improves what the policy itself would do, and
not what is in replay, so that the policy moves in small steps from where it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from policies.policy import ChunkPolicy
from robot_rl.learning.algorithms.base import Batch, Schedule, check_settings
from robot_rl.learning.algorithms.generative import (
    Generative,
    GenerativeSettings,
    Seen,
    judged,
)


@dataclass(frozen=True)
class Ascent:
    """How far actions are improved."""

    steps: int  # steps along the gradient
    size: float  # root mean square of one step over the executed actions, in action units
    limit: float  # largest change of an action column

    def __post_init__(self) -> None:
        check_settings(self, steps=1, size=(0, 2), limit=(0, 2))


class ActionGradient(Generative):
    """Beside the arguments of `Generative` it takes `ascent`."""

    def __init__(
        self,
        base: ChunkPolicy,
        schedule: Schedule,
        settings: GenerativeSettings,
        ascent: Ascent,
        seed: int,
    ) -> None:
        super().__init__(base, schedule, settings, seed)
        self._ascent = ascent

    def improve(self, batch: Batch, seen: Seen) -> dict[str, Tensor]:
        """Clone improved chunks of the averaged policy."""
        with torch.no_grad():
            chunk = self.drawn(seen.features)
        better = self._improved(seen.features, chunk)
        clean = self.learned.action_normalizer.normalize(better)
        valid = torch.ones(clean.shape[:2], dtype=torch.bool, device=self.device)
        loss = self.learned.process.loss(clean, seen.features, valid, self._generator)
        metrics = {"actor_loss": loss.detach(), "change": (better - chunk).square().mean().sqrt()}
        self.step_imitating(batch, seen.features, loss)
        return metrics

    def _improved(self, features: Tensor, chunk: Tensor) -> Tensor:
        """Chunks (B, H, d) whose executed actions went up the mean of the critics.

        What comes after them is shifted along with the last of them, so that the chunk stays whole.
        """
        executed, ascent = self.settings.executed_steps, self._ascent
        start = chunk[:, :executed]
        low, high = (start - ascent.limit).clamp(-1, 1), (start + ascent.limit).clamp(-1, 1)
        action = start
        for _ in range(ascent.steps):
            action = action.detach().requires_grad_()
            value = self.critics(judged(features, action)).mean(0).sum()
            (gradient,) = torch.autograd.grad(value, action)
            size = gradient.square().mean((1, 2), keepdim=True).sqrt().clamp(min=1e-8)
            action = torch.minimum(torch.maximum(action + ascent.size * gradient / size, low), high)
        action = action.detach()
        rest = chunk[:, executed:] + (action - start)[:, -1:]
        return torch.cat([action, rest.clamp(-1, 1)], 1)
