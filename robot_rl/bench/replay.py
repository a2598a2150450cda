"""Benchmark of the replay path: one client process (this one), one server process, one store."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from omegaconf import DictConfig

from robot_rl.data.schema import SOURCE_POLICY, Field, Row, RowSchema, row_schema
from robot_rl.replay.client import ReplayClient
from robot_rl.replay.row_sources import StoreRows
from robot_rl.replay.sampler import Sampler
from robot_rl.replay.server import serve
from robot_rl.replay.store import Fsync
from robot_rl.replay.store_reader import summarize_store
from robot_rl.replay.windows import SampleSpec
from robot_rl.wire.endpoint import wait_for_endpoint

EPISODE_STEPS = 100
BATCH_SIZE = 256
SAMPLES = 100
SECONDS = 10.0


def run(config: DictConfig) -> dict[str, object]:
    """Measure mean insert and sample rates for transitions of a two-camera robot.

    Inserts are committed and acknowledged, with schema checks. A sample is 256 pairs (s, s'). Row
    sizes are fixed and do not depend on the configuration. Each second of inserting writes up to
    1 GB to the system's temporary folder (``TMPDIR``), which is removed at the end.
    """
    results: dict[str, object] = {}
    images = camera_schema()
    modes: tuple[Fsync, ...] = ("none", "group")
    for fsync, batch_rows in itertools.product(modes, (1, 16)):
        suffix = "" if fsync == "none" else "_fsync_group"
        with _server(fsync) as store:
            rate = _insert(store, images, SECONDS, batch_rows)
            results[f"insert_per_second_batch{batch_rows}{suffix}"] = rate
            if suffix == "" and batch_rows == 16:
                results["bytes_per_transition"] = float(summarize_store(store)["bytes_per_row"])
                results["sample_256_ms"] = _sample_ms(store, images, n_step=1)
                results["sample_256_n3_ms"] = _sample_ms(store, images, n_step=3)
    with _server("none") as store:
        _insert(store, state_schema(), SECONDS / 2, 16)
        results["sample_256_state_n3_ms"] = _sample_ms(store, state_schema(), n_step=3)
    return results


def camera_schema() -> RowSchema:
    """Return the schema of rows with two 128 x 128 RGB images, 32 floats and a 7-float action."""
    images = [Field(f"images/{name}", "uint8", (128, 128, 3)) for name in ("front", "wrist")]
    return row_schema("bench", [*_state_fields(), *images], [f"a{i}" for i in range(7)], 10.0)


def state_schema() -> RowSchema:
    """Return the schema of rows with 32 floats and a 7-float action."""
    return row_schema("bench", _state_fields(), [f"a{i}" for i in range(7)], 10.0)


def _state_fields() -> list[Field]:
    return [Field("state/tcp_pose", "float32", (7,)), Field("state/other", "float32", (25,))]


def episode_rows(schema: RowSchema) -> list[Row]:
    """Return the rows of one episode; images differ so that compression does not help."""
    rng = np.random.default_rng(0)
    rows = []
    for step in range(EPISODE_STEPS + 1):
        row: Row = {}
        for column in schema.fields:
            dtype = np.dtype(column.dtype)
            if dtype == np.uint8 and column.shape:
                row[column.name] = rng.integers(0, 256, column.shape, np.uint8)
            elif dtype.kind == "f" and column.shape:
                row[column.name] = rng.uniform(-1, 1, column.shape).astype(dtype)
            else:
                row[column.name] = np.zeros(column.shape, dtype)
        row["source"] = np.asarray(SOURCE_POLICY, np.uint8)
        row["episode_step"] = np.asarray(step, np.int32)
        row["truncated"] = np.asarray(step == EPISODE_STEPS - 1)
        row["is_last"] = np.asarray(step == EPISODE_STEPS)
        rows.append(row)
    return rows


@contextlib.contextmanager
def _server(fsync: Fsync) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="replay-bench-") as folder:
        store = Path(folder) / "store"
        context = multiprocessing.get_context("spawn")
        process = context.Process(target=serve, args=(store,), kwargs={"fsync": fsync})
        process.start()
        try:
            wait_for_endpoint(store, timeout=30.0)
            yield store
        finally:
            process.terminate()
            process.join()


def _insert(store: Path, schema: RowSchema, seconds: float, batch_rows: int) -> float:
    """Append for `seconds` and return acknowledged transitions per second."""
    rows = episode_rows(schema)
    with ReplayClient(store, spool_bytes=64 << 20, batch_rows=batch_rows) as client:
        client.open_session(schema)
        start = time.monotonic()
        count = 0
        while time.monotonic() < start + seconds:
            client.append_episode(rows)
            count += len(rows)
        client.flush(60.0)
        return count / (time.monotonic() - start)


def _sample_ms(store: Path, schema: RowSchema, n_step: int) -> float:
    """Return the time to sample a batch into preallocated arrays [ms], rows across the store."""
    fields = [*schema.observation_names, "action", "base_action"]
    spec = SampleSpec(tuple(fields), BATCH_SIZE, n_step, demonstration_share=0.0)
    sampler = Sampler(StoreRows(store), spec, np.random.default_rng(0))
    with contextlib.closing(sampler):
        batch = sampler.allocate()
        # Warm up: map the file's pages, each row about three times, as in the first minutes of use.
        for _ in range(SAMPLES // 2 + 3 * sampler.visible.online // (2 * BATCH_SIZE)):
            sampler.sample(batch)
        start = time.perf_counter()
        for _ in range(SAMPLES):
            sampler.sample(batch)
        return 1000 * (time.perf_counter() - start) / SAMPLES
