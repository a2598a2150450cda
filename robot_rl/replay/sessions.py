"""The order of rows inside a session: what may come next, and what a batch changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from robot_rl.data.schema import SOURCE_NAMES
from robot_rl.replay.errors import RowRefused, SequenceGap, SessionTaken
from robot_rl.replay.records import EpisodeRecord, RowFlags, SessionKey


@dataclass
class Session:
    """Where a session stands: what its next row must be.

    Attributes:
        owner: Token of the one writer that may add rows.
        next_sequence: Sequence of the next row; the rows before it are all stored.
        episode: The open episode, or None between episodes.
        ended: Whether the last row was terminated or truncated, so that ``is_last`` must follow.
    """

    owner: str
    next_sequence: int = 0
    episode: EpisodeRecord | None = None
    ended: bool = False


@dataclass(frozen=True)
class RowBatch:
    """Rows that one client sends together.

    Attributes:
        session: Table, actor and session numbers.
        owner: The token with which the session was opened.
        first_sequence: Sequence of the first row; the others follow.
        rows: Packed rows, one buffer each.
        episodes: Metadata of the episodes that begin here, by sequence.
    """

    session: SessionKey
    owner: str
    first_sequence: int
    rows: Sequence[memoryview]
    episodes: Mapping[int, Mapping[str, object]] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """What storing a batch does: the session after it and the episode records it touches."""

    after: Session
    episodes: dict[int, EpisodeRecord]
    next_episode: int


def plan_batch(batch: RowBatch, before: Session, flags: RowFlags, next_episode: int) -> Plan:
    """Check that a batch continues its session and work out the state after it.

    Args:
        batch: The rows; those below ``before.next_sequence`` are duplicates and are skipped.
        before: Where the session stands.
        flags: Offsets of the flags in a packed row.
        next_episode: Identifier of the next episode that begins.

    Raises:
        SessionTaken: The batch carries another owner token.
        SequenceGap: The batch begins after the next row.
        RowRefused: A row breaks the order of an episode or has an impossible flag.
    """
    if batch.owner != before.owner:
        raise SessionTaken("the session belongs to another writer", got=batch.session)
    skip = before.next_sequence - batch.first_sequence
    if skip < 0:
        raise SequenceGap(
            "rows are missing before these", got=batch.first_sequence, expected=before.next_sequence
        )
    state = replace(before)
    episodes: dict[int, EpisodeRecord] = {}
    for row in batch.rows[skip:]:
        check_flags(row, flags)
        is_last = bool(row[flags.is_last])
        check_order(is_last, begins=state.episode is None, ended=state.ended)
        if state.episode is None:
            metadata = batch.episodes.get(state.next_sequence, {})
            state.episode = EpisodeRecord(
                next_episode, *batch.session, state.next_sequence, metadata=metadata
            )
            next_episode += 1
        record = state.episode.with_row(
            row[flags.source], is_last, bool(row[flags.success]), len(row)
        )
        episodes[record.identifier] = record
        state.episode = None if is_last else record
        state.ended = not is_last and bool(row[flags.terminated] or row[flags.truncated])
        state.next_sequence += 1
    return Plan(state, episodes, next_episode)


def check_flags(row: memoryview | bytes, flags: RowFlags) -> None:
    """Check the bytes of a packed row that the store relies on.

    Raises:
        RowRefused: A boolean is neither 0 nor 1, or the source is unknown.
    """
    booleans = (row[flags.is_last], row[flags.terminated], row[flags.truncated], row[flags.success])
    if max(booleans) > 1 or row[flags.source] >= len(SOURCE_NAMES):
        raise RowRefused(
            "a row has an impossible flag",
            got={"booleans": booleans, "source": row[flags.source]},
            expected="booleans 0 or 1, source 0 (demo), 1 (policy) or 2 (intervention)",
        )


def check_order(is_last: bool, *, begins: bool, ended: bool) -> None:
    """Check that a row may follow the one before it.

    Args:
        is_last: Whether it closes its episode.
        begins: Whether no episode is open.
        ended: Whether the row before it was terminated or truncated.

    Raises:
        RowRefused: It may not.
    """
    if begins and is_last:
        raise RowRefused(
            "an episode cannot begin with its last row",
            expected="at least one row with an action before the row with is_last",
        )
    if ended and not is_last:
        raise RowRefused(
            "a row follows the end of its episode",
            expected="after a terminated or truncated row, one row with is_last",
        )
