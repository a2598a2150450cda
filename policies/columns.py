"""What a policy sees, by name, also beside the environment's observations. It loads no torch."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from policies.errors import PolicyError

FEATURES = "features/image"
"""What an image encoder makes of a row's images."""
ENCODER_ID = "encoder_id"

LATENT = "latent"
"""What a `LatentPolicy` chose for a plan, in the row in which the plan begins; 0 in all others."""

INSTRUCTION = "instruction"
"""Name under which a conditioned policy finds the instructions (B,) or (B, n) of its episodes."""
INSTRUCTION_FEATURES = "features/instruction"
INSTRUCTION_WIDTH = 16


def looked_up(observation: Mapping[str, Any], name: str) -> Any:
    """What was observed under a name; a `PolicyError` where nothing was."""
    if name not in observation:
        raise PolicyError(f"the observation lacks {name!r}", got=sorted(observation), expected=name)
    return observation[name]


def instruction_features(instructions: Sequence[str]) -> npt.NDArray[np.float16]:
    """Tell B instructions apart, whatever they mean: (B, 16) of -1 or 1.

    A vision-language-action policy understands its instruction. Critics and a residual on top of
    it need only know which of the trained ones is meant: each text has 16 signs of its own, bits
    of its SHA-256.
    """
    digests = [hashlib.sha256(text.encode()).digest() for text in instructions]
    data = np.frombuffer(b"".join(digests), np.uint8).reshape(len(digests), -1)
    bits = np.unpackbits(data[:, : INSTRUCTION_WIDTH // 8], axis=1)
    return np.where(bits == 1, np.float16(1), np.float16(-1))
