"""Base class of algorithms that improve a generative policy: the policy and its average.

Chunk critics evaluate the first E actions of a chunk, Q(s, a_t … a_{t+E-1}), as in Q-chunking (Li
et al. 2025, arXiv 2507.07969).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from policies.diffusion import DiffusionPolicy
from policies.improved import FallbackPolicy
from policies.networks import move_towards, standard_normal
from policies.policy import ChunkPolicy, Policy
from robot_rl.data.schema import SOURCE_POLICY
from robot_rl.learning.algorithms.actor_critic import Critics, CriticSettings
from robot_rl.learning.algorithms.base import AlgorithmError, Batch, Schedule, check_settings
from robot_rl.learning.algorithms.training import (
    Training,
    adam,
    check_batch,
    encoded,
    falling,
    step,
)
from robot_rl.replay.windows import CHUNK


@dataclass(frozen=True)
class GenerativeSettings(CriticSettings):
    """Settings of the policy and its critics."""

    executed_steps: int  # executed actions E of a chunk, which the critics evaluate
    learning_steps: int  # transitions K of the process when learning samples from the policy
    exploration_std: float  # minimum standard deviation of each transition during exploration

    def __post_init__(self) -> None:
        super().__post_init__()
        check_settings(self, executed_steps=1, learning_steps=1, exploration_std=(0, 1))


class Encoded(NamedTuple):
    """A batch with encoded observations, for critics and policy."""

    features: Tensor  # (B, F) encoded observations
    executed: Tensor  # (B, E, d) first actions of the executed chunk
    next_features: Tensor  # (B, F) encoded next observations
    reward: Tensor  # (B,) Σ γ^j r
    discount: Tensor  # (B,) γ^m; 0 after a termination


class Generative(Training):
    """Trains a copy of the cloned policy. Each algorithm defines its own `update`.

    Attributes:
        learned: The policy being trained.
        average: Its average, which is evaluated and deployed.
        fast: The average with `learning_steps` transitions, from which learning samples.

    Raises:
        AlgorithmError: The policy is not `generative`, or its chunks are too short.
    """

    def __init__(
        self, base: ChunkPolicy, schedule: Schedule, settings: GenerativeSettings, seed: int
    ) -> None:
        super().__init__(seed)
        base = generative(base)
        if settings.executed_steps > base.horizon:
            raise AlgorithmError(
                "executed_steps exceeds the policy's chunk",
                got=settings.executed_steps,
                expected=f"at most {base.horizon}",
            )
        self.schedule, self.settings, self._base = schedule, settings, base
        self.learned = copy.deepcopy(base).requires_grad_(True)
        self.average = copy.deepcopy(base).requires_grad_(False)
        process = self.average.process.varied(steps=settings.learning_steps)
        self.fast = self.average.under(process)
        self.optimizer = adam((self.learned.parameters(), settings.actor_rate))
        self.modules = {"learned": self.learned, "average": self.average}
        self.optimizers = {"actor": self.optimizer}
        self.beside = [self.fast]
        self.required = schedule.sampling(
            list(base.encoder.keys),
            observation_steps=base.encoder.observation_steps,
            chunk_fields=("action",),
            chunk_steps=base.horizon,
        )

    def chunk_critics(self, columns: int | None = None) -> Critics:
        """Create critics of encoded observations and E executed actions (or `columns` instead)."""
        executed = self.settings.executed_steps * self._base.action_dimension
        width = self._base.encoder.features + (executed if columns is None else columns)
        critics = Critics(width, self.settings, self._generator)
        self.modules["critics"], self.optimizers["critic"] = critics, critics.optimizer
        return critics

    def begin_update(self, batch: Batch) -> Encoded:
        """Check the batch, count the update, and encode the observations.

        Raises:
            AlgorithmError: The batch lacks a required field.
        """
        check_batch(batch, self.required)
        self.updates += 1
        features, next_features = encoded(self.average.encoder, batch)
        return Encoded(
            features,
            self.tensor(batch[f"{CHUNK}action"])[:, : self.settings.executed_steps],
            next_features,
            self.tensor(batch["reward"]),
            self.tensor(batch["discount"]),
        )

    @property
    def turn(self) -> int | None:
        """Index of this policy update, from 0. None if only the critics learn."""
        paid = self.updates - self.schedule.critic_only_updates
        if paid <= 0 or paid % self.settings.actor_every:
            return None
        return paid // self.settings.actor_every - 1

    def drawn(self, features: Tensor) -> Tensor:
        """Sample chunks (B, H, d) of `fast` for encoded observations (B, F)."""
        shape = (len(features), *self.fast.noise_shape)
        return self.fast.chunks(features, standard_normal(shape, features, self._generator))

    def cloning_loss(self, batch: Batch, features: Tensor, weight: Tensor) -> Tensor:
        """Return the imitation loss of the executed chunks, weighted by (B,)."""
        valid = self.tensor(batch[f"{CHUNK}valid"]) * weight[:, None]
        actions = self.learned.action_normalizer.normalize(self.tensor(batch[f"{CHUNK}action"]))
        return self.learned.process.loss(actions, features, valid, self._generator)

    def step_imitating(self, batch: Batch, features: Tensor, loss: Tensor) -> None:
        """Step the policy on a loss plus the weighted imitation of human actions."""
        settings, done = self.settings, self.updates - self.schedule.critic_only_updates
        weight = falling(settings.imitation_weight, settings.imitation_updates, done)
        if weight > 0:
            shown = self.tensor(batch["source"] != SOURCE_POLICY)
            loss = loss + weight * self.cloning_loss(batch, features, shown)
        step(self.optimizer, loss)
        self.follow()

    def follow(self) -> None:
        """Move the average towards the policy."""
        move_towards(self.average, self.learned, self.settings.average_rate)

    def acting_policy(self) -> Policy:
        """Return the learning policy, which explores by each transition's standard deviation."""
        parts = copy.deepcopy(self.learned)
        acting = DiffusionPolicy(
            parts.encoder, parts.process, parts.action_normalizer, self.settings.exploration_std
        )
        return FallbackPolicy(acting, self._base)

    def policy(self) -> Policy:
        """Return the averaged policy, which acts like the cloned one."""
        return FallbackPolicy(copy.deepcopy(self.average), self._base)

    def reset_actor(self) -> None:
        """See `Correction`."""
        self.restart(self._base)

    def restart(self, policy: Policy) -> None:
        """Continue from another policy of the same shape. The critics are kept.

        Raises:
            AlgorithmError: The policy has a different shape.
        """
        try:
            for mine in (self.learned, self.average):
                mine.load_state_dict(policy.state_dict())
        except RuntimeError as error:
            raise AlgorithmError(
                "the policy to go on from is another one", got=" ".join(str(error).split())
            ) from error
        self.optimizer.state.clear()


def generative(policy: ChunkPolicy) -> DiffusionPolicy:
    """Return the policy. Raise `AlgorithmError` if it has no generative process."""
    if not isinstance(policy, DiffusionPolicy):
        raise AlgorithmError(
            "only a generative policy can be improved itself",
            got=policy.kind,
            expected="a policy with a process",
            hint="choose policy=diffusion or policy=flow, or algorithm=residual",
        )
    return policy


def critic_input(features: Tensor, executed: Tensor) -> Tensor:
    """Concatenate encoded observations (B, F) and executed actions (B, E, d) for the critics."""
    return torch.cat([features, executed.flatten(1)], -1)
