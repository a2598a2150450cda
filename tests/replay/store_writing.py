"""Writes episodes into a store without a server between, commit by commit; and reads them."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import numpy as np

from robot_rl.data.schema import Row, RowSchema
from robot_rl.replay.episode_records import EpisodeRecord
from robot_rl.replay.protocol import Append
from robot_rl.replay.row_sources import StoreRows
from robot_rl.replay.sampler import Sampler
from robot_rl.replay.store import RowBatch, StoreWriter
from robot_rl.replay.store_reader import StoreReader
from robot_rl.replay.windows import SampleSpec


class Recording:
    """One session of one actor in a store that is open for writing."""

    def __init__(
        self,
        writer: StoreWriter,
        schema: RowSchema,
        actor: int = 1,
        session: int | None = None,
        owner: str | None = None,
    ) -> None:
        self.writer, self.schema = writer, schema
        self.owner = owner or secrets.token_hex(8)
        self.key = writer.open_session(schema, actor, session, self.owner)

    def put(self, rows: list[Row], *, first: int | None = None) -> None:
        """Commit rows together; raise what they are refused for."""
        at = self.writer.session(self.key).next_sequence if first is None else first
        (error,) = self.writer.append([self.batch(rows, at)])
        if error is not None:
            raise error

    def batch(self, rows: list[Row], first: int, episodes: dict | None = None) -> RowBatch:
        """Rows from a sequence on, as a client sends them."""
        message = Append.of(self.key, owner=self.owner, first=first, episodes=episodes or {})
        return message, [memoryview(self.schema.pack(row)) for row in rows]

    def steps(self) -> int:
        """Environment steps of actors, as the server counts them."""
        counts = self.writer.statistics()["environment_steps"]
        return counts["policy"] + counts["intervention"]


def read_back(store: Path) -> list[tuple[EpisodeRecord, Any]]:
    """The episodes of a store, with copies of their rows."""
    with StoreReader(store) as reader:
        return [(e, reader.read_episode(e).copy()) for e in reader.episodes()]


def sampler_of(store: Path | StoreRows, *, seed: int = 0, **changes: object) -> Sampler:
    """A sampler of the numbered states that `make_episode` makes; `changes` are of its spec."""
    rows = StoreRows(store) if isinstance(store, Path) else store
    values = {
        "fields": ("state/x", "action"),
        "batch_size": 32,
        "n_step": 3,
        "discount": 0.9,
        "demonstration_share": 0.0,
        **changes,
    }
    return Sampler(rows, SampleSpec(**values), np.random.default_rng(seed))


def numbers(sampler: Sampler, batches: int = 40) -> set[int]:
    """Numbers of the rows that are drawn as s."""
    drawn = [sampler.sample()["state/x"][:, 0] for _ in range(batches)]
    return {int(number) for number in np.concatenate(drawn)}
