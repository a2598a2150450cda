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
        if self._large:
            heads = self._copy_all(keys, inverse, current, following)
        else:
            heads = self._copy_heads(keys)
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
        return split_keys(keys)

    def _copy_heads(self, keys: list[bytes]) -> Records:
        """Return the heads of rows, shape (keys,)."""
        start, end, width = self._start, self._end, self._head.itemsize
        heads = np.empty(len(keys), self._head)
        view, at = heads.view(np.uint8).data, 0
        with self._environment.begin_buffers() as txn:
            cursor = txn.cursor(self._environment.databases[ROWS])
            find, value = cursor.set_key, cursor.value
            for key in keys:
                if not find(key):
                    raise _absent(key)
                view[at : at + width] = value()[start:end]
                at += width
        return heads

    def _copy_all(
        self,
        keys: list[bytes],
        inverse: npt.NDArray[np.int64],
        current: Mapping[str, Array],
        following: Mapping[str, Array],
    ) -> Records:
        """Return the heads of rows, and copy their large fields to where they go."""
        start, end, width = self._start, self._end, self._head.itemsize
        heads = np.empty((len(keys), width), np.uint8)
        view = heads.reshape(-1).data
        count = len(inverse) // 2
        targets = self._targets(current), self._targets(following)
        slots = np.argsort(inverse, kind="stable").tolist()
        rows = inverse[slots].tolist()
        at = -1
        with self._environment.begin_buffers() as txn:
            cursor = txn.cursor(self._environment.databases[ROWS])
            find, value = cursor.set_key, cursor.value
            data = memoryview(b"")
            for slot, row in zip(slots, rows, strict=True):
                if row != at:
                    at = row
                    if not find(keys[row]):
                        raise _absent(keys[row])
                    data = value()
                    view[row * width : (row + 1) * width] = data[start:end]
                if slot < count:
                    for target, offset, size in targets[0]:
                        target[slot * size : (slot + 1) * size] = data[offset : offset + size]
                else:
                    place = slot - count
                    for target, offset, size in targets[1]:
                        target[place * size : (place + 1) * size] = data[offset : offset + size]
        return heads.reshape(-1).view(self._head) if width else np.empty(len(keys), self._head)

    def _targets(self, arrays: Mapping[str, Array]) -> list[tuple[memoryview, int, int]]:
        """List the large fields among arrays: the bytes to fill, offset and size in a row."""
        return [
            (arrays[name].reshape(-1).view(np.uint8).data, offset, size)
            for name, (offset, size) in self._large.items()
            if name in arrays
        ]


def _absent(key: bytes) -> NotEnoughData:
    return NotEnoughData("a row that was indexed is not in the store", got=ROW_KEY.unpack(key))


def split_keys(keys: Records) -> list[bytes]:
    """Turn an array of `ROW_KEY_DTYPE` into LMDB keys."""
    size = ROW_KEY_DTYPE.itemsize
    data = keys.tobytes()
    return [data[at : at + size] for at in range(0, len(data), size)]
