"""Layers with weights drawn from a given generator, never from the global one."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

Layer = TypeVar("Layer", nn.Linear, nn.Conv1d, nn.Conv2d, nn.ConvTranspose1d)


def linear(inputs: int, outputs: int, generator: torch.Generator) -> nn.Linear:
    """Make a linear layer with PyTorch's default distribution, drawn from `generator`."""
    return drawn(nn.Linear(inputs, outputs, device="meta"), inputs**-0.5, generator)


def convolution(
    inputs: int, outputs: int, kernel: int, generator: torch.Generator, *, stride: int = 1
) -> nn.Conv1d:
    """Make a convolution (B, inputs, L) → (B, outputs, L / stride), drawn as in `linear`.

    The kernel width is odd; the ends are zero-padded.
    """
    layer = nn.Conv1d(inputs, outputs, kernel, stride, kernel // 2, device="meta")
    return drawn(layer, (inputs * kernel) ** -0.5, generator)


def transposed_convolution(
    inputs: int, outputs: int, generator: torch.Generator
) -> nn.ConvTranspose1d:
    """Make a convolution (B, inputs, L) → (B, outputs, 2 L), drawn as in `linear`."""
    layer = nn.ConvTranspose1d(inputs, outputs, 4, 2, 1, device="meta")
    # PyTorch's default bound counts outputs here, because the weight is transposed.
    return drawn(layer, (outputs * 4) ** -0.5, generator)


def mlp(
    inputs: int,
    hidden: Sequence[int],
    outputs: int,
    generator: torch.Generator,
    *,
    activation: type[nn.Module] = nn.ReLU,
    layer_norm: bool = False,
    zero_last_layer: bool = False,
) -> nn.Sequential:
    """Make an MLP (B, inputs) → (B, outputs) with a linear last layer.

    Args:
        inputs: Width of the input.
        hidden: Widths of the hidden layers.
        outputs: Width of the output.
        generator: Draws the initial weights.
        activation: Activation of the hidden layers.
        layer_norm: LayerNorm between each hidden linear layer and its activation.
        zero_last_layer: Start with an output of exactly zero for every input.
    """
    layers: list[nn.Module] = []
    for width in hidden:
        layers.append(linear(inputs, width, generator))
        if layer_norm:
            layers.append(nn.LayerNorm(width))
        layers.append(activation())
        inputs = width
    last = linear(inputs, outputs, generator)
    if zero_last_layer:
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
    return nn.Sequential(*layers, last)


def drawn(layer: Layer, bound: float, generator: torch.Generator) -> Layer:
    """Draw the weights of a meta-device layer uniformly from ±bound.

    On another device its constructor would draw from the global generator.
    """
    layer = layer.to_empty(device="cpu")
    with torch.no_grad():
        layer.weight.uniform_(-bound, bound, generator=generator)
        if layer.bias is not None:
            layer.bias.uniform_(-bound, bound, generator=generator)
    return layer


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Move a tensor to a device; pin its memory for a GPU, so that the CPU does not wait."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def seeded(seed: int) -> torch.Generator:
    """Make a CPU generator with a seed."""
    return torch.Generator().manual_seed(seed)


def standard_normal(shape: Sequence[int], like: Tensor, generator: torch.Generator) -> Tensor:
    """Draw N(0, 1) of `shape` with the dtype and device of `like`.

    Draws on the generator's device, so a seed gives the same noise on every device.
    """
    noise = torch.randn(shape, dtype=like.dtype, generator=generator, device=generator.device)
    return to_device(noise, like.device)


ModuleType = TypeVar("ModuleType", bound=nn.Module)


def power_decay(step: int) -> float:
    """Return the EMA decay at an update, as in Diffusion Policy."""
    return float(min(1 - (1 + step) ** -0.75, 0.9999))


@torch.no_grad()
def move_towards(target: nn.Module, source: nn.Module, rate: float) -> None:
    """Move every parameter of `target` by `rate` towards `source` (Polyak averaging)."""
    pairs = zip(target.parameters(), source.parameters(), strict=True)
    apart = [(mine, other) for mine, other in pairs if mine is not other]
    torch._foreach_lerp_([mine for mine, _ in apart], [other for _, other in apart], rate)


class EMA(Generic[ModuleType]):
    """An averaged copy of a module: average ← decay · average + (1 - decay) · source.

    The decay is `power_decay` of `step`, the number of updates so far. Buffers are copied, not
    averaged. Averaging breaks networks with BatchNorm; this package has none. `model` is the copy.
    Its parameters take no gradient, and it shares the source's frozen parameters.
    """

    def __init__(self, source: ModuleType) -> None:
        self._source = source
        self.step = 0
        # Frozen parameters don't change, so a backbone with billions of them is not copied.
        frozen = {id(p): p for p in source.parameters() if not p.requires_grad}
        self.model: ModuleType = copy.deepcopy(source, frozen).requires_grad_(False)

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards the source's current parameters."""
        move_towards(self.model, self._source, 1 - power_decay(self.step))
        for averaged, current in zip(self.model.buffers(), self._source.buffers(), strict=True):
            averaged.copy_(current)
        self.step += 1


def warm_up_cosine(step: int, warm_up: int, updates: int) -> float:
    """Return the learning-rate factor at an update: linear from 0, then a cosine to 0."""
    if step < warm_up:
        return (step + 1) / warm_up
    progress = (step - warm_up) / max(updates - warm_up, 1)
    return 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
