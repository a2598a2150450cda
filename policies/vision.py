"""From camera images to one more observation: features that the rest of a policy sees as a state.

An `ImageEncoder` is trained while demonstrations are cloned, and then frozen. Its features are
stored with each row, so that learning from pixels online costs no more than from states.
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

# Position (m) and rotation vector (rad) that are left to the end of a demonstration.
REMAINING_MOTION = 6
_TRANSLATION = 3

Array = npt.NDArray[Any]


class ImageEncoder(nn.Module):
    """One backbone for all cameras, whose outputs are joined into a few features.

    They are few on purpose: from many features a critic recognises each scene, and remembers how
    its episodes went. Besides its features the encoder estimates the motion that is left to the
    end of the demonstration, which needs no label but the robot's own pose. The estimate is among
    the features, and its translation once more as tanh(translation / fine_scale), so that the last
    millimetres are not small numbers.

    Args:
        cameras: Observation name → shape (height, width, 3) of its images; others are ignored.
        backbone: ``class`` and options of the backbone; see `policies.backbones`.
        hidden: Width of the layer that joins the cameras.
        features: Number of features, beside the estimate.
        motion_scale: Unit of the estimate: metres, then radians, (2,). None: it estimates no
            motion, for a robot that measures no pose.
        fine_scale: Translation [m] at which the fine estimate begins to saturate.
        generator: Source of the initial weights.

    Attributes:
        sees: How the names of the observations begin that it is for.
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
        # Loaded weights are weights like others: a checkpoint must not need the file again.
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
        """A number (int64) that follows from configuration and weights, and marks its features."""
        digest = hashlib.sha256(json.dumps(self.config, sort_keys=True).encode())
        for name, tensor in sorted(self.state_dict().items()):
            digest.update(name.encode() + tensor.detach().cpu().contiguous().numpy().tobytes())
        return int.from_bytes(digest.digest()[:8], "little", signed=True)

    def forward(self, images: ObservationBatch) -> Tensor:
        """Encode images uint8 (..., H, W, 3) by observation name to float32 (..., features).

        Raises:
            PolicyError: A camera is missing, or has images of another size.
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
        """A weight that has the encoder's device and dtype."""
        first, *_ = self.join.parameters()
        return first

    def _check(self, name: str, shape: Sequence[int]) -> None:
        """Raise `PolicyError` where a camera gives something else."""
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
        """Encode images to what replay stores: features rounded to float16, (..., features)."""
        rounded: Array = self(images).to(torch.float16).cpu().numpy()
        return rounded

    def remaining_motion(self, features: Tensor) -> Tensor:
        """The estimate within features: (..., 6), in units of `motion_scale`, which is given."""
        return features[..., -REMAINING_MOTION:]

    def scaled_motion(self, motion: Tensor) -> Tensor:
        """Turn motions (..., 6) [m, rad] into the estimate's units."""
        assert self.motion_scale is not None
        metres, radians = self.motion_scale
        return motion / motion.new_tensor([metres] * 3 + [radians] * 3)


def build_image_encoder(config: Mapping[str, Any]) -> ImageEncoder:
    """Make an encoder from what `ImageEncoder.config` gave; its weights are then loaded."""
    return registry.build(ImageEncoder, config, generator=seeded(0))


def random_shift(images: Array, most: int, generator: torch.Generator) -> Array:
    """Shift images (B, H, W, 3) by up to `most` pixels each way, repeating the edge.

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
    """Name → width of a policy's observations: state keys, and features if there are images."""
    return {**keys, FEATURES: encoder.features} if encoder is not None else dict(keys)
