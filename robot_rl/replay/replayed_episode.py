"""An episode that a killed actor left unfinished: played again and checked, not stored twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from robot_rl.data.schema import Row, RowSchema
from robot_rl.replay.client import ReplayClient
from robot_rl.replay.errors import ReplayError
from robot_rl.replay.reader import StoreReader
from robot_rl.replay.sessions import OpenSession


class PlayedDifferently(ReplayError):
    """An episode does not go as it went before: its robot does not follow from its seed."""


class ReplayedEpisode:
    """Appends rows to a session that goes on; those that are stored are compared instead.

    Args:
        client: With the session.
        store: Folder of the store.
        opened: The session.
        schema: Of its rows.
        records: Of the episodes that the actor has finished: ``session`` and ``length``, steps.

    Attributes:
        finished: How many of them this session has.
        steps: Environment steps that are stored and played again.

    Raises:
        PlayedDifferently: The store does not hold what was finished.
    """

    def __init__(
        self,
        client: ReplayClient,
        store: Path,
        opened: OpenSession,
        schema: RowSchema,
        records: Sequence[Mapping[str, Any]],
    ) -> None:
        self._client, self._schema = client, schema
        lengths = [int(r["length"]) for r in records if r["session"] == opened.number]
        self.finished = len(lengths)
        self._next = sum(length + 1 for length in lengths if length)
        place, expected = (opened.table, opened.actor, opened.number), opened.next_sequence
        with StoreReader(store) as reader:
            found = [
                episode
                for episode in reader.episodes(schema.task)
                if episode.session_key == place and episode.first_sequence >= self._next
            ]
            rows = [row for e in found for row in reader.read_episode(schema.task, e)]
        self.steps = sum(episode.environment_steps for episode in found)
        self._stored = dict(enumerate(rows, self._next))
        if self._next + len(rows) != expected:
            raise PlayedDifferently(
                "the rows of the unfinished episode are not in the store",
                got=f"rows {self._next} to {self._next + len(rows)}",
                expected=f"up to {expected}",
            )

    def append(self, row: Row, episode: Mapping[str, object] | None = None) -> int:
        """As `ReplayClient.append`.

        Raises:
            PlayedDifferently: Another row is stored in its place; names the fields.
            ReplayError: As `ReplayClient.append`.
        """
        sequence, self._next = self._next, self._next + 1
        stored = self._stored.pop(sequence, None)
        if stored is None:
            return self._client.append(row, episode)
        if self._schema.pack(row) != stored.tobytes():
            names = [n for n in row if stored[n].tobytes() != np.asarray(row[n]).tobytes()]
            raise PlayedDifferently(
                "the unfinished episode goes otherwise when it is played again",
                got=f"another {', '.join(names)} at step {int(row['episode_step'])}",
                hint="only an episode that follows from its seed alone can be repeated",
            )
        return sequence
