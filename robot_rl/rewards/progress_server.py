"""The reference server of a progress model, to copy for a real one, with a toy model in it.

    python -m robot_rl.rewards.progress_server tcp://127.0.0.1:5600 DEMONSTRATIONS.zarr

The toy compares images with the last ones of successful demonstrations, pixel by pixel. It shows
how a model is served, and is good for nothing else.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from robot_rl.data.episodes import EpisodeDataset
from robot_rl.errors import RobotRLError
from robot_rl.processes.signals import StopEvent, stop_event
from robot_rl.rewards.progress import Comparison, ProgressModel, Values
from robot_rl.rewards.progress_wire import (
    QUESTIONS,
    Compare,
    Done,
    Hello,
    Images,
    Judged,
    ProgressError,
    check_address,
    frames_of,
)
from robot_rl.wire import AddressInUse
from robot_rl.wire.listener import Listener
from robot_rl.wire.messages import Decoder, Frame, Payload, encode, refusal

_POLL_SECONDS = 0.1


class GoalImages:
    """A toy: the nearer the pixels are to those of a goal, the nearer the goal.

    Args:
        goals: Observation name → uint8 (k, H, W, 3), what reaching the goal looked like.
        starts: The same of the beginnings, from which progress is counted.
    """

    version = 1

    def __init__(self, goals: Images, starts: Images) -> None:
        """Measure how far the starts are from the goals."""
        self._goals = {name: images.astype(np.float32) for name, images in goals.items()}
        self._whole = max(float(self._distance(starts).mean()), 1e-6)

    @classmethod
    def of_dataset(cls, dataset: EpisodeDataset) -> GoalImages:
        """Take first and last images of the successful episodes of a recording.

        Raises:
            ProgressError: It has no images, or no success.
        """
        chosen = np.flatnonzero(dataset.successes)
        names = [f.name for f in dataset.schema.fields if f.name.startswith("images/")]
        if not len(chosen) or not names:
            raise ProgressError(
                f"{dataset.path} shows no goal",
                got=f"{len(chosen)} successes, cameras {names}",
                expected="a successful episode, recorded with a camera",
            )
        episodes = [dataset.episode(int(index)) for index in chosen]
        ends: list[Images] = [
            {name: np.stack([episode[name][at] for episode in episodes]) for name in names}
            for at in (-1, 0)
        ]
        return cls(*ends)

    def compare(self, pairs: Images, instruction: str) -> Comparison:
        """See `ProgressModel`."""
        before = self._distance({name: images[:, 0] for name, images in pairs.items()})
        after = self._distance({name: images[:, 1] for name, images in pairs.items()})
        delta = ((before - after) / self._whole).clip(-1.0, 1.0)
        certain = np.abs(before - after) / np.maximum(np.maximum(before, after), 1e-6)
        return Comparison(delta.astype(np.float32), certain.astype(np.float32))

    def done(self, images: Images, instruction: str) -> Values:
        """See `ProgressModel`."""
        left = self._distance(images) / self._whole
        return np.exp(-5.0 * left).astype(np.float32)

    def _distance(self, images: Images) -> npt.NDArray[np.float64]:
        """Mean difference of pixels from the nearest goal, (n,)."""
        total = np.zeros(1)
        for name, goals in self._goals.items():
            apart = images[name][:, None].astype(np.float32) - goals[None]
            total = total + np.abs(apart).mean((2, 3, 4)).astype(np.float64)
        nearest: npt.NDArray[np.float64] = total.min(-1)
        return nearest


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


def main(address: str, dataset: str) -> None:
    """Serve the toy model until Ctrl-C."""
    model = GoalImages.of_dataset(EpisodeDataset(Path(dataset)))
    with stop_event() as stop:
        serve_progress(model, address, stop, lambda at: print(f"listening at {at}", flush=True))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m robot_rl.rewards.progress_server tcp://127.0.0.1:PORT DATASET")
    try:
        main(*sys.argv[1:])
    except RobotRLError as problem:
        sys.exit(f"progress server: {problem}")
