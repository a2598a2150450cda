"""The connections between processes of robot_rl, and their errors."""

from __future__ import annotations

from collections.abc import Mapping

from robot_rl.errors import RobotRLError


class WireError(RobotRLError):
    """A message that does not follow the wire format or asks for something impossible.

    Attributes:
        header: What could be read of the message, unchecked; empty for an unreadable one.
    """

    header: Mapping[str, object] = {}


class AddressRefused(RobotRLError):
    """A server may not listen, or not be reached, at this address."""


class KeysError(RobotRLError):
    """Key files that are absent, damaged, readable by others, or would be overwritten."""


class ServerUnreachable(RobotRLError):
    """The server did not answer in time."""


class KeysRefused(ServerUnreachable):
    """The server is there, but it and this client do not accept each other's keys."""
