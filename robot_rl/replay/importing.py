"""Whole episodes into the store of a running server, each row once however often it is tried."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from robot_rl.data.schema import ANNOTATION, RowSchema
from robot_rl.data.transfer import Episode, EpisodeSource
from robot_rl.replay.client import ReplayClient
from robot_rl.replay.errors import ServerUnreachable
from robot_rl.replay.records import ROW_KEY_DTYPE
from robot_rl.replay.spool import OpenSession

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
        _send(client, schema, episode, there)
        done.episodes += 1
        done.new_episodes += there == 0
        done.new_rows += len(episode.rows) - there
        for name, version, rows in _annotations(source.schema, episode):
            keys = _row_keys(opened, following)[rows]
            values = episode.rows[f"{ANNOTATION}{name}/value"][rows]
            client.flush(_ROOM_SECONDS)  # only stored rows can be annotated
            done.new_annotations += client.annotate(table, name, version, keys, values)
        following += len(episode.rows)
        on_episode(episode)
    client.flush(_ROOM_SECONDS)
    return done
