"""Connections between robot_rl processes, and their errors."""

from __future__ import annotations

from collections.abc import Mapping

from robot_rl.errors import RobotRLError


class WireError(RobotRLError):
    """A message violates the wire format or requests something impossible.

    Attributes:
        header: The unchecked header of the message; empty if unreadable.
    """

    header: Mapping[str, object] = {}


class AddressRefused(RobotRLError):
    """A server may not listen at this address, or a client may not connect to it."""


class KeysError(RobotRLError):
    """Key files are missing, damaged or readable by others, or would be overwritten."""


class ServerUnreachable(RobotRLError):
    """The server did not answer in time."""


class KeysRefused(ServerUnreachable):
    """The server runs, but it and this client do not accept each other's keys."""
