"""What people say of an episode that is stored already, kept as annotations of its rows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from robot_rl.errors import RobotRLError
from robot_rl.replay.client import ReplayClient
from robot_rl.replay.errors import AnnotationRefused, StoreFull
from robot_rl.replay.records import ROW_KEY_DTYPE
from robot_rl.replay.server_place import ServerPlace
from robot_rl.replay.sessions import OpenSession
from robot_rl.replay.windows import LABELS
from robot_rl.wire import ServerUnreachable

_PATIENCE_SECONDS = 30.0
_RETRY_SECONDS = 0.2


def annotate_label(
    client: ReplayClient, table: str, keys: npt.NDArray[np.void], success: bool
) -> None:
    """Store what somebody says of an episode as the annotation `reward` of its rows.

    Learning that asks for it (`reward.annotation=reward`) takes the newest label for the rewards
    of the episode: 1 at its last action after a success, which then ends the episode as one that
    is said in time does, else 0.

    Args:
        client: A client of the store's server.
        table: Name of the table.
        keys: Of all T + 1 rows of the episode, in order: `robot_rl.replay.row_keys`.
        success: Whether the episode has reached its goal.

    Raises:
        ReplayError: A row is not there, or the server does not answer.
    """
    rewards = np.zeros(len(keys), np.float32)
    rewards[-2:-1] = float(success)
    # A later label has a larger version, whoever gives it.
    client.annotate(table, LABELS, time.time_ns(), keys, rewards)


class LateLabels:
    """Annotates the episode that an actor has sent last, without keeping its loop waiting.

    Args:
        place: Where the server is; each label has a connection of its own.
        table: Name of the table.
        session: The actor's.
        note: Told of a label that is lost.
    """

    def __init__(
        self, place: ServerPlace, table: str, session: OpenSession, note: Callable[[str], None]
    ) -> None:
        """See the class."""
        self._place, self._table, self._session, self._note = place, table, session, note
        self._first = self._last = session.next_sequence
        self._threads: list[threading.Thread] = []

    def note_row(self, sequence: int, *, begins: bool) -> None:
        """Remember a row that was sent, and whether an episode begins with it."""
        self._first = sequence if begins else self._first
        self._last = sequence

    def tell(self, success: bool) -> None:
        """Take what somebody says of the last episode; never waits."""
        keys = np.empty(self._last + 1 - self._first, ROW_KEY_DTYPE)
        keys["table"], keys["actor"] = self._session.table, self._session.actor
        keys["session"] = self._session.number
        keys["sequence"] = np.arange(self._first, self._last + 1)
        thread = threading.Thread(
            target=self._store, args=(keys, success), name="late-label", daemon=True
        )
        self._threads.append(thread)
        thread.start()

    def close(self) -> None:
        """Wait until all labels are stored or given up."""
        for thread in self._threads:
            thread.join()

    def _store(self, keys: npt.NDArray[np.void], success: bool) -> None:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                with self._place.client() as client:
                    annotate_label(client, self._table, keys, success)
                return None
            except (AnnotationRefused, ServerUnreachable, StoreFull) as problem:
                # The rows may still be on their way.
                if time.monotonic() > deadline:
                    return self._note(f"a label of the last episode is lost: {problem}")
            except RobotRLError as problem:
                return self._note(f"a label of the last episode is lost: {problem}")
            time.sleep(_RETRY_SECONDS)
