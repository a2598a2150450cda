"""Totals of one table: of what is stored, and of what was evicted."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass

from robot_rl.data.schema import SOURCE_DEMONSTRATION, SOURCE_NAMES
from robot_rl.replay.records import EpisodeRecord


@dataclass
class TableCounts:
    """Totals over episodes of one table.

    Attributes:
        rows: Rows.
        episodes: Episodes, open ones included.
        sealed: Episodes that are complete.
        cut: Complete episodes that were cut short.
        successes: Episodes with success.
        size: Bytes of packed rows.
        steps: Environment steps by source: demonstration, policy, intervention.
        demonstration_rows: Rows of episodes that began as demonstrations.
        demonstration_size: Bytes of these rows.
    """

    rows: int = 0
    episodes: int = 0
    sealed: int = 0
    cut: int = 0
    successes: int = 0
    size: int = 0
    steps: tuple[int, int, int] = (0, 0, 0)
    demonstration_rows: int = 0
    demonstration_size: int = 0

    @property
    def online_steps(self) -> int:
        """Environment steps of actors, interventions included."""
        return sum(self.steps) - self.steps[SOURCE_DEMONSTRATION]

    def add(self, episode: EpisodeRecord) -> None:
        """Count an episode."""
        self._add(episode, 1)

    def remove(self, episode: EpisodeRecord) -> None:
        """Count an episode no longer."""
        self._add(episode, -1)

    def to_bytes(self) -> bytes:
        """Serialise for the store."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_bytes(cls, value: bytes) -> TableCounts:
        """Read what `to_bytes` wrote."""
        content = json.loads(value)
        content["steps"] = tuple(content["steps"])
        return cls(**content)

    def _add(self, episode: EpisodeRecord, sign: int) -> None:
        self.rows += sign * episode.rows
        self.episodes += sign
        self.sealed += sign * episode.sealed
        self.cut += sign * episode.cut
        self.successes += sign * episode.success
        self.size += sign * episode.size
        a, b, c = (n + sign * e for n, e in zip(self.steps, episode.steps, strict=True))
        self.steps = (a, b, c)
        if episode.is_demonstration:
            self.demonstration_rows += sign * episode.rows
            self.demonstration_size += sign * episode.size


def statistics(stored: TableCounts, evicted: TableCounts) -> dict[str, object]:
    """Return the totals of a table as JSON-able numbers.

    ``environment_steps`` counts all that were ever stored, so it never decreases; everything else
    is what is there now.
    """
    steps = (s + e for s, e in zip(stored.steps, evicted.steps, strict=True))
    return {
        "rows": stored.rows,
        "episodes": stored.episodes,
        "sealed_episodes": stored.sealed,
        "cut_episodes": stored.cut,
        "successful_episodes": stored.successes,
        "bytes": stored.size,
        "environment_steps": dict(zip(SOURCE_NAMES, steps, strict=True)),
        "evicted": {
            "rows": evicted.rows,
            "episodes": evicted.episodes,
            "environment_steps": sum(evicted.steps),
        },
    }


def total(counts: Collection[TableCounts]) -> TableCounts:
    """Return the sums over all tables that eviction needs."""
    return TableCounts(
        size=sum(c.size for c in counts),
        demonstration_rows=sum(c.demonstration_rows for c in counts),
        demonstration_size=sum(c.demonstration_size for c in counts),
    )
