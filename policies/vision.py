"""Image encoder: turns camera images into features that the rest of a policy sees as state.

An `ImageEncoder` is trained during behaviour cloning and then frozen. Its features are stored with
each row, so online learning from pixels costs no more than from states.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from policies import registry
from policies.backbones import Backbone
from policies.columns import FEATURES
from policies.encoders import ObservationBatch, camera_image, image_pixels
from policies.errors import PolicyError
from policies.networks import linear, seeded

# Remaining translation (m) and rotation vector (rad) to the end of a demonstration.
REMAINING_MOTION = 6
_TRANSLATION = 3

Array = npt.NDArray[Any]


class ImageEncoder(nn.Module):
    """One backbone for all cameras, with the outputs joined into a few features.

    The number of features is small on purpose. With many, a critic recognises each scene and
    memorises how its episodes went. The encoder also estimates the remaining motion to the end of
    the demonstration; the robot's pose is the only label that this needs. The estimate is part of
    the features. Its translation appears a second time as tanh(translation / fine_scale), so that
    the last millimetres are not small numbers.

    Args:
        cameras: Observation name → image shape (height, width, 3); others are ignored.
        backbone: ``class`` and options of the backbone; see `policies.backbones`.
        hidden: Width of the layer that joins the cameras.
        features: Number of features besides the estimate.
        motion_scale: Unit of the estimate: metres, then radians, (2,). None disables the estimate,
            for a robot that measures no pose.
        fine_scale: Translation [m] at which the fine estimate starts to saturate.
        generator: Draws the initial weights.

    Attributes:
        sees: Prefix of the observation names that it encodes.
    """

    sees: ClassVar[str] = "images/"

    def __init__(
        self,
        cameras: Mapping[str, Sequence[int]],
        backbone: Mapping[str, Any],
        hidden: int,
        features: int,
        motion_scale: Sequence[float] | None,
        fine_scale: float,
        *,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        own = {name: shape for name, shape in cameras.items() if name.startswith(self.sees)}
        self.cameras = {name: tuple(map(int, shape)) for name, shape in own.items()}
        if not self.cameras:
            raise PolicyError(
                "an image encoder needs a camera",
                got=sorted(cameras) or "none",
                expected=f"one or more of {self.sees}<camera>",
                hint="name it in observation.cameras; for points with their number, such as"
                " [{name: front, points: 256}]; without cameras take observation=state",
            )
        for name, shape in self.cameras.items():
            self._check(name, shape)
        self.hidden, self.bottleneck = int(hidden), int(features)
        self.motion_scale = [float(value) for value in motion_scale or ()] or None
        self.fine_scale = float(fine_scale)
        self.backbone = registry.build(Backbone, backbone, generator=generator)
        # The checkpoint stores loaded weights too, so it must not need their file again.
        self._backbone_config = {key: v for key, v in backbone.items() if key != "weights"}
        joined = self.backbone.features * len(self.cameras)
        self.join = nn.Sequential(linear(joined, self.hidden, generator), nn.ReLU())
        self.summary = nn.Sequential(
            linear(self.hidden, self.bottleneck, generator), nn.LayerNorm(self.bottleneck)
        )
        self.features = self.bottleneck
        if self.motion_scale is not None:
            self.motion = linear(self.hidden, REMAINING_MOTION, generator)
            self.features += REMAINING_MOTION + _TRANSLATION

    @property
    def config(self) -> dict[str, Any]:
        """JSON values from which `build_image_encoder` makes an encoder of the same shape."""
        return {
            registry.CLASS: registry.name_of(type(self)),
            "cameras": {name: list(shape) for name, shape in self.cameras.items()},
            "backbone": self._backbone_config,
            "hidden": self.hidden,
            "features": self.bottleneck,
            "motion_scale": self.motion_scale,
            "fine_scale": self.fine_scale,
        }

    @property
    def identifier(self) -> int:
        """int64 hash of configuration and weights, which identifies the encoder's features."""
        digest = hashlib.sha256(json.dumps(self.config, sort_keys=True).encode())
        for name, tensor in sorted(self.state_dict().items()):
            digest.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
        return int.from_bytes(digest.digest()[:8], "little", signed=True)

    def forward(self, images: ObservationBatch) -> Tensor:
        """Encode uint8 images (..., H, W, 3) by observation name to float32 (..., features).

        Raises:
            PolicyError: A camera is missing or has images of another size.
        """
        parts = []
        lead: tuple[int, ...] = ()
        for name, shape in self.cameras.items():
            image = camera_image(images, name, self.cameras).to(self._weight.device)
            lead = tuple(image.shape[: -len(shape)])
            parts.append(self.backbone(self._scaled(image)))
        joined = self.join(torch.cat(parts, -1))
        if self.motion_scale is None:
            summary: Tensor = self.summary(joined)
            return summary.reshape(*lead, self.features)
        motion = self.motion(joined)
        metres = motion[:, :_TRANSLATION] * self.motion_scale[0]
        fine = (metres / self.fine_scale).tanh()
        return torch.cat([self.summary(joined), fine, motion], -1).reshape(*lead, self.features)

    @property
    def _weight(self) -> Tensor:
        """A weight with the encoder's device and dtype."""
        first, *_ = self.join.parameters()
        return first

    def _check(self, name: str, shape: Sequence[int]) -> None:
        """Raise `PolicyError` if a camera does not provide RGB images."""
        if len(shape) != 3 or shape[-1] != 3:
            raise PolicyError(
                f"the camera {name!r} gives no RGB images", got=shape, expected="(H, W, 3)"
            )

    def _scaled(self, images: Tensor) -> Tensor:
        """Turn images (..., H, W, 3) into the backbone's input (N, 3, H, W)."""
        pixels = image_pixels(images, self._weight.dtype)
        return pixels.contiguous(memory_format=torch.channels_last)

    @torch.no_grad()
    def encode(self, images: ObservationBatch) -> Array:
        """Encode images to the float16 features (..., features) that replay stores."""
        rounded: Array = self(images).to(torch.float16).cpu().numpy()
        return rounded

    def remaining_motion(self, features: Tensor) -> Tensor:
        """Return the estimate in features: (..., 6), in units of `motion_scale`, not None."""
        return features[..., -REMAINING_MOTION:]

    def scaled_motion(self, motion: Tensor) -> Tensor:
        """Convert motions (..., 6) [m, rad] to the estimate's units."""
        assert self.motion_scale is not None
        metres, radians = self.motion_scale
        return motion / motion.new_tensor([metres] * 3 + [radians] * 3)


def build_image_encoder(config: Mapping[str, Any]) -> ImageEncoder:
    """Make an encoder from `ImageEncoder.config`; its weights are loaded afterwards."""
    return registry.build(ImageEncoder, config, generator=seeded(0))


def random_shift(images: Array, most: int, generator: torch.Generator) -> Array:
    """Shift images (B, H, W, 3) by up to `most` pixels in each direction, repeating the edge.

    DrQ, Kostrikov et al. 2021.
    """
    height, width = images.shape[1:3]
    shifts = torch.randint(-most, most + 1, (len(images), 2), generator=generator).numpy()
    rows = (np.arange(height) + shifts[:, :1]).clip(0, height - 1)
    columns = (np.arange(width) + shifts[:, 1:]).clip(0, width - 1)
    shifted = np.empty_like(images)
    for index, image in enumerate(images):
        shifted[index] = image[rows[index]][:, columns[index]]
    return shifted


def observed_keys(keys: Mapping[str, int], encoder: ImageEncoder | None) -> dict[str, int]:
    """Return name → width of a policy's observations: state keys, and any image features."""
    return {**keys, FEATURES: encoder.features} if encoder is not None else dict(keys)
