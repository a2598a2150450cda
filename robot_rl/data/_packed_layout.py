"""Where the numbers of a packed row lie, and the quick check of their values.

It runs for every row in the actor's control loop and in the replay server.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

_FEW_NUMBERS = 256
_LARGE_BYTES = 2048

Packed = bytes | memoryview
_Numbers = tuple[float, ...] | npt.NDArray[Any]


@dataclass(frozen=True)
class Field:
    """One named column: ``shape`` without the time axis, ``dtype`` as NumPy's name."""

    name: str
    dtype: str
    shape: tuple[int, ...] = ()


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

    def read(self, packed: Packed, rows: int, stride: int) -> _Numbers:
        """Return the numbers of all rows, one after the other."""
        if rows == 1 and self.few is not None:
            return self.few.unpack_from(packed, self.offset)
        shape, strides = (rows, self.count), (stride, self.dtype.itemsize)
        view: npt.NDArray[Any] = np.ndarray(shape, self.dtype, packed, self.offset, strides)
        return view.reshape(-1)


class _Checks:
    """The checks of the numbers among neighbouring columns.

    Args:
        fields: The columns, in order.
        actions: Names of those that hold actions.
    """

    def __init__(self, fields: Sequence[Field], actions: Sequence[str]) -> None:
        # Neighbours of one dtype are checked together.
        self._floats = _stretches(fields, lambda f: np.dtype(f.dtype).kind == "f")
        self._actions = _stretches(fields, lambda f: f.name in actions)

    def hold(self, packed: Packed, rows: int, stride: int) -> bool:
        """Whether all numbers are finite and all actions within [-1, 1].

        Args:
            packed: The columns of all rows.
            rows: How many.
            stride: Bytes from one to the next.
        """
        return all(_are_finite(s.read(packed, rows, stride)) for s in self._floats) and all(
            _are_actions(s.read(packed, rows, stride)) for s in self._actions
        )


class _Part:
    """Neighbouring columns of a row that are packed together: small ones, or a large one alone."""

    def __init__(
        self, first: int, fields: Sequence[Field], actions: Sequence[str], *, large: bool
    ) -> None:
        self.first, self.end, self.large = first, first + len(fields), large
        self.checks = _Checks(fields, actions)


class PackedLayout:
    """The columns of packed rows, and where in the bytes the numbers to check lie.

    Args:
        fields: The columns, in order.
        actions: Names of those that hold actions.

    Attributes:
        names: Of the columns.
        columns: Name, dtype and shape of each, in order.
    """

    def __init__(self, fields: Sequence[Field], actions: Sequence[str]) -> None:
        """See the class."""
        self.names = frozenset(f.name for f in fields)
        self.columns = [(f.name, np.dtype(f.dtype), f.shape) for f in fields]
        self._size = sum(_size(f) for f in fields)
        self._checks = _Checks(fields, actions)
        self._parts: list[_Part] = []
        for large, group in itertools.groupby(fields, lambda f: _size(f) >= _LARGE_BYTES):
            together = list(group)
            for some in [[f] for f in together] if large else [together]:
                first = self._parts[-1].end if self._parts else 0
                self._parts.append(_Part(first, some, actions, large=large))

    def parts(self, values: Sequence[npt.NDArray[Any]]) -> list[Packed] | None:
        """Pack the values of one row, in order and of the columns' dtypes and shapes.

        Returns:
            The bytes in parts, large arrays uncopied; None if a number is not as it must be.
        """
        parts: list[Packed] = []
        for part in self._parts:
            if part.large:
                data: Packed = values[part.first].reshape(-1).view(np.uint8).data
            else:
                data = b"".join([value.tobytes() for value in values[part.first : part.end]])
            if not part.checks.hold(data, 1, len(data)):
                return None
            parts.append(data)
        return parts

    def values_hold(self, packed: Packed) -> bool:
        """Whether these are whole rows, all numbers finite and all actions within [-1, 1].

        Args:
            packed: One or more rows.
        """
        rows, rest = divmod(len(packed), self._size)
        return not rest and rows > 0 and self._checks.hold(packed, rows, self._size)


def _are_finite(numbers: _Numbers) -> bool:
    if isinstance(numbers, np.ndarray):
        # Quick: a sum of squares is finite only if all are. Large numbers may overflow it.
        return math.isfinite(np.vdot(numbers, numbers)) or bool(np.isfinite(numbers).all())
    return math.isfinite(sum(numbers)) or all(map(math.isfinite, numbers))


def _are_actions(numbers: _Numbers) -> bool:
    if isinstance(numbers, np.ndarray):
        return bool(numbers.max() <= 1.0 and numbers.min() >= -1.0)
    return max(numbers) <= 1.0 and min(numbers) >= -1.0


def _size(field: Field) -> int:
    return np.dtype(field.dtype).itemsize * math.prod(field.shape)


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
        offset += _size(column)
    return found
