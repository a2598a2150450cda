"""How a progress model is asked in its own process: ZeroMQ frames of JSON and raw bytes.

A request has a first frame of JSON, ``{"protocol": 1, "request": number, "ask": "hello" |
"compare" | "done", "instruction": text, "images": {name: shape}}``, and then one frame of uint8
bytes for each entry of `images`, in its order: (n, 2, H, W, 3) to compare, (n, H, W, 3) for done.
The answer has ``{"protocol": 1, "request": number, "version": number}``, with `"error": text` where
something is wrong, and else frames of float32 bytes, each of n numbers: delta and confidence, or
done. Any language can speak it; nothing is ever unpickled.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from robot_rl.errors import RobotRLError
from robot_rl.wire.endpoint import check_protected
from robot_rl.wire.errors import AddressRefused

PROTOCOL = 1
HELLO, COMPARE, DONE = "hello", "compare", "done"
MAXIMUM_FRAME_BYTES = 64 << 20
MAXIMUM_HEADER_BYTES = 1 << 16
MAXIMUM_CAMERAS = 16
# Axes of the images of a request, and the arrays of its answer with their ranges.
_AXES = {COMPARE: 5, DONE: 4}
_ANSWERS: dict[str, dict[str, tuple[float, float]]] = {
    HELLO: {},
    COMPARE: {"delta": (-1.0, 1.0), "confidence": (0.0, 1.0)},
    DONE: {"done": (0.0, 1.0)},
}


class ProgressError(RobotRLError):
    """A progress model that does not answer, or a message between it and us that is wrong."""


@dataclass(frozen=True)
class ProgressRequest:
    """A question.

    Attributes:
        ask: ``hello``, ``compare`` or ``done``.
        images: Observation name → uint8 array of the shape that the module's text gives.
        instruction: What the robot was told to do.
    """

    ask: str
    images: Mapping[str, npt.NDArray[np.uint8]]
    instruction: str

    @property
    def count(self) -> int:
        """Number n of observations or pairs."""
        return len(next(iter(self.images.values()))) if self.images else 0


@dataclass(frozen=True)
class ProgressAnswer:
    """What a model says.

    Attributes:
        version: Of the model.
        values: ``delta`` and ``confidence``, or ``done``, each float32 (n,).
    """

    version: int
    values: Mapping[str, npt.NDArray[np.float32]]


def check_address(address: str) -> None:
    """Check that an address is on this machine: the messages are neither signed nor encrypted.

    Raises:
        ProgressError: It is not, or is none.
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


def encode_request(request: ProgressRequest, number: int) -> list[bytes]:
    """Make the frames of a question.

    Raises:
        ProgressError: The images are not as the protocol has them.
    """
    _check_request(request)
    header = {
        "protocol": PROTOCOL,
        "request": number,
        "ask": request.ask,
        "instruction": request.instruction,
        "images": {name: list(array.shape) for name, array in request.images.items()},
    }
    frames = [np.ascontiguousarray(array).tobytes() for array in request.images.values()]
    return [json.dumps(header).encode(), *frames]


def decode_request(frames: Sequence[bytes]) -> tuple[int, ProgressRequest]:
    """Check the frames of a question, and give its number and the question.

    Raises:
        ProgressError: They are none.
    """
    header = _header(frames)
    ask, text, shapes = header.get("ask"), header.get("instruction", ""), header.get("images")
    if not (isinstance(text, str) and isinstance(shapes, dict) and len(shapes) == len(frames) - 1):
        raise ProgressError(
            "a request for progress lacks its images", got=f"{len(frames) - 1} frames"
        )
    images = {}
    for (name, shape), frame in zip(shapes.items(), frames[1:], strict=True):
        sizes: list[Any] = shape if isinstance(shape, list) else [None]
        whole = all(type(size) is int and 0 < size < 1 << 20 for size in sizes)
        if not whole or math.prod(sizes) != len(frame):
            raise ProgressError(
                f"the images {str(name)[:80]!r} are not as they are announced",
                got=f"{len(frame)} bytes",
                expected=str(shape)[:80],
            )
        images[str(name)] = np.frombuffer(frame, np.uint8).reshape(tuple(sizes))
    request = ProgressRequest(str(ask), images, text)
    _check_request(request)
    return _number(header), request


def encode_answer(number: int, version: int, values: Mapping[str, Any]) -> list[bytes]:
    """Make the frames of an answer.

    Args:
        number: Of the question.
        version: Of the model.
        values: Names → (n,), in the order of the protocol.
    """
    header = {"protocol": PROTOCOL, "request": number, "version": version}
    return [
        json.dumps(header).encode(),
        *(np.asarray(v, np.float32).tobytes() for v in values.values()),
    ]


def encode_error(number: int, problem: str) -> list[bytes]:
    """Make the frames of an answer that says what is wrong; number 0 if the question has none."""
    return [json.dumps({"protocol": PROTOCOL, "request": number, "error": problem[:2000]}).encode()]


def decode_answer(
    frames: Sequence[bytes], request: ProgressRequest, number: int
) -> ProgressAnswer | None:
    """Check the frames of an answer.

    Args:
        frames: The frames.
        request: The question.
        number: Its number.

    Returns:
        The answer; None if it is that to another question, which was given up.

    Raises:
        ProgressError: They are none, say that something was wrong, or hold impossible values.
    """
    header = _header(frames)
    if _number(header) not in (0, number):
        return None
    if "error" in header:
        raise ProgressError("the progress model refused a request", got=str(header["error"])[:2000])
    ranges = _ANSWERS[request.ask]
    version = header.get("version")
    if type(version) is not int or not 1 <= version < 2**31 or len(frames) - 1 != len(ranges):
        raise ProgressError(
            "the answer of a progress model is not one",
            got=f"version {version!r}, {len(frames) - 1} arrays",
            expected=f"a version from 1, and {', '.join(ranges) or 'no arrays'}",
        )
    values = {}
    for (name, (low, high)), frame in zip(ranges.items(), frames[1:], strict=True):
        whole = len(frame) == 4 * request.count
        array = np.frombuffer(frame if whole else b"", np.float32)
        if not whole or not ((array >= low) & (array <= high)).all():
            raise ProgressError(
                f"a progress model gave impossible values for {name!r}",
                got=f"{len(frame)} bytes" if not whole else f"{array.min()} to {array.max()}",
                expected=f"{request.count} float32 in [{low:g}, {high:g}]",
            )
        values[name] = array
    return ProgressAnswer(version, values)


def _check_request(request: ProgressRequest) -> None:
    if request.ask not in _ANSWERS:
        raise ProgressError(
            "a progress model cannot be asked that", got=request.ask[:80], expected=list(_ANSWERS)
        )
    axes = _AXES.get(request.ask)
    if axes is None:
        return
    shapes = {name: array.shape for name, array in request.images.items()}
    fits = all(
        len(shape) == axes and shape[-1] == 3 and (axes == 4 or shape[1] == 2)
        for shape in shapes.values()
    )
    counts = {shape[0] for shape in shapes.values()}
    if not (fits and len(counts) == 1 and len(shapes) <= MAXIMUM_CAMERAS):
        raise ProgressError(
            f"the images do not fit the question {request.ask!r}",
            got=str(shapes)[:200],
            expected="(n, 2, H, W, 3)" if axes == 5 else "(n, H, W, 3)",
        )


def _header(frames: Sequence[bytes]) -> dict[str, Any]:
    if not frames or len(frames[0]) > MAXIMUM_HEADER_BYTES:
        raise ProgressError("a message of progress has no header, or one that is too long")
    try:
        header = json.loads(frames[0])
    except (ValueError, RecursionError) as error:
        raise ProgressError("a message of progress is not JSON", got=repr(error)[:200]) from error
    if not isinstance(header, dict) or header.get("protocol") != PROTOCOL:
        raise ProgressError(
            "a message of progress is of another protocol",
            got=str(header)[:80],
            expected=f"protocol {PROTOCOL}",
        )
    return header


def _number(header: Mapping[str, Any]) -> int:
    number = header.get("request")
    if type(number) is not int or number < 0:
        raise ProgressError("a message of progress has no number", got=str(number)[:80])
    return number
