"""Convolutional networks from an image to a vector, for `policies.vision`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from policies.errors import PolicyError
from policies.networks import drawn


class Backbone(nn.Module):
    """Maps images (B, 3, H, W) with values in [-1, 1] to (B, features).

    Attributes:
        features: Width of the output.
    """

    features: int


class SpatialSoftmax(nn.Module):
    """Expected pixel coordinates of each of C channels under a softmax over the pixels.

    Levine et al. 2016, "End-to-End Training of Deep Visuomotor Policies", section 5.1; the
    temperature is learned.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.features = 2 * channels
        self.log_temperature = nn.Parameter(torch.zeros(()))

    def forward(self, maps: Tensor) -> Tensor:
        """Map (B, C, h, w) to (B, 2C): x then y of each channel, in [-1, 1]."""
        height, width = maps.shape[-2:]
        weights = (maps.flatten(2) / self.log_temperature.exp()).softmax(-1)
        weights = weights.view(maps.shape)
        columns = torch.linspace(-1, 1, width, device=maps.device, dtype=maps.dtype)
        rows = torch.linspace(-1, 1, height, device=maps.device, dtype=maps.dtype)
        x = (weights.sum(2) * columns).sum(-1)
        y = (weights.sum(3) * rows).sum(-1)
        return torch.cat([x, y], -1)


class SmallConvolutional(Backbone):
    """Convolutions with the given output channels, then a spatial softmax.

    The first two halve the resolution. The initial weights come from `generator`.
    """

    def __init__(self, channels: Sequence[int], *, generator: torch.Generator) -> None:
        super().__init__()
        if len(channels) < 2:
            raise PolicyError(
                "the small convolutional backbone needs two layers or more",
                got=f"channels {list(channels)}",
                expected="two widths or more",
            )
        layers: list[nn.Module] = []
        inputs = 3
        for index, width in enumerate(channels):
            size, stride = (5, 2) if index == 0 else (3, 2) if index == 1 else (3, 1)
            layers.append(convolution(inputs, width, size, stride, generator))
            layers.append(nn.GroupNorm(max(1, width // 8), width))
            layers.append(nn.ReLU())
            inputs = width
        pool = SpatialSoftmax(inputs)
        self.layers = nn.Sequential(*layers[:-1], pool)
        self.features = pool.features

    def forward(self, images: Tensor) -> Tensor:
        """Map (B, 3, H, W) to (B, features)."""
        features: Tensor = self.layers(images)
        return features


class _ResidualBlock(nn.Module):
    """Two 3×3 convolutions with a shortcut (He et al. 2016, figure 5 left)."""

    def __init__(self, inputs: int, outputs: int, stride: int, generator: torch.Generator) -> None:
        super().__init__()
        self.conv1 = convolution(inputs, outputs, 3, stride, generator)
        self.norm1 = _group_norm(outputs)
        self.conv2 = convolution(outputs, outputs, 3, 1, generator)
        self.norm2 = _group_norm(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                convolution(inputs, outputs, 1, stride, generator), _group_norm(outputs)
            )

    def forward(self, maps: Tensor) -> Tensor:
        hidden = self.norm1(self.conv1(maps)).relu()
        output: Tensor = (self.norm2(self.conv2(hidden)) + self.shortcut(maps)).relu()
        return output


class ResNet18(Backbone):
    """ResNet-18 with GroupNorm in place of BatchNorm and a spatial softmax (Chi et al. 2023).

    BatchNorm does not work with averaged weights: its running statistics belong to other weights.

    Args:
        weights: A safetensors file with initial weights of these names, or None for random ones.
        generator: Draws the initial weights.

    Raises:
        PolicyError: The file cannot be read, or its tensors do not match the network.
    """

    def __init__(self, weights: str | None = None, *, generator: torch.Generator) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            convolution(3, 64, 7, 2, generator),
            _group_norm(64),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        )
        blocks = []
        inputs = 64
        for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            blocks.append(_ResidualBlock(inputs, outputs, stride, generator))
            blocks.append(_ResidualBlock(outputs, outputs, 1, generator))
            inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.pool = SpatialSoftmax(inputs)
        self.features = self.pool.features
        if weights is not None:
            _load(self, weights)

    def forward(self, images: Tensor) -> Tensor:
        """Map (B, 3, H, W) to (B, 1024)."""
        features: Tensor = self.pool(self.blocks(self.stem(images)))
        return features


def convolution(
    inputs: int, outputs: int, size: int, stride: int, generator: torch.Generator
) -> nn.Conv2d:
    """Make a padded convolution without bias, because a normalisation follows it.

    Its weights are uniform as in He et al. 2015, "Delving Deep into Rectifiers", eq. 10.
    """
    layer = nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False, device="meta")
    return drawn(layer, (6 / (inputs * size * size)) ** 0.5, generator)


def _group_norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(channels // 16, channels)


def _load(network: nn.Module, path: str) -> None:
    pool = {name: t for name, t in network.state_dict().items() if name.startswith("pool.")}
    try:
        network.load_state_dict(pool | load_file(Path(path)))
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise PolicyError(
            "the backbone's weights cannot be read",
            got=f"{path}: {' '.join(str(error).split())[:500]}",
            expected="safetensors with every tensor of the backbone, and no other",
        ) from error
