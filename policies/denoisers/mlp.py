"""A multi-layer perceptron over the whole chunk: the quickest denoiser for short chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from policies.denoisers.base import Denoiser
from policies.networks import mlp


class MLPDenoiser(Denoiser):
    """MLP over (noisy chunk, embedded time, encoded observation).

    Args:
        features: See `Denoiser`.
        horizon: See `Denoiser`.
        action_dimension: See `Denoiser`.
        hidden: Widths of the hidden layers.
        embedding: See `Denoiser`.
        activation: Name of the hidden activation.
        generator: Source of the initial weights.
    """

    def __init__(
        self,
        features: int,
        horizon: int,
        action_dimension: int,
        *,
        generator: torch.Generator,
        hidden: Sequence[int] = (256, 256, 256),
        embedding: int = 32,
        activation: str = "silu",
    ) -> None:
        """Make the network; see the class for the arguments."""
        super().__init__(features, horizon, action_dimension, embedding)
        self.hidden = [int(width) for width in hidden]
        self.activation = activation
        chunk = self.horizon * self.action_dimension
        self.network = mlp(
            chunk + self.embedding + self.features, hidden, chunk, generator, activation=activation
        )

    @property
    def options(self) -> dict[str, Any]:
        """JSON values of the options."""
        return {
            "hidden": self.hidden,
            "embedding": self.embedding,
            "activation": self.activation,
        }

    def forward(self, noisy: Tensor, time: Tensor, features: Tensor) -> Tensor:
        """Predict (B, H, d); see `Denoiser`."""
        embedded = time.expand(len(noisy), -1)
        output: Tensor = self.network(torch.cat([noisy.flatten(1), embedded, features], -1))
        return output.view(noisy.shape)
