"""When to begin an episode so that pictures are young at every tick.

Cameras and the control loop run at rates of their own. Where one rate is a multiple of the other,
as 30 Hz and 10 Hz are, a picture that is old at the first tick is as old at each: an episode that
begins at any moment sees pictures half a period old on average. Cameras cannot be told when to
look, but the loop can begin when they have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

# Arrivals vary by milliseconds. So long after one is expected, an episode may begin; one that is
# expected a shorter time than this before a tick may as well come after it [s].
_AFTER_S, _UNSURE_S = 0.004, 0.003


class Rhythm(NamedTuple):
    """When pictures of one camera arrive [s, steady clock]: one of them, and their period."""

    last: float
    period: float

    def age_at(self, moment: float) -> float:
        """Time since the last arrival that surely was before this moment [s]."""
        return (moment - self.last - _UNSURE_S) % self.period + _UNSURE_S

    def next_after(self, moment: float) -> float:
        """When the first arrival after a moment is expected [s, steady clock]."""
        return moment + self.period - (moment - self.last) % self.period


def rhythm_of(arrivals: Sequence[float]) -> Rhythm:
    """The rhythm of two or more arrivals [s, steady clock]."""
    return Rhythm(arrivals[-1], (arrivals[-1] - arrivals[0]) / (len(arrivals) - 1))


def best_moment(rhythms: Sequence[Rhythm], now: float) -> float:
    """The moment [s, steady clock] within a camera's next period at which the oldest is youngest.

    Args:
        rhythms: Of the cameras; without any, the moment is now.
        now: It is not before [s, steady clock].
    """
    # An age only falls when a picture arrives: no moment between two arrivals is the best.
    moments = [rhythm.next_after(now) + _AFTER_S for rhythm in rhythms]
    return min(moments, key=lambda moment: max(r.age_at(moment) for r in rhythms), default=now)
