"""Quality of service of all topics.

Sensors are best effort: a late measurement is useless. Commands are reliable with depth 1: each
arrives, and a new one replaces an unread one. robot_rl's publishers offer a deadline and a
liveliness lease, which tools may request. Its subscriptions request neither, since a foreign driver
that offers none would then deliver nothing. The receiver detects late data by the age of the latest
message on its steady clock.
"""

from __future__ import annotations

from rclpy.duration import Duration
from rclpy.qos import (
    DurabilityPolicy,
    HistoryPolicy,
    LivelinessPolicy,
    QoSProfile,
    ReliabilityPolicy,
)

# A publisher misses its offered deadline after this many periods without a message.
_DEADLINE_PERIODS = 3.0
_LEASE_SECONDS = 1.0


def sensor_publisher(rate_hz: float) -> QoSProfile:
    """For a publisher of measurements at about `rate_hz`."""
    return _profile(5, ReliabilityPolicy.BEST_EFFORT, rate_hz)


def sensor_subscription(depth: int = 5) -> QoSProfile:
    """For a subscription to measurements; also fits reliable publishers."""
    return _profile(depth, ReliabilityPolicy.BEST_EFFORT)


def command_publisher(rate_hz: float) -> QoSProfile:
    """For a publisher of commands at about `rate_hz`."""
    return _profile(1, ReliabilityPolicy.RELIABLE, rate_hz)


def command_subscription() -> QoSProfile:
    """For a subscription to commands: only the latest counts."""
    return _profile(1, ReliabilityPolicy.RELIABLE)


def latched(depth: int = 1) -> QoSProfile:
    """For both sides of a topic that changes rarely and must reach late subscribers."""
    profile = _profile(depth, ReliabilityPolicy.RELIABLE)
    profile.durability = DurabilityPolicy.TRANSIENT_LOCAL
    return profile


def _profile(
    depth: int, reliability: ReliabilityPolicy, rate_hz: float | None = None
) -> QoSProfile:
    profile = QoSProfile(
        history=HistoryPolicy.KEEP_LAST,
        depth=depth,
        reliability=reliability,
        durability=DurabilityPolicy.VOLATILE,
    )
    if rate_hz is not None:  # a publisher's offers
        profile.deadline = Duration(seconds=_DEADLINE_PERIODS / rate_hz)
        profile.liveliness = LivelinessPolicy.AUTOMATIC
        profile.liveliness_lease_duration = Duration(seconds=_LEASE_SECONDS)
    return profile
