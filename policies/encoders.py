"""Observations to tensors: states are normalised, images are scaled.

`policies.instructions` reads instructions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from policies.columns import looked_up
from policies.errors import PolicyError
from policies.networks import to_device

Array = npt.NDArray[Any]
ObservationBatch = Mapping[str, Array | Tensor]

# Limits readings far outside the training data (a wrench spike), which would upset the networks.
FEATURE_LIMIT = 10.0


class StateEncoder(nn.Module):
    """Concatenate the state keys that a policy uses and normalise them.

    Args:
        keys: Observation name → width (the product of its shape), in order of concatenation.
        normalizer: Normaliser for the same keys; None makes an unfitted one.
        observation_steps: Length n of the observation history, oldest first.

    Attributes:
        features: Width of the encoded tensor: observation_steps · sum of widths.
    """

    def __init__(
        self,
        keys: Mapping[str, int],
        normalizer: Normalizer | None = None,
        *,
        observation_steps: int = 1,
    ) -> None:
        super().__init__()
        self.keys = {str(name): int(width) for name, width in keys.items()}
        if not self.keys or observation_steps < 1:
            raise PolicyError(
                "an encoder needs at least one key and one step",
                got=f"keys {list(self.keys)}, observation_steps {observation_steps}",
                expected="one or more of each",
            )
        self.observation_steps = int(observation_steps)
        self.features = self.observation_steps * sum(self.keys.values())
        self.normalizer = normalizer or Normalizer(self.keys)
        if list(self.normalizer.widths.items()) != list(self.keys.items()):
            raise PolicyError(
                "the normaliser is for other keys", got=self.normalizer.widths, expected=self.keys
            )

    @property
    def config(self) -> dict[str, Any]:
        """JSON values from which `from_config` makes the same encoder, without statistics."""
        return {
            "keys": dict(self.keys),
            "observation_steps": self.observation_steps,
            "identity": sorted(self.normalizer.identity),
            "range_floor": self.normalizer.range_floor,
            "tail": self.normalizer.tail,
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> StateEncoder:
        """Make an unfitted encoder from `config`."""
        options = {name: config[name] for name in ("identity", "range_floor", "tail")}
        keys = config["keys"]
        return cls(keys, Normalizer(keys, **options), observation_steps=config["observation_steps"])

    def fit(self, arrays: Mapping[str, Array]) -> StateEncoder:
        """Fit the normaliser on recorded observations, each (n, ...width)."""
        self.normalizer.fit(arrays)
        return self

    def forward(self, observation: ObservationBatch) -> Tensor:
        """Encode a batch of observations or of observation histories.

        Args:
            observation: Name → array or tensor (B, n, ...shape), or (B, ...shape) if
                observation_steps is 1; unused names are ignored.

        Returns:
            float32 (B, n · total width), step by step, normalised and clamped.

        Raises:
            PolicyError: A key is missing or has the wrong width.
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

    def _part(self, name: str, width: int, observation: ObservationBatch) -> Array | Tensor:
        value: Array | Tensor = looked_up(observation, name)
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
    """Return a camera's raw images, uint8 (..., H, W, 3), or its points (..., N, C).

    `cameras` has the shapes of all expected cameras; other observations are ignored.

    Raises:
        PolicyError: The camera is missing or has images of another size.
    """
    if name not in observation:
        raise PolicyError(
            f"the observation lacks the camera {name!r}",
            got=sorted(key for key in observation if key.startswith(("images/", "points/"))),
            expected=sorted(cameras),
            hint="configure the cameras that the policy was trained with",
        )
    image = torch.as_tensor(observation[name])
    expected = tuple(cameras[name])
    size = tuple(image.shape[-len(expected) :])
    if size != expected:
        raise PolicyError(
            f"the camera {name!r} has images of another size",
            got=size,
            expected=expected,
            hint="set the camera to the size that the policy was trained with",
        )
    return image


def image_pixels(images: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Scale uint8 images (..., H, W, 3) to network input (N, 3, H, W) in [-1, 1]."""
    channels_first = images.reshape(-1, *images.shape[-3:]).permute(0, 3, 1, 2)
    return channels_first.to(dtype, copy=True).div_(127.5).sub_(1.0)


class Normalizer(nn.Module):
    """Per-dimension affine map of concatenated keys to [-1, 1], fitted once.

    The statistics are buffers, so they are saved in the checkpoint and cannot differ between
    training and deployment (Diffusion Policy, "LinearNormalizer", mode limits).

    Args:
        widths: Key → number of dimensions, in order of concatenation.
        identity: Keys that pass unchanged.
        range_floor: Smallest range, in the key's unit, that is scaled to [-1, 1]. It keeps the
            noise of a near-constant dimension from being amplified.
        tail: Fraction of values at each end that may lie outside [-1, 1]. With 0, one spike of a
            force sensor would squeeze all other readings together.
    """

    center: Tensor
    half_range: Tensor
    fitted: Tensor

    def __init__(
        self,
        widths: Mapping[str, int],
        *,
        identity: Iterable[str] = (),
        range_floor: float = 0.02,
        tail: float = 0.0,
    ) -> None:
        super().__init__()
        self.widths = dict(widths)
        self.identity = frozenset(identity)
        self.range_floor, self.tail = float(range_floor), float(tail)
        if not 0 <= self.tail < 0.5:
            raise PolicyError(
                "the normaliser's tail is out of range", got=tail, expected=">= 0 and < 0.5"
            )
        if self.range_floor <= 0:
            raise PolicyError(
                "the normaliser's range_floor must be positive", got=range_floor, expected="> 0"
            )
        unknown = self.identity - self.widths.keys()
        if unknown:
            raise PolicyError(
                "identity keys that are not normalised keys",
                got=sorted(unknown),
                expected=f"some of {sorted(self.widths)}",
            )
        total = sum(self.widths.values())
        self.register_buffer("center", torch.zeros(total))
        self.register_buffer("half_range", torch.ones(total))
        self.register_buffer("fitted", torch.zeros((), dtype=torch.bool))

    def fit(self, arrays: Mapping[str, Array]) -> Normalizer:
        """Fit the limits of every dimension to arrays of shape (n, ...width).

        Raises:
            PolicyError: Already fitted, a missing key, a wrong width or a non-finite value.
        """
        if bool(self.fitted):
            raise PolicyError(
                "the normaliser is fitted already",
                hint="a policy keeps the normaliser that it was trained with; make a new policy",
            )
        start = 0
        for key, width in self.widths.items():
            part = slice(start, start + width)
            start += width
            if key in self.identity:
                continue
            if key not in arrays:
                raise PolicyError(
                    f"the normaliser needs data of {key!r}", got=sorted(arrays), expected=key
                )
            values = np.asarray(arrays[key], np.float64)
            if values.size == 0 or values.size != len(values) * width:
                raise PolicyError(
                    f"the data of {key!r} has another width",
                    got=values.shape,
                    expected=f"(n > 0, {width})",
                )
            if not np.isfinite(values).all():
                raise PolicyError(f"the data of {key!r} is not finite", expected="finite numbers")
            ends = [self.tail, 1 - self.tail]
            low, high = np.quantile(values.reshape(-1, width), ends, axis=0)
            half_range = np.maximum(high - low, self.range_floor) / 2
            self.center[part] = torch.from_numpy((low + high) / 2).to(self.center)
            self.half_range[part] = torch.from_numpy(half_range).to(self.half_range)
        self.fitted.fill_(True)
        return self

    def with_identity(self, key: str, width: int) -> Normalizer:
        """Return a normaliser with the same statistics and one more key, which passes unchanged."""
        widths = {**self.widths, key: width}
        identity = {*self.identity, key}
        more = Normalizer(widths, identity=identity, range_floor=self.range_floor, tail=self.tail)
        more.center[: len(self.center)] = self.center
        more.half_range[: len(self.half_range)] = self.half_range
        more.fitted.copy_(self.fitted)
        return more.to(self.center.device)

    def normalize(self, values: Tensor) -> Tensor:
        """Map (..., total width) in the keys' units to about [-1, 1]."""
        return (values - self.center) / self.half_range

    def denormalize(self, values: Tensor) -> Tensor:
        """Undo `normalize`."""
        return values * self.half_range + self.center
