"""Our own memories for `transition_cases`, through the seams that actors and learners use."""

from __future__ import annotations

import itertools
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from transition_cases import GAMMA, Asked, Memory, NotOffered, Step
from untrained_policy import untrained

from policies.runner import Decision, PolicyRunner
from robot_rl.data.episodes import EpisodeDataset, EpisodeWriter
from robot_rl.data.rows import RowBuilder
from robot_rl.data.schema import (
    LAST_COMMAND,
    SOURCE_DEMONSTRATION,
    SOURCE_POLICY,
    Field,
    Row,
    row_schema,
)
from robot_rl.env.controllers import decided
from robot_rl.env.rollout import rollout
from robot_rl.env.session import EpisodeResult
from robot_rl.errors import RobotRLError
from robot_rl.processes.signals import StopEvent
from robot_rl.replay.client import ReplayClient
from robot_rl.replay.row_sources import EpisodeRows, StoreRows
from robot_rl.replay.sampler import Sampler
from robot_rl.replay.server import ReplayServer
from robot_rl.replay.windows import SampleSpec

STATE, IMAGE = "state/x", "images/front"
SHAPES = {STATE: (1,), IMAGE: (2, 2, 3), "action": (1,), "base_action": (1,)}
FIELDS = [Field(STATE, "float32", SHAPES[STATE]), Field(IMAGE, "uint8", SHAPES[IMAGE])]
SCHEMA = row_schema("transitions", FIELDS, ["x"], 10.0)
SCALE = 1000  # actions are at most 1
FACTS = {"stamp_observation": 0, "stamp_action": 0, "success": False, "clamped": False}
# What the parts of a batch are called in a case.
COLUMNS = {
    IMAGE: "image",
    f"next/{STATE}": "next",
    f"next/{IMAGE}": "next_image",
    "base_action": "base",
    "next/base_action": "next_base",
    "chunk/action": "chunk",
    "chunk/valid": "valid",
    "chunk/base_action": "base_chunk",
    "next/chunk/base_action": "next_base_chunk",
    "next/chunk/valid": "next_valid",
    "return/valid": "return_valid",
    "chunk_index": "place_in_chunk",
}


class _Over(Exception):
    """Nothing more has happened."""


class _World:
    """A session in which happens what was written down, whoever acts."""

    operator, stamp = SimpleNamespace(ended_by=None), 0

    def __init__(self, steps: list[Step]) -> None:
        self._left = iter(steps)
        self.result = EpisodeResult(1)
        self.observation = _seen(steps[0].seen)

    def reset(self, *, seed: int) -> tuple[Row, dict[str, Any]]:
        return self.observation, {**FACTS, "late_label": None}

    def step(self, action: np.ndarray) -> tuple[Row, float, bool, bool, dict[str, Any]]:
        now = next(self._left, None)
        if now is None:
            raise _Over
        done = np.array([now.done / SCALE], np.float32)
        facts = {"intervened": now.by == "o", "executed_action": done}
        self.observation = _seen(now.following)
        self.result.steps += 1
        return self.observation, now.reward, now.terminated, now.truncated, FACTS | facts

    def keep_faults(self) -> None:
        pass


def _seen(number: int) -> Row:
    image = np.full(SHAPES[IMAGE], number, np.uint8)
    return {STATE: np.array([number], "f4"), IMAGE: image, LAST_COMMAND: np.zeros(1, "f4")}


class _Wanting:
    """A controller that wants, and whose base proposes, the number that it sees."""

    def reset(self, slots: object = None, **_: object) -> None:
        pass

    def act(self, observation: Row, active: object = None) -> Decision:
        wanted = observation[STATE] / np.float32(SCALE)
        return replace(decided(wanted), base_action=wanted)

    conclude = act

    def observe_override(self, slots: object = None) -> None:
        pass


class _Ours:
    """The actor's loop; what it makes rows for comes in a subclass."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        behaviour = untrained(SCHEMA, keys={STATE: 1}) if asked.queue else None
        self._controller = PolicyRunner(behaviour) if behaviour else _Wanting()

    @contextmanager
    def sampler(self) -> Iterator[Sampler]:
        """What there is to draw from."""
        sampler = Sampler(self.rows(), self.spec(), np.random.default_rng(0))
        try:
            yield sampler
        finally:
            sampler.close()

    def rows(self) -> StoreRows | EpisodeRows:
        """Where the rows are."""
        raise NotImplementedError

    def happen(self, steps: list[Step], source: int) -> list[Row]:
        """The rows of an episode, as the loop makes them."""
        rows: list[Row] = []
        with suppress(_Over):
            recorder, world = RowBuilder(SCHEMA, source), _World(steps)
            heard = {"recorder": recorder, "on_row": lambda row, _: rows.append(row)}
            next(rollout([world], self._controller, iter([1]), **heard))
        return rows

    def save(self) -> None:
        pass

    def size(self) -> int:
        with self.sampler() as sampler:
            seen = sampler.visible
        online = seen.interventions if self.asked.of_operator else seen.online
        return online + seen.demonstrations

    def draw(self) -> Iterator[dict[str, Any]]:
        with self.sampler() as sampler:
            for _ in range(8):
                columns = dict(itertools.starmap(_numbers, sampler.sample().items()))
                for b in range(sampler.spec.batch_size):
                    yield {name: column[b] for name, column in columns.items()} | {
                        "s": int(np.ravel(columns[STATE][b])[-1])
                    }

    def spec(self) -> SampleSpec:
        asked = self.asked
        return SampleSpec(
            (STATE, IMAGE, "action", "base_action", *(["chunk_index"] if asked.queue else [])),
            batch_size=64,
            n_step=asked.n_step,
            discount=GAMMA,
            demonstration_share=0.0 if asked.of_operator else 0.5,
            intervention_share=1.0 if asked.of_operator else None,
            observation_steps=asked.history,
            chunk_fields=("action", "base_action") if asked.chunk else (),
            chunk_steps=asked.chunk or None,
            returns=asked.returns,
            capacity_rows=asked.capacity or None,
        )


def _numbers(name: str, column: np.ndarray) -> tuple[str, np.ndarray]:
    """A part of a batch by its name in a case, with one number for each image, state or action."""
    field = name.removeprefix("next/").removeprefix("chunk/")
    if field in SHAPES:
        column = column[(..., *[0] * len(SHAPES[field]))]
        if field.endswith("action"):
            column = np.round(column * np.float32(SCALE))
    return COLUMNS.get(name, name), column


class OurStore(_Ours):
    """Spool, replay server and store of a run, and the learner's sampler."""

    def __init__(self, folder: Path, asked: Asked) -> None:
        super().__init__(asked)
        self._folder = folder
        self._client: ReplayClient | None = None
        self._source = -1
        self._serve()

    def _serve(self) -> None:
        self._stop, server = StopEvent(), ReplayServer(self._folder / "store")
        self._serving = threading.Thread(target=server.run, args=(self._stop,))
        self._serving.start()

    def episode(self, steps: list[Step], killed: bool) -> None:
        source = SOURCE_DEMONSTRATION if steps[0].by == "d" else SOURCE_POLICY
        if self._client is None:
            spool = self._folder / "spool.rows"
            store = self._folder / "store"
            self._client = ReplayClient(store, spool_bytes=4 << 20, spool_path=spool)
            self._source = -1
        if source != self._source:
            self._client.open_session(SCHEMA, actor=source)
            self._source = source
        for row in self.happen(steps, source):
            self._client.append(row)
        if killed:
            self._leave(0.0)

    def restart(self) -> None:
        self._stop.set()
        self._serving.join()
        self._serve()

    def rows(self) -> StoreRows:
        if self._client is not None:
            self._client.flush()
        return StoreRows(self._folder / "store")

    def close(self) -> None:
        self._leave(5.0)
        self._stop.set()
        self._serving.join()

    def _leave(self, seconds: float) -> None:
        client, self._client = self._client, None
        if client is not None:
            with suppress(RobotRLError):  # rows that are left wait in the spool
                client.close(seconds)


class OurDataset(_Ours):
    """Episodes of a dataset, as they are cloned."""

    def __init__(self, folder: Path, asked: Asked) -> None:
        if asked.of_operator or asked.capacity or asked.queue:
            raise NotOffered("a dataset holds whole episodes of one source")
        super().__init__(asked)
        self._writer = EpisodeWriter(folder / "data.zarr", SCHEMA)
        self._folder = folder

    def episode(self, steps: list[Step], killed: bool) -> None:
        if killed or any(step.by == "o" for step in steps):
            raise NotOffered("a dataset holds whole episodes of one source")
        rows = self.happen(steps, SOURCE_DEMONSTRATION)
        if rows[-1]["is_last"]:
            self._writer.append(rows, seed=0, success=False, source=SOURCE_DEMONSTRATION)

    def restart(self) -> None:
        raise NotOffered("a dataset is no process")

    def rows(self) -> EpisodeRows:
        names = (*self.spec().fields, "reward", "terminated", "truncated")
        return EpisodeRows.of_datasets([EpisodeDataset(self._folder / "data.zarr")], names)

    def close(self) -> None:
        self._writer.close()


@contextmanager
def our_store(asked: Asked) -> Iterator[Memory]:
    """A new store that is served."""
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(OurStore(Path(folder), asked)) as memory,
    ):
        yield memory


@contextmanager
def our_dataset(asked: Asked) -> Iterator[Memory]:
    """A new dataset."""
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(OurDataset(Path(folder), asked)) as memory,
    ):
        yield memory
