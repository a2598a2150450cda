"""Replay: the server that keeps every transition, its clients, and the learner's sampler.

Here is what can go wrong between them.
"""

from __future__ import annotations

from robot_rl.data.schema import SchemaMismatch as SchemaMismatch
from robot_rl.errors import RobotRLError
from robot_rl.wire import WireError as WireError


class ReplayError(RobotRLError):
    """Base of what goes wrong with rows, weights and mini-batches; `robot_rl.wire` has its own."""


class StoreError(ReplayError):
    """The store cannot be opened, read or written."""


class StoreFull(StoreError):
    """The disk is full, or the capacity with demonstrations; nothing acknowledged is lost."""


class StoreReplaced(StoreError):
    """Another store is in the place of the one that a session began in."""


class FileDamaged(StoreError):
    """A file in the store's folder is not as it was written, or of another kind."""


class AnnotationRefused(ReplayError):
    """Annotations of absent rows, of impossible values, or other than what is stored already."""


class SequenceGap(ReplayError):
    """Rows arrived that do not continue their session; the sender goes back and sends again."""


class SessionTaken(ReplayError):
    """The session belongs to another writer."""


class RowRefused(ReplayError):
    """A row that breaks the order of an episode, or has an impossible flag."""


class WeightsRefused(ReplayError):
    """Weights whose version is not newer than the stored one."""


class SpoolError(ReplayError):
    """The file in which rows wait for the server cannot be used, or has no room."""


class ServerBusy(ReplayError):
    """Too many questions wait for an answer; the client asks again."""


class NotEnoughData(ReplayError):
    """The store does not hold what was asked for, or not yet."""


def error_from_wire(name: str, text: str) -> RobotRLError:
    """Rebuild the error that a server answered; an unknown name becomes a `ReplayError`."""
    kind = globals().get(name)
    if isinstance(kind, type) and issubclass(kind, RobotRLError):
        return kind(text)
    return ReplayError(text)
