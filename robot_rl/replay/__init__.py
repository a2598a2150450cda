"""Replay: the server that stores every transition, its clients, and the learner's sampler.

This module defines their errors.
"""

from __future__ import annotations

from robot_rl.data.schema import SchemaMismatch as SchemaMismatch
from robot_rl.errors import RobotRLError
from robot_rl.wire import WireError as WireError


class ReplayError(RobotRLError):
    """Base of errors about rows, weights and mini-batches; `robot_rl.wire` has its own."""


class StoreError(ReplayError):
    """The store cannot be opened, read or written."""


class StoreFull(StoreError):
    """The disk is full, or demonstrations fill the capacity; acknowledged rows are safe."""


class StoreReplaced(StoreError):
    """The session's store was replaced by another one."""


class FileDamaged(StoreError):
    """A file in the store's folder is damaged or of another kind."""


class AnnotationRefused(ReplayError):
    """Annotations of absent rows, with invalid values, or that contradict the stored ones."""


class SequenceGap(ReplayError):
    """Rows arrived that do not continue their session; the sender rewinds and resends."""


class SessionTaken(ReplayError):
    """The session belongs to another writer."""


class RowRefused(ReplayError):
    """A row that breaks the order of an episode, or has an invalid flag."""


class WeightsRefused(ReplayError):
    """Weights whose version is not newer than the stored one."""


class SpoolError(ReplayError):
    """The file that buffers rows for the server cannot be used, or has no room."""


class ServerBusy(ReplayError):
    """Too many requests are waiting for an answer; the client retries."""


class NotEnoughData(ReplayError):
    """The store does not hold the requested data, or not yet."""


def error_from_wire(name: str, text: str) -> RobotRLError:
    """Rebuild an error that the server answered; an unknown name becomes a `ReplayError`."""
    kind = globals().get(name)
    if isinstance(kind, type) and issubclass(kind, RobotRLError):
        return kind(text)
    return ReplayError(text)
