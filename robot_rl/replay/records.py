"""Keys and records of the store: how rows, episodes, sessions and weights are laid out.

Row key, big-endian: table u16, actor u32, session u64, sequence u64. Session and sequence are a
row's exactly-once identity; an episode is a run of consecutive sequences of one session.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from robot_rl.data.schema import SOURCE_NAMES, RowSchema, SchemaMismatch
from robot_rl.replay.errors import StoreError

TABLE_LIMIT = 2**16
ACTOR_LIMIT = 2**32
SESSION_LIMIT = 2**63
SEQUENCE_LIMIT = 2**63
MAXIMUM_ROW_BYTES = 64 << 20  # a row must fit into one frame of a message
MAXIMUM_FIELDS = 512

ROW_KEY = struct.Struct(">HIQQ")
SESSION_KEY = struct.Struct(">HIQ")
TABLE_KEY = struct.Struct(">H")
EPISODE_KEY = struct.Struct(">Q")
ROW_KEY_DTYPE = np.dtype(
    [("table", ">u2"), ("actor", ">u4"), ("session", ">u8"), ("sequence", ">u8")]
)

SessionKey = tuple[int, int, int]


@dataclass(frozen=True)
class TableInfo:
    """A table: rows of one schema.

    Attributes:
        identifier: The number that starts each of its keys.
        name: What clients call it.
        schema: Its columns.
        metadata: Facts about the recording, for example ``{"simulated": True}``.
    """

    identifier: int
    name: str
    schema: RowSchema
    metadata: Mapping[str, object] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Serialise for the store."""
        content = {
            "name": self.name,
            "schema": self.schema.to_json(),
            "metadata": dict(self.metadata),
        }
        return json.dumps(content).encode()

    @classmethod
    def from_bytes(cls, key: bytes, value: bytes) -> TableInfo:
        """Read what `to_bytes` wrote under `key`."""
        content = json.loads(value)
        return cls(
            TABLE_KEY.unpack(key)[0],
            str(content["name"]),
            RowSchema.from_json(content["schema"]),
            content["metadata"],
        )


class RowFacts(NamedTuple):
    """What the store needs to know of a row."""

    size: int
    is_last: bool
    ended: bool
    terminated: bool
    success: bool
    source: int


@dataclass(frozen=True)
class EpisodeRecord:
    """One episode: rows ``first_sequence ... first_sequence + rows - 1`` of one session.

    A step that was taken counts, whether or not its outcome was ever stored.

    Attributes:
        identifier: Increases in the order in which episodes began.
        table: Number of its table.
        actor: Who recorded it.
        session: In which session.
        first_sequence: Sequence of its first row.
        rows: Rows so far; T + 1 once sealed, or fewer if cut short.
        steps: Environment steps by source: demonstration, policy, intervention. A step that
            ended the episode counts once the row with ``is_last`` is there.
        sealed: Whether it is complete: its row with ``is_last`` is there, or it was cut short.
        cut: Whether its actor began a later session before the row with ``is_last`` came. The last
            row then serves as the final observation, and what it says of an action is not used;
            but where that row is terminated the episode is whole, without a final observation.
        source: Source of its first row: ``demo``, ``policy`` or ``intervention``.
        success: Whether any of its rows says so.
        size: Bytes of its packed rows.
        metadata: What the actor said of it: ``task``, ``seed``, ``instruction``.
    """

    identifier: int
    table: int
    actor: int
    session: int
    first_sequence: int
    rows: int = 0
    steps: tuple[int, int, int] = (0, 0, 0)
    sealed: bool = False
    cut: bool = False
    source: str = SOURCE_NAMES[0]
    success: bool = False
    size: int = 0
    metadata: Mapping[str, object] = field(default_factory=dict)

    @property
    def environment_steps(self) -> int:
        """Environment steps that were taken in it."""
        return sum(self.steps)

    @property
    def session_key(self) -> SessionKey:
        """Table, actor and session."""
        return (self.table, self.actor, self.session)

    @property
    def is_demonstration(self) -> bool:
        """Whether it began as a demonstration; such an episode is never evicted."""
        return self.source == SOURCE_NAMES[0]

    def with_rows(self, rows: Sequence[RowFacts], finished: Sequence[int]) -> EpisodeRecord:
        """Return the record after one or more further rows.

        Args:
            rows: What the rows say of themselves.
            finished: Sources of the environment steps that are complete with these rows.
        """
        return EpisodeRecord(  # quicker than `replace`, which counts for the server
            self.identifier,
            self.table,
            self.actor,
            self.session,
            self.first_sequence,
            self.rows + len(rows),
            self._steps_after(finished),
            rows[-1].is_last,
            self.cut,
            SOURCE_NAMES[rows[0].source] if self.rows == 0 else self.source,
            self.success or any(row.success for row in rows),
            self.size + sum([row.size for row in rows]),
            self.metadata,
        )

    def cut_short(self, finished: int | None) -> EpisodeRecord:
        """Return the record of the episode closed without its row with ``is_last``.

        Args:
            finished: Source of the last row, if that row terminated the episode.
        """
        steps = self._steps_after([] if finished is None else [finished])
        return replace(self, steps=steps, sealed=True, cut=True)

    def _steps_after(self, finished: Sequence[int]) -> tuple[int, int, int]:
        demonstrated, chosen, corrected = self.steps
        return (
            demonstrated + finished.count(0),
            chosen + finished.count(1),
            corrected + finished.count(2),
        )

    def to_bytes(self) -> bytes:
        """Serialise for the store; the identifier is the key."""
        content = {name: getattr(self, name) for name in _EPISODE_FIELDS}
        return json.dumps({**content, "metadata": dict(self.metadata)}).encode()

    @classmethod
    def from_bytes(cls, key: bytes, value: bytes) -> EpisodeRecord:
        """Read what `to_bytes` wrote under `key`."""
        content = json.loads(value)
        content["steps"] = tuple(content["steps"])
        return cls(EPISODE_KEY.unpack(key)[0], **content)


_EPISODE_FIELDS = (
    "table",
    "actor",
    "session",
    "first_sequence",
    "rows",
    "steps",
    "sealed",
    "cut",
    "source",
    "success",
    "size",
)


@dataclass(frozen=True)
class WeightsRecord:
    """The latest weights under a name.

    Attributes:
        name: Whose weights, for example ``"policy"``.
        version: Gradient updates behind them; strictly increasing.
        tensors: A safetensors file as bytes; the replay path never looks into it.
        metadata: JSON-able facts that travel with them.
    """

    name: str
    version: int
    tensors: bytes
    metadata: Mapping[str, object] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Serialise for the store: length of a JSON head, the head, the tensors."""
        head = json.dumps({"version": self.version, "metadata": dict(self.metadata)}).encode()
        return b"".join((struct.pack(">I", len(head)), head, self.tensors))

    @classmethod
    def from_bytes(
        cls, name: str, value: bytes | memoryview, *, tensors: bool = True
    ) -> WeightsRecord:
        """Read what `to_bytes` wrote; without `tensors` only the head of it.

        Raises:
            StoreError: The record is damaged.
        """
        try:
            (length,) = struct.unpack_from(">I", value)
            content = json.loads(bytes(value[4 : 4 + length]))
            version, metadata = int(content["version"]), content["metadata"]
        except (struct.error, ValueError, KeyError, TypeError) as error:
            raise StoreError(f"the stored weights {name!r} cannot be read", got=error) from error
        return cls(name, version, bytes(value[4 + length :]) if tensors else b"", metadata)


FLAG_NAMES = ("is_last", "terminated", "truncated", "success", "source")


@dataclass(frozen=True)
class RowFlags:
    """Where a packed row keeps the bytes that give an episode its shape.

    Attributes:
        size: Bytes of a row.
        end: Offset behind the last of the flags.
    """

    size: int
    end: int
    is_last: int
    terminated: int
    truncated: int
    success: int
    source: int

    @classmethod
    def of(cls, schema: RowSchema) -> RowFlags:
        """Find the offsets in the schema's packed rows.

        Raises:
            SchemaMismatch: A field is no plain number, too large, or a flag is absent, or there
                are too many.
        """
        if len(schema.fields) > MAXIMUM_FIELDS:
            raise SchemaMismatch(
                "a row has too many fields",
                got=len(schema.fields),
                expected=f"<= {MAXIMUM_FIELDS}",
            )
        for column in schema.fields:
            if np.dtype(column.dtype).kind not in "biuf" or min(column.shape, default=1) < 1:
                raise SchemaMismatch(
                    f"field {column.name!r} cannot be stored",
                    got=f"{column.dtype} {column.shape}",
                    expected="booleans, integers or floats, no empty axis",
                )
        size = sum(
            np.dtype(column.dtype).itemsize * math.prod(column.shape) for column in schema.fields
        )
        if size > MAXIMUM_ROW_BYTES:
            raise SchemaMismatch(
                "a row is too large", got=f"{size} bytes", expected=f"<= {MAXIMUM_ROW_BYTES} bytes"
            )
        fields = {column.name: column for column in schema.fields}
        for name in FLAG_NAMES:
            flag = fields.get(name)
            if flag is None or np.dtype(flag.dtype).itemsize != 1 or flag.shape != ():
                raise SchemaMismatch(
                    f"replay needs the field {name!r}", got=flag, expected="one byte a row"
                )
        offsets = [field_offset(schema, name) for name in FLAG_NAMES]
        return cls(size, max(offsets) + 1, *offsets)


def field_offset(schema: RowSchema, name: str) -> int:
    """Return where a field begins in a packed row, in bytes."""
    fields = schema.dtype.fields
    assert fields is not None
    return int(fields[name][1])


def split_keys(keys: npt.NDArray[np.void]) -> list[bytes]:
    """Turn an array of `ROW_KEY_DTYPE` into LMDB keys."""
    size = ROW_KEY_DTYPE.itemsize
    data = keys.tobytes()
    return [data[at : at + size] for at in range(0, len(data), size)]
