"""The one place where an observation becomes a tensor: states normalised, images scaled.

Two things are read elsewhere, for they are neither: what a gripper was told last
(`policies.gripper`), and an instruction (`policies.vla_text`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from policies import registry
from policies.errors import PolicyError
from policies.networks import to_device
from policies.normalizer import Normalizer

ObservationBatch = Mapping[str, npt.NDArray[Any] | Tensor]

# A reading far outside the training data (a wrench spike) must not throw the networks off.
FEATURE_LIMIT = 10.0


class StateEncoder(nn.Module):
    """Concatenate the state keys that a policy uses and normalise them.

    Args:
        keys: Observation name → width (the product of its shape), in order of concatenation.
        normalizer: Over the same keys; made as an unfitted one when absent.
        observation_steps: Number n of consecutive observations that are seen, oldest first.
        identity: Keys that a normaliser made here leaves unchanged.
    """

    def __init__(
        self,
        keys: Mapping[str, int],
        normalizer: Normalizer | None = None,
        *,
        observation_steps: int = 1,
        identity: Iterable[str] = (),
    ) -> None:
        """Remember the keys; see the class for the arguments."""
        super().__init__()
        self.keys = {str(name): int(width) for name, width in keys.items()}
        if not self.keys or observation_steps < 1:
            raise PolicyError(
                "an encoder needs at least one key and one step",
                got=f"keys {list(self.keys)}, observation_steps {observation_steps}",
                expected="one or more of each",
            )
        self.observation_steps = int(observation_steps)
        self.normalizer = normalizer or Normalizer(self.keys, identity=identity)
        if list(self.normalizer.widths.items()) != list(self.keys.items()):
            raise PolicyError(
                "the normaliser is for other keys", got=self.normalizer.widths, expected=self.keys
            )

    @property
    def features(self) -> int:
        """Width of the encoded tensor: observation_steps · sum of widths."""
        return self.observation_steps * sum(self.keys.values())

    @property
    def observed(self) -> dict[str, int]:
        """Name → width of what it is given."""
        return self.keys

    @property
    def config(self) -> dict[str, Any]:
        """JSON values from which `build_encoder` makes the same encoder, statistics apart."""
        return {
            registry.CLASS: registry.name_of(type(self)),
            "keys": dict(self.keys),
            "observation_steps": self.observation_steps,
            "identity": sorted(self.normalizer.identity),
            "range_floor": self.normalizer.range_floor,
            "tail": self.normalizer.tail,
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> StateEncoder:
        """Make an unfitted encoder from `config`."""
        keys = {str(name): int(width) for name, width in config["keys"].items()}
        normalizer = Normalizer(
            keys,
            identity=config["identity"],
            range_floor=config["range_floor"],
            tail=config["tail"],
        )
        return cls(keys, normalizer, observation_steps=int(config["observation_steps"]))

    def fit(self, arrays: Mapping[str, npt.NDArray[Any]]) -> StateEncoder:
        """Fit the normaliser on recorded observations, each (n, ...width)."""
        self.normalizer.fit(arrays)
        return self

    def forward(self, observation: ObservationBatch) -> Tensor:
        """Encode a batch of observations or of observation histories.

        Args:
            observation: Name → array or tensor (B, n, ...shape), or (B, ...shape) where
                observation_steps is 1; names that the policy does not use are ignored.

        Returns:
            float32 (B, n · total width), step by step, each normalised and limited.

        Raises:
            PolicyError: A key is missing or has another width.
        """
        parts = [self._part(name, width, observation) for name, width in self.keys.items()]
        center = self.normalizer.center
        if any(isinstance(part, Tensor) for part in parts):
            moved = [to_device(torch.as_tensor(part), center.device) for part in parts]
            joined = torch.cat(moved, -1)
        else:
            joined = torch.from_numpy(np.concatenate(parts, -1, dtype=np.float32))
        joined = to_device(joined.to(center.dtype), center.device)
        features = self.normalizer.normalize(joined).clamp_(-FEATURE_LIMIT, FEATURE_LIMIT)
        return features.reshape(len(features), self.features)

    def _part(
        self, name: str, width: int, observation: ObservationBatch
    ) -> npt.NDArray[Any] | Tensor:
        if name not in observation:
            raise PolicyError(
                f"the observation lacks {name!r}", got=sorted(observation), expected=name
            )
        value = observation[name]
        shape = tuple(value.shape)
        steps = self.observation_steps
        size = int(np.prod(shape[1:])) if shape else 0
        if size != steps * width or (steps > 1 and shape[1] != steps):
            raise PolicyError(
                f"the observation {name!r} has another width",
                got=shape,
                expected=f"(batch, {width})" if steps == 1 else f"(batch, {steps}, {width})",
            )
        return value.reshape(shape[0], steps, width)


def camera_image(
    observation: ObservationBatch, name: str, cameras: Mapping[str, Sequence[int]]
) -> Tensor:
    """Give the images of a camera as they are, uint8 (..., H, W, 3).

    Args:
        observation: Name → images; what is no camera is ignored.
        name: Of the camera.
        cameras: Name → (H, W, 3) of all cameras that are expected.

    Raises:
        PolicyError: The camera is missing, or has images of another size.
    """
    if name not in observation:
        raise PolicyError(
            f"the observation lacks the camera {name!r}",
            got=sorted(key for key in observation if key.startswith("images/")),
            expected=sorted(cameras),
            hint="configure the cameras that the policy was trained with",
        )
    image = torch.as_tensor(observation[name])
    size, expected = tuple(image.shape[-3:]), tuple(cameras[name])
    if size != expected:
        raise PolicyError(
            f"the camera {name!r} has images of another size",
            got=size,
            expected=expected,
            hint="set the camera to the size that the policy was trained with",
        )
    return image


def image_pixels(images: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Scale images uint8 (..., H, W, 3) to what networks see: (N, 3, H, W) in [-1, 1]."""
    channels_first = images.reshape(-1, *images.shape[-3:]).permute(0, 3, 1, 2)
    return channels_first.to(dtype, copy=True).div_(127.5).sub_(1.0)


def build_encoder(config: Mapping[str, Any]) -> StateEncoder:
    """Make the encoder that a policy's configuration describes, with arbitrary weights."""
    return registry.find_class(config[registry.CLASS], StateEncoder).from_config(config)
