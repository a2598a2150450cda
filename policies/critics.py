"""An ensemble of Q-functions as batched matrices: one multiplication a layer for all heads."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn


class CriticEnsemble(nn.Module):
    """E independent MLPs with LayerNorm, Q_e(s, a) for e = 1…E.

    Args:
        inputs: Width of the concatenated features and action.
        hidden: Widths of the hidden layers.
        heads: Number of critics E.
        generator: Source of the initial weights.
    """

    def __init__(
        self, inputs: int, hidden: Sequence[int], heads: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        widths = [inputs, *hidden, 1]
        self.heads = heads
        self.config: dict[str, Any] = {
            "inputs": inputs,
            "hidden": [int(w) for w in hidden],
            "heads": heads,
        }
        self.weights = nn.ParameterList()
        self.biases = nn.ParameterList()
        for fan_in, fan_out in pairwise(widths):
            bound = fan_in**-0.5
            weight = torch.empty(heads, fan_in, fan_out)
            self.weights.append(nn.Parameter(weight.uniform_(-bound, bound, generator=generator)))
            self.biases.append(nn.Parameter(torch.zeros(heads, 1, fan_out)))

    def forward(self, features: Tensor, heads: Tensor | None = None) -> Tensor:
        """Q-values of inputs (B, inputs): (E, B), or (len(heads), B) of the named heads."""
        weights, biases = list(self.weights), list(self.biases)
        if heads is not None:
            weights, biases = [w[heads] for w in weights], [b[heads] for b in biases]
        values = features.expand(len(weights[0]), -1, -1)
        for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
            # Not baddbmm: with a broadcast bias it takes half as long again.
            values = torch.bmm(values, weight).add_(bias)
            # Without scale and shift: the next matrix can learn them, and an update is 20 % faster.
            values = torch.relu_(nn.functional.layer_norm(values, values.shape[-1:]))
        return torch.bmm(values, weights[-1]).add_(biases[-1]).squeeze(-1)

    def subset(self, count: int, generator: torch.Generator) -> Tensor | None:
        """Draw `count` heads (REDQ, Chen et al. 2021, algorithm 1); None where that is all."""
        chosen = torch.randperm(self.heads, generator=generator)[:count]
        return None if count == self.heads else chosen


def prefers(values: Tensor, others: Tensor) -> Tensor:
    """Whether the heads hold an action for better than another one in their mean, bool (B,).

    Args:
        values: Q-values (E, B) of the action.
        others: Q-values (E, B) of the other one at the same states.
    """
    return (values - others).mean(0) > 0
