"""A Gaussian for the arm and a discrete critic for the gripper (HIL-SERL, Luo et al. 2024).

A gripper is open or closed, and a Gaussian explores between the two by opening and closing at
every step. Here a Q-function over three choices decides: open, stay or close.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from policies.encoders import ObservationBatch, StateEncoder
from policies.errors import PolicyError
from policies.gaussian import GaussianPolicy, GaussianTanh
from policies.networks import mlp, seeded

CHOICES = ("open", "stay", "close")
OPEN, CLOSED = -1.0, 1.0
# The observation (B, d), or (B, n, d), of what was commanded in the step before.
LAST_COMMAND = "last_command"


def nearest_command(command: Tensor) -> Tensor:
    """Closed or open, whichever is nearer to commands in [-1, 1]."""
    return torch.where(command > 0, CLOSED, OPEN)


def last_command(observation: ObservationBatch, column: int) -> Tensor:
    """What the gripper in an action column was told last, (B,) of -1 open and +1 closed."""
    commands = torch.as_tensor(observation[LAST_COMMAND])
    return nearest_command(commands.reshape(len(commands), -1, commands.shape[-1])[:, -1, column])


def choice_commands(last: Tensor) -> Tensor:
    """What each choice tells a gripper that was told `last` (B,): (B, 3) of -1 and +1."""
    return torch.stack([torch.full_like(last, OPEN), last, torch.full_like(last, CLOSED)], -1)


class GripperCritic(nn.Module):
    """Q-values of the three choices, an MLP with LayerNorm.

    It sees what the gripper was told last, which decides what "stay" means and what costs.

    Args:
        features: Width of the encoded observation.
        hidden: Widths of the hidden layers.
        generator: Source of the initial weights.
    """

    def __init__(self, features: int, hidden: Sequence[int], *, generator: torch.Generator) -> None:
        super().__init__()
        self.features = int(features)
        self.config: dict[str, Any] = {"hidden": [int(width) for width in hidden]}
        self.network = mlp(self.features + 1, hidden, len(CHOICES), generator, layer_norm=True)

    def forward(self, features: Tensor, last: Tensor) -> Tensor:
        """Q-values (B, 3) in the order of `CHOICES`.

        Args:
            features: (B, features).
            last: See `last_command`.
        """
        values: Tensor = self.network(torch.cat([features, last[:, None]], -1))
        return values


class GaussianGripperPolicy(GaussianPolicy):
    """The Gaussian moves the arm, the critic the gripper.

    Args:
        encoder: What both see.
        actor: From `encoder.features` to the action without the gripper's column.
        critic: From `encoder.features` to the choices' values; or its configuration.
        column: The gripper's action column: -1 open, +1 closed.
        exploration: Probability ε of a random choice where the policy is sampled.
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
        if critic.features != encoder.features:
            raise PolicyError(
                "the critic does not fit the encoder",
                got=critic.features,
                expected=encoder.features,
            )
        if not 0 <= column <= actor.action_dimension or not 0 <= exploration <= 1:
            raise PolicyError(
                "the gripper's column or its exploration is out of range",
                got=f"column {column}, exploration {exploration}",
                expected=f"column in 0 ... {actor.action_dimension}, exploration in [0, 1]",
            )
        self.critic = critic
        self.column = int(column)
        self.exploration = float(exploration)
        self.action_dimension = actor.action_dimension + 1

    @property
    def config(self) -> dict[str, Any]:
        """JSON values from which `from_config` makes a policy of the same shape."""
        return {
            **super().config,
            "critic": self.critic.config,
            "column": self.column,
            "exploration": self.exploration,
        }

    @property
    def observation(self) -> dict[str, int]:
        """Name → width of what it sees: what was commanded last too."""
        return {**super().observation, LAST_COMMAND: self.action_dimension}

    def act(
        self, observation: ObservationBatch, base_action: Tensor | None, noise: Tensor | None
    ) -> Tensor:
        """Choose one action (B, d); without noise the arm's mean and the best choice."""
        features = self.encoder(observation)
        column = self.column
        last = last_command(observation, column).to(features)
        choice = self.critic(features, last).argmax(-1, keepdim=True)
        if noise is not None:
            noise = noise.to(features.device)
            choice = self._explored(choice, noise[:, column])
            noise = torch.cat([noise[:, :column], noise[:, column + 1 :]], -1)
        motion = self.output(features, noise)
        told = choice_commands(last).gather(1, choice)
        return torch.cat([motion[:, :column], told, motion[:, column:]], -1)

    def _explored(self, choice: Tensor, noise: Tensor) -> Tensor:
        """Replace choices (B, 1) by random ones with probability ε, from N(0, 1) noise (B,)."""
        uniform = torch.special.ndtr(noise.double())[:, None]
        drawn = (uniform / max(self.exploration, 1e-9) * len(CHOICES)).long()
        return torch.where(uniform < self.exploration, drawn.clamp(max=len(CHOICES) - 1), choice)
