"""How fresh a device's measurements are: rate, age, and whether one is new at all."""

from __future__ import annotations

import time

from robot_rl.errors import RobotRLError

_SMOOTHING = 0.05
# A stamp that is further back than this means that a clock was set.
_JUMP_NS = 1_000_000_000


class Freshness:
    """Tells new measurements from repeated ones, and keeps their rate and age.

    Ages are measured on the steady clock from when a measurement was seen first, so that a system
    clock that is set does not make old data look new.

    Args:
        stale_after_s: Age at which the newest measurement counts as stale [s].

    Attributes:
        warning: What is odd about the stamps, or None.
    """

    def __init__(self, stale_after_s: float) -> None:
        """See the class."""
        self.warning: str | None = None
        self._stale_after = stale_after_s
        self._stamp: int | None = None
        self._seen = time.monotonic()
        self._interval = 0.0
        self._count = 0
        self._jumps = 0

    def is_new(self, stamp_ns: int) -> bool:
        """Whether a measurement is another than the one before, which it then replaces.

        A stamp before the last one is new too: a clock was set back, and is counted.

        Raises:
            RobotRLError: There is no stamp.
        """
        if stamp_ns <= 0:
            raise RobotRLError(
                "the device's measurement does not say when it was taken",
                got=f"the stamp {stamp_ns}",
                expected="ns of the system clock",
                hint="its driver must set header.stamp",
            )
        if stamp_ns == self._stamp:
            return False
        now = time.monotonic()
        if self._stamp is not None:
            weight = _SMOOTHING if self._count > 1 else 1.0
            self._interval += weight * (now - self._seen - self._interval)
            if stamp_ns < self._stamp - _JUMP_NS:
                self._jumps += 1
                back = 1e-9 * (self._stamp - stamp_ns)
                self.warning = f"the device's clock has jumped back by {back:.3f} s"
        self._stamp, self._seen = stamp_ns, now
        self._count += 1
        return True

    @property
    def rate_hz(self) -> float:
        """New measurements per second, smoothed; 0 while they are stale."""
        return 0.0 if self.stale or self._interval <= 0.0 else 1.0 / self._interval

    @property
    def age_s(self) -> float:
        """Time since the newest measurement was seen, or since the start [s]."""
        return time.monotonic() - self._seen

    @property
    def stale(self) -> bool:
        """Whether the newest measurement is too old."""
        return self.age_s > self._stale_after

    def describe(self) -> str:
        """The age of the newest measurement, in words."""
        if self._count == 0:
            return f"no measurement yet, for {self.age_s:.3f} s"
        return f"the newest measurement is {self.age_s:.3f} s old"

    def facts(self) -> dict[str, object]:
        """Rate, age and counts for the diagnostics."""
        return {
            "rate_hz": f"{self.rate_hz:.1f}",
            "age_s": f"{self.age_s:.3f}",
            "measurements": self._count,
            "clock_jumps_back": self._jumps,
        }
