"""Whole episodes out of a store that may be written, and into one through its server."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from robot_rl.data.episodes import Episode
from robot_rl.data.schema import (
    ANNOTATION,
    SOURCE_DEMONSTRATION,
    SOURCE_INTERVENTION,
    SOURCE_POLICY,
    Field,
    Row,
    RowSchema,
)
from robot_rl.data.transfer import EpisodeSource, Selection, close_episode
from robot_rl.processes.waiting import wait_until
from robot_rl.replay.client import ReplayClient
from robot_rl.replay.errors import NotEnoughData
from robot_rl.replay.reader import StoreReader
from robot_rl.replay.records import EpisodeRecord, session_keys
from robot_rl.replay.sessions import OpenSession
from robot_rl.wire import ServerUnreachable

_FIRST_ACTOR = 1 << 31  # those of actors are counted from 0
_ROOM_SECONDS = 60.0


class StoreEpisodes:
    """The episodes of a table that are sealed at the moment when this is made.

    Episodes that begin or end later are not seen. One that the server evicts before it is read is
    left out.

    Args:
        path: Folder of the store.
        table: Name of the table; None takes the only one.
        selection: Which episodes.

    Attributes:
        schema: Columns of the rows, and the newest version of each annotation at that moment.
        metadata: What the table was created with.
        open_episodes: Episodes that were left out as they are not sealed.
        left_out: Episodes so far that could not be given: evicted meanwhile, or cut after their
            first row.

    Raises:
        StoreError: No such store or table, or several tables to choose from.
    """

    def __init__(self, path: Path, table: str | None, selection: Selection) -> None:
        with StoreReader(path) as reader:
            info = reader.table(table)
            records = reader.episodes(info.name)
            fields = reader.annotation_fields(info.name)
        self._path, self._table = path, info.name
        annotations = [Field(name, f.dtype, f.shape) for name, f in sorted(fields.items())]
        self.schema: RowSchema = info.schema.recorded.with_annotations(annotations)
        self.metadata: Mapping[str, Any] = info.metadata
        self.open_episodes = sum(not record.sealed for record in records)
        self.left_out = 0
        self._records = [
            record
            for record in records
            if record.sealed and selection.takes(episode_source(record), record.success)
        ]

    def __len__(self) -> int:
        """Return the number of episodes in the list."""
        return len(self._records)

    def episodes(self) -> Iterator[Episode]:
        """Yield the episodes that are still there, each with its final row.

        One that the server closed for a killed actor ends as `close_episode` says.
        """
        with StoreReader(self._path) as reader:
            for record in self._records:
                rows: npt.NDArray[Any] | None = None
                with contextlib.suppress(NotEnoughData):
                    rows = self._read(reader, record)
                if rows is not None and not rows["is_last"][-1]:
                    rows = close_episode(rows, self.schema.observation_names)
                if rows is None:
                    self.left_out += 1
                    continue
                seed, text = record.metadata.get("seed"), record.metadata.get("instruction")
                yield Episode(
                    rows,
                    seed if isinstance(seed, int) else 0,
                    text if isinstance(text, str) else "",
                    record.success,
                    episode_source(record),
                )

    def _read(self, reader: StoreReader, record: EpisodeRecord) -> npt.NDArray[Any]:
        """Copy the rows of an episode, with the columns of the schema."""
        stored = reader.read_episode(self._table, record)
        if stored.dtype == self.schema.dtype:
            return stored
        rows = np.empty(len(stored), self.schema.dtype)
        for column in self.schema.without_annotations.fields:
            rows[column.name] = stored[column.name]
        for annotation in self.schema.annotations:
            found = reader.annotations(self._table, annotation.name, record)
            for part, values in zip(("valid", "version", "value"), found, strict=True):
                rows[f"{ANNOTATION}{annotation.name}/{part}"] = values
        return rows


def episode_source(record: EpisodeRecord) -> int:
    """Return the SOURCE code of an episode whose steps may have several.

    Demonstration if it began as one, intervention if anybody intervened, else policy.
    """
    if record.is_demonstration:
        return SOURCE_DEMONSTRATION
    return SOURCE_INTERVENTION if record.corrected else SOURCE_POLICY


@dataclass
class Imported:
    """What an import came to; rows and episodes that were there before are not new."""

    episodes: int = 0
    new_episodes: int = 0
    new_rows: int = 0
    new_annotations: int = 0


def import_episodes(
    source: EpisodeSource,
    client: ReplayClient,
    table: str,
    on_episode: Callable[[Episode], None] = lambda _: None,
) -> Imported:
    """Send all episodes of a source, and their annotations, to the server of a client.

    A source is known by its first episode, its columns and its length, and has a session of its
    own in the store: one that was interrupted goes on where it stood, and one that is there is not
    added again.

    Args:
        source: Where they come from.
        client: Without a session.
        table: Name of the table; created where absent.
        on_episode: Called after each.

    Raises:
        SchemaMismatch: The table has other columns; names the field.
        StoreFull: The store has no room; what was sent stays, and the import can be repeated.
        ServerUnreachable: The server went away and did not come back in time.
        DatasetError: The source cannot be read.
    """
    done = Imported()
    schema = source.schema.without_annotations
    following = 0
    opened: OpenSession | None = None
    for episode in source.episodes():
        if opened is None:
            token = _token(source, episode)
            actor = _FIRST_ACTOR + int(token[:7], 16)
            metadata = dict(source.metadata)
            opened = client.open_session(table, schema, actor, owner=token, metadata=metadata)
        there = min(max(opened.next_sequence - following, 0), len(episode.rows))
        if there < len(episode.rows):
            rows = [{f.name: row[f.name] for f in schema.fields} for row in episode.rows]
            facts = {"task": schema.task, "seed": episode.seed, "instruction": episode.instruction}
            append_rest(client, rows, there, facts)
        done.episodes += 1
        done.new_episodes += there == 0
        done.new_rows += len(episode.rows) - there
        key = (opened.table, opened.actor, opened.number)
        keys = session_keys(key, following, len(episode.rows))
        for column in source.schema.annotations:
            name = f"{ANNOTATION}{column.name}"
            valid, versions = episode.rows[f"{name}/valid"], episode.rows[f"{name}/version"]
            for version in np.unique(versions[valid]).tolist():
                at = valid & (versions == version)
                client.flush(_ROOM_SECONDS)  # only stored rows can be annotated
                values = episode.rows[f"{name}/value"][at]
                new = client.annotate(table, column.name, version, keys[at], values)
                done.new_annotations += new
        following += len(episode.rows)
        on_episode(episode)
    client.flush(_ROOM_SECONDS)
    return done


def append_rest(
    client: ReplayClient, rows: Sequence[Row], there: int, facts: Mapping[str, object]
) -> None:
    """Append the rows of an episode that an earlier, interrupted try has not put there.

    Args:
        client: With the session that goes on.
        rows: All rows of the episode.
        there: How many of them are stored.
        facts: The episode's ``task``, ``seed`` and ``instruction``.

    Raises:
        ServerUnreachable: No row got through in time.
        StoreFull: The store has no room, and none came in time.
    """
    if there == 0:
        client.append_episode(rows, facts, _ROOM_SECONDS)
        return
    for row in rows[there:]:
        # The whole episode may be more than fits at a time.
        if not wait_until(lambda: client.has_room(1), _ROOM_SECONDS):
            raise client.problem or ServerUnreachable("the replay server does not answer")
        client.append(row)


def _token(source: EpisodeSource, first: Episode) -> str:
    """Return what tells this source from others."""
    schema = source.schema.without_annotations
    digest = hashlib.sha256(schema.to_json().encode())
    digest.update(f"{len(source)} {first.seed} {first.instruction}".encode())
    for column in schema.fields:
        digest.update(np.ascontiguousarray(first.rows[column.name]).tobytes())
    return digest.hexdigest()[:32]
