"""The order of rows inside a session: what may come next, and which episodes rows make."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from robot_rl.data.schema import SOURCE_NAMES, RowSchema
from robot_rl.replay.errors import RowRefused, SequenceGap, SessionTaken
from robot_rl.replay.records import EpisodeRecord, RowFacts, RowFlags, SessionKey


@dataclass
class Session:
    """Where a session stands: what its next row must be.

    Attributes:
        owner: Token of the one writer that may add rows.
        next_sequence: Sequence of the next row; the rows before it are all stored.
        episode: The open episode, or None between episodes.
        ended_by: Source of the last row where it was terminated or truncated, so that ``is_last``
            must follow; else None.
        closed: Whether the actor has begun a later session, so that nothing may be added.
    """

    owner: str
    next_sequence: int = 0
    episode: EpisodeRecord | None = None
    ended_by: int | None = None
    closed: bool = False


@dataclass(frozen=True)
class OpenSession:
    """The session that a client writes.

    Attributes:
        table: Number of its table.
        actor: Number of the actor.
        number: Number of the session.
        owner: Token with which it can be gone on with.
        next_sequence: Rows that it had when it was opened.
        in_episode: Whether an episode was open then.
        ended: Whether only that episode's row with ``is_last`` was missing.
        header: What opens it again after a break.
        store: Identity of the store that it is in.
    """

    table: int
    actor: int
    number: int
    owner: str
    next_sequence: int
    in_episode: bool
    ended: bool
    header: Mapping[str, object]
    store: str = ""

    @property
    def known_store(self) -> dict[str, object]:
        """Entries of a header that name the store, if it is known."""
        return {"store": self.store} if self.store else {}

    @property
    def row_bytes(self) -> int:
        """Bytes of one of its rows."""
        return RowSchema.from_json(str(self.header["schema"])).dtype.itemsize


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
    """What storing rows does.

    Attributes:
        after: The session after it.
        episodes: The episodes that it touches, by identifier, in the order of beginning.
        next_episode: Identifier of the next episode that begins.
    """

    after: Session
    episodes: dict[int, EpisodeRecord]
    next_episode: int


def rows_to_skip(batch: RowBatch, before: Session) -> int:
    """Return how many leading rows of a batch are stored already.

    Raises:
        SessionTaken: The batch carries another owner token, or adds to a closed session.
        SequenceGap: The batch begins after the next row.
    """
    if batch.owner != before.owner:
        raise SessionTaken("the session belongs to another writer", got=batch.session)
    skip = before.next_sequence - batch.first_sequence
    if skip < 0:
        raise SequenceGap(
            "rows are missing before these", got=batch.first_sequence, expected=before.next_sequence
        )
    if before.closed and skip < len(batch.rows):
        raise SessionTaken(
            "the session is closed: its actor has begun a later one",
            got=batch.session,
            hint="let only one process write as this actor",
        )
    return skip


def plan_rows(
    session: SessionKey,
    before: Session,
    rows: Iterable[RowFacts],
    metadata: Mapping[int, Mapping[str, object]],
    next_episode: int,
) -> Plan:
    """Work out what a session is after further rows.

    Args:
        session: Table, actor and session numbers.
        before: Where the session stands.
        rows: What the rows say of themselves.
        metadata: Of the episodes that begin here, by sequence.
        next_episode: Identifier of the next episode that begins.

    Raises:
        RowRefused: A row breaks the order of an episode.
    """
    state = replace(before)
    episodes: dict[int, EpisodeRecord] = {}
    new: list[RowFacts] = []  # of the open episode, and the sources of the steps they complete
    finished: list[int] = []
    for facts in rows:
        check_order(facts, begins=state.episode is None, ended=state.ended_by is not None)
        if state.episode is None:
            facts_of_episode = metadata.get(state.next_sequence, {})
            state.episode = EpisodeRecord(
                next_episode, *session, state.next_sequence, metadata=facts_of_episode
            )
            next_episode += 1
        new.append(facts)
        if facts.is_last:
            finished += [] if state.ended_by is None else [state.ended_by]
            record = state.episode.with_rows(new, finished)
            episodes[record.identifier] = record
            state.episode, new, finished = None, [], []
        elif not facts.ended:
            finished.append(facts.source)
        state.ended_by = facts.source if facts.ended else None
        state.next_sequence += 1
    if state.episode is not None and new:
        state.episode = state.episode.with_rows(new, finished)
        episodes[state.episode.identifier] = state.episode
    return Plan(state, episodes, next_episode)


def read_facts(row: memoryview | bytes, flags: RowFlags) -> RowFacts:
    """Check and read the bytes of a packed row, or of its begin, that the store relies on.

    Raises:
        RowRefused: A boolean is neither 0 nor 1, or the source is unknown.
    """
    is_last, success, source = row[flags.is_last], row[flags.success], row[flags.source]
    terminated, truncated = row[flags.terminated], row[flags.truncated]
    if max(is_last, terminated, truncated, success) > 1 or source >= len(SOURCE_NAMES):
        raise RowRefused(
            "a row has an impossible flag",
            got={"booleans": (is_last, terminated, truncated, success), "source": source},
            expected="booleans 0 or 1, source 0 (demo), 1 (policy) or 2 (intervention)",
        )
    ended = not is_last and bool(terminated or truncated)
    return RowFacts(bool(is_last), ended, bool(terminated), bool(success), source)


def check_order(row: RowFacts, *, begins: bool, ended: bool) -> None:
    """Check that a row may follow the one before it.

    Args:
        row: What it says of itself.
        begins: Whether no episode is open.
        ended: Whether the row before it was terminated or truncated.

    Raises:
        RowRefused: It may not.
    """
    if begins and row.is_last:
        raise RowRefused(
            "an episode cannot begin with its last row",
            expected="at least one row with an action before the row with is_last",
        )
    if ended and not row.is_last:
        raise RowRefused(
            "a row follows the end of its episode",
            expected="after a terminated or truncated row, one row with is_last",
        )
