"""What every denoiser is: a network from a noisy chunk, its time and the observation to a chunk."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from policies import registry


class Denoiser(nn.Module, ABC):
    """Predicts a chunk: the noise, the clean chunk or a velocity, as the process wants it.

    The process owns the time grid, so it embeds the time (`sinusoidal_embedding`); the denoiser
    says how wide that embedding is.

    Args:
        features: Width of the encoded observation.
        horizon: Number of actions H in a chunk.
        action_dimension: Number of action columns d.
        embedding: Even width E of the embedded time.
    """

    def __init__(self, features: int, horizon: int, action_dimension: int, embedding: int) -> None:
        """Remember the shapes; see the class for the arguments."""
        super().__init__()
        self.features = int(features)
        self.horizon = int(horizon)
        self.action_dimension = int(action_dimension)
        self.embedding = int(embedding)

    @property
    @abstractmethod
    def options(self) -> dict[str, Any]:
        """JSON values of the arguments that the denoiser has of its own."""

    @property
    def config(self) -> dict[str, Any]:
        """JSON values from which `registry.build` makes a denoiser of the same shape."""
        return {registry.CLASS: registry.name_of(type(self)), **self.options}

    @abstractmethod
    def forward(self, noisy: Tensor, time: Tensor, features: Tensor) -> Tensor:
        """Predict from a noisy chunk.

        Args:
            noisy: (B, H, d).
            time: (B, E) or (1, E) embedded time.
            features: (B, features).

        Returns:
            (B, H, d).
        """


def sinusoidal_embedding(positions: Tensor, width: int) -> Tensor:
    """Embed (n,) positions as (n, width) sines and cosines (Vaswani et al. 2017, section 3.5)."""
    index = torch.arange(width // 2, device=positions.device)
    frequencies = torch.exp(index * (-math.log(10_000) / max(width // 2 - 1, 1)))
    angles = positions[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], -1)
