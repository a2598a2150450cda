"""Progress models score how much closer to the goal an image is, and whether the task is done.

A model such as VLAC runs in its own process with its own packages, served by `serve_progress`.
Messages follow `robot_rl.wire.messages`. A request's payload has one frame of uint8 bytes per entry
of `images`, in that order. The response has one frame of n float32 per entry of the request's
`answers`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol, Self

import msgspec
import numpy as np
import numpy.typing as npt
import zmq
from msgspec import Meta

from robot_rl.commands.export import store_at
from robot_rl.errors import RobotRLError
from robot_rl.processes.signals import StopEvent, stop_event
from robot_rl.replay.catalogue import is_store
from robot_rl.replay.client import ReplayClient
from robot_rl.replay.episode_records import EpisodeRecord
from robot_rl.replay.protocol import Annotations
from robot_rl.replay.store_reader import StoreReader
from robot_rl.wire import AddressRefused, WireError
from robot_rl.wire.endpoint import Endpoint, Listener, check_protected, client_socket
from robot_rl.wire.messages import (
    Decoder,
    Frame,
    Message,
    Numbered,
    Payload,
    Refused,
    encode,
    refusal,
)

PROGRESS, CONFIDENCE, DONE_PROBABILITY = "progress", "progress_confidence", "done"

Values = npt.NDArray[np.float32]
MAXIMUM_CAMERAS = 16
_POLL_SECONDS = 0.1

Images = Mapping[str, npt.NDArray[np.uint8]]
Ranges = Mapping[str, tuple[float, float]]
_Size = Annotated[int, Meta(ge=1, lt=1 << 20)]
_Cameras = Meta(min_length=1, max_length=MAXIMUM_CAMERAS)


class ProgressError(RobotRLError):
    """A progress model does not answer, or a message to or from it is invalid."""


class AskVersion(Numbered):
    """Request only the model's version."""


class _Images(Numbered):
    payload_frames: ClassVar[tuple[int, int]] = (1, MAXIMUM_CAMERAS)
    answers: ClassVar[Ranges]  # response arrays and their ranges

    images: Any
    instruction: str = ""

    def arrays(self, payload: Payload) -> Images:
        """Return a request's images; `ProgressError` if they do not match `images`."""
        if len(self.images) != len(payload) or len({s[0] for s in self.images.values()}) != 1:
            raise ProgressError(
                "the cameras show different numbers of images, or lack a frame",
                got=f"{len(payload)} frames, {str(self.images)[:200]}",
            )
        arrays = {}
        for (name, shape), frame in zip(self.images.items(), payload, strict=True):
            if math.prod(shape) != len(frame):
                raise ProgressError(
                    f"the images {name!r} are not as they are announced",
                    got=f"{len(frame)} bytes",
                    expected=f"{math.prod(shape)} bytes, of shape {shape}",
                )
            arrays[name] = np.frombuffer(frame, np.uint8).reshape(shape)
        return arrays


class Compare(_Images):
    """Request how much closer to the goal the second of each pair is: images (n, 2, H, W, 3)."""

    answers: ClassVar[Ranges] = {"delta": (-1.0, 1.0), "confidence": (0.0, 1.0)}
    images: Annotated[dict[str, tuple[_Size, Literal[2], _Size, _Size, Literal[3]]], _Cameras]


class Done(_Images):
    """Request the probability that the task is done: images (n, H, W, 3)."""

    answers: ClassVar[Ranges] = {"done": (0.0, 1.0)}
    images: Annotated[dict[str, tuple[_Size, _Size, _Size, Literal[3]]], _Cameras]


class Scores(Numbered):
    """A model's response; the payload has the scores."""

    payload_frames: ClassVar[tuple[int, int]] = (0, 2)
    version: Annotated[int, Meta(ge=1, lt=1 << 31)]


ANSWERS: tuple[type[Message], ...] = (Scores, Refused)


def frames_of(arrays: Iterable[npt.ArrayLike], dtype: type[np.generic]) -> list[memoryview]:
    """Convert arrays to payload frames."""
    whole = (np.ascontiguousarray(array, dtype) for array in arrays)
    return [array.reshape(-1).view(np.uint8).data for array in whole]


def check_address(address: str) -> None:
    """Check that an address is on this machine: messages are neither signed nor encrypted.

    Raises:
        ProgressError: The address is invalid or on another machine.
    """
    try:
        check_protected(address, keys=False)
    except AddressRefused as error:
        raise ProgressError(
            "a progress model is asked on this machine only",
            got=address,
            expected="tcp://127.0.0.1:PORT",
            hint="reach one on another machine through an SSH tunnel",
        ) from error


class PairScores(NamedTuple):
    """Model scores for n pairs of observations."""

    delta: Values  # (n,) in [-1, 1], progress from first to second, as a fraction of the task
    confidence: Values  # (n,) in [0, 1]


class ProgressModel(Protocol):
    """Scores observations from their images and the task instruction.

    Attributes:
        version: Model version, from 1; other weights need another version.
    """

    version: int

    def compare(self, pairs: Images, instruction: str) -> PairScores:
        """Compare pairs of observations: name → uint8 (n, 2, H, W, 3) RGB, earlier one first."""

    def done(self, images: Images, instruction: str) -> Values:
        """Return the probability (n,) that the task is done, from name → uint8 (n, H, W, 3) RGB."""


class RemoteProgressModel:
    """A progress model in another process on this machine, at ``tcp://127.0.0.1:PORT``.

    Raises:
        ProgressError: The address is not on this machine, or no model answers in time.
    """

    def __init__(self, address: str, timeout_s: float = 60.0) -> None:
        check_address(address)
        self._address, self._timeout = address, timeout_s
        self._context = zmq.Context()
        self._socket = client_socket(self._context, Endpoint(address, pid=0))
        self._socket.connect(address)
        self._decoder = Decoder(*ANSWERS)
        self._number = 0
        try:
            self.version, _ = self._ask(AskVersion(), {})
        except BaseException:
            self.close()
            raise

    def compare(self, pairs: Images, instruction: str) -> PairScores:
        """See `ProgressModel`.

        Raises:
            ProgressError: The server refused, did not answer in time, or sent an invalid answer.
        """
        return PairScores(*self._judged(Compare, pairs, instruction))

    def done(self, images: Images, instruction: str) -> Values:
        """See `ProgressModel`; raises like `compare`."""
        return self._judged(Done, images, instruction)[0]

    def close(self) -> None:
        """Disconnect."""
        self._socket.close()
        self._context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _judged(self, kind: type[Compare | Done], images: Images, instruction: str) -> list[Values]:
        shapes = {name: array.shape for name, array in images.items()}
        _, payload = self._ask(kind(images=shapes, instruction=instruction), images)
        if len(payload) != len(kind.answers):
            raise ProgressError(
                "the answer of a progress model is not one",
                got=len(payload),
                expected=list(kind.answers),
            )
        count, arrays = len(next(iter(images.values()))), []
        for (name, (low, high)), frame in zip(kind.answers.items(), payload, strict=True):
            whole = len(frame) == 4 * count
            array = np.frombuffer(frame if whole else b"", np.float32)
            if not whole or not ((array >= low) & (array <= high)).all():
                raise ProgressError(
                    f"a progress model gave impossible values for {name!r}",
                    got=f"{len(frame)} bytes" if not whole else f"{array.min()} to {array.max()}",
                    expected=f"{count} float32 in [{low:g}, {high:g}]",
                )
            arrays.append(array)
        return arrays

    def _ask(self, question: AskVersion | Compare | Done, images: Images) -> tuple[int, Payload]:
        """Return the model's version and its response payload."""
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
                if answer.request == self._number:  # skip late answers to abandoned requests
                    return answer.version, payload
        except WireError as error:
            raise ProgressError("a message of progress is none", got=error) from error
        raise ProgressError(
            f"no progress model answers at {self._address}",
            got=f"nothing within {self._timeout:g} s",
            hint="start its server; examples/4_reward/progress.py is one",
        )


def annotate(store: str, address: str) -> None:
    """Annotate the sealed episodes of a store with scores from the model at an address."""
    place = store_at(Path(store))
    if not is_store(place):
        raise RobotRLError(f"there is no store at {place}", expected="a store or a run directory")
    with stop_event() as stop, RemoteProgressModel(address) as model, ReplayClient(place) as client:
        count = annotate_progress(place, client, model, stop)
        print(f"judged {count} episodes with version {model.version} of the model at {address}")
        if stop.is_set():
            print("the same command judges the others")
            raise KeyboardInterrupt


def annotate_progress(
    store: Path,
    client: ReplayClient,
    model: ProgressModel,
    stop: StopEvent,
    batch: int = 32,
) -> int:
    """Score the sealed episodes of a store with a model, and annotate their rows.

    Row t gets the result of its action: `progress` and `progress_confidence` from the observation
    before to the one after, and `done` of the one after. The last row gets zeros. Episodes already
    scored by this model version are skipped. `stop` ends the work after the current episode.
    Returns the number of episodes.

    Raises:
        ProgressError: The rows have no images, or the model failed.
        ReplayError: The store cannot be read or written.
    """
    with closing(StoreReader(store)) as reader:
        cameras = reader.schema.colour_cameras
        if not cameras:
            raise ProgressError(
                f"the rows of {reader.path} hold no images",
                got=[f.name for f in reader.schema.fields if f.name.startswith("state/")],
                expected="images/<camera>",
                hint="record with observation=pixels or observation=images",
            )
        waiting = [
            record
            for record in reader.episodes()
            if record.sealed and record.rows > 1 and not _judged(reader, record, model)
        ]
        for count, record in enumerate(waiting):
            if stop.is_set():
                return count
            rows = reader.read_episode(record)
            images = {camera: rows[camera] for camera in cameras}
            text = str(record.metadata.get("instruction") or "")
            scores = judge_episode(images, text, model, batch)
            for annotation, values in scores.items():
                place, at = record.session_key, record.sequences
                client.annotate(Annotations(place, annotation, model.version, at, values))
    return len(waiting)


def judge_episode(
    images: Images, instruction: str, model: ProgressModel, batch: int
) -> dict[str, Values]:
    """Score each action of an episode with a model, `batch` observations at a time.

    Images are uint8 (T + 1, H, W, 3) by observation name. Returns float32 (T + 1,) per annotation;
    the last value is zero.
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


def _judged(reader: StoreReader, record: EpisodeRecord, model: ProgressModel) -> bool:
    """Return whether this or a newer model version has scored the whole episode."""
    valid, versions, _ = reader.annotations(DONE_PROBABILITY, record)
    return bool(valid.all() and (versions >= model.version).all())


def serve_progress(
    model: ProgressModel,
    address: str,
    stop: StopEvent,
    on_ready: Callable[[str], None] = lambda address: None,
) -> None:
    """Answer requests until `stop` is set; invalid messages get an error response.

    In ``tcp://127.0.0.1:PORT``, port 0 uses any free port; `on_ready` receives the address.

    Raises:
        ProgressError: The address is not on this machine.
        AddressRefused: The port is in use.
    """
    check_address(address)
    decoder = Decoder(AskVersion, Compare, Done)
    with closing(Listener(address)) as listener:
        on_ready(listener.address)
        while not stop.is_set():
            if listener.poll(_POLL_SECONDS):
                while (received := listener.receive()) is not None:
                    client, frames = received
                    listener.send(client, _answer(model, decoder, frames))


def _answer(model: ProgressModel, decoder: Decoder, frames: list[Frame]) -> list[Frame]:
    question = None
    try:
        question, payload = decoder.decode(frames)
        values: tuple[Values, ...] = ()
        if isinstance(question, Compare):
            values = model.compare(question.arrays(payload), question.instruction)
        elif isinstance(question, Done):
            values = (model.done(question.arrays(payload), question.instruction),)
        answer = Scores(request=question.request, version=model.version)
        return encode(answer, frames_of(values, np.float32))
    except Exception as error:  # from the model's own code; sent to the client
        problem = error if isinstance(error, RobotRLError) else ProgressError(repr(error))
        return encode(refusal(problem, question))
