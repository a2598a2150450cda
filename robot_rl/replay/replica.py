"""A local copy of a store for a learner on another machine.

The folder reads like a store: it has the same rows in the same segments, bit for bit. A pull copies
new data: rows first, then the catalogue in one transaction, so that every row in the catalogue is
there for a reader. Segments that the server evicted are removed here too. A pull that was
interrupted, even by a kill, resumes where it stopped.
"""

from __future__ import annotations

import errno
import itertools
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import msgspec
import numpy as np

from robot_rl.data.schema import RowSchema
from robot_rl.processes.files import why_not_written
from robot_rl.replay import NotEnoughData, StoreError, StoreFull, StoreReplaced
from robot_rl.replay.catalogue import Catalogue, WrittenValue, schema_of
from robot_rl.replay.client import ReplayClient
from robot_rl.replay.episode_records import EpisodeRecord, SessionKey
from robot_rl.replay.protocol import (
    MAXIMUM_OPEN_EPISODES,
    Changes,
    GetChanges,
    GetRows,
    SegmentRows,
)
from robot_rl.replay.row_file import RowFile
from robot_rl.replay.store_files import Segment, lock_store, segments_of
from robot_rl.wire import WireError

_TRIES = 16  # of a pull, while the server evicts
_PAUSE_SECONDS = 0.02  # between two pulls: a learner waiting for data polls continuously


class Replica:
    """The copy, in a folder that is created if absent; one process at a time may use it.

    The caller owns `client`, which must be connected to the store's server.

    Raises:
        StoreReplaced: It is of another store, or the store's catalogue was rebuilt.
        StoreError: The store is empty, or lacks rows that are here; or the folder is damaged, used
            by another process, or cannot be written. `StoreFull` if the disk has no room.
        ServerUnreachable: The server does not answer. Copied data stays.
    """

    def __init__(self, folder: Path, client: ReplayClient) -> None:
        self.folder, self._client = folder, client
        self._token, self._rest_until = "", 0.0
        self._rows: dict[Segment, int] = {}  # rows that are here, of segments already compared
        about, _ = client.ask(GetChanges(), Changes)
        with ExitStack() as opened:
            opened.enter_context(lock_store(folder))
            names = about.store, about.catalogue  # if the copy is new
            self._catalogue = Catalogue(folder, write=True, identity=names[0], made=names[1])
            opened.callback(self._catalogue.close)
            if self._catalogue.schema is None and about.schema is not None:
                self._catalogue.set_schema(RowSchema.from_json(about.schema), {})
            self._row_bytes = schema_of(self._catalogue).dtype.itemsize
            self.pull()
            self._opened = opened.pop_all()

    def pull(self) -> None:
        """Copy new data and remove evicted data; raises the errors of the class."""
        time.sleep(max(0.0, self._rest_until - time.monotonic()))
        for _ in range(_TRIES):
            with suppress(NotEnoughData):  # evicted before it was copied: try again
                self._pull()
                self._rest_until = time.monotonic() + _PAUSE_SECONDS
                return
        raise StoreError(
            "rows are evicted faster than they can be copied",
            got=f"eviction during each of {_TRIES} tries",
            hint="let more rows stay: a larger replay.capacity_rows",
        )

    def close(self) -> None:
        """Release the folder, without removing it."""
        self._opened.close()

    def _pull(self) -> None:
        catalogue, episodes, values = self._catalogue, list[EpisodeRecord](), list[WrittenValue]()
        question = GetChanges(
            token=self._token,
            next_episode=catalogue.next_episode(),
            open=[e.identifier for e in catalogue.open_episodes()][-MAXIMUM_OPEN_EPISODES:],
            last_annotation=catalogue.last_annotation(),
        )
        while True:
            answer, payload = self._client.ask(question, Changes)
            if (answer.store, answer.catalogue) != (catalogue.identity, catalogue.made):
                raise StoreReplaced(
                    f"{self.folder} is a replica of another store than the server's, or of one"
                    " whose catalogue was rebuilt since",
                    got=answer.store,
                    expected=catalogue.identity,
                    hint="put the former store back; or remove the replica and begin a new run",
                )
            if not payload:
                return  # no changes
            try:
                new = msgspec.json.decode(payload[0], type=list[EpisodeRecord])
                written = msgspec.json.decode(payload[1], type=list[WrittenValue])
                segments = np.frombuffer(payload[2], np.int64).reshape(-1, 4)
            except (ValueError, IndexError) as error:
                raise WireError("the server says impossible changes", got=error) from error
            episodes += new
            values += written
            if not answer.more:
                break
            question = GetChanges(
                next_episode=max([question.next_episode, *(e.identifier + 1 for e in new)]),
                last_annotation=max([question.last_annotation, *(v.number for v in written)]),
            )
        there = {
            Segment.of(self.folder, (actor, session), first): rows
            for actor, session, first, rows in segments.tolist()
        }
        self._copy(there)
        gone = [segment for segment in segments_of(self.folder) if segment not in there]
        # Drop what was evicted while the parts of the answer arrived.
        spans: dict[SessionKey, list[range]] = {}
        for segment, rows in there.items():
            spans.setdefault(segment.key, []).append(range(segment.first, segment.first + rows))
        kept = [
            episode
            for episode in episodes
            if any(episode.first_sequence in span for span in spans.get(episode.session_key, ()))
        ]
        firsts = sorted((s.key, s.first, s in there) for s in (*there, *gone))
        stretches = [
            (key, first, after[1] if after[0] == key else 1 << 62)
            for (key, first, here), after in itertools.pairwise([*firsts, ((-1, -1), 0, True)])
            if not here
        ]
        catalogue.follow(kept, values, stretches, answer.evicted, answer.written)
        for segment in gone:
            segment.remove()  # processes that mapped it can still read it
            self._rows.pop(segment, None)
        self._token = answer.token

    def _copy(self, there: Mapping[Segment, int]) -> None:
        """Copy the missing rows of segments; `there` maps each to its number of rows."""
        for segment, rows in there.items():
            if self._rows.get(segment) == rows:
                continue
            about = {"store": self._catalogue.identity, "session": list(segment.key)}
            try:
                segment.path.parent.mkdir(exist_ok=True)
                with suppress(FileExistsError):
                    RowFile.create(segment.path, {**about, "first": segment.first}, self._row_bytes)
                with closing(segment.open(self._catalogue.identity, write=True)) as file:
                    self._copy_rows(segment, file, rows)
            except OSError as error:
                problem, got, hint, passes = why_not_written(error, self.folder)
                size = sum(there.values()) * self._row_bytes
                raise (StoreFull if passes else StoreError)(
                    f"{problem}: the replica {self.folder} cannot be written",
                    got=got,
                    expected=f"room for {size} bytes, the rows of the store",
                    hint=f"{hint}; what is copied stays",
                ) from error
            self._rows[segment] = rows

    def _copy_rows(self, segment: Segment, file: RowFile, rows: int) -> None:
        """Copy a segment's missing rows; the last row of an earlier run is compared."""
        have, size = file.rows, self._row_bytes
        compared = segment in self._rows or not have
        if have > rows:
            raise self._differs(segment, f"{have} rows, and {rows} in the store")
        while have < rows or not compared:
            start = segment.first + have - (not compared)
            question = GetRows.of(segment.key, first=segment.first, start=start)
            _, (data,) = self._client.ask(question, SegmentRows)
            found = [data[at : at + size] for at in range(0, len(data), size)]
            if not found or len(found[-1]) != size:
                raise WireError("a server sends no whole rows", got=f"{len(data)} bytes")
            if not compared:
                if os.pread(file.fileno(), size, file.header_bytes + (have - 1) * size) != found[0]:
                    raise self._differs(segment, f"another row {start}")
                compared, found = True, found[1:]
            new: Sequence[memoryview] = found[: rows - have]
            done = file.append(new) if new else 0
            have += done
            if done < len(new):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _differs(self, segment: Segment, what: str) -> StoreError:
        return StoreError(
            "the replica has rows that its store has not",
            got=f"{what}, in {segment.path}",
            hint="the server serves an older copy of the store, or lost rows with its power: put"
            f" the former back, or remove {self.folder} and begin a new run",
        )
