"""Episodes in the dataset layout of LeRobot v3.0, written and read without the `lerobot` package.

Layout, as LeRobot's `LeRobotDataset` reads it (checked against LeRobot 0.4.4)::

    meta/info.json                                version, rate, features, path templates, totals
    meta/stats.json                               statistics of each feature over all frames
    meta/tasks.parquet                            what the robot was told to do, numbered
    meta/episodes/chunk-000/file-000.parquet      a row an episode: length, files, statistics
    data/chunk-000/file-000.parquet               a row a frame; several episodes in one file
    videos/<camera>/chunk-000/file-000.mp4        the pictures; several episodes in one file
    meta/robot_rl.json                            ours: the schema of the rows and their metadata

How the fields of a row are named there:

| ours | LeRobot's | |
|---|---|---|
| `images/<camera>` | `observation.images.<camera>` | H.264, lossy |
| `state/object_poses` | `observation.environment_state` | (k, 7) flattened |
| other float32 `state/<field>` | `observation.state` | side by side, in the schema's order |
| `action` | `action` | `names` are the schema's |
| `reward`, `terminated`, `truncated`, `success` | `next.reward`, `next.terminated`, ... | |
| every other field | `complementary_info.<field>` | kept, so that an import gives the same rows |

The `names` of `observation.state` say which number is which: `tcp_pose.0`, `tcp_pose.1`, ...
Slashes inside a name become dots, as LeRobot allows none. `next.done` is true at an episode's last
frame and is LeRobot's alone, like `timestamp`, `frame_index`, `episode_index`, `index` and
`task_index`. The seed, success, source and instruction of an episode are the columns `robot_rl/...`
of `meta/episodes`.

What does not come back. LeRobot has one frame per action and no final observation, so an export
drops an episode's last row, and an import goes without it as `robot_rl.data.transfer.close_episode`
says: an episode that terminated keeps all of its steps, any other one loses its last. Pictures come
back with the losses of H.264. All else comes back equal.

Datasets that LeRobot itself recorded cannot be imported: nothing in them says which of their
numbers are the fields of a row, and their actions are not the ones of `robot_rl`.

Reading and writing need the packages of the extra `lerobot`; importing this module does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from robot_rl.data.schema import RowSchema
from robot_rl.errors import RobotRLError

if TYPE_CHECKING:
    from robot_rl.data.lerobot.reader import LeRobotEpisodes
    from robot_rl.data.lerobot.writer import LeRobotSink


class PackagesMissing(RobotRLError):
    """The packages of the extra `lerobot` are not installed."""


def open_lerobot(path: Path) -> LeRobotEpisodes:
    """Open a LeRobot dataset that `robot-rl export` wrote.

    Raises:
        PackagesMissing: pyarrow or av is not installed.
        DatasetError: It is none, of another version, or damaged; names the file or feature.
    """
    try:
        from robot_rl.data.lerobot.reader import LeRobotEpisodes
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    return LeRobotEpisodes(path)


def create_lerobot(path: Path, schema: RowSchema, metadata: Mapping[str, Any]) -> LeRobotSink:
    """Begin a LeRobot dataset in an empty directory.

    Raises:
        PackagesMissing: pyarrow or av is not installed.
        SchemaMismatch: A field has no place in the layout.
    """
    try:
        from robot_rl.data.lerobot.writer import LeRobotSink
    except ModuleNotFoundError as error:
        raise _missing(error) from error
    return LeRobotSink(path, schema, metadata)


def _missing(error: ModuleNotFoundError) -> Exception:
    if error.name not in ("pyarrow", "av"):
        return error
    return PackagesMissing(
        f"LeRobot datasets need the package {error.name!r}, which is not installed",
        hint="pip install 'robot_rl[lerobot]'",
    )
