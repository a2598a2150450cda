"""Bench of faults: processes are killed at random under traffic, and no acknowledged row is lost.

Two writers with a spool on disk, a server and a reader are processes of their own. Each is killed
with SIGKILL again and again while they work, the second writer's connection is cut for ten
seconds, halves of messages are thrown at the server, and the system clock in the rows jumps. What
a row holds follows from its actor, session and sequence, so that every byte can be checked.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from cut_connection import CuttableConnection
from omegaconf import DictConfig

from robot_rl.data.schema import SOURCE_POLICY, Field, Row, RowSchema, row_schema
from robot_rl.errors import RobotRLError
from robot_rl.processes.signals import StopEvent, stop_event
from robot_rl.processes.waiting import wait_until
from robot_rl.replay import NotEnoughData, StoreError
from robot_rl.replay.client import ReplayClient
from robot_rl.replay.row_sources import StoreRows
from robot_rl.replay.sampler import Sampler
from robot_rl.replay.server import serve
from robot_rl.replay.store_reader import StoreReader
from robot_rl.replay.windows import SampleSpec
from robot_rl.wire.endpoint import parse_address, read_endpoint, wait_for_endpoint

EPISODE_STEPS = 40
CUT_AFTER_SECONDS, CUT_SECONDS = 30.0, 10.0
_SESSIONS = 4096
_SPOOL_BYTES = 16 << 20
_PAUSE_SECONDS = (0.2, 2.5)
_ROW_SECONDS = 0.002
_WORK_SECONDS = 60.0
_HOUR = 3_600_000_000_000


class FaultFound(RobotRLError):
    """A row is missing, twice there or damaged."""


def run(config: DictConfig) -> dict[str, object]:
    """Kill, cut and disturb for some minutes, then check every row.

    Of the configuration `seed` matters, which draws who is killed when, and `bench.kills`: of the
    server, of the writers together, and of the reader.

    Returns:
        Counts of kills, of rows that the writers were told are safe, and of rows and sampled
        windows checked.

    Raises:
        FaultFound: A row is missing, out of order or damaged.
    """
    rng = np.random.default_rng(int(config.seed))
    with tempfile.TemporaryDirectory(prefix="replay-faults-") as folder:
        return _Torture(Path(folder), rng, int(config.bench.kills)).run()


class _Torture:
    """The processes, and what is done to them."""

    def __init__(self, folder: Path, rng: np.random.Generator, kills: int) -> None:
        self._folder, self._rng, self._most_kills = folder, rng, kills
        self._store = folder / "store"
        self._kills = {"server": 0, "writer": 0, "reader": 0}
        self._works: dict[str, tuple[Any, ...]] = {}
        self._processes: dict[str, BaseProcess] = {}
        self._context = multiprocessing.get_context("spawn")

    def run(self) -> dict[str, object]:
        started = time.monotonic()
        with CuttableConnection(self._server_port) as connection, contextlib.ExitStack() as stack:
            stack.callback(self._kill_what_is_left)
            self._start("server", _serve, self._store)
            wait_for_endpoint(self._store, 30.0)
            self._start("writer-1", _write, self._folder, self._store, 1)
            self._start("writer-2", _write, self._folder, connection.address, 2)
            self._start("reader", _read, self._folder, self._store)
            cut = threading.Timer(CUT_AFTER_SECONDS, connection.cut, [CUT_SECONDS])
            cut.start()
            stack.callback(cut.cancel)
            self._kill_at_random()
            cut.join()
            self._wait_for_work()
            for name in ("reader", "writer-1", "writer-2"):
                self._end(name)
            self._drain()
            self._end("server")
        return {**self._verify(), "kills": self._kills, "seconds": time.monotonic() - started}

    def _start(self, name: str, work: Callable[..., None], *arguments: Any) -> None:
        self._works[name] = (work, *arguments)
        self._processes[name] = self._context.Process(target=work, args=arguments)
        self._processes[name].start()

    def _kill_at_random(self) -> None:
        """Kill in a random order, at random moments, and start again at once."""
        victims = ["server", "reader"] * self._most_kills + ["writer-1", "writer-2"] * (
            self._most_kills // 2
        )
        for victim in self._rng.permutation(victims).tolist():
            time.sleep(self._rng.uniform(*_PAUSE_SECONDS))
            self._throw_half_a_message()
            process = self._processes[victim]
            if process.exitcode is not None:
                raise FaultFound(f"the {victim} ended by itself", got=process.exitcode)
            process.kill()
            process.join()
            self._kills[victim.partition("-")[0]] += 1
            self._start(victim, *self._works[victim])

    def _wait_for_work(self) -> None:
        """Wait until all have got on after the last kill."""
        files = [self._folder / name for name in ("appended-1", "appended-2", "sampled")]
        before = [_counts(file).sum() for file in files]

        def all_went_on() -> bool:
            return all(_counts(f).sum() != old for f, old in zip(files, before, strict=True))

        if not wait_until(all_went_on, _WORK_SECONDS, every_s=0.1):
            raise FaultFound("the run did not go on after the last kill", got=before)

    def _end(self, name: str) -> None:
        process = self._processes[name]
        process.terminate()
        process.join(60.0)
        if process.exitcode != 0:
            raise FaultFound(f"the {name} did not end well", got=process.exitcode, expected=0)

    def _kill_what_is_left(self) -> None:
        for process in self._processes.values():
            process.kill()

    def _server_port(self) -> int:
        return parse_address(read_endpoint(self._store).address)[1]

    def _throw_half_a_message(self) -> None:
        with (
            contextlib.suppress(OSError, RobotRLError),
            socket.create_connection(("127.0.0.1", self._server_port()), 1.0) as peer,
        ):
            greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(48)
            peer.sendall(greeting[: self._rng.integers(1, len(greeting))] + self._rng.bytes(64))

    def _drain(self) -> None:
        """Start each writer once more, only to send what its last process left in the spool."""
        for actor in (1, 2):
            with _client(self._folder, self._store, actor) as client:
                client.flush(60.0)

    def _verify(self) -> dict[str, object]:
        rows = safe = 0
        with StoreReader(self._store) as reader:
            stored: dict[tuple[int, int], dict[int, bytes]] = {}
            for episode in reader.episodes():
                place = stored.setdefault((episode.actor, episode.session), {})
                for index, row in enumerate(reader.read_episode(episode)):
                    place[episode.first_sequence + index] = row.tobytes()
        schema = _schema()
        for actor in (1, 2):
            appended = _counts(self._folder / f"appended-{actor}")
            for session in range(_SESSIONS):
                found = stored.pop((actor, session), {})
                if sorted(found) != list(range(len(found))) or len(found) < appended[session]:
                    raise FaultFound(
                        f"rows of actor {actor}, session {session} are missing",
                        got=len(found),
                        expected=int(appended[session]),
                    )
                for sequence, data in found.items():
                    if data != schema.pack(_row(actor, session, sequence)):
                        raise FaultFound(f"row {actor}/{session}/{sequence} is damaged")
                rows, safe = rows + len(found), safe + int(appended[session])
        if stored:
            raise FaultFound("there are rows that nobody wrote", got=sorted(stored))
        windows = int(_counts(self._folder / "sampled")[0])
        return {"rows_appended": safe, "rows_checked": rows, "windows_checked": windows}


def _serve(store: Path) -> None:
    serve(store, fsync="group")


def _client(folder: Path, address: str | Path, actor: int) -> ReplayClient:
    return ReplayClient(
        address, spool_path=folder / f"spool-{actor}.rows", spool_bytes=_SPOOL_BYTES
    )


def _write(folder: Path, address: str | Path, actor: int) -> None:
    """Append episodes until SIGTERM, noting after each `append` that the row is safe."""
    schema, appended = _schema(), _counts(folder / f"appended-{actor}")
    with stop_event() as stop, _client(folder, address, actor) as client:
        client.flush(120.0)
        session = _opened(client, schema, actor)
        sequence = 0
        while not stop.is_set():
            while not client.has_room(EPISODE_STEPS + 1):
                if stop.wait(0.05):
                    return
            for _ in range(EPISODE_STEPS + 1):
                sequence = client.append(_row(actor, session, sequence)) + 1
                appended[session] = sequence
                time.sleep(_ROW_SECONDS)


def _opened(client: ReplayClient, schema: RowSchema, actor: int) -> int:
    """Open a session, waiting for a server that is being killed all the time."""
    while True:
        with contextlib.suppress(RobotRLError):
            return client.open_session(schema, actor).session


def _read(folder: Path, store: Path) -> None:
    """Sample until SIGTERM, and check both ends of every window."""
    sampled = _counts(folder / "sampled")
    with stop_event() as stop, contextlib.closing(_sampler(store, stop)) as sampler:
        while not stop.is_set():
            sampler.refresh()
            batch = sampler.sample()
            for index in range(len(batch["steps"])):
                _check_window({name: column[index] for name, column in batch.items()})
            sampled[0] += len(batch["steps"])
            stop.wait(0.05)


def _sampler(store: Path, stop: StopEvent) -> Sampler:
    while True:
        with contextlib.suppress(StoreError, NotEnoughData):
            spec = SampleSpec(("state/place", "state/content"), 64, 3, 0.9, 0.0)
            sampler = Sampler(StoreRows(store), spec, np.random.default_rng())
            if sampler.transitions_available() > EPISODE_STEPS:
                return sampler
            sampler.close()
        stop.wait(0.1)


def _check_window(window: dict[str, npt.NDArray[Any]]) -> None:
    actor, session, sequence = (int(n) for n in window["state/place"])
    after = sequence + int(window["steps"])
    for prefix, expected in (("", sequence), ("next/", after)):
        row = _row(actor, session, expected)
        for name in ("state/place", "state/content"):
            if not np.array_equal(window[prefix + name], row[name]):
                raise FaultFound(f"a sampled window at {actor}/{session}/{sequence} is wrong")


def _schema() -> RowSchema:
    fields = [Field("state/place", "float64", (3,)), Field("state/content", "float32", (64,))]
    return row_schema("faults", fields, ["dx"], 10.0)


def _row(actor: int, session: int, sequence: int) -> Row:
    """The one row that belongs at a place; its system clock jumps by hours."""
    rng = np.random.default_rng([actor, session, sequence])
    step = sequence % (EPISODE_STEPS + 1)
    row: Row = {f.name: np.zeros(f.shape, f.dtype) for f in _schema().fields}
    row["state/place"] = np.array([actor, session, sequence], np.float64)
    row["state/content"] = rng.standard_normal(64, np.float32)
    row["source"] = np.asarray(SOURCE_POLICY, np.uint8)
    row["episode_step"] = np.asarray(step, np.int32)
    row["stamp_observation"] = np.asarray(rng.integers(-3, 4) * _HOUR + 10 * _HOUR, np.int64)
    row["truncated"] = np.asarray(step == EPISODE_STEPS - 1)
    row["is_last"] = np.asarray(step == EPISODE_STEPS)
    return row


def _counts(path: Path) -> npt.NDArray[np.int64]:
    """Numbers in a file that outlive the process that counts; each is written in one go."""
    if not path.exists():
        path.write_bytes(bytes(8 * _SESSIONS))
    return np.memmap(path, np.int64, "r+", shape=(_SESSIONS,))
