"""Copying many rows out of the memory map into a batch's arrays.

This is where a mini-batch spends its time. Fields of a few bytes are copied together as the head
of each distinct row and then spread by NumPy; large ones (images) go straight to their place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import lmdb
import numpy as np
import numpy.typing as npt

from robot_rl.data.schema import Array, RowSchema
from robot_rl.replay.annotations import AnnotationField, latest_of_row
from robot_rl.replay.batch_layout import ANNOTATION, VALID, BatchLayout
from robot_rl.replay.environment import ANNOTATIONS, ROWS, Environment
from robot_rl.replay.records import ROW_KEY_DTYPE, field_offset, split_keys
from robot_rl.replay.windows import Records, place_codes

LARGE_BYTES = 2048

Slots = npt.NDArray[np.int64]


class RowGather:
    """Fills arrays with fields of rows at s and at the next state.

    Args:
        environment: The open store.
        table: Number of the table.
        schema: Its schema.
        layout: What the arrays are.
    """

    def __init__(
        self,
        environment: Environment,
        table: int,
        schema: RowSchema,
        layout: BatchLayout,
    ) -> None:
        """Work out which bytes of a row are wanted; see the class."""
        self._environment, self._table = environment, table
        self._annotations = layout.annotations
        wanted = {c.name: c for c in layout.columns}
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
    ) -> Slots:
        """Copy the rows of windows, in one read transaction.

        Args:
            windows: Shape (N,), dtype `WINDOW`.
            sessions: Actor and session numbers, by the windows' session index.
            current: Arrays to fill with fields at s, by name, shape (N, *field).
            following: The same for the next state.

        Returns:
            The windows of which a row is no longer in the store, ascending; their places in the
            arrays are undefined.
        """
        count = len(windows)
        sequences = windows["sequence"]
        codes = np.concatenate(
            (
                place_codes(windows["session"], sequences),
                place_codes(windows["session"], sequences + windows["ahead"]),
            )
        )
        distinct, inverse = np.unique(codes, return_inverse=True)
        keys = self._keys(distinct, sessions)
        with self._environment.begin_buffers() as txn:
            cursor = txn.cursor(self._environment.databases[ROWS])
            if self._large:
                heads, absent = self._copy_all(cursor, keys, inverse, current, following)
            else:
                heads, absent = self._copy_heads(cursor, keys)
            for field in self._annotations:
                self._copy_annotation(txn, field, keys, inverse, (current, following))
        for name in self._head.names or ():
            if name in current:
                current[name][...] = heads[name][inverse[:count]]
            if name in following:
                following[name][...] = heads[name][inverse[count:]]
        if not absent:
            return np.empty(0, np.int64)
        return np.unique(np.flatnonzero(np.isin(inverse, absent)) % count)

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

    def _copy_heads(
        self, cursor: lmdb.Cursor[memoryview], keys: list[bytes]
    ) -> tuple[Records, list[int]]:
        """Return the heads of rows, shape (keys,), and which rows are absent."""
        start, end, width = self._start, self._end, self._head.itemsize
        heads = np.zeros(len(keys), self._head)
        view, at = heads.view(np.uint8).data, 0
        absent: list[int] = []
        find, value = cursor.set_key, cursor.value
        for row, key in enumerate(keys):
            if find(key):
                view[at : at + width] = value()[start:end]
            else:
                absent.append(row)
            at += width
        return heads, absent

    def _copy_all(
        self,
        cursor: lmdb.Cursor[memoryview],
        keys: list[bytes],
        inverse: Slots,
        current: Mapping[str, Array],
        following: Mapping[str, Array],
    ) -> tuple[Records, list[int]]:
        """Return what `_copy_heads` does, and copy large fields to where they go."""
        start, end, width = self._start, self._end, self._head.itemsize
        heads = np.zeros((len(keys), width), np.uint8)
        view = heads.reshape(-1).data
        count = len(inverse) // 2
        targets = self._targets(current), self._targets(following)
        slots = np.argsort(inverse, kind="stable").tolist()
        rows = inverse[slots].tolist()
        absent: list[int] = []
        at, there = -1, False
        data = memoryview(b"")
        find, value = cursor.set_key, cursor.value
        for slot, row in zip(slots, rows, strict=True):
            if row != at:
                at, there = row, find(keys[row])
                if there:
                    data = value()
                    view[row * width : (row + 1) * width] = data[start:end]
                else:
                    absent.append(row)
            if there:
                side, place = divmod(slot, count)
                for target, offset, size in targets[side]:
                    target[place * size : (place + 1) * size] = data[offset : offset + size]
        heads_of_rows = heads.reshape(-1).view(self._head) if width else np.empty(len(keys))
        return heads_of_rows, absent

    def _copy_annotation(
        self,
        txn: lmdb.Transaction[memoryview],
        field: AnnotationField,
        keys: list[bytes],
        inverse: Slots,
        sides: tuple[Mapping[str, Array], Mapping[str, Array]],
    ) -> None:
        """Fill the column of an annotation and its mask at s and at the next state."""
        values = np.zeros((len(keys), *field.shape), field.dtype)
        valid = np.zeros(len(keys), np.bool_)
        cursor = txn.cursor(self._environment.databases[ANNOTATIONS])
        for row, key in enumerate(keys):
            value = latest_of_row(cursor, field, key)
            if value is not None:
                values[row] = np.frombuffer(value, field.dtype).reshape(field.shape)
                valid[row] = True
        name = ANNOTATION + field.name
        for arrays, places in zip(sides, np.split(inverse, 2), strict=True):
            arrays[name][...] = values[places]
            arrays[name + VALID][...] = valid[places]

    def _targets(self, arrays: Mapping[str, Array]) -> list[tuple[memoryview, int, int]]:
        """List the large fields among arrays: the bytes to fill, offset and size in a row."""
        return [
            (arrays[name].reshape(-1).view(np.uint8).data, offset, size)
            for name, (offset, size) in self._large.items()
            if name in arrays
        ]
