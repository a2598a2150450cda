"""Instructions as a few numbers, for networks that learn on top of a conditioned policy."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

INSTRUCTION_FEATURES = "features/instruction"
INSTRUCTION_WIDTH = 16


def instruction_features(instructions: Sequence[str]) -> npt.NDArray[np.float16]:
    """Tell instructions apart, whatever they mean.

    A vision-language-action policy understands its instruction. Critics and a residual on top of
    it need only know which of the trained ones is meant: each text has 16 signs of its own, bits
    of its SHA-256.

    Args:
        instructions: B texts.

    Returns:
        (B, 16) of -1 or 1.
    """
    digests = [hashlib.sha256(text.encode()).digest() for text in instructions]
    data = np.frombuffer(b"".join(digests), np.uint8).reshape(len(digests), -1)
    bits = np.unpackbits(data[:, : INSTRUCTION_WIDTH // 8], axis=1)
    return np.where(bits == 1, np.float16(1), np.float16(-1))
