"""A frozen policy steered by the initial noise of its plans."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from policies.columns import Plan
from policies.diffusion import DiffusionPolicy
from policies.encoders import Array, ObservationBatch, StateEncoder
from policies.errors import PolicyError
from policies.gaussian import GaussianTanh
from policies.networks import seeded
from policies.policy import ChunkPolicy, build, describe

LATENT = "latent"
"""Plan extra: the w from which the chunk was generated."""


class LatentPolicy(ChunkPolicy):
    """Plans another policy's chunk at w = m · tanh(Gaussian(features)).

    DSRL (Wagenmaker et al. 2025, "Steering Your Diffusion Policy with Latent Space Reinforcement
    Learning", arXiv 2506.15799).

    Args:
        policy: A policy with a deterministic process, so that w determines the chunk.
        actor: Maps features to the H · d columns of w.
        limit: Maximum magnitude m of a column of w.
        draws: Whether w is sampled. Otherwise it is the actor's mean.
    """

    kind: ClassVar[str] = "latent"

    def __init__(
        self, policy: DiffusionPolicy, actor: GaussianTanh, limit: float, draws: bool = False
    ) -> None:
        super().__init__()
        if not policy.process.deterministic:
            raise PolicyError("noise steers only a process that is not drawn", got=policy.kind)
        self.steered, self.actor = policy, actor
        self.limit, self.draws = float(limit), bool(draws)
        self.horizon, self.action_dimension = policy.horizon, policy.action_dimension
        self.noise_shape = (actor.action_dimension,)
        self.extras = {LATENT: actor.action_dimension}

    @property
    def encoder(self) -> StateEncoder:  # type: ignore[override]
        """Encoder of the steered policy."""
        return self.steered.encoder

    @cached_property
    def exploring(self) -> LatentPolicy:
        """Return the same networks with w sampled."""
        return LatentPolicy(self.steered, self.actor, self.limit, draws=True)

    @property
    def config(self) -> dict[str, Any]:
        """JSON values from which `from_config` creates a policy of the same shape."""
        return {
            "policy": describe(self.steered),
            "actor": self.actor.config,
            "limit": self.limit,
            "draws": self.draws,
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> LatentPolicy:
        """Create a policy of the configured shape, whose weights are then loaded."""
        policy = build(config["policy"])
        assert isinstance(policy, DiffusionPolicy)
        columns = policy.horizon * policy.action_dimension
        features = policy.encoder.features
        actor = GaussianTanh(features, columns, generator=seeded(0), **config["actor"])
        return cls(policy, actor, config["limit"], config["draws"])

    def plan(self, observation: ObservationBatch, noise: Array | Tensor) -> Plan:
        """Map observations (B, n, ...) and noise (B, H · d) to chunks (B, H, d) and their w."""
        features = self.encoder(observation)
        noise = torch.as_tensor(noise)
        drawn = self.actor.action(features, noise) if self.draws else self.actor.mean(features)
        latent = self.limit * drawn
        return Plan(self.chunks(features, latent), {LATENT: latent})

    def chunks(self, features: Tensor, latent: Tensor) -> Tensor:
        """Return the chunks (B, H, d) of latents w (B, H · d)."""
        return self.steered.chunks(features, latent.view(-1, *self.steered.noise_shape))

    def loss(self, batch: Mapping[str, Any], generator: torch.Generator) -> Tensor:
        """Return the imitation loss of the steered policy."""
        return self.steered.loss(batch, generator)
