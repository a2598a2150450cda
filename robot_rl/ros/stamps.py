"""Stamps: nanoseconds of the system clock since 1970, as int, and ROS's `builtin_interfaces/Time`.

Stamps serve records and the matching of measurements with one another. How old something is, is
measured on the steady clock from its receipt: the system clock may be set at any moment.
"""

from __future__ import annotations

from builtin_interfaces.msg import Time

_SECOND = 1_000_000_000


def to_nanoseconds(stamp: Time) -> int:
    """Nanoseconds of a stamp."""
    return int(stamp.sec) * _SECOND + int(stamp.nanosec)


def to_stamp(nanoseconds: int) -> Time:
    """The stamp of a number of nanoseconds."""
    seconds, rest = divmod(int(nanoseconds), _SECOND)
    return Time(sec=seconds, nanosec=rest)
