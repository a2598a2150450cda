"""Episodes in LeRobot's v3.0 dataset layout, read and written without the `lerobot` package.

Layout, as LeRobot's `LeRobotDataset` reads it (checked against LeRobot 0.4.4)::

    meta/info.json                                version, rate, features, path templates, totals
    meta/stats.json                               statistics of each feature over all frames
    meta/tasks.parquet                            the task instructions, numbered
    meta/episodes/chunk-000/file-000.parquet      a row per episode: length, files, statistics
    data/chunk-000/file-000.parquet               a row per frame; several episodes in one file
    videos/<camera>/chunk-000/file-000.mp4        the images; several episodes in one file
    meta/robot_rl.json                            ours: the schema of the rows and their metadata

Names of the row fields in this layout:

| ours | LeRobot's | |
|---|---|---|
| `images/<camera>` | `observation.images.<camera>` | H.264, lossy |
| `state/object_poses` | `observation.environment_state` | (k, 7) flattened |
| other float32 `state/<field>` | `observation.state` | concatenated, in the schema's order |
| `action` | `action` | `names` are the schema's |
| `reward`, `terminated`, `truncated`, `success` | `next.reward`, `next.terminated`, ... | |
| every other field | `complementary_info.<field>` | kept so that an import returns the same rows |

The `names` of `observation.state` label its numbers: `tcp_pose.0`, `tcp_pose.1`, ...
Slashes inside a name become dots, as LeRobot does not allow them. `next.done` is true at an
episode's last frame and exists only in LeRobot, like `timestamp`, `frame_index`, `episode_index`,
`index` and `task_index`. The seed, success, source and instruction of an episode are the columns
`robot_rl/...` of `meta/episodes`.

Losses on import. LeRobot has no final observation, so an export drops an episode's last row: an
import keeps all steps of an episode that terminated, and all but the last of any other one
(`robot_rl.data.transfer.close_episode`). Images have the losses of H.264; all other data is equal.
Datasets that LeRobot itself recorded are imported with a mapping, by the extra `importers`.

Reading and writing need the packages of the extra `lerobot`; importing this module does not.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from robot_rl.data.episodes import Rows
from robot_rl.data.schema import OBJECT_POSES, Array, Field, RowSchema, SchemaMismatch
from robot_rl.errors import require

VERSION = "v3.0"
INFO_PATH = "meta/info.json"
DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
EPISODES_PATH = "meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
STATISTICS_PATH = "meta/stats.json"
TASKS_PATH = "meta/tasks.parquet"
OWN_PATH = "meta/robot_rl.json"
FILES_PER_CHUNK = 1000
EPISODES_PER_FILE = 100

STATE = "observation.state"
ENVIRONMENT_STATE = "observation.environment_state"
DONE = "next.done"
VIDEO, IMAGE = "video", "image"
_IMAGES = "images/"
_OUTCOMES = ("reward", "terminated", "truncated", "success")


def require_packages() -> None:
    """Raise `MissingExtra` if the packages for LeRobot datasets are not installed."""
    for package in ("pyarrow", "av"):
        require(package, "lerobot")


@dataclass(frozen=True)
class Feature:
    """One feature of a LeRobot dataset."""

    key: str  # its name
    # NumPy's name, ``"video"``, or ``"image"`` for images next to the numbers; "" is as stored.
    dtype: str
    # Of one frame: (n,), or (height, width, 3) for a camera. In a foreign dataset (-1,) and () mean
    # as stored.
    shape: tuple[int, ...]
    names: tuple[str, ...] | None = None  # of the numbers, if they have names
    # The row fields that it holds, flattened and concatenated.
    fields: tuple[Field, ...] = ()

    @property
    def is_video(self) -> bool:
        """Whether it is a camera whose images are in separate video files."""
        return self.dtype == VIDEO

    def values(self, rows: Rows) -> Array:
        """Return its values in rows: (rows, n), or (rows, height, width, 3) for a camera."""
        columns: list[Array] = [rows[field.name] for field in self.fields]
        if self.is_video:
            return columns[0]
        return np.concatenate([column.reshape(len(rows), -1) for column in columns], axis=1)

    def put(self, values: Array, rows: Rows) -> None:
        """Write values in the format of `values` back into rows."""
        if self.is_video:
            rows[self.fields[0].name] = values
            return
        start = 0
        for field in self.fields:
            stop = start + math.prod(field.shape)
            rows[field.name] = values[:, start:stop].reshape(len(rows), *field.shape)
            start = stop

    def describe(self) -> dict[str, Any]:
        """Return the entry of `meta/info.json`."""
        names = None if self.names is None else list(self.names)
        return {"dtype": self.dtype, "shape": list(self.shape), "names": names}


_INDICES = ("frame_index", "episode_index", "index", "task_index")
INDEX_FEATURES = (
    Feature("timestamp", "float32", (1,)),
    *(Feature(name, "int64", (1,)) for name in _INDICES),
)


def features_of(schema: RowSchema) -> tuple[Feature, ...]:
    """Return the features that hold the rows of a schema.

    Raises `SchemaMismatch` if a camera has no RGB images, or two fields would have one name.
    """
    state: list[Field] = []
    features: list[Feature] = []
    for field in schema.fields:
        if field.name == "is_last":  # there is no final frame
            continue
        if field.name.startswith(_IMAGES):
            features.append(_camera(field))
        elif field.name == OBJECT_POSES:
            features.append(_vector(ENVIRONMENT_STATE, (field,)))
        elif field.name.startswith("state/") and field.dtype == "float32":
            state.append(field)
        elif field.name == "action":
            features.append(_vector("action", (field,), schema.action_names))
        elif field.name in _OUTCOMES:
            features.append(_vector(f"next.{field.name}", (field,)))
        else:
            features.append(_vector(f"complementary_info.{_dotted(field.name)}", (field,)))
    if state:
        features.append(_vector(STATE, tuple(state)))
    features = [*features, Feature(DONE, "bool", (1,)), *INDEX_FEATURES]
    key, count = Counter(feature.key for feature in features).most_common(1)[0]
    if count > 1:
        raise SchemaMismatch(
            "two fields have one name in a LeRobot dataset",
            got=key,
            expected="names that differ when each slash is a dot",
        )
    return tuple(sorted(features, key=lambda feature: feature.key))


def frame_rate(rate_hz: float) -> Fraction:
    """Return a recording's steps per second as a fraction, as videos need it."""
    # Not every rate is a whole number; 29.97 must not become a fraction too large for a video.
    return Fraction(rate_hz).limit_denominator(1001)


def _camera(field: Field) -> Feature:
    if field.dtype != "uint8" or len(field.shape) != 3 or field.shape[2] != 3:
        raise SchemaMismatch(
            f"the field {field.name!r} cannot become a video",
            got=f"{field.dtype} {field.shape}",
            expected="RGB pictures: uint8 (height, width, 3)",
            hint="format=zarr keeps any field",
        )
    key = f"observation.images.{_dotted(field.name.removeprefix(_IMAGES))}"
    return Feature(key, VIDEO, field.shape, ("height", "width", "channels"), (field,))


def _vector(key: str, fields: tuple[Field, ...], names: tuple[str, ...] | None = None) -> Feature:
    """Concatenate fields of one dtype."""
    width = sum(math.prod(field.shape) for field in fields)
    if names is None and width > 1:
        names = tuple(name for field in fields for name in _element_names(field))
    return Feature(key, fields[0].dtype, (width,), names, fields)


def _element_names(field: Field) -> list[str]:
    name = _dotted(field.name.removeprefix("state/"))
    if math.prod(field.shape) == 1:
        return [name]
    return [".".join((name, *map(str, index))) for index in np.ndindex(field.shape)]


def _dotted(name: str) -> str:
    return name.replace("/", ".")
