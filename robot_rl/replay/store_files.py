"""The files of a store: segments of rows, weights, and the lock of the only writer.

    rows/a<actor>-s<session>-<first sequence>.rows       see `robot_rl.replay.row_file`
    rows/… .episodes     a JSON line for each episode that starts there: its sequence and metadata
    weights/NAME-VERSION.safetensors     the latest tensors under a name
    weights/NAME.json                    their version, metadata and the name of that file

A session continues in a new segment only at the start of an episode, so that every episode lies
in one segment. A segment holds only demonstrations, or none.
"""

from __future__ import annotations

import bisect
import io
import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

import numpy.typing as npt

from robot_rl.processes.files import check_links, flush_to_disk, locked, replace_bytes
from robot_rl.replay import NotEnoughData, StoreError, WeightsRefused
from robot_rl.replay.catalogue import LOCK
from robot_rl.replay.episode_records import EpisodeRecord, SessionKey
from robot_rl.replay.protocol import WeightsRecord
from robot_rl.replay.row_file import RowFile, rebuilding, write_error

SEGMENT_BYTES = 256 << 20
# A segment holds at most 1/16 of the capacity: eviction may leave that much less than allowed.
_CAPACITY_PARTS = 16
_SEGMENT_NAME = re.compile(r"a(\d+)-s(\d+)-(\d+)\.rows")
_WEIGHTS_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(order=True, unsafe_hash=True)
class Segment:
    """Path of a segment, its session, and the sequence of its first row."""

    key: SessionKey
    first: int
    path: Path

    @classmethod
    def of(cls, store: Path, key: SessionKey, first: int, **more: Any) -> Self:
        """Return the segment that starts at a sequence of a session."""
        name = f"a{key[0]}-s{key[1]}-{first:012d}.rows"
        return cls(key, first, store / "rows" / name, **more)

    @property
    def episodes_path(self) -> Path:
        """The file with the metadata of its episodes."""
        return self.path.with_suffix(".episodes")

    def open(self, identity: str, *, write: bool = False) -> RowFile:
        """Open its row file, which must be of this store.

        Raises:
            NotEnoughData: It is missing: evicted, or lost.
            StoreError: It is of another store or session, or damaged.
        """
        try:
            file = RowFile.open(self.path, write=write)
        except FileNotFoundError as error:
            raise not_there(self.path.name) from error
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
                " rebuild it from the rows: robot-rl inspect STORE rebuild=true",
            )
        return file

    def view(self, identity: str, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Map its rows, read-only, shape (rows,); raises what `open` raises."""
        with closing(self.open(identity)) as file:
            return file.view(dtype)

    def metadata(self) -> dict[int, Mapping[str, object]]:
        """Return the metadata of its episodes by sequence; a cut-off line is skipped."""
        found: dict[int, Mapping[str, object]] = {}
        with suppress(FileNotFoundError):
            for line in self.episodes_path.read_text(encoding="utf-8").splitlines():
                with suppress(ValueError):
                    sequence, metadata = json.loads(line)
                    found[int(sequence)] = metadata
        return found

    def remove(self) -> None:
        """Remove its files; processes that mapped them can still read them."""
        self.path.unlink(missing_ok=True)
        self.episodes_path.unlink(missing_ok=True)


def segments_of(store: Path) -> list[Segment]:
    """List the segments that are in a store now, by session and sequence."""
    found: list[Segment] = []
    with suppress(FileNotFoundError):
        for entry in os.listdir(store / "rows"):
            if name := _SEGMENT_NAME.fullmatch(entry):
                actor, session, first = map(int, name.groups())
                found.append(Segment((actor, session), first, store / "rows" / entry))
    return sorted(found)


def holding(segments: Sequence[Segment], key: SessionKey, sequence: int) -> Segment:
    """Return the segment, among the results of `segments_of`, for a row's sequence.

    Raises:
        NotEnoughData: There is none.
    """
    place = (key, sequence)
    at = bisect.bisect_right(segments, place, key=lambda s: (s.key, s.first)) - 1
    if at < 0 or segments[at].key != key:
        raise not_there(f"row {sequence} of session {key}")
    return segments[at]


def not_there(what: str) -> NotEnoughData:
    """Return the error for rows that were evicted or lost."""
    return NotEnoughData(
        "rows that were asked for are not in the store any more",
        got=f"no {what}",
        hint="they were evicted, and a larger replay.capacity_rows keeps more; or"
        " they are damaged: robot-rl inspect STORE counts both",
    )


def lacks_rows(store: Path, place: str, end: int, expected: int) -> StoreError:
    """Return the error for rows that end before the sequence in the catalogue."""
    return StoreError(
        f"the store {store} has fewer rows than its catalogue knows",
        got=f"rows up to {end} of {place}",
        expected=f"up to {expected}",
        hint=f"see what is there: {rebuilding(store)}",
    )


@dataclass(eq=False)
class WrittenSegment(Segment):
    """A segment with its writer's state: its number of rows, and its first episode."""

    row_bytes: int
    rows: int = 0
    begins: EpisodeRecord | None = None
    _opened: tuple[()] | tuple[io.FileIO, RowFile] = ()

    def create(self, about: Mapping[str, object], *, durable: bool) -> None:
        """Create its file, whose header describes the rows."""
        self.path.parent.mkdir(exist_ok=True)
        RowFile.create(self.path, about, self.row_bytes)
        if durable:
            flush_to_disk(self.path)
            flush_to_disk(self.path.parent)

    @property
    def end(self) -> int:
        """Sequence after its last row."""
        return self.first + self.rows

    @property
    def of_demonstrations(self) -> bool:
        """Whether it holds demonstrations; if not, it holds none."""
        return self.begins is not None and self.begins.is_demonstration

    def is_full(self, begins: EpisodeRecord, capacity_rows: int | None) -> bool:
        """Whether an episode must start another segment."""
        return (
            self.of_demonstrations != begins.is_demonstration
            or self.rows * self.row_bytes >= SEGMENT_BYTES
            or self.rows >= (capacity_rows or 1 << 62) // _CAPACITY_PARTS
        )

    def append(
        self, identity: str, rows: Sequence[memoryview], begins: EpisodeRecord | None
    ) -> int:
        """Append packed rows of an episode, maybe its first; see `RowFile.append`."""
        if not self._opened:
            file = self.open(identity, write=True)
            self._opened = io.FileIO(self.episodes_path, "a"), file
        episodes, file = self._opened
        if begins is not None and begins.metadata:
            facts = [begins.first_sequence, dict(begins.metadata)]
            # The leading newline ends a line that was cut off.
            episodes.write(b"\n" + json.dumps(facts).encode())
        written = file.append(rows)
        self.rows += written
        return written

    def sync(self) -> None:
        """Wait until its rows and episodes are on the disk."""
        for opened in self._opened:
            os.fdatasync(opened.fileno())

    def close(self) -> None:
        """Close its files."""
        for opened in self._opened:
            opened.close()
        self._opened = ()


def lock_store(path: Path) -> IO[bytes]:
    """Acquire the lock of a store's only writer.

    Raises:
        StoreError: Another process holds it; the folder cannot be made or written; or a link in it
            leads out of it.
    """
    check_links(path, StoreError)
    try:
        path.mkdir(parents=True, exist_ok=True)
        file = (path / LOCK).open("ab")
    except OSError as error:
        problem, hint = f"the store {path} cannot be opened", "see that it can be written"
        raise StoreError(problem, got=error, hint=hint) from error
    if not locked(file.fileno()):
        file.close()
        raise StoreError(
            f"another replay server is writing the store {path}",
            hint="stop it, or give this server another folder",
        )
    return file


def write_weights(store: Path, record: WeightsRecord, *, flush: bool) -> None:
    """Store the latest weights under a name; storing the same again is accepted.

    Only the store's one writer calls this. With `flush` they are on the disk when it returns.

    Raises:
        WeightsRefused: The stored version is as new or newer, or the name is invalid.
        StoreError: They do not fit, or cannot be written; the stored ones stay.
    """
    name, version, folder = record.name, record.version, store / "weights"
    if not _WEIGHTS_NAME.fullmatch(name):
        expected = "letters, digits, dot, dash and underscore"
        raise WeightsRefused("weights cannot have this name", got=name, expected=expected)
    stored = read_weights(store, name, tensors=False)
    if stored is not None and stored.version >= version:
        if stored.version == version and read_weights(store, name) == record:
            return
        raise WeightsRefused(
            f"weights {name!r} are not newer than the stored ones",
            got=version,
            expected=f"> {stored.version}",
        )
    tensors = folder / f"{name}-{version}.safetensors"
    about = {"version": version, "metadata": dict(record.metadata), "tensors": tensors.name}
    try:
        folder.mkdir(exist_ok=True)
        replace_bytes(tensors, record.tensors, flush=flush)
        replace_bytes(folder / f"{name}.json", json.dumps(about).encode(), flush=flush)
    except OSError as error:
        tensors.unlink(missing_ok=True)
        raise write_error(error, store) from error
    if stored is not None:
        (folder / f"{name}-{stored.version}.safetensors").unlink(missing_ok=True)


def read_weights(store: Path, name: str, *, tensors: bool = True) -> WeightsRecord | None:
    """Return the latest weights under a name, with or without the `tensors`; None if absent.

    Raises:
        StoreError: They are damaged.
    """
    file = store / "weights" / f"{name}.json"
    if not file.exists():
        return None
    try:
        about = json.loads(file.read_bytes())
        data = file.with_name(about["tensors"]).read_bytes() if tensors else b""
        return WeightsRecord(name, int(about["version"]), data, about["metadata"])
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise StoreError(f"the stored weights {name!r} cannot be read", got=error) from error


def weights_versions(store: Path) -> dict[str, int]:
    """Return the version of the latest weights by name."""
    files = (store / "weights").glob("*.json")
    records = [read_weights(store, file.stem, tensors=False) for file in files]
    return {record.name: record.version for record in records if record is not None}
