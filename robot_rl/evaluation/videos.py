"""Short films of a policy's episodes, its failures first. Needs the package `av`."""

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
from robot_rl.env.robot_env import RobotEnv
from robot_rl.env.rollout import Controller, rollout
from robot_rl.evaluation.records import CLIPS
from robot_rl.processes.files import replace_text

Picture = npt.NDArray[np.uint8]

# What comes of a full disk, or of a package `av` without the codec.
WRITE_ERRORS = (OSError, av.FFmpegError, UnknownCodecError)
_CODEC, _OPTIONS = "libx264", {"crf": "26", "preset": "veryfast"}
# A browser shows an ended episode for a moment before it begins again.
_STILL_SECONDS = 0.7


@runtime_checkable
class Filmable(Protocol):
    """A robot that can be filmed."""

    def picture(self) -> Picture:
        """What a bystander sees now: uint8 (height, width, 3) RGB, even height and width."""


@dataclass(frozen=True)
class Clip:
    """The film of one episode."""

    file: str  # name of the MP4 file
    seed: int  # the episode's
    success: bool  # whether the goal was reached
    seconds: float  # length of the episode on the environment's clock


class _FilmedEnv:
    """Takes a picture at every observation of an environment's episodes."""

    def __init__(self, env: RobotEnv, robot: Filmable) -> None:
        self._env, self._robot = env, robot
        self.pictures: list[Picture] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def reset(self, **options: Any) -> tuple[Any, Any]:
        """Reset, and begin a new film."""
        outcome = self._env.reset(**options)
        self.pictures = [self._robot.picture()]
        return outcome

    def step(self, action: Any) -> Any:
        """Step and take a picture."""
        outcome = self._env.step(action)
        self.pictures.append(self._robot.picture())
        return outcome


def film(env: RobotEnv, behaviour: Behaviour, seeds: Iterable[int], folder: Path) -> Iterator[Clip]:
    """Run a policy's best guess from some seeds and film it.

    Args:
        env: Where; its robot must be `Filmable`, else nothing is filmed.
        behaviour: The policy.
        seeds: Of the episodes.
        folder: Where the files `<seed>.mp4` go.
    """
    if not isinstance(env.robot, Filmable):
        return
    folder.mkdir(parents=True, exist_ok=True)
    filmed: Any = _FilmedEnv(env, env.robot)
    runner: Controller = PolicyRunner(behaviour.exploring("mean"))
    rate = Fraction(1 / env.clock.period).limit_denominator(1000)
    for result in rollout([filmed], runner, iter(seeds)):
        path = folder / f"{result.seed}.mp4"
        write_video(path, filmed.pictures, rate)
        yield Clip(path.name, result.seed, result.success, result.seconds)


def write_video(path: Path, pictures: Iterable[Picture], rate: Fraction) -> None:
    """Write an MP4 file (H.264).

    Args:
        path: The file; an older one is replaced.
        pictures: uint8 (height, width, 3) RGB, all of one even size.
        rate: Pictures per second.
    """
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
    """Seeds worth watching: the first failures, then the first successes of an evaluation.

    Args:
        first: Seed of its first episode.
        failures: Numbers of its failed episodes, from 0.
        episodes: How many it had.
        count: How many to choose.
    """
    failed = list(failures)[: max(1, count - 1)]
    others = (number for number in range(episodes) if number not in set(failed))
    numbers = [*failed, *others][:count]
    return [first + number for number in numbers]


def save_clips(clips: Iterable[Clip], folder: Path) -> None:
    """Write down which film shows what, for the report; an older list is replaced at once."""
    facts = [asdict(clip) for clip in clips]
    folder.mkdir(parents=True, exist_ok=True)  # without a film nobody has made it
    replace_text(folder / CLIPS, json.dumps(facts, indent=2) + "\n")
