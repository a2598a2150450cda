"""Averages of weights, and learning rates: what schedules a training by its number of updates."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Generic, TypeVar

import torch
from torch import nn

Decay = Callable[[int], float]
ModuleType = TypeVar("ModuleType", bound=nn.Module)


def power_decay(power: float = 0.75, maximum: float = 0.9999) -> Decay:
    """Give decay(step) = min(1 - (1 + step)^-power, maximum), as Diffusion Policy uses it."""
    return lambda step: min(1 - (1 + step) ** -power, maximum)


@torch.no_grad()
def move_towards(target: nn.Module, source: nn.Module, rate: float) -> None:
    """Move every parameter of `target` by `rate` towards `source` (Polyak averaging)."""
    pairs = zip(target.parameters(), source.parameters(), strict=True)
    apart = [(mine, other) for mine, other in pairs if mine is not other]
    torch._foreach_lerp_([mine for mine, _ in apart], [other for _, other in apart], rate)


class EMA(Generic[ModuleType]):
    """An averaged copy of a module: average ← decay · average + (1 - decay) · source.

    Buffers are copied, not averaged. Networks with BatchNorm do not survive averaging; there
    is none in this package.

    Attributes:
        model: The averaged copy; its parameters take no gradient. It shares those that the source
            does not train.
        step: Number of updates made.
    """

    def __init__(self, source: ModuleType, decay: Decay) -> None:
        """Copy `source`; `decay` maps the number of updates made so far to the decay."""
        self._source = source
        self._decay = decay
        self.step = 0
        # What is not trained does not move: a frozen backbone of billions is not copied.
        frozen = {id(p): p for p in source.parameters() if not p.requires_grad}
        self.model: ModuleType = copy.deepcopy(source, frozen).requires_grad_(False)

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards the source's present parameters."""
        move_towards(self.model, self._source, 1 - self._decay(self.step))
        for averaged, current in zip(self.model.buffers(), self._source.buffers(), strict=True):
            averaged.copy_(current)
        self.step += 1


def warm_up_cosine(step: int, warm_up: int, updates: int) -> float:
    """Give the factor of the learning rate at an update: linear from 0, then a cosine to 0."""
    if step < warm_up:
        return (step + 1) / warm_up
    progress = (step - warm_up) / max(updates - warm_up, 1)
    return 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
