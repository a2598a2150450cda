"""Camera images as a vision-language model wants them, without torchvision."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from policies.encoders import ObservationBatch, camera_image, image_pixels


def stacked_images(
    observation: ObservationBatch,
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
    for name in cameras:
        image = camera_image(observation, name, cameras)
        newest = image if image.ndim == 4 else image[:, -1]
        views.append(resized_with_padding(image_pixels(newest.to(device)), size))
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
