"""An algorithm of one's own: `residual` with an actor that is mixed with the cloned policy.

The executed action is (1 - share) · base + share · actor, where `residual` adds to the base.
"""

from __future__ import annotations

import torch
from torch import Tensor

from policies.improved import ResidualPolicy
from robot_rl.learning.algorithms.residual import Residual


class BlendPolicy(ResidualPolicy):
    """What acts, and what a checkpoint holds."""

    kind = "blend"

    def combine(self, base_action: Tensor, residual: Tensor) -> Tensor:
        """Mix the base's action with the actor's, both (B, d); `scale` is the actor's share."""
        return torch.lerp(base_action, residual, self.scale)


class Blend(Residual):
    """How it learns: as `residual` does, with the policy above."""

    policy_class = BlendPolicy
