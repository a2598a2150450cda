"""Mini-batches for the learner, straight from the store's memory map.

The sampler keeps a small record of every window in memory (32 bytes each) and copies
observations from the map when a batch is drawn.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from robot_rl.data.schema import Field, RowSchema
from robot_rl.replay.batches import Batch, allocate, checked
from robot_rl.replay.environment import ROWS, open_for_reading
from robot_rl.replay.errors import NotEnoughData, ReplayError
from robot_rl.replay.gather import RowGather
from robot_rl.replay.reader import StoreReader
from robot_rl.replay.records import ROW_KEY, SEQUENCE_LIMIT, field_offset
from robot_rl.replay.windows import SCALARS, Records, WindowIndex

NEXT = "next/"
_WINDOW_FIELDS: dict[str, np.dtype[Any]] = {
    "reward": np.dtype(np.float32),
    "discount": np.dtype(np.float32),
    "steps": np.dtype(np.int16),
    "source": np.dtype(np.uint8),
}


class ReplaySampler:
    """Draws uniform n-step transitions with a fixed share of demonstrations.

    A batch of B holds: every requested field at s under its name, (B, *shape); observation fields
    and ``base_action`` at the next state under ``next/<name>``; ``reward`` float32 (B,), the sum
    of discount^j r_{t+j} over the m <= n steps of the window; ``discount`` float32 (B,),
    discount^m, 0 where terminated; ``steps`` int16 (B,), m; ``source`` uint8 (B,).

    Demonstrations and online rows are interleaved, so that every contiguous part of a batch keeps
    the share (to within one row). Interventions count as online. Not safe for use from several
    threads at a time.

    Args:
        store_path: Folder of the store.
        table: Name of the table.
        fields: Fields of the schema to give at s.
        batch_size: B.
        n_step: Most steps of a window.
        discount: Per step.
        demonstration_share: In [0, 1]; strictly between, the kind that has no data yet is
            replaced by the other.
        rng: Where all randomness comes from.

    Raises:
        StoreError: No such store or table.
        ReplayError: Unknown field, or a number out of range.
    """

    def __init__(
        self,
        store_path: Path,
        table: str,
        fields: Sequence[str],
        *,
        batch_size: int,
        n_step: int,
        discount: float,
        demonstration_share: float,
        rng: np.random.Generator,
    ) -> None:
        """Open the store and index what it holds; see the class."""
        _check_numbers(batch_size, n_step, discount, demonstration_share)
        reader = StoreReader(store_path)
        try:
            info = reader.table(table)
        finally:
            reader.close()
        self.schema = info.schema
        self.batch_size, self.rng = batch_size, rng
        self._table = info.identifier
        self._columns = [_column(self.schema, name) for name in fields]
        self._next_columns = [c for c in self._columns if _has_next(c.name)]
        self._layout: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {
            **{name: (dtype, ()) for name, dtype in _WINDOW_FIELDS.items()},
            **{c.name: (np.dtype(c.dtype), c.shape) for c in self._columns},
            **{NEXT + c.name: (np.dtype(c.dtype), c.shape) for c in self._next_columns},
        }
        share = demonstration_share
        slots = np.arange(batch_size + 1) * share
        self._share = share
        self._demonstration_slots = np.diff(np.floor(slots + 1e-9)).astype(bool)
        self._index = WindowIndex(n_step, discount)
        self._scalars_layout, self._scalars_at = _scalars_layout(self.schema)
        self._sessions: dict[tuple[int, int], int] = {}
        self._visible: int | None = None
        self._demonstration_count = self._online_count = 0
        self._environment = open_for_reading(store_path)
        self._gather = RowGather(
            self._environment, self._table, self.schema, self._columns, self._next_columns
        )
        self.refresh(None)

    @property
    def demonstration_transitions(self) -> int:
        """Windows of demonstrations that `sample` draws from."""
        return self._demonstration_count

    @property
    def online_transitions(self) -> int:
        """Online windows that `sample` draws from."""
        return self._online_count

    def transitions_available(self) -> int:
        """Look at the store and return its number of online environment steps.

        The last step of an ended episode counts once its ``is_last`` row is there.
        """
        self._read_new_rows()
        return self._index.online_transitions

    def refresh(self, environment_steps: int | None = None) -> None:
        """Make exactly the first `environment_steps` online steps visible; None means all.

        "First" is the order of (actor, session, sequence) for one actor, and the order of
        arrival for several. Demonstrations are always all visible.

        Raises:
            NotEnoughData: The store holds fewer; wait for `transitions_available` first.
        """
        available = self.transitions_available()
        if environment_steps is not None and environment_steps > available:
            raise NotEnoughData(
                "the store holds fewer online steps than asked for",
                got=available,
                expected=environment_steps,
                hint="wait until transitions_available() reaches the number",
            )
        self._visible = environment_steps
        limit = available if environment_steps is None else environment_steps
        self._online_count = self._index.online.visible(limit)
        self._demonstration_count = self._index.demonstrations.visible(limit)

    def sample(self, out: Batch | None = None) -> Batch:
        """Draw one batch.

        Args:
            out: Arrays to fill, from `allocate`; new ones by default.

        Raises:
            NotEnoughData: Nothing to draw from is visible.
        """
        batch = self.allocate() if out is None else checked(out, self._layout, (self.batch_size,))
        self._fill([self._draw()], batch)
        return batch

    def sample_many(self, count: int, out: Batch | None = None) -> Batch:
        """Draw `count` batches at once, shapes (count, B, ...).

        The same random stream as `count` calls of `sample`.

        Raises:
            NotEnoughData: Nothing to draw from is visible.
        """
        lead = (count, self.batch_size)
        batch = self.allocate(count) if out is None else checked(out, self._layout, lead)
        flat = {name: array.reshape(-1, *array.shape[2:]) for name, array in batch.items()}
        self._fill([self._draw() for _ in range(count)], flat)
        return batch

    def allocate(self, count: int | None = None) -> Batch:
        """Return arrays for a batch, or for `count` batches with a leading axis."""
        lead = (self.batch_size,) if count is None else (count, self.batch_size)
        return allocate(self._layout, lead)

    def state_dict(self) -> dict[str, object]:
        """Return the state of the random stream and what is visible, JSON-able."""
        return {
            "rng": cast("dict[str, object]", self.rng.bit_generator.state),
            "environment_steps": self._visible,
        }

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Go on where `state_dict` was taken.

        Raises:
            ReplayError: The state is not one of this kind of generator.
            NotEnoughData: The store has lost the steps that were visible then.
        """
        try:
            self.rng.bit_generator.state = cast("dict[str, Any]", state["rng"])
            steps = state["environment_steps"]
            if steps is not None and (not isinstance(steps, int) or steps < 0):
                raise ValueError(f"environment_steps is {steps!r}")
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ReplayError("this is not the state of a sampler", got=repr(error)) from error
        self.refresh(steps)

    def close(self) -> None:
        """Release the store."""
        self._environment.release()

    def _draw(self) -> Records:
        """Draw the windows of one batch, shape (B,)."""
        demonstrations, online = self._demonstration_count, self._online_count
        slots = self._demonstration_slots
        if 0 < self._share < 1:
            if demonstrations == 0:
                slots = np.zeros_like(slots)
            elif online == 0:
                slots = np.ones_like(slots)
        wanted = int(slots.sum())
        if (wanted and not demonstrations) or (wanted < len(slots) and not online):
            raise NotEnoughData(
                "there is nothing to sample from",
                got={"demonstrations": demonstrations, "online": online},
                expected=f"both for demonstration_share={self._share}",
            )
        windows = np.empty(len(slots), self._index.online.windows.dtype)
        if wanted:
            chosen = self.rng.integers(0, demonstrations, wanted)
            windows[slots] = self._index.demonstrations.windows[chosen]
        if wanted < len(slots):
            chosen = self.rng.integers(0, online, len(slots) - wanted)
            windows[~slots] = self._index.online.windows[chosen]
        return windows

    def _fill(self, drawn: list[Records], batch: Batch) -> None:
        windows = drawn[0] if len(drawn) == 1 else np.concatenate(drawn)
        for name in _WINDOW_FIELDS:
            batch[name][...] = windows[name]
        current = {c.name: batch[c.name] for c in self._columns}
        following = {c.name: batch[NEXT + c.name] for c in self._next_columns}
        self._gather.fill(windows, list(self._sessions), current, following)

    def _read_new_rows(self) -> None:
        """Index the rows that came since the last time, in the order of their keys."""
        start, end = self._scalars_at
        with self._environment.begin_buffers() as txn:
            cursor = txn.cursor(self._environment.databases[ROWS])
            found = cursor.set_range(ROW_KEY.pack(self._table, 0, 0, 0))
            while found:
                table, actor, session, _ = ROW_KEY.unpack(cursor.key())
                if table != self._table:
                    break
                number = self._sessions.setdefault((actor, session), len(self._sessions))
                place = (self._table, actor, session)
                found = cursor.set_range(ROW_KEY.pack(*place, self._index.next_sequence(number)))
                prefix = ROW_KEY.pack(*place, 0)[:-8]
                heads: list[bytes] = []
                while found and bytes(cursor.key()[:-8]) == prefix:
                    heads.append(bytes(cursor.value()[start:end]))
                    found = cursor.next()
                scalars = np.frombuffer(b"".join(heads), self._scalars_layout).astype(SCALARS)
                self._index.add(number, scalars)
                found = cursor.set_range(ROW_KEY.pack(*place, SEQUENCE_LIMIT))


def _scalars_layout(schema: RowSchema) -> tuple[np.dtype[Any], tuple[int, int]]:
    """Return the dtype of the bytes of a row that hold its scalars, and where these bytes are."""
    offsets = {name: field_offset(schema, name) for name in SCALARS.names or ()}
    start = min(offsets.values())
    end = max(offset + SCALARS[name].itemsize for name, offset in offsets.items())
    layout = {
        "names": list(offsets),
        "formats": [SCALARS[name] for name in offsets],
        "offsets": [offset - start for offset in offsets.values()],
        "itemsize": end - start,
    }
    return np.dtype(layout), (start, end)  # type: ignore[call-overload]


def _has_next(name: str) -> bool:
    return name.startswith(("state/", "images/")) or name == "base_action"


def _column(schema: RowSchema, name: str) -> Field:
    columns = {c.name: c for c in schema.fields}
    if name in _WINDOW_FIELDS:
        raise ReplayError(
            f"the field {name!r} is in every batch already", hint="leave it out of fields"
        )
    if name not in columns:
        nearest = difflib.get_close_matches(name, columns, 1)
        raise ReplayError(
            "the table has no such field",
            got=name,
            expected=sorted(columns),
            hint=f"did you mean {nearest[0]!r}?" if nearest else None,
        )
    return columns[name]


def _check_numbers(batch_size: int, n_step: int, discount: float, share: float) -> None:
    for name, value, valid, expected in (
        ("batch_size", batch_size, batch_size >= 1, ">= 1"),
        ("n_step", n_step, 1 <= n_step < 2**15, "1 to 32767"),
        ("discount", discount, 0 <= discount <= 1, "in [0, 1]"),
        ("demonstration_share", share, 0 <= share <= 1, "in [0, 1]"),
    ):
        if not valid:
            raise ReplayError(f"{name} is out of range", got=value, expected=expected)
