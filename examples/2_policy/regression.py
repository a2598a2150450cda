"""A policy of one's own: one network from the observation to a chunk, fitted by least squares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from policies import registry
from policies.columns import Plan
from policies.encoders import Array, Normalizer, ObservationBatch, StateEncoder
from policies.networks import mlp, seeded
from policies.policy import ChunkPolicy


class RegressionPolicy(ChunkPolicy):
    """Predicts the mean of what was demonstrated.

    Args:
        encoder: Of the observations.
        horizon: Number of actions H of a chunk.
        action_dimension: Number of action columns d.
        hidden: Widths of the hidden layers.
        generator: Source of the initial weights.
    """

    kind = "regression"  # in records and reports
    noise_shape = (0,)  # of N(0, 1) noise, of which it needs none

    def __init__(
        self,
        encoder: StateEncoder,
        horizon: int,
        action_dimension: int,
        hidden: Sequence[int],
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.horizon = horizon
        self.action_dimension = action_dimension
        self.hidden = list(hidden)
        self.network = mlp(encoder.features, hidden, horizon * action_dimension, generator)

    @property
    def config(self) -> dict[str, Any]:
        """What a checkpoint keeps beside the weights: JSON."""
        return {
            "encoder": self.encoder.config,
            "horizon": self.horizon,
            "action_dimension": self.action_dimension,
            "hidden": self.hidden,
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> RegressionPolicy:
        """Make it again; its weights are loaded then."""
        encoder = StateEncoder.from_config(config["encoder"])
        sizes = int(config["horizon"]), int(config["action_dimension"])
        return cls(encoder, *sizes, config["hidden"], seeded(0))

    def plan(self, observation: ObservationBatch, noise: Array | Tensor) -> Plan:
        """Map observations (B, n, ...) to chunks (B, H, d) in [-1, 1]."""
        return Plan(self._chunks(observation))

    def loss(self, batch: Mapping[str, Any], generator: torch.Generator) -> Tensor:
        """The squared error of the actions that count, "valid" (B, H)."""
        planned = self._chunks(batch)
        error = (planned - torch.as_tensor(batch["action"]).to(planned)).square().mean(-1)
        valid = torch.as_tensor(batch["valid"]).to(error)
        return (error * valid).sum() / valid.sum().clamp(min=1)

    def _chunks(self, observation: ObservationBatch) -> Tensor:
        chunk = torch.tanh(self.network(self.encoder(observation)))
        return chunk.reshape(-1, self.horizon, self.action_dimension)


@registry.factory
def create(
    arrays: Mapping[str, npt.NDArray[Any]],
    keys: Mapping[str, int],
    *,
    generator: torch.Generator,
    identity: Sequence[str],
    observation_steps: int,
    horizon: int,
    hidden: Sequence[int],
) -> RegressionPolicy:
    """Make an untrained one: the `_target_` of its configuration.

    Args:
        arrays: Recorded columns, each (n, ...): the `keys` and "action" (n, d).
        keys: Name → width of what it sees.
        generator: Source of the initial weights.
        identity: Keys that are not normalised.
        observation_steps: Number of consecutive observations that it sees.
        horizon: Number of actions H of a chunk.
        hidden: Widths of the hidden layers.
    """
    normalizer = Normalizer(keys, identity=identity)
    encoder = StateEncoder(keys, normalizer, observation_steps=observation_steps).fit(arrays)
    return RegressionPolicy(encoder, horizon, arrays["action"].shape[-1], hidden, generator)
