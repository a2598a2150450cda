"""How many samples an insert pays for, and who waits when the two drift apart.

The rule of DeepMind Reverb's `SampleToInsertRatio` (Cassirer et al. 2021, arXiv:2102.04736): the
difference samples_per_insert · inserts - samples stays within
an error band around its value when sampling may begin.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from robot_rl.replay.errors import ReplayError


@dataclass(frozen=True)
class RateLimiter:
    """Keeps samples and inserts of a table in step; counts are totals since the run began.

    Attributes:
        samples_per_insert: Transitions drawn for each environment step inserted.
        minimum_inserts: Environment steps before the first sample.
        error_samples: Half the width of the band: how far either side may run ahead, in samples.

    Raises:
        ReplayError: A number is out of range, or the band is too narrow for both to proceed.
    """

    samples_per_insert: float
    minimum_inserts: int
    error_samples: float

    def __post_init__(self) -> None:
        """Check the numbers."""
        if not 0 < self.samples_per_insert < math.inf:
            raise ReplayError(
                "samples_per_insert is out of range", got=self.samples_per_insert, expected="> 0"
            )
        if self.minimum_inserts < 0:
            raise ReplayError(
                "minimum_inserts is out of range", got=self.minimum_inserts, expected=">= 0"
            )
        least = max(1.0, self.samples_per_insert)
        if not least <= self.error_samples < math.inf:
            raise ReplayError(
                "the error band would stop both sides",
                got=self.error_samples,
                expected=f">= {least:g}, what one insert pays for",
            )

    def samples_allowed(self, inserts: int) -> int:
        """How many samples may have been drawn when so many environment steps are in."""
        if inserts < self.minimum_inserts:
            return 0
        paid = self.samples_per_insert * (inserts - self.minimum_inserts)
        return math.floor(paid + self.error_samples)

    def inserts_allowed(self, samples: int) -> int:
        """How many environment steps may be in when so many samples have been drawn."""
        ahead = (samples + self.error_samples) / self.samples_per_insert
        return self.minimum_inserts + math.floor(ahead)
