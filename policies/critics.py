"""Ensembles of critics: values as shares in [0, 1] of the range that a return can have."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn


class CriticEnsemble(nn.Module):
    """E = `heads` independent MLPs with LayerNorm, Q_e(s, a), of features and action joined."""

    def __init__(
        self, inputs: int, hidden: Sequence[int], heads: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        widths = [int(width) for width in hidden]
        self.heads = heads
        self.config: dict[str, Any] = {"inputs": inputs, "hidden": widths, "heads": heads}
        # Biases begin at 0: nothing looks good yet.
        self.network = Heads([inputs, *widths, 1], heads, generator)

    def forward(self, inputs: Tensor, heads: Tensor | None = None) -> Tensor:
        """Q-values of inputs (B, inputs): (E, B), or (len(heads), B) of the named heads."""
        outputs: Tensor = self.network(inputs, heads)
        return outputs.squeeze(-1)

    def compile(self, *arguments: Any, **options: Any) -> None:
        """Compile the network, which is nearly all of the work."""
        self.network.compile(*arguments, **options)


class Heads(nn.Module):
    """MLPs of the same `widths` side by side, with LayerNorm in their hidden layers."""

    def __init__(self, widths: Sequence[int], heads: int, generator: torch.Generator) -> None:
        super().__init__()
        self.weights = nn.ParameterList()
        self.biases = nn.ParameterList()
        for fan_in, fan_out in pairwise(widths):
            bound = fan_in**-0.5
            weight = torch.empty(heads, fan_in, fan_out)
            self.weights.append(nn.Parameter(weight.uniform_(-bound, bound, generator=generator)))
            self.biases.append(nn.Parameter(torch.zeros(heads, 1, fan_out)))

    def forward(self, inputs: Tensor, heads: Tensor | None = None) -> Tensor:
        """Map inputs (B, widths[0]) to (E, B, widths[-1]), or to those of the named heads."""
        weights, biases = list(self.weights), list(self.biases)
        if heads is not None:
            weights, biases = [w[heads] for w in weights], [b[heads] for b in biases]
        values = inputs.expand(len(weights[0]), -1, -1)
        for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
            # Not baddbmm: with a broadcast bias it takes half as long again.
            values = torch.bmm(values, weight).add_(bias)
            # Without scale and shift: the next matrix can learn them, and an update is 20 % faster.
            values = torch.relu_(nn.functional.layer_norm(values, values.shape[-1:]))
        return torch.bmm(values, weights[-1]).add_(biases[-1])


def prefers(values: Tensor, others: Tensor) -> Tensor:
    """Whether critics prefer an action to another, bool (B,), by their means.

    Both have Q-values (E, B) at the same states.
    """
    return (values - others).mean(0) > 0
