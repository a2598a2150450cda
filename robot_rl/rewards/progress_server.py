"""The server of a progress model, in the model's process; `progress` says what it is asked."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from robot_rl.errors import RobotRLError
from robot_rl.processes.signals import StopEvent
from robot_rl.rewards.progress import (
    QUESTIONS,
    Compare,
    Done,
    Hello,
    Judged,
    ProgressError,
    ProgressModel,
    Values,
    check_address,
    frames_of,
)
from robot_rl.wire import AddressInUse
from robot_rl.wire.listener import Listener
from robot_rl.wire.messages import Decoder, Frame, Payload, encode, refusal

_POLL_SECONDS = 0.1


def serve_progress(
    model: ProgressModel,
    address: str,
    stop: StopEvent,
    on_ready: Callable[[str], None] = lambda address: None,
) -> None:
    """Answer questions until told to stop; what is no question is answered with an error.

    Args:
        model: The model.
        address: ``tcp://127.0.0.1:PORT``; port 0 takes any free one.
        stop: Ends the serving.
        on_ready: Told the address with the port that it got.

    Raises:
        ProgressError: The address is not on this machine, or taken.
    """
    check_address(address)
    try:
        listener = Listener(address)
    except AddressInUse as error:
        raise ProgressError(
            f"nobody can listen at {address}",
            got=error,
            hint="take another port, or end who listens there",
        ) from error
    decoder = Decoder(*QUESTIONS)
    try:
        on_ready(listener.address)
        while not stop.is_set():
            if listener.poll(_POLL_SECONDS):
                while (received := listener.receive()) is not None:
                    client, frames = received
                    listener.send(client, _answer(model, decoder, frames))
    finally:
        listener.close()


def _answer(model: ProgressModel, decoder: Decoder, frames: list[Frame]) -> list[Frame]:
    question = None
    try:
        question, payload = decoder.decode(frames)
        values = _values(model, question, payload)
        answer = Judged(request=question.request, version=model.version)
        return encode(answer, frames_of(values, np.float32))
    except Exception as error:  # the model is foreign code: whoever asked is told, the others not
        problem = error if isinstance(error, RobotRLError) else ProgressError(repr(error))
        return encode(refusal(problem, question))


def _values(
    model: ProgressModel, question: Hello | Compare | Done, payload: Payload
) -> tuple[Values, ...]:
    if isinstance(question, Hello):
        return ()
    images = question.arrays(payload)
    if isinstance(question, Compare):
        return model.compare(images, question.instruction)
    return (model.done(images, question.instruction),)
