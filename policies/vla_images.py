"""Camera images as a vision-language model wants them, without torchvision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from policies.errors import PolicyError


def stacked_images(
    observation: Mapping[str, npt.NDArray[Any] | Tensor],
    cameras: Mapping[str, tuple[int, ...]],
    size: int,
    device: torch.device,
) -> Tensor:
    """Give the newest image of each camera, resized and normalised.

    Args:
        observation: Camera name → uint8 (B, n, H, W, 3), or (B, H, W, 3).
        cameras: Name → (H, W, 3), in the model's order.
        size: Height and width that the model wants.
        device: Where to put them.

    Returns:
        float32 (B, cameras, 3, size, size) in [-1, 1].

    Raises:
        PolicyError: A camera is missing, or has images of another size.
    """
    views = []
    for name, shape in cameras.items():
        if name not in observation:
            raise PolicyError(
                f"the observation lacks the camera {name!r}",
                got=sorted(key for key in observation if key.startswith("images/")),
                expected=list(cameras),
                hint="configure the cameras that the policy was trained with",
            )
        image = torch.as_tensor(observation[name])
        if tuple(image.shape[-3:]) != shape:
            raise PolicyError(
                f"the camera {name!r} has images of another size",
                got=tuple(image.shape[-3:]),
                expected=shape,
                hint="set the camera to the size that the policy was trained with",
            )
        newest = image if image.ndim == 4 else image[:, -1]
        pixels = newest.to(device).permute(0, 3, 1, 2).float() / 127.5 - 1.0
        views.append(resized_with_padding(pixels, size))
    return torch.stack(views, 1)


def resized_with_padding(images: Tensor, size: int) -> Tensor:
    """Resize (B, 3, H, W) in [-1, 1] to (B, 3, size, size), keeping proportions; the rest is black.

    Bilinear, the picture in the middle: as π0 was trained (openpi, `resize_with_pad`).
    """
    height, width = images.shape[-2:]
    if (height, width) == (size, size):
        return images
    scale = size / max(height, width)
    new = (max(1, round(height * scale)), max(1, round(width * scale)))
    smaller = functional.interpolate(images, new, mode="bilinear", align_corners=False)
    above, left = (size - new[0]) // 2, (size - new[1]) // 2
    padding = (left, size - new[1] - left, above, size - new[0] - above)
    return functional.pad(smaller.clamp(-1, 1), padding, value=-1.0)
