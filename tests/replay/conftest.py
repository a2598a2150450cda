"""A real replay server in its own process, and rows to send to it."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from store_server import ServerProcess

from robot_rl.data.schema import Field, Row, RowSchema, row_schema
from robot_rl.replay.client import ReplayClient
from robot_rl.replay.store import StoreWriter


@pytest.fixture
def schema() -> RowSchema:
    fields = [Field("state/x", "float32", (3,)), Field("images/front", "uint8", (40, 40, 3))]
    return row_schema("reach", fields, ["dx", "dy"], 10.0)


@pytest.fixture
def make_episode(schema: RowSchema) -> Callable[..., list[Row]]:
    """Return a function that makes the rows of one episode; every row is different."""
    counter = iter(range(1, 1_000_000))

    def make(
        steps: int,
        *,
        source: int = 1,
        terminated: bool = False,
        truncated: bool = True,
        schema: RowSchema = schema,
    ) -> list[Row]:
        rows = []
        for step in range(steps + 1):
            number = next(counter)
            row: Row = {f.name: np.zeros(f.shape, f.dtype) for f in schema.fields}
            row["state/x"][:] = number
            if "images/front" in row:
                row["images/front"][:] = np.random.default_rng(number).integers(0, 256, (40, 40, 3))
            row["reward"] = np.float32(number)
            row["source"] = np.uint8(source)
            row["episode_step"] = np.int32(step)
            row["terminated"] = np.bool_(terminated and step == steps - 1)
            row["truncated"] = np.bool_(truncated and not terminated and step == steps - 1)
            row["is_last"] = np.bool_(step == steps)
            if step < steps:
                row["action"][:] = (number % 1000) / 1000
            rows.append(row)
        return rows

    return make


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Callable[..., ServerProcess]]:
    """Return a function that starts a server on ``tmp_path / "store"``, or another folder."""
    servers: list[ServerProcess] = []

    def start(store: Path | None = None, **options: object) -> ServerProcess:
        servers.append(ServerProcess(store or tmp_path / "store", **options))
        return servers[-1]

    yield start
    for server in servers:
        if server.process.poll() is None:
            server.kill()


@pytest.fixture
def server(start_server: Callable[..., ServerProcess]) -> ServerProcess:
    return start_server()


@pytest.fixture
def client(server: ServerProcess) -> Iterator[ReplayClient]:
    client = ReplayClient(server.store)
    yield client
    client.close()


@pytest.fixture
def writer(tmp_path: Path, opened: Callable[[StoreWriter], StoreWriter]) -> StoreWriter:
    """An empty store that is open for writing, without a server between."""
    return opened(StoreWriter(tmp_path / "store"))


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    # The garbage-collection thread of pyzmq lives as long as the process.
    left = [t for t in set(threading.enumerate()) - before if t.name.startswith("replay")]
    assert not left
