"""Copying many rows out of the memory map into a batch's arrays.

This is where a mini-batch spends its time. Fields of a few bytes are copied together as the head
of each distinct row and then spread by NumPy; large ones (images) go straight to their place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from robot_rl.data.schema import Array, Field, RowSchema
from robot_rl.replay.environment import ROWS, Environment
from robot_rl.replay.errors import NotEnoughData
from robot_rl.replay.records import ROW_KEY, ROW_KEY_DTYPE, field_offset
from robot_rl.replay.windows import Records

LARGE_BYTES = 2048


class RowGather:
    """Fills arrays with fields of rows at s and at the next state.

    Args:
        environment: The open store.
        table: Number of the table.
        schema: Its schema.
        columns: Fields wanted at s.
        next_columns: Fields wanted at the next state.
    """

    def __init__(
        self,
        environment: Environment,
        table: int,
        schema: RowSchema,
        columns: Sequence[Field],
        next_columns: Sequence[Field],
    ) -> None:
        """Work out which bytes of a row are wanted; see the class."""
        self._environment, self._table = environment, table
        wanted = {c.name: c for c in (*columns, *next_columns)}
        spans = {name: (field_offset(schema, name), schema.dtype[name].itemsize) for name in wanted}
        self._large = {name: span for name, span in spans.items() if span[1] >= LARGE_BYTES}
        small = {name: span for name, span in spans.items() if span[1] < LARGE_BYTES}
        self._start = min((offset for offset, _ in small.values()), default=0)
        self._end = max((offset + size for offset, size in small.values()), default=0)
        self._head = np.dtype(
            {
                "names": list(small),
                "formats": [(wanted[name].dtype, wanted[name].shape) for name in small],
                "offsets": [offset - self._start for offset, _ in small.values()],
                "itemsize": self._end - self._start,
            }
        )

    def fill(
        self,
        windows: Records,
        sessions: Sequence[tuple[int, int]],
        current: Mapping[str, Array],
        following: Mapping[str, Array],
    ) -> None:
        """Copy the rows of windows.

        Args:
            windows: Shape (N,), dtype `WINDOW`.
            sessions: Actor and session numbers, by the windows' session index.
            current: For each column at s an array of shape (N, *shape), contiguous.
            following: The same for the next state.

        Raises:
            NotEnoughData: A row is not in the store.
        """
        count = len(windows)
        places = np.empty(2 * count, [("session", np.int64), ("sequence", np.int64)])
        places["session"] = np.tile(windows["session"], 2)
        places["sequence"][:count] = windows["sequence"]
        places["sequence"][count:] = windows["sequence"] + windows["steps"]
        # One integer sorts faster than a pair; a session of 2^40 rows would last a millennium.
        codes = (places["session"] << 40) | places["sequence"]
        distinct, inverse = np.unique(codes, return_inverse=True)
        keys = self._keys(distinct, sessions)
        heads = np.empty(len(distinct), self._head)
        slots = self._large_slots(inverse, count, current, following)
        self._copy(keys, heads, slots)
        for name in self._head.names or ():
            if name in current:
                current[name][...] = heads[name][inverse[:count]]
            if name in following:
                following[name][...] = heads[name][inverse[count:]]

    def _keys(
        self, distinct: npt.NDArray[np.int64], sessions: Sequence[tuple[int, int]]
    ) -> list[bytes]:
        number = distinct >> 40
        table = np.array(sessions, np.uint64)
        keys = np.empty(len(distinct), ROW_KEY_DTYPE)
        keys["table"] = self._table
        keys["actor"] = table[number, 0]
        keys["session"] = table[number, 1]
        keys["sequence"] = distinct & ((1 << 40) - 1)
        return cast_keys(keys)

    def _large_slots(
        self,
        inverse: npt.NDArray[np.int64],
        count: int,
        current: Mapping[str, Array],
        following: Mapping[str, Array],
    ) -> list[list[tuple[memoryview, int, int, int]]]:
        """For each distinct row list where its large fields go: target, at, offset, size."""
        slots: list[list[tuple[memoryview, int, int, int]]] = []
        if not self._large:
            return slots
        slots = [[] for _ in range(int(inverse.max()) + 1)]
        for arrays, rows in ((current, inverse[:count]), (following, inverse[count:])):
            for name, (offset, size) in self._large.items():
                if name in arrays:
                    target = arrays[name].reshape(-1).view(np.uint8).data
                    for position, row in enumerate(rows.tolist()):
                        slots[row].append((target, position * size, offset, size))
        return slots

    def _copy(
        self,
        keys: list[bytes],
        heads: Records,
        slots: list[list[tuple[memoryview, int, int, int]]],
    ) -> None:
        start, end, width = self._start, self._end, self._head.itemsize
        view = heads.view(np.uint8).data if width else memoryview(b"")
        at = 0
        with self._environment.begin_buffers() as txn:
            cursor = txn.cursor(self._environment.databases[ROWS])
            find, value = cursor.set_key, cursor.value
            for row, key in enumerate(keys):
                if not find(key):
                    raise NotEnoughData(
                        "a row that was indexed is not in the store", got=ROW_KEY.unpack(key)
                    )
                data = value()
                if width:
                    view[at : at + width] = data[start:end]
                    at += width
                if slots:
                    for target, position, offset, size in slots[row]:
                        target[position : position + size] = data[offset : offset + size]


def cast_keys(keys: Records) -> list[bytes]:
    """Turn an array of `ROW_KEY_DTYPE` into LMDB keys."""
    size = ROW_KEY_DTYPE.itemsize
    data = keys.tobytes()
    return [data[at : at + size] for at in range(0, len(data), size)]
