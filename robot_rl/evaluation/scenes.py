"""The scenes that a person puts back by hand, so that each policy meets the same ones."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

from robot_rl.data.schema import Array, Observation
from robot_rl.env.robot_env import Begun, EpisodeEnv, Options, RobotEnvWrapper
from robot_rl.run import SCENES, RunDirectory

_IMAGES = "images/"
_JPEG_QUALITY = 80
# A page shows images no larger; a bigger one is encoded at a whole fraction of its size.
_MOST_PIXELS_WIDE = 640


class PicturedScenes(RobotEnvWrapper):
    """Keeps, for each seed, what all cameras saw as the first episode with that seed began.

    Args:
        env: The environment, with the cameras that only the reward source sees.
        run: Where the pictures are kept, in `scenes/SEED/CAMERA.jpg`.
    """

    def __init__(self, env: EpisodeEnv, run: RunDirectory) -> None:
        super().__init__(env)
        self._run = run
        self._first: Observation = {}
        self._seed: int | None = None

    def reset(self, *, seed: int | None = None, options: Options = None) -> Begun:
        """Begin an episode."""
        self._first, info = super().reset(seed=seed, options=options)
        self._seed = seed
        return self._first, info

    def folder(self, seed: int | None) -> Path | None:
        """Where the pictures of a seed's scene are, if it has any."""
        name = f"{SCENES}/{seed}"
        return self._run.path / name if self._run.has_folder(name) else None

    def keep(self) -> None:
        """Between episodes: write the pictures of the last one's scene, if there are none yet.

        Raises:
            RunError: The disk is full or the folder cannot be written.
        """
        if self.folder(self._seed) is not None or not (pictures := jpegs(self._first)):
            return
        with self._run.atomic_folder(f"{SCENES}/{self._seed}") as folder:
            for camera, jpeg in pictures.items():
                (folder / f"{camera}.jpg").write_bytes(jpeg)


def jpegs(observation: Observation) -> dict[str, bytes]:
    """Encode the colour images of an observation: camera name → JPEG."""
    return {
        name.removeprefix(_IMAGES): _jpeg(image)
        for name, image in observation.items()
        if name.startswith(_IMAGES) and image.dtype == np.uint8 and image.shape[-1] == 3
    }


def _jpeg(image: Array) -> bytes:
    every = -(-image.shape[1] // _MOST_PIXELS_WIDE)
    buffer = io.BytesIO()
    picture = Image.fromarray(np.ascontiguousarray(image[::every, ::every]))
    picture.save(buffer, "JPEG", quality=_JPEG_QUALITY)
    return buffer.getvalue()
