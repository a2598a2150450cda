"""Replay: the server that keeps every transition, its clients, and the learner's sampler."""

from robot_rl.replay.annotations import AnnotationField, row_keys
from robot_rl.replay.batches import Batch
from robot_rl.replay.client import ReplayClient
from robot_rl.replay.errors import (
    AnnotationRefused,
    CapacityRefused,
    ClientFailed,
    NotEnoughData,
    ReplayError,
    RowRefused,
    ServerBusy,
    SessionTaken,
    SpoolDamaged,
    SpoolError,
    SpoolFull,
    SpoolInUse,
    SpoolTooSmall,
    StoreError,
    StoreFull,
    StoreInUse,
    StoreReplaced,
    WeightsRefused,
)
from robot_rl.replay.eviction import Capacity
from robot_rl.replay.link import LinkOptions
from robot_rl.replay.prefetch import Prefetcher
from robot_rl.replay.reader import StoreReader
from robot_rl.replay.records import EpisodeRecord, TableInfo, WeightsRecord
from robot_rl.replay.remote_sampler import RemoteSampler
from robot_rl.replay.sampler import ReplaySampler
from robot_rl.replay.sampling import Sampler, SamplerOptions
from robot_rl.replay.server import ReplayServer, serve
from robot_rl.replay.spool import OpenSession
from robot_rl.replay.store import StoreWriter
from robot_rl.wire.endpoint import Endpoint, read_endpoint, wait_for_endpoint
from robot_rl.wire.errors import (
    AddressInUse,
    AddressRefused,
    KeysError,
    KeysRefused,
    ServerUnreachable,
    WireError,
)

__all__ = [
    "AddressInUse",
    "AddressRefused",
    "AnnotationField",
    "AnnotationRefused",
    "Batch",
    "Capacity",
    "CapacityRefused",
    "ClientFailed",
    "Endpoint",
    "EpisodeRecord",
    "KeysError",
    "KeysRefused",
    "LinkOptions",
    "NotEnoughData",
    "OpenSession",
    "Prefetcher",
    "RemoteSampler",
    "ReplayClient",
    "ReplayError",
    "ReplaySampler",
    "ReplayServer",
    "RowRefused",
    "Sampler",
    "SamplerOptions",
    "ServerBusy",
    "ServerUnreachable",
    "SessionTaken",
    "SpoolDamaged",
    "SpoolError",
    "SpoolFull",
    "SpoolInUse",
    "SpoolTooSmall",
    "StoreError",
    "StoreFull",
    "StoreInUse",
    "StoreReader",
    "StoreReplaced",
    "StoreWriter",
    "TableInfo",
    "WeightsRecord",
    "WeightsRefused",
    "WireError",
    "read_endpoint",
    "row_keys",
    "serve",
    "wait_for_endpoint",
]
