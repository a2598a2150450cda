"""Replay: the server that keeps every transition, its clients, and the learner's sampler."""

from robot_rl.replay.annotations import AnnotationField, row_keys
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
from robot_rl.replay.link import LinkOptions
from robot_rl.replay.reader import StoreReader
from robot_rl.replay.records import EpisodeRecord, TableInfo, WeightsRecord
from robot_rl.replay.remote_sampler import RemoteSampler
from robot_rl.replay.replay_sampler import ReplaySampler
from robot_rl.replay.rows import TableRows
from robot_rl.replay.sample_spec import Batch, SampleSpec
from robot_rl.replay.sampler import Prefetcher, Sampler
from robot_rl.replay.server import ReplayServer, serve
from robot_rl.replay.session_files import Capacity
from robot_rl.replay.sessions import OpenSession
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
    "SampleSpec",
    "Sampler",
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
    "TableRows",
    "WeightsRecord",
    "WeightsRefused",
    "WireError",
    "read_endpoint",
    "row_keys",
    "serve",
    "wait_for_endpoint",
]
