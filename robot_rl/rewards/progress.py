"""Progress models: how much nearer to the goal one image is than another, and whether it is there.

A model such as VLAC runs in a process of its own, with its own packages, behind the protocol of
`robot_rl.rewards.progress_wire`; `robot_rl.rewards.progress_server` is the reference for it.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Protocol, Self

import msgspec
import numpy as np
import numpy.typing as npt
import zmq

from robot_rl.processes.signals import StopEvent
from robot_rl.replay.client import ReplayClient
from robot_rl.replay.reader import StoreReader
from robot_rl.replay.records import EpisodeRecord, row_keys
from robot_rl.rewards.progress_wire import (
    ANSWERS,
    Compare,
    Done,
    Hello,
    Images,
    ProgressError,
    answer_arrays,
    check_address,
    frames_of,
)
from robot_rl.wire import WireError
from robot_rl.wire.endpoint import Endpoint, client_socket
from robot_rl.wire.messages import Decoder, Payload, Refused, encode

PROGRESS, CONFIDENCE, DONE_PROBABILITY = "progress", "progress_confidence", "done"

Values = npt.NDArray[np.float32]


class Comparison(NamedTuple):
    """What a model says of n pairs of observations.

    Attributes:
        delta: (n,) in [-1, 1], share of the whole task that the second is nearer to the goal.
        confidence: (n,) in [0, 1].
    """

    delta: Values
    confidence: Values


class ProgressModel(Protocol):
    """Judges observations by their images, and by what the robot was told to do.

    Attributes:
        version: Of the model, from 1; other weights are another version.
    """

    @property
    def version(self) -> int:
        """See the class."""

    def compare(self, pairs: Images, instruction: str) -> Comparison:
        """Compare pairs of observations.

        Args:
            pairs: Observation name → uint8 (n, 2, H, W, 3) RGB, the earlier one first.
            instruction: What the robot was told to do.
        """

    def done(self, images: Images, instruction: str) -> Values:
        """Give the probability (n,) that the task is done.

        Args:
            images: Observation name → uint8 (n, H, W, 3) RGB.
            instruction: What the robot was told to do.
        """


class RemoteProgressModel:
    """A progress model in another process on this machine.

    Args:
        address: ``tcp://127.0.0.1:PORT`` of its server.
        timeout_s: How long an answer may take [s].

    Raises:
        ProgressError: The address is not on this machine, or nobody answers there.
    """

    def __init__(self, address: str, timeout_s: float = 60.0) -> None:
        """Connect and ask for the version; see the class."""
        check_address(address)
        self._address, self._timeout = address, timeout_s
        self._context = zmq.Context()
        self._socket = client_socket(self._context, Endpoint(address, pid=0))
        self._socket.connect(address)
        self._decoder = Decoder(*ANSWERS)
        self._number = 0
        try:
            self.version, _ = self._ask(Hello(), {})
        except BaseException:
            self.close()
            raise

    def compare(self, pairs: Images, instruction: str) -> Comparison:
        """See `ProgressModel`.

        Raises:
            ProgressError: The server refused, did not answer in time, or answered nonsense.
        """
        return Comparison(*self._judged(Compare.of(pairs, instruction), pairs))

    def done(self, images: Images, instruction: str) -> Values:
        """See `ProgressModel`.

        Raises:
            ProgressError: As `compare`.
        """
        return self._judged(Done.of(images, instruction), images)[0]

    def close(self) -> None:
        """Hang up."""
        self._socket.close()
        self._context.term()

    def __enter__(self) -> Self:
        """Return the model."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Hang up."""
        self.close()

    def _judged(self, question: Compare | Done, images: Images) -> list[Values]:
        _, payload = self._ask(question, images)
        return answer_arrays(question.answers, len(next(iter(images.values()))), payload)

    def _ask(self, question: Hello | Compare | Done, images: Images) -> tuple[int, Payload]:
        """Return the model's version, and the payload of its answer."""
        self._number += 1
        numbered = msgspec.structs.replace(question, request=self._number)
        try:
            self._socket.send_multipart(encode(numbered, frames_of(images.values(), np.uint8)))
            while self._socket.poll(round(1000 * self._timeout)):
                answer, payload = self._decoder.decode(self._socket.recv_multipart())
                if isinstance(answer, Refused) and answer.request in (None, self._number):
                    raise ProgressError(
                        "the progress model refused a request", got=answer.message[:2000]
                    )
                if answer.request == self._number:  # and no other question, which was given up
                    return answer.version, payload
        except WireError as error:
            raise ProgressError("a message of progress is none", got=error) from error
        raise ProgressError(
            f"no progress model answers at {self._address}",
            got=f"nothing within {self._timeout:g} s",
            hint="start its server; python -m robot_rl.rewards.progress_server is the reference",
        )


def annotate_progress(
    store: Path,
    table: str | None,
    client: ReplayClient,
    model: ProgressModel,
    stop: StopEvent,
    batch: int = 32,
) -> int:
    """Have a model judge the sealed episodes of a store, and annotate their rows.

    Row t gets what its action brought: `progress` and `progress_confidence` from the observation
    before it to the one after it, and `done` of the one after it. The last row gets zeros. Rows
    that this version of the model has judged before are left out.

    Args:
        store: Folder of the store.
        table: Name of the table; None takes the only one.
        client: A client of the store's server.
        model: The model.
        stop: Ends the work after the episode that is being judged.
        batch: Observations that are judged at once.

    Returns:
        How many episodes were judged.

    Raises:
        ProgressError: The rows hold no images, or the model failed.
        ReplayError: The store cannot be read or written.
    """
    reader = StoreReader(store)
    try:
        name = reader.table(table).name
        cameras = _cameras(reader, name)
        waiting = [
            record
            for record in reader.episodes(name)
            if record.sealed and record.rows > 1 and not _judged(reader, name, record, model)
        ]
        for count, record in enumerate(waiting):
            if stop.is_set():
                return count
            rows = reader.read_episode(name, record)
            text = record.metadata.get("instruction")
            scores = judge_episode(
                {camera: rows[camera] for camera in cameras},
                str(text or ""),
                model,
                batch,
            )
            for annotation, values in scores.items():
                client.annotate(name, annotation, model.version, row_keys(record), values)
    finally:
        reader.close()
    return len(waiting)


def judge_episode(
    images: Images, instruction: str, model: ProgressModel, batch: int
) -> dict[str, Values]:
    """Have a model judge each action of an episode.

    Args:
        images: Observation name → uint8 (T + 1, H, W, 3).
        instruction: What the robot was told to do.
        model: The model.
        batch: Observations that are judged at once.

    Returns:
        Annotation name → float32 (T + 1,), the last of them zero.
    """
    length = len(next(iter(images.values())))
    scores = {n: np.zeros(length, np.float32) for n in (PROGRESS, CONFIDENCE, DONE_PROBABILITY)}
    for start in range(0, length - 1, batch):
        part = slice(start, min(start + batch, length - 1))
        after = slice(part.start + 1, part.stop + 1)
        pairs = {n: np.stack([x[part], x[after]], 1) for n, x in images.items()}
        scores[PROGRESS][part], scores[CONFIDENCE][part] = model.compare(pairs, instruction)
        later = {n: x[after] for n, x in images.items()}
        scores[DONE_PROBABILITY][part] = model.done(later, instruction)
    return scores


def _cameras(reader: StoreReader, table: str) -> list[str]:
    fields = reader.table(table).schema.fields
    cameras = [f.name for f in fields if f.name.startswith("images/") and f.shape[-1:] == (3,)]
    if not cameras:
        raise ProgressError(
            f"the rows of table {table!r} hold no images",
            got=[f.name for f in fields if f.name.startswith("state/")],
            expected="images/<camera>",
            hint="record with observation=pixels or observation=images",
        )
    return cameras


def _judged(reader: StoreReader, table: str, record: EpisodeRecord, model: ProgressModel) -> bool:
    """Whether all of an episode has been judged by this version, or by a newer one."""
    if DONE_PROBABILITY not in reader.annotation_fields(table):
        return False
    valid, versions, _ = reader.annotations(table, DONE_PROBABILITY, record)
    return bool(valid.all() and (versions >= model.version).all())
