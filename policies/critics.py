"""Ensembles of critics, and what one of them tells of a return: a number or a distribution.

Values are shares in [0, 1] of the range that a return can have, so that the support of every
distribution is known.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

BINS = 51  # of a distribution, as in C51


class Value(nn.Module, ABC):
    """What the outputs (..., outputs) of a critic mean, and how they learn.

    Attributes:
        outputs: Number of outputs of a critic.
    """

    outputs: int

    @abstractmethod
    def mean(self, outputs: Tensor) -> Tensor:
        """The values (...) that outputs (..., outputs) tell."""

    @abstractmethod
    def encoded(self, value: Tensor) -> Tensor:
        """Known values (...) as `loss` takes them."""

    @abstractmethod
    def loss(self, outputs: Tensor, target: Tensor) -> Tensor:
        """The loss (...) of outputs (..., outputs), with a target from `encoded` or `backed_up`."""

    def start(self) -> Tensor:
        """What outputs (outputs,) begin near: a value of 0, where nothing looks good yet."""
        return torch.zeros(self.outputs)

    def lowest(self, outputs: Tensor) -> Tensor:
        """Of outputs (E, B, outputs) of E critics those (B, outputs) that tell the least value."""
        chosen = self.mean(outputs).argmin(0)
        return outputs[chosen, torch.arange(len(chosen), device=chosen.device)]

    def backed_up(self, outputs: Tensor, backup: Callable[[Tensor], Tensor]) -> Tensor:
        """The target of outputs (B, outputs) of the next state.

        `backup` maps values (B,), or (1, B) for each of several (Z, B), to those one step before.
        """
        return self.encoded(backup(self.mean(outputs)))


class Scalar(Value):
    """A number, learned by its squared error."""

    outputs = 1

    def mean(self, outputs: Tensor) -> Tensor:
        """The output itself."""
        return outputs.squeeze(-1)

    def encoded(self, value: Tensor) -> Tensor:
        """The value itself."""
        return value

    def loss(self, outputs: Tensor, target: Tensor) -> Tensor:
        """The squared error."""
        return (outputs.squeeze(-1) - target).square()

    def lowest(self, outputs: Tensor) -> Tensor:
        """The least output."""
        return outputs.amin(0)


class Categorical(Value):
    """Probabilities of the values `support` (Z,), learned by their cross-entropy."""

    support: Tensor

    def __init__(self, support: Tensor) -> None:
        super().__init__()
        self.outputs = len(support)
        self.register_buffer("support", support, persistent=False)

    def start(self) -> Tensor:
        """Nearly all at 0."""
        return (self.encoded(torch.zeros(())) + 1e-3).log()

    def mean(self, outputs: Tensor) -> Tensor:
        """The mean of the distribution."""
        return outputs.softmax(-1) @ self.support

    def loss(self, outputs: Tensor, target: Tensor) -> Tensor:
        """The cross-entropy with target probabilities (..., Z)."""
        return -(target * outputs.log_softmax(-1)).sum(-1)


class HLGauss(Categorical):
    """Cross-entropy with a Gaussian around the target: HL-Gauss.

    Farebrother et al. 2024, "Stop Regressing: Training Value Functions via Classification for
    Scalable Deep RL", arXiv 2403.03950, with their σ of 0.75 bins. Ours: bins go on for 3 σ
    beyond [0, 1], for a Gaussian that is cut off at a bound has another mean than its target.
    """

    _SIGMA = 0.75  # in widths of a bin
    edges: Tensor

    def __init__(self, bins: int = BINS) -> None:
        width = 1 / (bins - 6 * self._SIGMA)
        beyond = 3 * self._SIGMA * width
        edges = torch.linspace(-beyond, 1 + beyond, bins + 1)
        super().__init__((edges[:-1] + edges[1:]) / 2)
        self.register_buffer("edges", edges, persistent=False)
        self._scale = self._SIGMA * width * math.sqrt(2)

    def encoded(self, value: Tensor) -> Tensor:
        """The share of N(value, σ²) in each bin, of what is in all of them."""
        value = value.clamp(0, 1)[..., None]
        below = torch.erf((self.edges - value) / self._scale)
        return below.diff(dim=-1) / (below[..., -1:] - below[..., :1])


class C51(Categorical):
    """The distribution of returns on fixed atoms: C51.

    Bellemare et al. 2017, "A Distributional Perspective on Reinforcement Learning", arXiv
    1707.06887, algorithm 1.
    """

    def __init__(self, atoms: int = BINS) -> None:
        super().__init__(torch.linspace(0, 1, atoms))

    def encoded(self, value: Tensor) -> Tensor:
        """Each value as a share of the two atoms beside it, beyond the ends of the last one."""
        place = value.clamp(0, 1)[..., None] * (self.outputs - 1)
        atoms = torch.arange(self.outputs, device=value.device)
        return (1 - (place - atoms).abs()).clamp(min=0)

    def backed_up(self, outputs: Tensor, backup: Callable[[Tensor], Tensor]) -> Tensor:
        """Φ T z: each atom backed up, and its probability projected on the atoms (eq. 7)."""
        atoms = self.encoded(backup(self.support[:, None]))  # (Z, B, Z)
        return torch.einsum("bz,zba->ba", outputs.softmax(-1), atoms)


VALUES: dict[str, Callable[[], Value]] = {"scalar": Scalar, "hl_gauss": HLGauss, "c51": C51}


class CriticEnsemble(nn.Module):
    """E = `heads` independent MLPs with LayerNorm, Q_e(s, a), of features and action joined.

    `value` is one of `VALUES`: what each of them tells.
    """

    def __init__(
        self,
        inputs: int,
        hidden: Sequence[int],
        heads: int,
        generator: torch.Generator,
        value: str = "scalar",
    ) -> None:
        super().__init__()
        self.value = VALUES[value]()
        self.heads = heads
        self.config: dict[str, Any] = {
            "inputs": inputs,
            "hidden": [int(w) for w in hidden],
            "heads": heads,
            "value": value,
        }
        self.network = Heads([inputs, *hidden, self.value.outputs], heads, generator)
        with torch.no_grad():
            self.network.biases[-1].copy_(self.value.start().expand(heads, 1, -1))

    def forward(self, features: Tensor, heads: Tensor | None = None) -> Tensor:
        """Q-values of inputs (B, inputs): (E, B), or (len(heads), B) of the named heads."""
        return self.value.mean(self.network(features, heads))

    def outputs(self, features: Tensor, heads: Tensor | None = None) -> Tensor:
        """What `value` tells the Q-values from: (E, B, outputs)."""
        outputs: Tensor = self.network(features, heads)
        return outputs

    def compile(self, *arguments: Any, **options: Any) -> None:
        """Compile the network, which is nearly all of the work."""
        self.network.compile(*arguments, **options)

    def subset(self, count: int, generator: torch.Generator) -> Tensor | None:
        """Draw `count` heads (REDQ, Chen et al. 2021, algorithm 1); None where that is all."""
        chosen = torch.randperm(self.heads, generator=generator)[:count]
        return None if count == self.heads else chosen


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

    def forward(self, features: Tensor, heads: Tensor | None = None) -> Tensor:
        """Map inputs (B, widths[0]) to (E, B, widths[-1]), or to those of the named heads."""
        weights, biases = list(self.weights), list(self.biases)
        if heads is not None:
            weights, biases = [w[heads] for w in weights], [b[heads] for b in biases]
        values = features.expand(len(weights[0]), -1, -1)
        for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
            # Not baddbmm: with a broadcast bias it takes half as long again.
            values = torch.bmm(values, weight).add_(bias)
            # Without scale and shift: the next matrix can learn them, and an update is 20 % faster.
            values = torch.relu_(nn.functional.layer_norm(values, values.shape[-1:]))
        return torch.bmm(values, weights[-1]).add_(biases[-1])


def prefers(values: Tensor, others: Tensor) -> Tensor:
    """Whether critics hold an action for better than another, bool (B,), by their means.

    Both have Q-values (E, B) at the same states.
    """
    return (values - others).mean(0) > 0
