"""The arrays of a mini-batch: allocated once, filled again and again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from robot_rl.data.schema import Array
from robot_rl.replay.errors import ReplayError

Batch = dict[str, Array]
# For each array its dtype and the shape of one item.
Layout = Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]


def allocate(layout: Layout, lead: tuple[int, ...]) -> Batch:
    """Return arrays of shape (*lead, *shape)."""
    return {name: np.empty((*lead, *shape), dtype) for name, (dtype, shape) in layout.items()}


def checked(out: Batch, layout: Layout, lead: tuple[int, ...]) -> Batch:
    """Return `out` if it is what `allocate` makes; bytes are copied into it unseen.

    Raises:
        ReplayError: An array is absent, or of another shape or dtype.
    """
    for name, (dtype, shape) in layout.items():
        array = out.get(name)
        if (
            array is None
            or array.shape != (*lead, *shape)
            or array.dtype != dtype
            or not array.flags.c_contiguous
        ):
            raise ReplayError(
                f"out[{name!r}] cannot take this batch",
                got=None if array is None else f"{array.dtype} {array.shape}",
                expected=f"{dtype} {(*lead, *shape)}, contiguous",
                hint="take it from allocate()",
            )
    return out
