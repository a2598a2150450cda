"""Min-max normalisation whose statistics are part of the policy's weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from policies.errors import PolicyError

Array = npt.NDArray[Any]


class Normalizer(nn.Module):
    """Per-dimension affine map of concatenated keys to [-1, 1], fitted once.

    The statistics are buffers, so they travel in the checkpoint and cannot differ between
    training and deployment (Diffusion Policy, "LinearNormalizer", mode limits).

    Args:
        widths: Key → number of dimensions; the order is the order of concatenation.
        identity: Keys that pass unchanged.
        range_floor: Smallest range, in the key's unit, that is stretched to [-1, 1]. A
            near-constant dimension is divided by this instead of by its noise.
        tail: Share of the values at each end that may lie outside of [-1, 1]. With 0 one spike
            of a force sensor would squeeze all its other readings together.
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
        """Start as the identity map; see the class for the arguments."""
        super().__init__()
        self.widths = dict(widths)
        self.identity = frozenset(identity)
        self.range_floor = float(range_floor)
        self.tail = float(tail)
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
        """Take the limits of every dimension from arrays of shape (n, ...width).

        Raises:
            PolicyError: Already fitted, a missing key, another width, or a non-finite value.
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
            low, high = _limits(key, width, arrays, self.tail)
            half_range = np.maximum(high - low, self.range_floor) / 2
            self.center[part] = torch.from_numpy((low + high) / 2).to(self.center)
            self.half_range[part] = torch.from_numpy(half_range).to(self.half_range)
        self.fitted.fill_(True)
        return self

    def with_identity(self, key: str, width: int) -> Normalizer:
        """Give a normaliser with the same statistics and one more key, which passes unchanged."""
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


def _limits(key: str, width: int, arrays: Mapping[str, Array], tail: float) -> tuple[Array, Array]:
    if key not in arrays:
        raise PolicyError(f"the normaliser needs data of {key!r}", got=sorted(arrays), expected=key)
    values = np.asarray(arrays[key], np.float64)
    if values.size == 0 or values.size != len(values) * width:
        raise PolicyError(
            f"the data of {key!r} has another width", got=values.shape, expected=f"(n > 0, {width})"
        )
    values = values.reshape(-1, width)
    if not np.isfinite(values).all():
        raise PolicyError(f"the data of {key!r} is not finite", expected="finite numbers")
    low, high = np.quantile(values, [tail, 1 - tail], axis=0)
    return low, high
