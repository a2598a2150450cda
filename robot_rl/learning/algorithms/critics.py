"""An ensemble of Q-functions as batched matrices: one multiplication a layer for all heads."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

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

    def minimum_of_subset(self, features: Tensor, count: int, generator: torch.Generator) -> Tensor:
        """Minimum over a random subset of heads, (B,) (REDQ, Chen et al. 2021, algorithm 1).

        Args:
            features: Inputs (B, inputs).
            count: Size of the subset.
            generator: Source of the choice.
        """
        chosen = torch.randperm(self.heads, generator=generator)[:count]
        values: Tensor = self(features, None if count == self.heads else chosen)
        return values.amin(0)


def td_loss(values: Tensor, targets: Tensor) -> Tensor:
    """Squared soft Bellman residual (SAC, Haarnoja et al. 2018, arXiv 1812.05905, eq. 5).

    Summed over heads, so that each has its own step size.

    Args:
        values: Q-values (E, B).
        targets: y (B,), without gradient.
    """
    return (values - targets).square().mean(1).sum()


def choice_loss(values: Tensor, targets: Tensor, chosen: Tensor) -> Tensor:
    """Squared error of the choices that were made (double DQN, van Hasselt et al. 2016).

    Args:
        values: Q-values (B, n) of n choices.
        targets: y (B,), without gradient.
        chosen: Mask (B, n); several choices of a row may amount to the same.
    """
    return ((values - targets[:, None]).square() * chosen).sum(1).mean()


def actor_loss(values: Tensor, log_prob: Tensor, temperature: Tensor) -> Tensor:
    """SAC's actor objective (eq. 7) with the mean of all heads (RLPD, Ball et al. 2023).

    Args:
        values: Q-values (E, B) of the actor's action.
        log_prob: Log-density (B,) of that action.
        temperature: Scalar α, without gradient.
    """
    return (temperature * log_prob - values.mean(0)).mean()


def temperature_loss(log_temperature: Tensor, log_prob: Tensor, target_entropy: float) -> Tensor:
    """SAC's dual step (Haarnoja et al. 2018, eq. 18) in the logarithm of the temperature."""
    return -(log_temperature * (log_prob.detach() + target_entropy).mean())


def imitation_loss(actions: Tensor, demonstrated: Tensor, is_demonstration: Tensor) -> Tensor:
    """Mean squared distance to the demonstrated actions (Nair et al. 2018, arXiv 1709.10089).

    Over demonstration rows only.

    Args:
        actions: The actor's actions (B, d).
        demonstrated: The stored actions (B, d).
        is_demonstration: Mask (B,).
    """
    errors = (actions - demonstrated).square().sum(-1)
    return (errors * is_demonstration).sum() / is_demonstration.sum().clamp(min=1)
