"""A Gaussian for the arm and a discrete critic for the gripper (HIL-SERL, Luo et al. 2024).

A gripper is open or closed, and a Gaussian explores between the two by opening and closing at
every step. Here a Q-function over three choices decides: open, stay or close.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from policies.encoders import ObservationBatch, StateEncoder
from policies.errors import PolicyError
from policies.gaussian import GaussianTanh
from policies.networks import mlp, seeded
from policies.policy import Policy, register
from policies.seeing import build_encoder

CHOICES = ("open", "stay", "close")
OPEN, CLOSED = -1.0, 1.0


@dataclass(frozen=True)
class GripperColumn:
    """Where the gripper is in the action, and where its last command is seen.

    Attributes:
        column: Index of the action column: -1 open, +1 closed.
        observation: An observation of width 1 that tells what the gripper was told last.
        closed_above: The last command was to close where that observation is above this.
    """

    column: int
    observation: str
    closed_above: float

    def commands(self, observation: ObservationBatch) -> Tensor:
        """What each choice tells the gripper, (B, 3) of -1 and +1: "stay" repeats the last one."""
        seen = torch.as_tensor(observation[self.observation])
        latest = seen.reshape(len(seen), -1)[:, -1]
        commands = torch.full((len(latest), len(CHOICES)), OPEN, device=latest.device)
        commands[:, CHOICES.index("stay")] = torch.where(latest > self.closed_above, CLOSED, OPEN)
        commands[:, CHOICES.index("close")] = CLOSED
        return commands


class GripperCritic(nn.Module):
    """Q-values of the three choices, an MLP with LayerNorm.

    Args:
        features: Width of the encoded observation.
        hidden: Widths of the hidden layers.
        generator: Source of the initial weights.
    """

    def __init__(self, features: int, hidden: Sequence[int], *, generator: torch.Generator) -> None:
        """Make the network; see the class for the arguments."""
        super().__init__()
        self.features = int(features)
        self.config: dict[str, Any] = {"hidden": [int(width) for width in hidden]}
        self.network = mlp(self.features, hidden, len(CHOICES), generator, layer_norm=True)

    def forward(self, features: Tensor) -> Tensor:
        """Q-values (B, 3) in the order of `CHOICES`, for features (B, features)."""
        values: Tensor = self.network(features)
        return values


@register
class GaussianGripperPolicy(Policy):
    """The Gaussian moves the arm, the critic the gripper.

    Args:
        encoder: What both see.
        actor: From `encoder.features` to the action without the gripper's column.
        critic: From `encoder.features` to the choices' values.
        gripper: Where the gripper is.
        exploration: Probability ε of a random choice where the policy is sampled.
    """

    kind: ClassVar[str] = "gaussian_gripper"

    def __init__(
        self,
        encoder: StateEncoder,
        actor: GaussianTanh,
        critic: GripperCritic,
        gripper: GripperColumn,
        exploration: float,
    ) -> None:
        """Join the parts; see the class for the arguments."""
        super().__init__()
        if not actor.features == critic.features == encoder.features:
            raise PolicyError(
                "actor and critic do not fit the encoder",
                got=(actor.features, critic.features),
                expected=encoder.features,
            )
        if encoder.keys.get(gripper.observation) != 1:
            raise PolicyError(
                f"the policy does not see the gripper's last command, {gripper.observation!r}",
                got=encoder.keys,
                expected=f"{gripper.observation!r} of width 1 among them",
                hint="add it to what the policy observes, or set algorithm.gripper.observation",
            )
        if not 0 <= gripper.column <= actor.action_dimension or not 0 <= exploration <= 1:
            raise PolicyError(
                "the gripper's column or its exploration is out of range",
                got=f"column {gripper.column}, exploration {exploration}",
                expected=f"column in 0 ... {actor.action_dimension}, exploration in [0, 1]",
            )
        self.encoder = encoder
        self.actor = actor
        self.critic = critic
        self.gripper = gripper
        self.exploration = float(exploration)
        self.action_dimension = actor.action_dimension + 1

    @property
    def base(self) -> None:
        """There is none."""
        return None

    @property
    def config(self) -> dict[str, Any]:
        """JSON values from which `from_config` makes a policy of the same shape."""
        return {
            "encoder": self.encoder.config,
            "actor": self.actor.config,
            "critic": self.critic.config,
            "gripper": asdict(self.gripper),
            "exploration": self.exploration,
            "action_dimension": self.action_dimension,
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> GaussianGripperPolicy:
        """Make a policy of the configured shape; its weights are then loaded."""
        encoder = build_encoder(config["encoder"])
        width = int(config["action_dimension"]) - 1
        actor = GaussianTanh(encoder.features, width, generator=seeded(0), **config["actor"])
        critic = GripperCritic(encoder.features, generator=seeded(0), **config["critic"])
        gripper = GripperColumn(**config["gripper"])
        return cls(encoder, actor, critic, gripper, config["exploration"])

    def act(
        self, observation: ObservationBatch, base_action: Tensor | None, noise: Tensor | None
    ) -> Tensor:
        """Choose one action (B, d); without noise the arm's mean and the best choice."""
        features = self.encoder(observation)
        column = self.gripper.column
        choice = self.critic(features).argmax(-1, keepdim=True)
        if noise is None:
            motion = self.actor.mean(features)
        else:
            noise = noise.to(features.device)
            choice = self._explored(choice, noise[:, column])
            others = torch.cat([noise[:, :column], noise[:, column + 1 :]], -1)
            motion = self.actor.sample(features, noise=others)[0]
        told = self.gripper.commands(observation).to(motion).gather(1, choice)
        return torch.cat([motion[:, :column], told, motion[:, column:]], -1)

    def _explored(self, choice: Tensor, noise: Tensor) -> Tensor:
        """Replace choices (B, 1) by random ones with probability ε, from N(0, 1) noise (B,)."""
        uniform = torch.special.ndtr(noise.double())[:, None]
        drawn = (uniform / max(self.exploration, 1e-9) * len(CHOICES)).long()
        return torch.where(uniform < self.exploration, drawn.clamp(max=len(CHOICES) - 1), choice)
