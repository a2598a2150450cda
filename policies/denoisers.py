"""Networks that denoise an action chunk: an MLP, a U-Net and a transformer."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from policies import registry
from policies.errors import PolicyError
from policies.networks import convolution, linear, mlp, transposed_convolution


class Denoiser(nn.Module, ABC):
    """Predicts the noise, the clean chunk or a velocity, depending on the process.

    The process owns the time grid, so it embeds the time (`sinusoidal_embedding`). The denoiser
    specifies the width of the embedding.

    Args:
        features: Width of the encoded observation.
        horizon: Number of actions H in a chunk.
        action_dimension: Number of action columns d.
        embedding: Even width E of the embedded time.

    Attributes:
        options: JSON values of the denoiser's own arguments.
    """

    options: Mapping[str, Any]

    def __init__(self, features: int, horizon: int, action_dimension: int, embedding: int) -> None:
        super().__init__()
        self.features = int(features)
        self.horizon = int(horizon)
        self.action_dimension = int(action_dimension)
        self.embedding = int(embedding)

    @property
    def config(self) -> dict[str, Any]:
        """JSON values from which `registry.build` makes a denoiser of the same shape."""
        return {registry.CLASS: registry.name_of(type(self)), **self.options}

    @abstractmethod
    def forward(self, noisy: Tensor, time: Tensor, features: Tensor) -> Tensor:
        """Predict (B, H, d) from a noisy chunk (B, H, d).

        Args:
            noisy: The chunk.
            time: (B, E) or (1, E) embedded time.
            features: (B, features).
        """


def sinusoidal_embedding(positions: Tensor, width: int) -> Tensor:
    """Embed (n,) positions as (n, width) sines and cosines (Vaswani et al. 2017, section 3.5)."""
    index = torch.arange(width // 2, device=positions.device)
    frequencies = torch.exp(index * (-math.log(10_000) / max(width // 2 - 1, 1)))
    angles = positions[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], -1)


class MLPDenoiser(Denoiser):
    """MLP over (noisy chunk, embedded time, encoded observation), with `hidden` layers."""

    def __init__(
        self,
        features: int,
        horizon: int,
        action_dimension: int,
        *,
        generator: torch.Generator,
        hidden: Sequence[int] = (256, 256, 256),
        embedding: int = 32,
    ) -> None:
        super().__init__(features, horizon, action_dimension, embedding)
        self.options = {"hidden": [int(width) for width in hidden], "embedding": self.embedding}
        chunk = self.horizon * self.action_dimension
        self.network = mlp(
            chunk + self.embedding + self.features, hidden, chunk, generator, activation=nn.SiLU
        )

    def forward(self, noisy: Tensor, time: Tensor, features: Tensor) -> Tensor:
        """Predict (B, H, d); see `Denoiser`."""
        embedded = time.expand(len(noisy), -1)
        output: Tensor = self.network(torch.cat([noisy.flatten(1), embedded, features], -1))
        return output.view(noisy.shape)


class ConditionalUNet(Denoiser):
    """U-Net over the chunk, halved between levels; FiLM with embedded time and observation.

    Chi et al. use `down_dims` 256, 512, 1024 and an embedding of 256; the defaults train on a CPU.
    The horizon must be a multiple of 2^(levels - 1), so that every halving is exact. `down_dims`
    are the channels of each level, from the chunk's full length down, and multiples of `groups`,
    the groups of each GroupNorm. `kernel` is the odd width of the convolutions.
    """

    def __init__(
        self,
        features: int,
        horizon: int,
        action_dimension: int,
        *,
        generator: torch.Generator,
        down_dims: Sequence[int] = (32, 64),
        kernel: int = 5,
        groups: int = 8,
        embedding: int = 64,
    ) -> None:
        super().__init__(features, horizon, action_dimension, embedding)
        self.down_dims = [int(width) for width in down_dims]
        self.kernel, self.groups = int(kernel), int(groups)
        self._check()
        self.options = {
            "down_dims": self.down_dims,
            "kernel": self.kernel,
            "groups": self.groups,
            "embedding": self.embedding,
        }
        self.time_network = nn.Sequential(
            linear(self.embedding, 4 * self.embedding, generator),
            nn.Mish(),
            linear(4 * self.embedding, self.embedding, generator),
        )
        condition = self.embedding + self.features

        def block(inputs: int, outputs: int) -> _ResidualBlock:
            return _ResidualBlock(inputs, outputs, condition, self.kernel, self.groups, generator)

        def pair(inputs: int, outputs: int) -> nn.ModuleList:
            return nn.ModuleList([block(inputs, outputs), block(outputs, outputs)])

        first, last = self.down_dims[0], self.down_dims[-1]
        widths = [self.action_dimension, *self.down_dims]
        self.down = nn.ModuleList(pair(*step) for step in pairwise(widths))
        self.downsample = nn.ModuleList(
            convolution(width, width, 3, generator, stride=2) for width in self.down_dims[:-1]
        )
        self.middle = pair(last, last)
        rising = list(pairwise(reversed(self.down_dims)))
        self.upsample = nn.ModuleList(
            transposed_convolution(upper, upper, generator) for _, upper in rising
        )
        # Each input concatenates the lower level's output and the skip connection by channel.
        self.up = nn.ModuleList(pair(2 * lower, upper) for lower, upper in rising)
        self.final = nn.Sequential(
            _normalised_convolution(first, first, self.kernel, self.groups, generator),
            convolution(first, self.action_dimension, 1, generator),
        )

    def forward(self, noisy: Tensor, time: Tensor, features: Tensor) -> Tensor:
        """Predict (B, H, d); see `Denoiser`."""
        embedded = self.time_network(time).expand(len(noisy), -1)
        condition = nn.functional.mish(torch.cat([embedded, features], -1))
        x = noisy.transpose(1, 2)
        passed = []
        for level, blocks in enumerate(self.down):
            x = _through(blocks, x, condition)
            passed.append(x)
            if level < len(self.downsample):
                x = self.downsample[level](x)
        x = _through(self.middle, x, condition)
        for blocks, stretch in zip(self.up, self.upsample, strict=True):
            x = stretch(_through(blocks, torch.cat([x, passed.pop()], 1), condition))
        output: Tensor = self.final(x)
        return output.transpose(1, 2)

    def _check(self) -> None:
        if not self.down_dims:
            raise PolicyError(
                "the U-Net needs at least one level", got="down_dims []", expected="a width a level"
            )
        factor = 2 ** (len(self.down_dims) - 1)
        if self.horizon % factor:
            raise PolicyError(
                "the horizon cannot be halved between the levels of the U-Net",
                got=f"horizon {self.horizon}, down_dims {self.down_dims}",
                expected=f"a multiple of {factor}",
                hint=f"set policy.horizon={-(-self.horizon // factor) * factor},"
                " or give policy.denoiser.down_dims fewer levels",
            )
        # A group of one number always normalises to 0.
        uneven = any(
            width % self.groups or width * (self.horizon >> level) // self.groups < 2
            for level, width in enumerate(self.down_dims)
        )
        if self.kernel % 2 == 0 or uneven:
            raise PolicyError(
                "kernel or groups of the U-Net do not fit",
                got=f"kernel {self.kernel}, groups {self.groups}, down_dims {self.down_dims},"
                f" horizon {self.horizon}",
                expected="an odd kernel, and groups that divide every width into parts of two"
                " or more numbers",
            )


class ConditionalTransformer(Denoiser):
    """Transformer decoder over the chunk's actions, conditioned on embedded time and observation.

    Follows the time-series diffusion transformer of Chi et al. 2023. An action attends to itself
    and earlier actions, and by cross-attention to two tokens, which an MLP makes from the time and
    the whole observation. They use 8 layers and a width of 256; the defaults train on a CPU.
    `width` is the width of a token and of the embedded time, a multiple of twice the attention
    `heads`.
    """

    causal: Tensor

    def __init__(
        self,
        features: int,
        horizon: int,
        action_dimension: int,
        *,
        generator: torch.Generator,
        width: int = 64,
        layers: int = 2,
        heads: int = 4,
    ) -> None:
        if heads < 1 or layers < 1 or width % (2 * heads):
            raise PolicyError(
                "the heads do not fit the transformer's width",
                got=f"width {width}, layers {layers}, heads {heads}",
                expected="one layer and head or more, and a width that twice the heads divide",
            )
        super().__init__(features, horizon, action_dimension, embedding=width)
        self.options = {"width": int(width), "layers": int(layers), "heads": int(heads)}
        self.enter = linear(self.action_dimension, width, generator)
        self.observed = linear(self.features, width, generator)
        self.remember = mlp(width, [4 * width], width, generator, activation=nn.Mish)
        # Embeddings of the action positions, and of the two tokens that they attend to.
        self.places = nn.Parameter(0.02 * torch.randn(self.horizon, width, generator=generator))
        self.kinds = nn.Parameter(0.02 * torch.randn(2, width, generator=generator))
        layer = nn.TransformerDecoderLayer(
            width,
            heads,
            4 * width,
            dropout=0.0,
            activation="gelu",
            batch_first=True,
            norm_first=True,
            device="meta",  # its constructor would draw from the global generator
        )
        self.decoder = nn.TransformerDecoder(layer, layers, nn.LayerNorm(width))
        self._draw(generator)
        self.leave = linear(width, self.action_dimension, generator)
        mask = nn.Transformer.generate_square_subsequent_mask(self.horizon)
        self.register_buffer("causal", mask, persistent=False)

    def _draw(self, generator: torch.Generator) -> None:
        self.decoder.layers.to_empty(device="cpu")
        for name, parameter in self.decoder.layers.named_parameters():
            if parameter.dim() == 2:
                bound = parameter.shape[1] ** -0.5
                nn.init.uniform_(parameter, -bound, bound, generator=generator)
            else:
                nn.init.constant_(parameter, float("norm" in name and name.endswith("weight")))

    def forward(self, noisy: Tensor, time: Tensor, features: Tensor) -> Tensor:
        """Predict (B, H, d); see `Denoiser`."""
        tokens = torch.stack([time.expand(len(noisy), -1), self.observed(features)], 1)
        memory = self.remember(tokens + self.kinds)
        actions = self.enter(noisy) + self.places
        output: Tensor = self.leave(self.decoder(actions, memory, self.causal, tgt_is_causal=True))
        return output


class _ResidualBlock(nn.Module):
    """Two convolutions with FiLM between them, and a skip connection."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        condition: int,
        kernel: int,
        groups: int,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.first = _normalised_convolution(inputs, outputs, kernel, groups, generator)
        self.second = _normalised_convolution(outputs, outputs, kernel, groups, generator)
        self.film = linear(condition, 2 * outputs, generator)
        self.skip = (
            nn.Identity() if inputs == outputs else convolution(inputs, outputs, 1, generator)
        )

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """Map (B, inputs, L) and condition (B, C) to (B, outputs, L)."""
        scale, shift = self.film(condition)[..., None].chunk(2, 1)
        output: Tensor = self.second(self.first(x) * scale + shift) + self.skip(x)
        return output


def _normalised_convolution(
    inputs: int, outputs: int, kernel: int, groups: int, generator: torch.Generator
) -> nn.Sequential:
    return nn.Sequential(
        convolution(inputs, outputs, kernel, generator), nn.GroupNorm(groups, outputs), nn.Mish()
    )


def _through(blocks: Any, x: Tensor, condition: Tensor) -> Tensor:
    for block in blocks:
        x = block(x, condition)
    return x
