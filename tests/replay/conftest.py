"""A real replay server in its own process, and rows to send to it."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from robot_rl.data.schema import Field, Row, RowSchema, row_schema
from robot_rl.processes.waiting import wait_until
from robot_rl.replay import ReplayClient, wait_for_endpoint

START_SECONDS = 120  # a busy machine may take long to import everything
SERVE = """
import json, sys
from pathlib import Path
from robot_rl.replay import Capacity, serve
path, address, options = sys.argv[1:]
options = json.loads(options)
if options["keys"]:
    options["keys"] = Path(options["keys"])
options["capacity"] = Capacity(**options["capacity"])
serve(Path(path), address, **options)
"""


class ServerProcess:
    """A replay server as an operating-system process that can be killed and started again."""

    def __init__(
        self,
        store: Path,
        fsync: str = "none",
        address: str = "tcp://127.0.0.1:0",
        keys: Path | None = None,
        capacity: dict[str, int] | None = None,
        **options: object,
    ) -> None:
        self.store, self.fsync = store, fsync
        self.address, self.keys, self.options = address, keys, options
        self.capacity = capacity or {}
        self.start()

    def start(self, wait: bool = True) -> None:
        options = {"fsync": self.fsync, **self.options}
        options["keys"] = None if self.keys is None else str(self.keys)
        options["capacity"] = self.capacity
        command = [sys.executable, "-c", SERVE, str(self.store), self.address, json.dumps(options)]
        self.process = subprocess.Popen(command)
        if wait:
            try:
                self._wait()
            except BaseException:
                self.kill()
                raise

    def _wait(self) -> None:
        def answers() -> bool:
            assert self.process.poll() is None
            return wait_for_endpoint(self.store, START_SECONDS).pid == self.process.pid

        assert wait_until(answers, START_SECONDS)

    def kill(self) -> None:
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(20)


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


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    # The garbage-collection thread of pyzmq lives as long as the process.
    left = [t for t in set(threading.enumerate()) - before if t.name.startswith("replay")]
    assert not left
