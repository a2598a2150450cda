"""Fixed quotas: which kind of data each slot of a batch is drawn from."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from robot_rl.replay.errors import NotEnoughData, ReplayError


class DataKind(IntEnum):
    """What a slot of a batch is drawn from."""

    DEMONSTRATION = 0
    INTERVENTION = 1
    ONLINE = 2


# What stands in for a kind that has no data yet, if it has a share itself.
_REPLACEMENTS = {
    DataKind.DEMONSTRATION: (DataKind.ONLINE,),
    DataKind.INTERVENTION: (DataKind.DEMONSTRATION, DataKind.ONLINE),
    DataKind.ONLINE: (DataKind.DEMONSTRATION,),
}


class Quotas:
    """Gives each slot of a batch its kind, interleaved.

    Every contiguous part of a batch keeps the share of demonstrations to within one row, and
    those of the others to within two.

    Args:
        batch_size: Slots.
        demonstration_share: In [0, 1].
        intervention_share: In [0, 1 - demonstration_share]; 0 where interventions have no slots of
            their own.

    Raises:
        ReplayError: A share is out of range.
    """

    def __init__(
        self, batch_size: int, demonstration_share: float, intervention_share: float
    ) -> None:
        """Lay out the slots; see the class."""
        online = 1.0 - demonstration_share - intervention_share
        shares = demonstration_share, intervention_share
        if not all(0 <= share <= 1 for share in shares) or online < -1e-9:
            raise ReplayError(
                "the shares of demonstrations and interventions are out of range",
                got=f"{demonstration_share} and {intervention_share}",
                expected="each in [0, 1], and at most 1 together",
            )
        kinds = np.full(batch_size, DataKind.ONLINE, np.uint8)
        kinds[_every(batch_size, demonstration_share)] = DataKind.DEMONSTRATION
        others = np.flatnonzero(kinds == DataKind.ONLINE)
        if intervention_share > 0:
            part = min(intervention_share / (1.0 - demonstration_share), 1.0)
            kinds[others[_every(len(others), part)]] = DataKind.INTERVENTION
        self._kinds = kinds
        self._shares = dict(zip(DataKind, (*shares, max(online, 0.0)), strict=True))

    def kinds(self, available: Mapping[DataKind, int]) -> npt.NDArray[np.uint8]:
        """Return the kind of each slot, shape (batch_size,).

        Args:
            available: Windows of each kind. One that has none is replaced by another.

        Raises:
            NotEnoughData: There is nothing to replace it.
        """
        kinds = self._kinds
        for kind in DataKind:
            wanted = self._kinds == kind
            if available[kind] or not wanted.any():
                continue
            usable = [k for k in _REPLACEMENTS[kind] if self._shares[k] > 0 and available[k]]
            if not usable:
                raise NotEnoughData(
                    "there is nothing to sample from",
                    got={k.name.lower(): count for k, count in available.items()},
                    expected=f"data of kind {kind.name.lower()}, or of one that replaces it",
                    hint="if it was evicted, raise replay.capacity_rows or capacity_bytes",
                )
            kinds = np.where(wanted, np.uint8(usable[0]), kinds)
        return kinds


def _every(count: int, share: float) -> npt.NDArray[np.bool_]:
    """Spread a share evenly over so many slots, shape (count,)."""
    steps: npt.NDArray[np.float64] = np.diff(np.floor(np.arange(count + 1) * share + 1e-9))
    return steps.astype(np.bool_)
