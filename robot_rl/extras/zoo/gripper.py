"""A Gaussian for the arm and a discrete critic for the gripper (HIL-SERL, Luo et al. 2024).

A gripper is open or closed. A Gaussian would explore by opening and closing it at every step.
Instead, a Q-function chooses between open, stay and close.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from policies.encoders import Array, ObservationBatch, StateEncoder
from policies.gaussian import GaussianPolicy, GaussianTanh
from policies.networks import mlp, seeded

CHOICES = ("open", "stay", "close")
OPEN, CLOSED = -1.0, 1.0
# The observation (B, d) or (B, n, d) of the previous step's command.
LAST_COMMAND = "last_command"


def nearest_command(command: Tensor) -> Tensor:
    """Round commands in [-1, 1] to open or closed, whichever is nearer."""
    return torch.where(command > 0, CLOSED, OPEN)


def last_command(observation: ObservationBatch, column: int) -> Tensor:
    """Return the gripper's last command from an action column, (B,) of -1 open and +1 closed."""
    commands = torch.as_tensor(observation[LAST_COMMAND])
    return nearest_command(commands.reshape(len(commands), -1, commands.shape[-1])[:, -1, column])


def choice_commands(last: Tensor) -> Tensor:
    """Return each choice's command, (B, 3) of -1 and +1, after the command `last` (B,)."""
    return torch.stack([torch.full_like(last, OPEN), last, torch.full_like(last, CLOSED)], -1)


class GripperCritic(nn.Module):
    """Q-values of the three choices, an MLP with LayerNorm.

    The last command is an input, since it determines what "stay" means and which choice has a cost.
    """

    def __init__(self, features: int, hidden: Sequence[int], *, generator: torch.Generator) -> None:
        super().__init__()
        self.config: dict[str, Any] = {"hidden": [int(width) for width in hidden]}
        self.network = mlp(features + 1, hidden, len(CHOICES), generator, layer_norm=True)

    def forward(self, features: Tensor, last: Tensor) -> Tensor:
        """Return Q-values (B, 3) of the `CHOICES` for features (B, F) and `last_command`s (B,)."""
        values: Tensor = self.network(torch.cat([features, last[:, None]], -1))
        return values


class GaussianGripperPolicy(GaussianPolicy):
    """The Gaussian controls the arm, the critic the gripper. Both use the same features.

    The actor's action omits the gripper's `column` (-1 open, +1 closed). `critic` may also be a
    configuration. `exploration` is the probability ε of a random choice when the policy is sampled.
    """

    kind: ClassVar[str] = "gaussian_gripper"

    def __init__(
        self,
        encoder: StateEncoder,
        actor: GaussianTanh,
        critic: GripperCritic | Mapping[str, Any],
        column: int,
        exploration: float,
    ) -> None:
        super().__init__(encoder, actor)
        if isinstance(critic, Mapping):
            critic = GripperCritic(encoder.features, generator=seeded(0), **critic)
        self.critic = critic
        self.column, self.exploration = int(column), float(exploration)
        self.action_dimension = actor.action_dimension + 1

    @property
    def config(self) -> dict[str, Any]:
        """JSON values from which `from_config` creates a policy of the same shape."""
        return {
            **super().config,
            "critic": self.critic.config,
            "column": self.column,
            "exploration": self.exploration,
        }

    @property
    def observation(self) -> dict[str, int]:
        """Name → width of its observations, including the last command."""
        return {**super().observation, LAST_COMMAND: self.action_dimension}

    def act(
        self,
        observation: ObservationBatch,
        base_action: Array | Tensor | None,
        noise: Array | Tensor | None,
    ) -> Tensor:
        """Choose one action (B, d). Without noise: the arm's mean and the best choice."""
        features = self.encoder(observation)
        column = self.column
        last = last_command(observation, column).to(features)
        choice = self.critic(features, last).argmax(-1, keepdim=True)
        if noise is not None:
            noise = torch.as_tensor(noise).to(features.device)
            # With probability ε, make a random choice.
            uniform = torch.special.ndtr(noise[:, column].double())[:, None]
            drawn = (uniform / max(self.exploration, 1e-9) * len(CHOICES)).long()
            random = drawn.clamp(max=len(CHOICES) - 1)
            choice = torch.where(uniform < self.exploration, random, choice)
            noise = torch.cat([noise[:, :column], noise[:, column + 1 :]], -1)
        motion = self.actor.output(features, noise)
        command = choice_commands(last).gather(1, choice)
        return torch.cat([motion[:, :column], command, motion[:, column:]], -1)
