"""How a progress model is asked in its own process: messages as in `robot_rl.wire.messages`.

The payload of a question is one frame of uint8 bytes for each entry of `images`, in its order; that
of the answer has frames of n float32, one for each of the `answers` of the question.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Meta

from robot_rl.errors import RobotRLError
from robot_rl.wire import AddressRefused
from robot_rl.wire.endpoint import check_protected
from robot_rl.wire.messages import Message, Numbered, Payload, Refused

MAXIMUM_CAMERAS = 16

Images = Mapping[str, npt.NDArray[np.uint8]]
Ranges = Mapping[str, tuple[float, float]]
_Size = Annotated[int, Meta(ge=1, lt=1 << 20)]
_Cameras = Meta(min_length=1, max_length=MAXIMUM_CAMERAS)


class ProgressError(RobotRLError):
    """A progress model that does not answer, or a message between it and us that is wrong."""


class Hello(Numbered):
    """Ask for the model's version only."""

    answers: ClassVar[Ranges] = {}


class _Images(Numbered):
    payload_frames: ClassVar[tuple[int, int]] = (1, MAXIMUM_CAMERAS)
    shape: ClassVar[str]
    answers: ClassVar[Ranges]  # arrays of the answer and what may be in them

    images: Any
    instruction: str = ""

    @classmethod
    def of(cls, images: Images, instruction: str) -> Self:
        """Make a question about images of observations, by camera.

        Raises:
            ProgressError: They are not of the shape that the question is about.
        """
        shapes = {name: array.shape for name, array in images.items()}
        try:
            return msgspec.convert({"images": shapes, "instruction": instruction}, cls)
        except msgspec.ValidationError as error:
            raise ProgressError(
                f"the images do not fit: {error}", got=str(shapes)[:200], expected=cls.shape
            ) from error

    def arrays(self, payload: Payload) -> Images:
        """Take the images of a question.

        Raises:
            ProgressError: They are not as they are announced.
        """
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
    """Ask how much nearer to the goal the second of each pair is."""

    shape: ClassVar[str] = "(n, 2, H, W, 3)"
    answers: ClassVar[Ranges] = {"delta": (-1.0, 1.0), "confidence": (0.0, 1.0)}
    images: Annotated[dict[str, tuple[_Size, Literal[2], _Size, _Size, Literal[3]]], _Cameras]


class Done(_Images):
    """Ask for the probability that the task is done."""

    shape: ClassVar[str] = "(n, H, W, 3)"
    answers: ClassVar[Ranges] = {"done": (0.0, 1.0)}
    images: Annotated[dict[str, tuple[_Size, _Size, _Size, Literal[3]]], _Cameras]


class Judged(Numbered):
    """What the model says."""

    payload_frames: ClassVar[tuple[int, int]] = (0, 2)
    version: Annotated[int, Meta(ge=1, lt=1 << 31)]


QUESTIONS: tuple[type[Message], ...] = (Hello, Compare, Done)
ANSWERS: tuple[type[Message], ...] = (Judged, Refused)


def answer_arrays(answers: Ranges, count: int, payload: Payload) -> list[npt.NDArray[np.float32]]:
    """Take the arrays of an answer.

    Args:
        answers: Names and ranges, as the question has them.
        count: Number n of observations or pairs that were asked about.
        payload: The frames.

    Raises:
        ProgressError: Another number of them, or impossible values.
    """
    if len(payload) != len(answers):
        raise ProgressError(
            "the answer of a progress model is not one", got=len(payload), expected=list(answers)
        )
    arrays = []
    for (name, (low, high)), frame in zip(answers.items(), payload, strict=True):
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


def frames_of(arrays: Iterable[npt.ArrayLike], dtype: type[np.generic]) -> list[memoryview]:
    """Make payload frames of arrays."""
    whole = (np.ascontiguousarray(array, dtype) for array in arrays)
    return [array.reshape(-1).view(np.uint8).data for array in whole]


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
