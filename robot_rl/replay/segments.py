"""Segments: the row files of a store, and the facts of the episodes that begin in each.

    rows/t<table>-a<actor>-s<session>-<first sequence>.rows       see `robot_rl.replay.row_file`
    rows/… .episodes     a JSON line for each episode that begins there: its sequence and metadata

A session goes on in a further segment at the begin of an episode, so that each episode lies whole
in one. A segment holds demonstrations only, or none.
"""

from __future__ import annotations

import bisect
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from robot_rl.replay.errors import NotEnoughData, StoreError
from robot_rl.replay.records import RowFacts, RowFlags, SessionKey
from robot_rl.replay.row_file import RowFile
from robot_rl.replay.sessions import read_facts

FOLDER = "rows"
_NAME = re.compile(r"t(\d+)-a(\d+)-s(\d+)-(\d+)\.rows")


@dataclass(frozen=True, order=True)
class Segment:
    """Where a segment is, and of which session.

    Attributes:
        key: Table, actor and session.
        first: Sequence of its first row.
        path: The row file.
    """

    key: SessionKey
    first: int
    path: Path

    @classmethod
    def of(cls, store: Path, key: SessionKey, first: int) -> Segment:
        """Return the segment that begins at a sequence of a session."""
        table, actor, session = key
        return cls(key, first, store / FOLDER / f"t{table}-a{actor}-s{session}-{first:012d}.rows")

    def read_header(self) -> dict[str, Any]:
        """Return what its header says.

        Raises:
            FileDamaged: It is no row file.
        """
        file = RowFile.open(self.path)
        file.close()
        return file.about

    @property
    def episodes_path(self) -> Path:
        """The file with the metadata of its episodes."""
        return self.path.with_suffix(".episodes")

    def open(self, identity: str, *, write: bool = False) -> RowFile:
        """Open its row file.

        Args:
            identity: The store's.
            write: Whether to append.

        Raises:
            FileNotFoundError: It was evicted.
            StoreError: It is of another store or session.
            FileDamaged: It is no row file.
        """
        file = RowFile.open(self.path, write=write)
        about = file.about
        found = (about.get("store"), (*about["session"],), about.get("first"))
        expected = (identity, self.key, self.first)
        if found != expected:
            file.close()
            raise StoreError(
                f"{self.path} does not belong to this store",
                got=found,
                expected=expected,
                hint="if it is of another store, move it out of the folder; if the catalogue is,"
                " make it anew from the rows: robot-rl inspect STORE rebuild=true",
            )
        return file

    def rows(self, identity: str, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Map its rows, read-only, shape (rows,); raises what `open` raises."""
        file = self.open(identity)
        try:
            return file.view(dtype)
        finally:
            file.close()

    def metadata(self) -> dict[int, Mapping[str, object]]:
        """Return the metadata of its episodes by sequence; a line that was cut off is none."""
        found: dict[int, Mapping[str, object]] = {}
        if self.episodes_path.exists():
            for line in self.episodes_path.read_text(encoding="utf-8").splitlines():
                try:
                    sequence, metadata = json.loads(line)
                except ValueError:
                    continue
                found[int(sequence)] = metadata
        return found

    def remove(self) -> None:
        """Remove its files; who has mapped them goes on reading."""
        self.path.unlink(missing_ok=True)
        self.episodes_path.unlink(missing_ok=True)


class Segments:
    """The segments of a store, found again where one is not known yet."""

    def __init__(self, store: Path) -> None:
        """Look at the folder; see the class."""
        self._store = store
        self._firsts: dict[SessionKey, list[int]] = {}
        self.look()

    def look(self) -> None:
        """List the folder."""
        found: dict[SessionKey, list[int]] = {}
        folder = self._store / FOLDER
        for path in folder.iterdir() if folder.is_dir() else ():
            name = _NAME.fullmatch(path.name)
            if name is not None:
                table, actor, session, first = map(int, name.groups())
                found.setdefault((table, actor, session), []).append(first)
        self._firsts = {key: sorted(firsts) for key, firsts in found.items()}

    def __iter__(self) -> Iterator[Segment]:
        """Yield all, in the order of session and sequence."""
        for key in sorted(self._firsts):
            yield from self.of_session(key)

    def sessions(self) -> list[SessionKey]:
        """Return the sessions that have a segment."""
        return sorted(self._firsts)

    def of_session(self, key: SessionKey) -> list[Segment]:
        """Return the segments of a session in order."""
        return [Segment.of(self._store, key, first) for first in self._firsts.get(key, [])]

    def holding(self, key: SessionKey, sequence: int) -> Segment:
        """Return the segment in which a row of a session lies, or would lie.

        Raises:
            NotEnoughData: There is none; it was evicted.
        """
        for again in (False, True):
            if again:
                self.look()
            firsts = self._firsts.get(key, [])
            at = bisect.bisect_right(firsts, sequence) - 1
            # A later segment may have been begun since the folder was listed.
            if at >= 0 and (again or at < len(firsts) - 1):
                return Segment.of(self._store, key, firsts[at])
        raise NotEnoughData(
            "rows that were asked for are not in the store",
            got=f"sequence {sequence} of session {key}",
            hint="they were evicted; raise replay.capacity_rows or capacity_bytes to keep more",
        )


def facts_of(rows: npt.NDArray[Any], flags: RowFlags) -> list[RowFacts]:
    """Return what mapped rows say of themselves.

    Raises:
        RowRefused: A flag is impossible.
    """
    width = flags.end
    size = rows.dtype.itemsize
    heads = np.ndarray((len(rows), width), np.uint8, rows, 0, (size, 1)) if len(rows) else ()
    return [read_facts(bytes(head), flags) for head in heads]
