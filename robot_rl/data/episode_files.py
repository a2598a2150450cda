"""The files of an episode dataset: layout, opening, locking, and damage reports."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from robot_rl.data.schema import RowSchema
from robot_rl.errors import RobotRLError, in_shell
from robot_rl.processes.files import check_links, locked, new_folder, why_not_written
from robot_rl.processes.signals import deferred_signals

if TYPE_CHECKING:  # zarr takes a quarter of a second to import; most processes do not need it
    import zarr

_FORMAT = "robot_rl episodes"
_CHUNK_BYTES, _CHUNK_ROWS, _META_CHUNK = 1 << 20, 1024, 4096
ENDS = "meta/episode_ends"
META = (
    (ENDS, "int64"),
    ("meta/seed", "int64"),
    ("meta/success", "bool"),
    ("meta/source", "uint8"),
    ("meta/task", "string"),
    ("meta/instruction", "string"),
)
RESTORE = "restore it from a copy"


class DatasetError(RobotRLError):
    """An episode dataset that cannot be opened, read or written."""


class NotADataset(DatasetError):
    """The path is not an episode dataset."""


class DatasetDamaged(DatasetError):
    """Committed rows are missing or fail their checksum; the message names the field."""


class OutsideDataset(DatasetError):
    """A dataset names, or links to, a file outside its folder."""


class StorageFull(DatasetError):
    """No space is left for the episode; earlier episodes are untouched."""


def create(path: Path, schema: RowSchema, metadata: dict[str, Any]) -> None:
    """Build an empty dataset next to `path` and rename it, so that it is never half made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.creating")
    parent = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(parent, fcntl.LOCK_EX)  # two creators must not share the temporary name
        if path.exists() and not is_empty_directory(path):
            return
        shutil.rmtree(temporary, ignore_errors=True)
        with new_folder(path, temporary):
            _fill(temporary, schema, metadata)
    finally:
        os.close(parent)


def _fill(path: Path, schema: RowSchema, metadata: dict[str, Any]) -> None:
    import zarr.storage
    from zarr.codecs import ZstdCodec

    attributes = {"format": _FORMAT, "schema": schema.to_json(), "metadata": metadata}
    group = zarr.create_group(zarr.storage.LocalStore(path), attributes=attributes)
    arrays: list[tuple[str, str, tuple[int, ...], int]]
    arrays = [(name, dtype, (), _META_CHUNK) for name, dtype in META]
    for column in schema.fields:
        row_bytes = max(1, np.dtype(column.dtype).itemsize * int(np.prod(column.shape)))
        rows = min(max(1, _CHUNK_BYTES // row_bytes), _CHUNK_ROWS)
        arrays.append((f"data/{column.name}", column.dtype, column.shape, rows))
    for name, dtype, shape, rows in arrays:
        group.create_array(
            name,
            shape=(0, *shape),
            chunks=(rows, *(max(1, n) for n in shape)),
            dtype=dtype,
            compressors=ZstdCodec(level=1, checksum=True),
            fill_value="" if dtype == "string" else 0,
        )


def open_array(path: Path, name: str, mode: Literal["r", "r+"] = "r") -> zarr.Array[Any]:
    """Open one array of the dataset, `name` with slashes; refuse format 2, which may run code."""
    import zarr.storage

    store = zarr.storage.LocalStore(path, read_only=mode == "r")
    with read_errors(path, name):
        return zarr.open_array(store, path=name, mode=mode, zarr_format=3)


def committed_ends(array: zarr.Array[Any], path: Path) -> npt.NDArray[np.int64]:
    """Read the ends of the finished episodes; at most one entry may be uncommitted."""
    with read_errors(path, ENDS):
        stored = np.asarray(array[:], np.int64)
    ends = stored[: int(np.count_nonzero(stored))]
    if len(stored) > len(ends) + 1 or np.diff(ends, prepend=0).min(initial=2) < 2:
        raise DatasetDamaged(
            f"{path}: {ENDS!r} has gaps",
            got=stored,
            hint=f"a file of it is missing; {RESTORE}",
        )
    return ends


def check_chunks(array: zarr.Array[Any], directory: Path, start: int, stop: int) -> None:
    """Report absent chunk files, which zarr would silently read as fill values."""
    if stop <= start:
        return
    rows, rest = array.chunks[0], (0,) * (len(array.shape) - 1)
    for chunk in range(start // rows, (stop - 1) // rows + 1):
        file = directory / array.metadata.encode_chunk_key((chunk, *rest))
        if not file.exists():
            raise DatasetDamaged(
                f"rows {chunk * rows} to {(chunk + 1) * rows} of {directory} are missing",
                expected=f"the file {file}",
                hint=RESTORE,
            )


def read_attributes(path: Path) -> tuple[RowSchema, dict[str, Any]]:
    """Read schema and metadata; refuse foreign and damaged datasets."""
    if not path.exists():
        hint = "give the directory that `robot-rl collect` wrote"
        raise NotADataset(f"there is no episode dataset at {path}", hint=hint)
    if not is_ours(path):
        got = "a folder without its description" if path.is_dir() else "a file"
        raise NotADataset(f"{path} is no episode dataset", got=got, hint=importing(path))
    check_links(path, OutsideDataset)
    described = path / "zarr.json"
    with damage(described):
        attributes = json.loads(described.read_text(encoding="utf-8"))["attributes"]
        schema, metadata = str(attributes["schema"]), dict(attributes["metadata"])
    return RowSchema.from_json(schema), metadata


def importing(path: Path) -> str:
    """Hint on how to import foreign demonstrations."""
    out = f"{path.stem}.zarr" if path.suffix != ".zarr" else f"{path.stem}-imported.zarr"
    command = in_shell("robot-rl", "import", path, out)
    return f"if others recorded it, take it in: {command}; then {in_shell(f'dataset={out}')}"


def is_ours(path: Path) -> bool:
    """Whether a folder is a dataset of this program, or was one before it was damaged."""
    try:
        content = json.loads((path / "zarr.json").read_text(encoding="utf-8"))
        told = content["attributes"].get("format") == _FORMAT
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        told = False
    # Foreign datasets never record who acted in an episode.
    return told or (path / "meta/source").is_dir()


def lock(path: Path) -> int:
    """Lock the directory for one writer; the lock ends with the descriptor or the process."""
    descriptor = os.open(path, os.O_RDONLY)
    if locked(descriptor):
        return descriptor
    os.close(descriptor)
    raise DatasetError(
        f"another writer has {path} open",
        hint="wait until that recording ends, or record to another path",
    )


def is_empty_directory(path: Path) -> bool:
    """Whether `path` is an empty directory."""
    return path.is_dir() and not any(path.iterdir())


@contextlib.contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Convert write failures to the dataset's errors."""
    try:
        with deferred_signals():  # as in `read_errors`
            yield
    except OSError as error:
        problem, got, hint, passes = why_not_written(error, path)
        kind = StorageFull if passes else DatasetError
        raise kind(
            f"cannot write to {path}: {problem}; nothing that was recorded is lost",
            got=got,
            hint=f"{hint}, and append the episode again",
        ) from error


@contextlib.contextmanager
def read_errors(path: Path, name: str) -> Iterator[None]:
    """Convert failures to read the array `name` to `DatasetDamaged`."""
    # zarr works in its own thread, which signals do not interrupt.
    with damage(f"{path}: {name!r}"), deferred_signals():
        yield


@contextlib.contextmanager
def damage(what: object, *, hint: str = RESTORE) -> Iterator[None]:
    """Convert any exception raised while reading to `DatasetDamaged`."""
    try:
        yield
    except RobotRLError:
        raise
    except Exception as error:  # damaged files cause any error, even a SyntaxError
        got = " ".join(repr(error).split())[:300]
        raise DatasetDamaged(f"{what} cannot be read", got=got, hint=hint) from error


def inside(folder: Path, name: str | Path) -> Path:
    """Resolve a file that a dataset names, by relative or full path, or links to.

    Raises:
        OutsideDataset: It is outside the folder.
        DatasetDamaged: The name is not a valid file name.
    """
    with damage(f"{folder}: the file {str(name)[:100]!r}", hint="correct the name"):
        path = (folder / name).resolve()
        root = folder.resolve()
    if not path.is_relative_to(root):
        raise OutsideDataset(
            f"{folder} names a file outside of its folder",
            got=str(name)[:200] if ".." in str(name) else path,
            expected="files in the folder of the dataset alone",
            hint=f"if the file is yours, copy all into one folder: cp -rL {folder} COPY",
        )
    return folder / name
