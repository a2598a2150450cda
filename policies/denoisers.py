"""Networks that predict the noise or the clean chunk from a noisy one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from policies.networks import mlp


class MLPDenoiser(nn.Module):
    """MLP over (noisy chunk, sinusoidal step embedding, encoded observation).

    Args:
        features: Width of the encoded observation.
        horizon: Number of actions H in a chunk.
        action_dimension: Number of action columns d.
        train_steps: Number of diffusion steps T that the embedding covers.
        hidden: Widths of the hidden layers.
        embedding: Even width of the step embedding.
        activation: Name of the hidden activation.
        generator: Source of the initial weights.
    """

    _embeddings: Tensor

    def __init__(
        self,
        features: int,
        horizon: int,
        action_dimension: int,
        train_steps: int,
        *,
        generator: torch.Generator,
        hidden: Sequence[int] = (256, 256, 256),
        embedding: int = 32,
        activation: str = "silu",
    ) -> None:
        """Make the network; see the class for the arguments."""
        super().__init__()
        self.features = int(features)
        self.horizon = int(horizon)
        self.action_dimension = int(action_dimension)
        self.train_steps = int(train_steps)
        self.config: dict[str, Any] = {
            "hidden": [int(width) for width in hidden],
            "embedding": int(embedding),
            "activation": activation,
        }
        chunk = self.horizon * self.action_dimension
        self.network = mlp(
            chunk + embedding + self.features, hidden, chunk, generator, activation=activation
        )
        # A table instead of sines at every call; it is no weight, so it is not saved.
        table = sinusoidal_embedding(torch.arange(self.train_steps), embedding)
        self.register_buffer("_embeddings", table, persistent=False)

    def forward(self, noisy: Tensor, timestep: Tensor, features: Tensor) -> Tensor:
        """Predict from a noisy chunk.

        Args:
            noisy: (B, H, d).
            timestep: (B,) or (1,) int64 diffusion steps in [0, T).
            features: (B, features).

        Returns:
            (B, H, d).
        """
        embedded = self._embeddings[timestep].expand(len(noisy), -1)
        output: Tensor = self.network(torch.cat([noisy.flatten(1), embedded, features], -1))
        return output.view(noisy.shape)


def sinusoidal_embedding(positions: Tensor, width: int) -> Tensor:
    """Embed (n,) positions as (n, width) sines and cosines (Vaswani et al. 2017, section 3.5)."""
    frequencies = torch.exp(torch.arange(width // 2) * (-math.log(10_000) / max(width // 2 - 1, 1)))
    angles = positions[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], -1)
