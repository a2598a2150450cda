"""Where the numbers of a packed row lie, and the quick check of their values.

It runs for every row in the actor's control loop and in the replay server.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from robot_rl.data.schema import Field

_FEW_NUMBERS = 256
_Numbers = tuple[float, ...] | npt.NDArray[Any]


@dataclass(frozen=True)
class _Stretch:
    """Neighbouring numbers of one dtype in a packed row.

    Attributes:
        dtype: Of each number.
        count: How many.
        offset: Of the first one, in bytes.
    """

    dtype: np.dtype[Any]
    count: int
    offset: int

    @property
    def end(self) -> int:
        """Offset after the last number, in bytes."""
        return self.offset + self.count * self.dtype.itemsize

    @cached_property
    def few(self) -> struct.Struct | None:
        """What reads them from one row faster than NumPy, where they are not too many."""
        known = self.dtype.char in "efd" and self.dtype.isnative and self.count <= _FEW_NUMBERS
        return struct.Struct(f"={self.count}{self.dtype.char}") if known else None

    def read(self, packed: bytes | memoryview, rows: int, row_size: int) -> _Numbers:
        """Return the numbers of all rows, one after the other."""
        if rows == 1 and self.few is not None:
            return self.few.unpack_from(packed, self.offset)
        shape, strides = (rows, self.count), (row_size, self.dtype.itemsize)
        view: npt.NDArray[Any] = np.ndarray(shape, self.dtype, packed, self.offset, strides)
        return view.reshape(-1)


class PackedLayout:
    """The columns of packed rows, and where in the bytes the numbers to check lie.

    Args:
        fields: The columns, in order.
        actions: Names of those that hold actions.
    """

    def __init__(self, fields: Sequence[Field], actions: Sequence[str]) -> None:
        """See the class."""
        self.names = frozenset(f.name for f in fields)
        self.columns = [(f.name, np.dtype(f.dtype), f.shape) for f in fields]
        self._size = sum(dtype.itemsize * math.prod(shape) for _, dtype, shape in self.columns)
        # Neighbours of one dtype are checked together.
        self._floats = _stretches(fields, lambda f: np.dtype(f.dtype).kind == "f")
        self._actions = _stretches(fields, lambda f: f.name in actions)

    def values_hold(self, packed: bytes | memoryview) -> bool:
        """Whether these are whole rows, all numbers finite and all actions within [-1, 1]."""
        rows, rest = divmod(len(packed), self._size)
        if rest or not rows:
            return False
        return all(
            _are_finite(stretch.read(packed, rows, self._size)) for stretch in self._floats
        ) and all(_are_actions(stretch.read(packed, rows, self._size)) for stretch in self._actions)


def _are_finite(numbers: _Numbers) -> bool:
    if isinstance(numbers, np.ndarray):
        # Quick: a sum of squares is finite only if all are. Large numbers may overflow it.
        return math.isfinite(np.vdot(numbers, numbers)) or bool(np.isfinite(numbers).all())
    return math.isfinite(sum(numbers)) or all(map(math.isfinite, numbers))


def _are_actions(numbers: _Numbers) -> bool:
    if isinstance(numbers, np.ndarray):
        return bool(numbers.max() <= 1.0 and numbers.min() >= -1.0)
    return max(numbers) <= 1.0 and min(numbers) >= -1.0


def _stretches(fields: Sequence[Field], wanted: Callable[[Field], bool]) -> list[_Stretch]:
    """The longest runs of wanted fields of one dtype in a packed row."""
    found: list[_Stretch] = []
    offset = 0
    for column in fields:
        dtype = np.dtype(column.dtype)
        count = math.prod(column.shape)
        if wanted(column) and count:
            if found and found[-1].dtype == dtype and found[-1].end == offset:
                found[-1] = replace(found[-1], count=found[-1].count + count)
            else:
                found.append(_Stretch(dtype, count, offset))
        offset += count * dtype.itemsize
    return found
