"""Making the catalogue of a store anew from its files of rows."""

from __future__ import annotations

from contextlib import closing, suppress
from pathlib import Path

from robot_rl.replay import StoreError
from robot_rl.replay.catalogue import FILE, Catalogue, is_store
from robot_rl.replay.row_file import RowFile, is_blank
from robot_rl.replay.store import StoreWriter
from robot_rl.replay.store_files import Segments, lock_store


def rebuild_catalogue(path: Path) -> str:
    """Make the catalogue of a store anew from its files of rows, and say what was found.

    What only the catalogue knows are the annotations: they are taken over as far as the present
    one can be read. That file stays beside the new one.

    Raises:
        StoreInUse: A server is writing the store.
        StoreError: There are no rows, or rows of several stores, or they are damaged.
    """
    if not is_store(path):  # whose folder the lock would make
        raise _not_of_one_store(path, 0)
    with lock_store(path) as lock:  # until all is done: no server starts on half a store
        identity = _identity_of_rows(path)
        old, kept = path / FILE, path / f"{FILE}.before"
        for suffix in ("", "-wal", "-shm"):
            with suppress(FileNotFoundError):
                Path(f"{old}{suffix}").replace(f"{kept}{suffix}")
        with closing(Catalogue(path, write=True, identity=identity)) as made:
            annotations = made.take_annotations(kept) if kept.exists() else 0
        with closing(StoreWriter(path, lock=lock)) as writer:
            totals = writer.statistics().items()
    tables = ", ".join(f"{table['episodes']} episodes of {name}" for name, table in totals)
    return f"made the catalogue anew: {tables}; {annotations} annotations were kept"


def _identity_of_rows(path: Path) -> str:
    identities = set[str]()
    for segment in Segments(path):
        if not is_blank(segment.path):  # as one whose making a kill has cut off; the writer's to go
            with closing(RowFile.open(segment.path)) as file:
                identities.add(file.about["store"])
    if len(identities) != 1:
        raise _not_of_one_store(path, len(identities))
    return identities.pop()


def _not_of_one_store(path: Path, stores: int) -> StoreError:
    return StoreError(
        f"no catalogue can be made from the rows in {path}",
        got=f"rows of {stores} stores",
        expected="rows of one",
        hint="move the files of other stores out of its folder" if stores else None,
    )
