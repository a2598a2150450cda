"""Replay: the server that keeps every transition, its clients, and the learner's sampler."""

from robot_rl.replay.client import ReplayClient
from robot_rl.replay.errors import (
    AnnotationRefused,
    ClientFailed,
    NotEnoughData,
    ReplayError,
    RowRefused,
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
from robot_rl.replay.link import LinkOptions
from robot_rl.replay.reader import StoreReader, TableRows
from robot_rl.replay.records import (
    AnnotationField,
    EpisodeRecord,
    TableInfo,
    WeightsRecord,
    row_keys,
)
from robot_rl.replay.replay_sampler import ReplaySampler
from robot_rl.replay.sampler import Batch, Prefetcher, Sampler, SampleSpec
from robot_rl.replay.segments import Capacity
from robot_rl.replay.server import ReplayServer, serve
from robot_rl.replay.server_place import RemoteSampler
from robot_rl.replay.sessions import OpenSession
from robot_rl.replay.store import StoreWriter
from robot_rl.wire import (
    AddressInUse,
    AddressRefused,
    KeysError,
    KeysRefused,
    ServerUnreachable,
    WireError,
)
from robot_rl.wire.endpoint import Endpoint, read_endpoint, wait_for_endpoint

__all__ = [
    "AddressInUse",
    "AddressRefused",
    "AnnotationField",
    "AnnotationRefused",
    "Batch",
    "Capacity",
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
    "SampleSpec",
    "Sampler",
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
    "TableRows",
    "WeightsRecord",
    "WeightsRefused",
    "WireError",
    "read_endpoint",
    "row_keys",
    "serve",
    "wait_for_endpoint",
]
