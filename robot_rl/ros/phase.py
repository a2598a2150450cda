"""When to begin an episode so that what is seen at its ticks is young.

Sensors and the control loop run at rates of their own. Where one rate is a multiple of the other,
as 30 Hz and 10 Hz are, a picture that is old at the first tick is as old at all of them, and an
episode that begins at any moment sees pictures half a period old on average. Sensors cannot be told
when to look, but the loop can begin when they have.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

# Arrivals vary by milliseconds: what came so shortly before a tick may another time come after it.
_UNSURE_S = 0.003
_RESOLUTION_S = 0.001


class Arrival(NamedTuple):
    """When a measurement was taken and when it was received [s, steady clock]."""

    taken: float
    received: float


def best_moment(streams: Sequence[Sequence[Arrival]], start: float, period: float) -> float:
    """The moment of a control period at which measurements were the youngest, on average.

    Args:
        streams: What arrived of each sensor, oldest first, from before `start` until a period after
            it; one without anything from before it does not count.
        start: Where the control period begins [s, steady clock].
        period: Its length [s].

    Returns:
        A moment from `start` until `start + period` [s, steady clock]. What repeats in the control
        period is as young a whole number of periods later.
    """
    moments = start + np.arange(0.0, period, _RESOLUTION_S)
    ages = [_ages(stream, moments) for stream in streams if stream and stream[0].received < start]
    if not ages:
        return start
    return float(moments[np.argmin(np.sum(ages, axis=0))])


def _ages(stream: Sequence[Arrival], moments: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Age of the newest measurement that had surely been received, at each moment [s]."""
    taken, received = np.array(stream).T
    newest = np.searchsorted(received + _UNSURE_S, moments, side="right") - 1
    ages: npt.NDArray[np.float64] = moments - taken[np.maximum(newest, 0)]
    return ages
