"""Whole episodes into the store of a running server, each row once however often it is tried."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from robot_rl.data.episodes import Episode
from robot_rl.data.schema import ANNOTATION, Row, RowSchema
from robot_rl.data.transfer import EpisodeSource
from robot_rl.processes.waiting import wait_until
from robot_rl.replay.client import ReplayClient
from robot_rl.replay.records import ROW_KEY_DTYPE
from robot_rl.replay.sessions import OpenSession
from robot_rl.wire.errors import ServerUnreachable

_FIRST_ACTOR = 1 << 31  # those of actors are counted from 0
_ROOM_SECONDS = 60.0


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
            _send(client, schema, episode, there)
        done.episodes += 1
        done.new_episodes += there == 0
        done.new_rows += len(episode.rows) - there
        for name, version, rows in _annotations(source.schema, episode):
            keys = _row_keys(opened, following, len(episode.rows))[rows]
            values = episode.rows[f"{ANNOTATION}{name}/value"][rows]
            client.flush(_ROOM_SECONDS)  # only stored rows can be annotated
            done.new_annotations += client.annotate(table, name, version, keys, values)
        following += len(episode.rows)
        on_episode(episode)
    client.flush(_ROOM_SECONDS)
    return done


def _send(client: ReplayClient, schema: RowSchema, episode: Episode, there: int) -> None:
    names = [field.name for field in schema.fields]
    rows = [{name: row[name] for name in names} for row in episode.rows]
    facts = {"task": schema.task, "seed": episode.seed, "instruction": episode.instruction}
    append_rest(client, rows, there, facts)


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
            problem = client.problem or ServerUnreachable("the replay server does not answer")
            raise problem
        client.append(row)


def _annotations(
    schema: RowSchema, episode: Episode
) -> Iterator[tuple[str, int, npt.NDArray[np.int64]]]:
    """Yield each name and version among an episode's annotations, and the rows that have it."""
    for field in schema.annotations:
        valid = episode.rows[f"{ANNOTATION}{field.name}/valid"]
        versions = episode.rows[f"{ANNOTATION}{field.name}/version"]
        for version in np.unique(versions[valid]):
            yield field.name, int(version), np.flatnonzero(valid & (versions == version))


def _row_keys(session: OpenSession, first: int, rows: int) -> npt.NDArray[np.void]:
    keys = np.empty(rows, ROW_KEY_DTYPE)
    keys["table"], keys["actor"], keys["session"] = session.table, session.actor, session.number
    keys["sequence"] = first + np.arange(rows)
    return keys


def _token(source: EpisodeSource, first: Episode) -> str:
    """Return what tells this source from others."""
    digest = hashlib.sha256(source.schema.without_annotations.to_json().encode())
    digest.update(f"{len(source)} {first.seed} {first.instruction}".encode())
    for name in source.schema.without_annotations.dtype.names or ():
        digest.update(np.ascontiguousarray(first.rows[name]).tobytes())
    return digest.hexdigest()[:32]
