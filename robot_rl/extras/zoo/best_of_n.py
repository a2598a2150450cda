"""`best_of_n`: the cloned policy is fixed, and critics choose among the chunks it samples.

IDQL (Hansen-Estruch et al. 2023, "IDQL: Implicit Q-Learning as an Actor-Critic Method with
Diffusion Policies", arXiv 2304.10573): IQL critics, and the best of N actions of a cloned diffusion
policy. Unlike IDQL, we also take the best one during learning, since the process itself samples.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from policies.columns import Plan
from policies.critics import CriticEnsemble
from policies.diffusion import DiffusionPolicy
from policies.encoders import Array, ObservationBatch, StateEncoder
from policies.improved import FallbackPolicy
from policies.networks import seeded
from policies.policy import ChunkPolicy, Policy, build, describe
from robot_rl.extras.zoo.implicit_q import ImplicitQ, ImplicitSettings
from robot_rl.learning.algorithms.base import Batch, check_settings


class BestOfN(ChunkPolicy):
    """Samples `candidates` chunks at once and takes the one with the highest mean value.

    Args:
        policy: The policy to sample. With a deterministic process, only its initial noise varies.
        critics: Map features and the first actions of a chunk to values.
        candidates: Number N of chunks.
    """

    kind: ClassVar[str] = "best_of_n"

    def __init__(self, policy: DiffusionPolicy, critics: CriticEnsemble, candidates: int) -> None:
        super().__init__()
        self.sampled, self.critics, self.candidates = policy, critics, int(candidates)
        self.horizon, self.action_dimension = policy.horizon, policy.action_dimension
        self.noise_shape = (self.candidates, *policy.noise_shape)
        judged = int(critics.config["inputs"]) - policy.encoder.features
        self._judged = judged // policy.action_dimension

    @property
    def encoder(self) -> StateEncoder:  # type: ignore[override]
        """The encoder of the sampled policy."""
        return self.sampled.encoder

    @property
    def config(self) -> dict[str, Any]:
        """JSON values from which `from_config` creates a policy of the same shape."""
        return {
            "policy": describe(self.sampled),
            "critics": self.critics.config,
            "candidates": self.candidates,
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> BestOfN:
        """Create a policy of the configured shape, whose weights are then loaded."""
        policy = build(config["policy"])
        assert isinstance(policy, DiffusionPolicy)
        critics = CriticEnsemble(**config["critics"], generator=seeded(0))
        return cls(policy, critics, config["candidates"])

    def plan(self, observation: ObservationBatch, noise: Array | Tensor) -> Plan:
        """Map observations (B, n, ...) and noise (B, N, ...) to the best chunks (B, H, d)."""
        features = self.encoder(observation).repeat_interleave(self.candidates, 0)
        drawn = torch.as_tensor(noise).flatten(0, 1).to(features.device)
        chunks = self.sampled.chunks(features, drawn)
        judged = torch.cat([features, chunks[:, : self._judged].flatten(1)], -1)
        values = self.critics(judged).mean(0).unflatten(0, (-1, self.candidates))
        rows = torch.arange(len(values), device=values.device)
        return Plan(chunks.unflatten(0, (-1, self.candidates))[rows, values.argmax(1)])

    def loss(self, batch: Mapping[str, Any], generator: torch.Generator) -> Tensor:
        """Return the imitation loss of the sampled policy."""
        return self.sampled.loss(batch, generator)


@dataclass(frozen=True)
class SamplingSettings(ImplicitSettings):
    """Settings of the choice among candidates."""

    candidates: int  # number N of sampled chunks

    def __post_init__(self) -> None:
        super().__post_init__()
        check_settings(self, candidates=1)


class BestOfNCritics(ImplicitQ):
    """Trains the critics that choose. The policy remains the clone."""

    settings: SamplingSettings

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """Update only the critics, not the policy."""
        return self.update_critics(self.begin_update(batch))

    def acting_policy(self) -> Policy:
        """Return the deployed policy, which also explores."""
        return self.policy()

    def policy(self) -> Policy:
        """Return the best-of-N policy. Its process explores, or chunks would be nearly equal."""
        parts = copy.deepcopy(self.average)
        sampled = parts.under(parts.process.exploring(self.settings.exploration_std))
        critics = copy.deepcopy(self.critics.target)
        return FallbackPolicy(BestOfN(sampled, critics, self.settings.candidates), self._base)
