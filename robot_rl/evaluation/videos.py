"""Short videos of a policy's episodes, failures first. Needs the package `av`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import av
import numpy as np
import numpy.typing as npt
from av.codec.codec import UnknownCodecError
from av.video.stream import VideoStream

from policies.behaviour import Behaviour
from policies.runner import PolicyRunner
from robot_rl.data.schema import Observation
from robot_rl.env.robot_env import RobotEnv
from robot_rl.env.rollout import Controller, rollout
from robot_rl.env.session import Session, Watcher
from robot_rl.evaluation.records import CLIPS
from robot_rl.processes.files import replace_text

Picture = npt.NDArray[np.uint8]

# Raised for a full disk, or a package `av` without the codec.
WRITE_ERRORS = (OSError, av.FFmpegError, UnknownCodecError)
_CODEC, _OPTIONS = "libx264", {"crf": "26", "preset": "veryfast"}
# Still time after an episode's end, before the browser restarts the video.
_STILL_SECONDS = 0.7


@runtime_checkable
class Filmable(Protocol):
    """A robot that can be filmed."""

    def picture(self) -> Picture:
        """Return the current view of a bystander: uint8 (H, W, 3) RGB, H and W even."""


@dataclass(frozen=True)
class Clip:
    """The video of one episode."""

    file: str  # name of the MP4 file
    seed: int  # seed of the episode
    success: bool  # whether the goal was reached
    seconds: float  # length of the episode on the environment's clock


class _Camera(Watcher):
    """Records an image at every observation of the latest episode."""

    def __init__(self, robot: Filmable) -> None:
        self._robot = robot
        self.pictures: list[Picture] = []

    def began(self, observation: Observation, info: dict[str, Any]) -> None:
        """Start a new video."""
        self.pictures = [self._robot.picture()]

    def stepped(self, observation: Observation, reward: float, info: dict[str, Any]) -> None:
        """Record an image."""
        self.pictures.append(self._robot.picture())


def film(env: RobotEnv, behaviour: Behaviour, seeds: Iterable[int], folder: Path) -> Iterator[Clip]:
    """Run a policy's best guess from some seeds and record videos `<seed>.mp4` in a folder.

    Nothing is recorded if the environment's robot is not `Filmable`.
    """
    if not isinstance(env.robot, Filmable):
        return
    folder.mkdir(parents=True, exist_ok=True)
    session, camera = Session(env), _Camera(env.robot)
    session.watcher = camera
    runner: Controller = PolicyRunner(behaviour.exploring("mean"))
    rate = Fraction(1 / env.clock.period).limit_denominator(1000)
    for result in rollout([session], runner, iter(seeds)):
        path = folder / f"{result.seed}.mp4"
        write_video(path, camera.pictures, rate)
        yield Clip(path.name, result.seed, result.success, result.seconds)


def write_video(path: Path, pictures: Iterable[Picture], rate: Fraction) -> None:
    """Write images of one even size as an MP4 file (H.264) at `rate` frames a second."""
    shown = list(pictures)
    shown += shown[-1:] * round(_STILL_SECONDS * rate)
    with av.open(str(path), "w", format="mp4") as container:
        stream = container.add_stream(_CODEC, rate=rate, options=_OPTIONS)
        assert isinstance(stream, VideoStream)
        stream.height, stream.width = shown[0].shape[:2]
        stream.pix_fmt = "yuv420p"
        for picture in shown:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode(None))


def chosen_seeds(first: int, failures: Iterable[int], episodes: int, count: int) -> list[int]:
    """Return `count` seeds worth watching: the first failures, then successes of an evaluation.

    The evaluation ran `episodes` episodes from seed `first`; `failures` are numbers of failed ones.
    """
    failed = list(failures)[: max(1, count - 1)]
    others = (number for number in range(episodes) if number not in set(failed))
    numbers = [*failed, *others][:count]
    return [first + number for number in numbers]


def save_clips(clips: Iterable[Clip], folder: Path) -> None:
    """Write the list of videos for the report; an older list is replaced atomically."""
    facts = [asdict(clip) for clip in clips]
    folder.mkdir(parents=True, exist_ok=True)  # missing if no video was recorded
    replace_text(folder / CLIPS, json.dumps(facts, indent=2) + "\n")
