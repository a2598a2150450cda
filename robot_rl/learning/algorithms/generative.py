"""What improvements of a generative policy share: the policy, and critics of what it executes.

A chunk critic judges the first E actions of a chunk, Q(s, a_t … a_{t+E-1}), as Q-chunking does (Li
et al. 2025, arXiv 2507.07969).
"""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from policies.critics import VALUES, CriticEnsemble
from policies.diffusion import DiffusionPolicy
from policies.improved import ImprovedPolicy
from policies.networks import move_towards, standard_normal
from policies.policy import ChunkPolicy, Policy
from robot_rl.data.schema import SOURCE_POLICY
from robot_rl.learning.algorithms.base import (
    AlgorithmError,
    Batch,
    Range,
    Schedule,
    check_choice,
    check_critic_value,
    check_settings,
    check_value_range,
)
from robot_rl.learning.algorithms.training import Training, adam, check_columns, falling, step
from robot_rl.replay.sampler import CHUNK, NEXT, SampleSpec


@dataclass(frozen=True)
class GenerativeSettings:
    """Settings of the policy and its critics."""

    executed_steps: int  # actions E of a chunk that are executed, which the critics judge
    learning_steps: int  # transitions K of the process where learning draws from the policy
    exploration_std: float  # least standard deviation of each transition while it explores
    critic_heads: int  # number of critics
    critic_hidden: Sequence[int]  # hidden widths of each critic
    critic_value: str  # what they tell, one of `policies.critics.VALUES`
    target_heads: int  # heads of the random subset whose minimum is the target
    # Smallest and largest possible return, which targets are limited to; None: the learner finds it
    value_range: Range | None
    critic_rate: float  # Adam step size of the critics
    actor_rate: float  # Adam step size of the policy
    target_rate: float  # Polyak rate τ of the target critics
    average_rate: float  # rate of the average policy that is evaluated and deployed
    actor_every: int  # updates per update of the policy
    imitation_weight: float  # weight of the imitation loss on demonstrations and interventions
    # Updates over which that weight falls linearly to 0; 0: it stays; None: the learner finds it.
    imitation_updates: int | None

    def __post_init__(self) -> None:
        """Check the range of values, and name the setting in an `AlgorithmError`."""
        check_value_range(self.value_range)
        check_choice("critic_value", self.critic_value, VALUES)
        for name in ("critic_rate", "actor_rate", "target_rate", "average_rate", "exploration_std"):
            check_settings(**{name: (getattr(self, name), 0, 1)})
        for name in ("executed_steps", "learning_steps", "critic_heads", "actor_every"):
            check_settings(**{name: (getattr(self, name), 1, math.inf)})
        check_settings(
            target_heads=(self.target_heads, 1, self.critic_heads),
            imitation_weight=(self.imitation_weight, 0, math.inf),
            imitation_updates=(self.imitation_updates or 0, 0, math.inf),
        )


class Seen(NamedTuple):
    """A batch as critics and policy see it."""

    features: Tensor  # (B, F) of the observations
    executed: Tensor  # (B, E, d), the first actions of the chunk that was executed
    following: Tensor  # (B, F) of the next observations


class Generative(Training):
    """Improves a copy of the cloned policy; a subclass says how.

    Raises:
        AlgorithmError: The policy has no generative process, or shorter chunks.
    """

    def __init__(
        self, base: ChunkPolicy, schedule: Schedule, settings: GenerativeSettings, seed: int
    ) -> None:
        super().__init__(seed)
        if not isinstance(base, DiffusionPolicy):
            raise AlgorithmError(
                "this algorithm improves a generative policy",
                got=base.kind,
                expected="a policy with a process",
                hint="choose policy=diffusion or policy=flow, or algorithm=residual",
            )
        if settings.executed_steps > base.horizon:
            raise AlgorithmError(
                "executed_steps exceeds the policy's chunk",
                got=settings.executed_steps,
                expected=f"at most {base.horizon}",
            )
        self.schedule, self.settings, self._base = schedule, settings, base
        self.learned = copy.deepcopy(base).requires_grad_(True)
        self.average = copy.deepcopy(base).requires_grad_(False)
        self._fast = self.average.varied(steps=settings.learning_steps)
        width = settings.executed_steps * base.action_dimension
        self.critics = CriticEnsemble(
            base.encoder.features + width,
            settings.critic_hidden,
            settings.critic_heads,
            self._generator,
            settings.critic_value,
        )
        self.target_critics = copy.deepcopy(self.critics).requires_grad_(False)
        low, high = settings.value_range or (0.0, 1.0)
        self._low, self._width = float(low), float(high) - float(low)
        self._critic_optimizer = adam((self.critics.parameters(), settings.critic_rate))
        self._actor_optimizer = adam((self.learned.parameters(), settings.actor_rate))
        self.required = SampleSpec(
            tuple(base.encoder.observed),
            batch_size=schedule.batch_size,
            n_step=schedule.n_step,
            discount=schedule.gamma,
            demonstration_share=schedule.demonstration_share,
            observation_steps=base.encoder.observation_steps,
            chunk_fields=("action",),
            chunk_steps=base.horizon,
        )
        observed = self.required.fields
        following = [f"{NEXT}{name}" for name in observed]
        chunk = f"{CHUNK}action", f"{CHUNK}valid"
        self._columns = (*observed, *following, *chunk, "source", "reward", "discount")

    @abstractmethod
    def improve(self, batch: Batch, seen: Seen) -> dict[str, Tensor]:
        """Make an update of the policy, and give its metrics."""

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """Make one update of the critics and, in its turn, of the policy.

        Raises:
            AlgorithmError: The batch lacks a required field.
        """
        check_columns(batch, self._columns)
        check_critic_value(self.settings.critic_value, self.settings.value_range)
        self.updates += 1
        with torch.no_grad():
            following = {name: batch[f"{NEXT}{name}"] for name in self.required.fields}
            seen = Seen(
                self.average.encoder(batch),
                self.tensor(batch[f"{CHUNK}action"])[:, : self.settings.executed_steps],
                self.average.encoder(following),
            )
        metrics = self._update_critics(batch, seen)
        paid = self.updates - self.schedule.critic_only_updates
        if paid > 0 and paid % self.settings.actor_every == 0:
            metrics |= self.improve(batch, seen)
            move_towards(self.average, self.learned, self.settings.average_rate)
        return metrics

    def acting_policy(self) -> Policy:
        """The policy as it learns, each transition of which has a standard deviation to explore."""
        parts = copy.deepcopy(self.learned)
        acting = DiffusionPolicy(
            parts.encoder, parts.process, parts.action_normalizer, self.settings.exploration_std
        )
        return ImprovedPolicy(acting, self._base)

    def policy(self) -> Policy:
        """The averaged policy, as it was cloned to act."""
        return ImprovedPolicy(copy.deepcopy(self.average), self._base)

    def begin_again(self) -> None:
        """See `Correction`."""
        for policy in (self.learned, self.average):
            policy.load_state_dict(self._base.state_dict())
        self._actor_optimizer.state.clear()

    def to(self, device: torch.device, *, compiled: bool = False) -> None:
        """Compute on a device from now on; before the first update or `load_state_dict`."""
        self._fast.to(device)
        super().to(device, compiled=compiled)

    def restart(self, policy: Policy) -> None:
        """Go on from another policy of the same shape; what the critics know is kept.

        Raises:
            AlgorithmError: It is of another shape.
        """
        try:
            for mine in (self.learned, self.average):
                mine.load_state_dict(policy.state_dict())
        except RuntimeError as error:
            raise AlgorithmError(
                "the policy to go on from is another one", got=" ".join(str(error).split())
            ) from error
        self._actor_optimizer.state.clear()

    def drawn(self, features: Tensor) -> Tensor:
        """Chunks (B, H, d) of the averaged policy for encoded observations (B, F), quickly."""
        shape = (len(features), *self._fast.noise_shape)
        return self._fast.chunks(features, standard_normal(shape, features, self._generator))

    def imitation_loss(self, batch: Batch, features: Tensor) -> Tensor | None:
        """The weighted imitation loss of what a demonstrator or operator did; None if it is 0."""
        settings, done = self.settings, self.updates - self.schedule.critic_only_updates
        weight = falling(settings.imitation_weight, settings.imitation_updates, done)
        if weight <= 0:
            return None
        shown = self.tensor(batch["source"] != SOURCE_POLICY)
        return weight * self.cloning_loss(batch, features, shown)

    def cloning_loss(self, batch: Batch, features: Tensor, weight: Tensor) -> Tensor:
        """The imitation loss of the chunks that were executed, each by its weight (B,)."""
        valid = self.tensor(batch[f"{CHUNK}valid"]) * weight[:, None]
        actions = self.learned.action_normalizer.normalize(self.tensor(batch[f"{CHUNK}action"]))
        return self.learned.process.loss(actions, features, valid, self._generator)

    def values(self, critics: CriticEnsemble, features: Tensor, executed: Tensor) -> Tensor:
        """Values (heads, B), as shares of their range, of executed actions (B, E, d)."""
        values: Tensor = critics(torch.cat([features, executed.flatten(1)], -1))
        return values

    def next_chunks(self, features: Tensor) -> Tensor:
        """Chunks (B, H, d) that the policy would do, by which its critics judge what comes."""
        return self.drawn(features)

    def target(self, batch: Batch, seen: Seen) -> Tensor:
        """What the critics shall tell: Q' at s' of what the policy would do there, backed up.

        Q' is the minimum of a random subset of heads (REDQ, Chen et al. 2021, algorithm 1).
        """
        action = self.next_chunks(seen.following)[:, : self.settings.executed_steps]
        joined = torch.cat([seen.following, action.flatten(1)], -1)
        heads = self.target_critics.subset(self.settings.target_heads, self._generator)
        told = self.target_critics.value
        lowest = told.lowest(self.target_critics.outputs(joined, heads))
        return told.backed_up(lowest, self.backup(batch))

    def backup(self, batch: Batch) -> Callable[[Tensor], Tensor]:
        """Map the value at s' to y = Σ_{j<m} γ^j r_j + γ^m V(s'), both as shares of their range."""
        reward, discount = self.tensor(batch["reward"]), self.tensor(batch["discount"])
        limited = self.settings.value_range is not None

        def backed_up(share: Tensor) -> Tensor:
            value = self._low + self._width * (share.clamp(0, 1) if limited else share)
            return (reward + discount * value - self._low) / self._width

        return backed_up

    def _update_critics(self, batch: Batch, seen: Seen) -> dict[str, Tensor]:
        """Regress every head on `target`."""
        with torch.no_grad():
            target = self.target(batch, seen)
        told = self.critics.value
        outputs = self.critics.outputs(torch.cat([seen.features, seen.executed.flatten(1)], -1))
        loss = told.loss(outputs, target).mean(1).sum()
        step(self._critic_optimizer, loss)
        move_towards(self.target_critics, self.critics, self.settings.target_rate)
        mean = self._low + self._width * told.mean(outputs.detach()).mean()
        return {"critic_loss": loss.detach(), "q_mean": mean}

    def _modules(self) -> dict[str, nn.Module]:
        return {
            "learned": self.learned,
            "average": self.average,
            "critics": self.critics,
            "target_critics": self.target_critics,
        }

    def _optimizers(self) -> dict[str, torch.optim.Optimizer]:
        return {"critic": self._critic_optimizer, "actor": self._actor_optimizer}
