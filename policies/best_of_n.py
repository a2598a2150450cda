"""The best of N chunks of a policy, as critics see them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from policies.critics import CriticEnsemble
from policies.diffusion import DiffusionPolicy
from policies.encoders import ObservationBatch, StateEncoder
from policies.networks import seeded
from policies.policy import ChunkPolicy, build, describe


class BestOfN(ChunkPolicy):
    """Samples `candidates` chunks at once, and takes that with the greatest mean value.

    IDQL (Hansen-Estruch et al. 2023, arXiv 2304.10573), which takes the best one where it is
    evaluated.

    Args:
        policy: What is sampled from: of a process that is drawn, or it varies by its start alone.
        critics: From features and the first actions of a chunk to values.
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
        """That of what is sampled from."""
        return self.sampled.encoder

    @property
    def config(self) -> dict[str, Any]:
        """JSON values from which `from_config` makes a policy of the same shape."""
        return {
            "policy": describe(self.sampled),
            "critics": self.critics.config,
            "candidates": self.candidates,
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> BestOfN:
        """Make a policy of the configured shape; its weights are then loaded."""
        policy = build(config["policy"])
        assert isinstance(policy, DiffusionPolicy)
        critics = CriticEnsemble(**config["critics"], generator=seeded(0))
        return cls(policy, critics, config["candidates"])

    def plan(self, observation: ObservationBatch, noise: Tensor) -> Tensor:
        """Map observations (B, n, ...) and noise (B, N, ...) to the best chunks (B, H, d)."""
        features = self.encoder(observation).repeat_interleave(self.candidates, 0)
        chunks = self.sampled.chunks(features, noise.flatten(0, 1).to(features.device))
        judged = torch.cat([features, chunks[:, : self._judged].flatten(1)], -1)
        values = self.critics(judged).mean(0).unflatten(0, (-1, self.candidates))
        rows = torch.arange(len(values), device=values.device)
        best: Tensor = chunks.unflatten(0, (-1, self.candidates))[rows, values.argmax(1)]
        return best

    def loss(self, batch: Mapping[str, Any], generator: torch.Generator) -> Tensor:
        """The imitation loss of what is sampled from."""
        return self.sampled.loss(batch, generator)
