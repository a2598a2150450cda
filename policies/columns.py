"""Names of the columns that policies read and write; does not import torch."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from policies.errors import PolicyError

if TYPE_CHECKING:
    from torch import Tensor

    Values = npt.NDArray[Any] | Tensor

FEATURES = "features/image"
"""Features of a row's images."""
ENCODER_ID = "encoder_id"

PLAN = "plan/"
"""Prefix of a `Plan`'s extras. Set in the row where the plan starts, 0 in other rows."""

INSTRUCTION = "instruction"
"""Name of the episodes' instructions, (B,) or (B, n), that a conditioned policy reads."""
INSTRUCTION_FEATURES = "features/instruction"
INSTRUCTION_WIDTH = 16


class Plan(NamedTuple):
    """A chunk of actions planned by a policy: arrays, or tensors from networks."""

    actions: Values  # (B, H, d) in [-1, 1]
    # Name → (B, width), columns of the plan that rows store: see `ChunkPolicy.extras`.
    extras: Mapping[str, Values] = {}  # read-only


def looked_up(observation: Mapping[str, Any], name: str) -> Any:
    """Return an observation by name; raise `PolicyError` if it is missing."""
    if name not in observation:
        raise PolicyError(f"the observation lacks {name!r}", got=sorted(observation), expected=name)
    return observation[name]


def check_numbers(name: str, values: npt.NDArray[Any]) -> None:
    """Raise `PolicyError` if an observation (n, ...) has values that are not finite numbers."""
    if values.dtype.kind in "iub":
        return
    if values.dtype.kind != "f":
        found = f"dtype {values.dtype}"
    else:
        with np.errstate(over="ignore"):  # networks compute in float32
            bad = ~np.isfinite(values.astype(np.float32, copy=False))
        if not bad.any():
            return
        found = f"{values[bad].flat[0]!r}, {bad.sum()} of {bad.size} values"
    raise PolicyError(
        f"the observation {name!r} is not finite",
        got=found,
        expected="numbers that float32 can hold",
        hint="check the sensor or the environment that gave it",
    )


def instruction_features(instructions: Sequence[str]) -> npt.NDArray[np.float16]:
    """Hash B instructions to codes (B, 16) of -1 or 1.

    A vision-language-action policy understands its instruction. Critics and a residual on top of
    it only need to distinguish the trained ones, so each text becomes 16 bits of its SHA-256.
    """
    digests = [hashlib.sha256(text.encode()).digest() for text in instructions]
    data = np.frombuffer(b"".join(digests), np.uint8).reshape(len(digests), -1)
    bits = np.unpackbits(data[:, : INSTRUCTION_WIDTH // 8], axis=1)
    return np.where(bits == 1, np.float16(1), np.float16(-1))
