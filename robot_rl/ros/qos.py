"""Quality of service of all topics, in one place.

Sensors are best effort: a late measurement is worth nothing. Commands are reliable with depth 1:
each arrives, and a new one replaces one that has not been taken yet. What robot_rl publishes offers
a deadline and a liveliness lease, which tools may ask for; no subscription of robot_rl asks for
either, since a foreign driver that offers none would then deliver nothing. Whether data is late,
the receiver decides by the age of the newest message on its steady clock.
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

# A publisher misses the deadline that it offers after this many periods without a message.
_DEADLINE_PERIODS = 3.0
_LEASE_SECONDS = 1.0


def sensor_publisher(rate_hz: float) -> QoSProfile:
    """Of a publisher of measurements at about `rate_hz`."""
    return QoSProfile(
        history=HistoryPolicy.KEEP_LAST,
        depth=5,
        reliability=ReliabilityPolicy.BEST_EFFORT,
        durability=DurabilityPolicy.VOLATILE,
        deadline=Duration(seconds=_DEADLINE_PERIODS / rate_hz),
        liveliness=LivelinessPolicy.AUTOMATIC,
        liveliness_lease_duration=Duration(seconds=_LEASE_SECONDS),
    )


def sensor_subscription(depth: int = 5) -> QoSProfile:
    """Of a subscription to measurements; also fits publishers that are reliable."""
    return QoSProfile(
        history=HistoryPolicy.KEEP_LAST,
        depth=depth,
        reliability=ReliabilityPolicy.BEST_EFFORT,
        durability=DurabilityPolicy.VOLATILE,
    )


def command_publisher(rate_hz: float) -> QoSProfile:
    """Of a publisher of commands at about `rate_hz`."""
    return QoSProfile(
        history=HistoryPolicy.KEEP_LAST,
        depth=1,
        reliability=ReliabilityPolicy.RELIABLE,
        durability=DurabilityPolicy.VOLATILE,
        deadline=Duration(seconds=_DEADLINE_PERIODS / rate_hz),
        liveliness=LivelinessPolicy.AUTOMATIC,
        liveliness_lease_duration=Duration(seconds=_LEASE_SECONDS),
    )


def command_subscription() -> QoSProfile:
    """Of a subscription to commands: the newest one counts."""
    return QoSProfile(
        history=HistoryPolicy.KEEP_LAST,
        depth=1,
        reliability=ReliabilityPolicy.RELIABLE,
        durability=DurabilityPolicy.VOLATILE,
    )


def latched() -> QoSProfile:
    """Of what changes rarely and must reach those who come later, on both sides."""
    return QoSProfile(
        history=HistoryPolicy.KEEP_LAST,
        depth=1,
        reliability=ReliabilityPolicy.RELIABLE,
        durability=DurabilityPolicy.TRANSIENT_LOCAL,
    )
