"""Names of the columns that policies read and write. It loads no torch."""

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
"""The features of a row's images."""
ENCODER_ID = "encoder_id"

PLAN = "plan/"
"""Prefix of the extras of a `Plan`, in the row where the plan begins; 0 in other rows."""

INSTRUCTION = "instruction"
"""Name under which a conditioned policy finds the instructions (B,) or (B, n) of its episodes."""
INSTRUCTION_FEATURES = "features/instruction"
INSTRUCTION_WIDTH = 16


class Plan(NamedTuple):
    """A chunk of actions that a policy has planned: arrays, or tensors from networks."""

    actions: Values  # (B, H, d) in [-1, 1]
    # Name → (B, width), as `ChunkPolicy.extras` says: what rows keep of the plan.
    extras: Mapping[str, Values] = {}  # never changed


def looked_up(observation: Mapping[str, Any], name: str) -> Any:
    """Return the observation of a name, or raise `PolicyError` if there is none."""
    if name not in observation:
        raise PolicyError(f"the observation lacks {name!r}", got=sorted(observation), expected=name)
    return observation[name]


def check_numbers(name: str, values: npt.NDArray[Any]) -> None:
    """Raise `PolicyError` if an observation (n, ...) holds anything but finite numbers."""
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
    """Codes of B instructions, whatever they mean: (B, 16) of -1 or 1.

    A vision-language-action policy understands its instruction. Critics and a residual on top of
    it need only know which of the trained ones is meant: each text has 16 signs of its own, bits
    of its SHA-256.
    """
    digests = [hashlib.sha256(text.encode()).digest() for text in instructions]
    data = np.frombuffer(b"".join(digests), np.uint8).reshape(len(digests), -1)
    bits = np.unpackbits(data[:, : INSTRUCTION_WIDTH // 8], axis=1)
    return np.where(bits == 1, np.float16(1), np.float16(-1))
