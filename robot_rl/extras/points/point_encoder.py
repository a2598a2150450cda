"""Point-cloud encoder, used instead of an image encoder; see `policies.vision`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from policies.backbones import Backbone
from policies.errors import PolicyError
from policies.networks import linear
from policies.vision import ImageEncoder

_POSITION = 3


class PointNet(Backbone):
    """An MLP per point, then the maximum of each output over all points.

    Qi et al. 2017, "PointNet", equation 1, without the learned transforms, and with LayerNorm as in
    Ze et al. 2024 (3D Diffusion Policy). The order of the points does not matter.

    Args:
        columns: Numbers per point: position, and optionally colour.
        hidden: Widths of the layers; the last is the number of features.
        generator: Draws the initial weights.
    """

    def __init__(self, columns: int, hidden: Sequence[int], *, generator: torch.Generator) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for width in hidden:
            layers += [linear(columns, width, generator), nn.LayerNorm(width), nn.ReLU()]
            columns = width
        self.layers = nn.Sequential(*layers)
        self.features = columns

    def forward(self, points: Tensor) -> Tensor:
        """Map clouds (B, N, columns) to (B, features)."""
        features: Tensor = self.layers(points).amax(1)
        return features


class PointEncoder(ImageEncoder):
    """An `ImageEncoder` for point clouds (N, 3 or 6): positions and optional colours.

    Args:
        cameras: Observation name → shape of its clouds; others are ignored.
        backbone: ``class`` and options of the backbone, except the points' columns.
        region: Lowest and highest corner (2, 3) of the observed space [m]; mapped to -1 and 1.
        **options: The other arguments of `ImageEncoder`.
    """

    sees: ClassVar[str] = "points/"
    center: Tensor
    half_size: Tensor

    def __init__(
        self,
        cameras: Mapping[str, Sequence[int]],
        backbone: Mapping[str, Any],
        region: Sequence[Sequence[float]],
        **options: Any,
    ) -> None:
        columns = {int(shape[-1]) for name, shape in cameras.items() if name.startswith(self.sees)}
        given = {**backbone, "columns": max(columns, default=_POSITION)}
        super().__init__(cameras, given, **options)
        self.region = [[float(value) for value in corner] for corner in region]
        corners = torch.tensor(self.region)
        if corners.shape != (2, _POSITION) or not bool((corners[0] < corners[1]).all()):
            raise PolicyError(
                "the region of the points is no box",
                got=self.region,
                expected="its lowest and its highest corner, [x, y, z] each [m]",
            )
        low, high = corners
        self.register_buffer("center", (low + high) / 2, persistent=False)
        self.register_buffer("half_size", (high - low) / 2, persistent=False)

    @property
    def config(self) -> dict[str, Any]:
        """JSON values from which `build_image_encoder` makes an encoder of the same shape."""
        return {**super().config, "region": self.region}

    def _check(self, name: str, shape: Sequence[int]) -> None:
        if len(shape) != 2 or shape[-1] not in (3, 6):
            raise PolicyError(
                f"the camera {name!r} gives no points", got=shape, expected="(N, 3) or (N, 6)"
            )

    def _scaled(self, clouds: Tensor) -> Tensor:
        """Turn clouds (..., N, C) into the backbone's input (B, N, C); positions are in [-1, 1]."""
        points = clouds.reshape(-1, *clouds.shape[-2:]).to(self.center)
        places, colours = points.split([_POSITION, points.shape[-1] - _POSITION], -1)
        return torch.cat([(places - self.center) / self.half_size, 2 * colours - 1], -1)
