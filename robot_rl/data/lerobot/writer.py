"""Writing a LeRobot dataset, episode by episode. See the package for the layout."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa

from robot_rl.data._episode_files import write_errors
from robot_rl.data.lerobot import layout
from robot_rl.data.lerobot.features import DONE, Feature, features_of, frame_rate
from robot_rl.data.lerobot.layout import Place
from robot_rl.data.lerobot.statistics import ColumnStatistics, PictureStatistics, Statistics
from robot_rl.data.lerobot.tables import TableFiles, frames_table, write_tasks
from robot_rl.data.lerobot.video import VideoFiles, video_information
from robot_rl.data.schema import Array, RowSchema
from robot_rl.data.transfer import Episode

_MEGABYTE = 1 << 20
# Episode records wait in memory until so many make a row group.
_EPISODES_PER_GROUP = 100


class LeRobotSink:
    """Writes episodes; a context manager whose end without an error completes the dataset.

    Holds one episode and some records in memory.

    Args:
        path: An empty directory.
        schema: Columns of the rows.
        metadata: JSON values that describe the recording; ``robot`` becomes the robot type.
        data_file_bytes: Largest Parquet file; only one episode alone may be larger.
        video_file_bytes: Largest video file, likewise.

    Raises:
        SchemaMismatch: A field has no place in the layout.
    """

    def __init__(
        self,
        path: Path,
        schema: RowSchema,
        metadata: Mapping[str, Any],
        *,
        data_file_bytes: int = layout.DATA_FILE_MEGABYTES * _MEGABYTE,
        video_file_bytes: int = layout.VIDEO_FILE_MEGABYTES * _MEGABYTE,
    ) -> None:
        """Begin the dataset; see the class."""
        self._path, self._schema, self._metadata = path, schema, dict(metadata)
        self._features = features_of(schema)
        self._rate = frame_rate(schema)
        self._data = TableFiles(path, layout.DATA_PATH, data_file_bytes)
        self._records = TableFiles(path, layout.EPISODES_PATH, data_file_bytes)
        self._videos = {
            feature: VideoFiles(path, feature.key, self._rate, video_file_bytes)
            for feature in self._features
            if feature.is_video
        }
        self._files: list[TableFiles | VideoFiles] = [
            self._data,
            self._records,
            *self._videos.values(),
        ]
        self._statistics = {
            feature.key: PictureStatistics() if feature.is_video else ColumnStatistics()
            for feature in self._features
        }
        self._tasks: dict[str, int] = {}
        self._waiting: list[dict[str, Any]] = []
        self._episodes = self._frames = 0

    def add(self, episode: Episode) -> None:
        """Write one episode, without its final row.

        Raises:
            DatasetWriteFailed: It cannot be written.
        """
        rows = episode.rows[:-1]
        columns: dict[Feature, Array] = {}
        statistics: dict[str, Statistics] = {}
        record = self._record(episode, len(rows))
        for feature in self._features:
            if feature.is_video:
                values = feature.values(rows)
                place, start, end = self._videos[feature].add(values)
                record |= _file_columns(f"videos/{feature.key}", place)
                record |= {
                    f"videos/{feature.key}/from_timestamp": start,
                    f"videos/{feature.key}/to_timestamp": end,
                }
            else:
                values = self._values(feature, episode, len(rows))
                columns[feature] = values
            statistics[feature.key] = self._statistics[feature.key].add(values)
        table = frames_table(columns)
        record |= _file_columns("data", self._data.place_for(table.nbytes))
        self._data.write(table)
        for key, found in statistics.items():
            record |= {f"stats/{key}/{name}": value.tolist() for name, value in found.items()}
        self._waiting.append(record)
        self._episodes += 1
        self._frames += len(rows)
        if len(self._waiting) == _EPISODES_PER_GROUP:
            self._write_records()

    def __enter__(self) -> Self:
        """Return the sink."""
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        """Complete the dataset, or only close the files after an error."""
        try:
            if kind is None:
                self._complete()
        finally:
            for files in self._files:
                files.release()

    def _values(self, feature: Feature, episode: Episode, frames: int) -> Array:
        """Return the (frames, n) values of a feature that is no camera."""
        if feature.fields:
            return feature.values(episode.rows[:-1])
        numbers = np.arange(frames)
        made: dict[str, Array] = {
            DONE: numbers == frames - 1,
            "timestamp": numbers / float(self._rate),
            "frame_index": numbers,
            "episode_index": np.full(frames, self._episodes),
            "index": self._frames + numbers,
            "task_index": np.full(frames, self._task(episode)),
        }
        return made[feature.key][:, None]

    def _record(self, episode: Episode, frames: int) -> dict[str, Any]:
        """What is known of an episode before its files are written."""
        self._task(episode)
        return {
            "episode_index": self._episodes,
            "tasks": [self._task_name(episode)],
            "length": frames,
            "dataset_from_index": self._frames,
            "dataset_to_index": self._frames + frames,
            "robot_rl/seed": episode.seed,
            "robot_rl/success": episode.success,
            "robot_rl/source": episode.source,
            "robot_rl/instruction": episode.instruction,
        }

    def _task_name(self, episode: Episode) -> str:
        return episode.instruction or self._schema.task

    def _task(self, episode: Episode) -> int:
        return self._tasks.setdefault(self._task_name(episode), len(self._tasks))

    def _write_records(self) -> None:
        """Write the episode records that wait."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return
        size = pa.Table.from_pylist(waiting).nbytes
        place = _file_columns("meta/episodes", self._records.place_for(size))
        self._records.write(pa.Table.from_pylist([record | place for record in waiting]))

    def _complete(self) -> None:
        self._write_records()
        for files in self._files:
            files.close()
        totals = {key: found.total() for key, found in self._statistics.items()}
        self._write_json(
            layout.STATISTICS_PATH,
            {
                key: {name: value.tolist() for name, value in found.items()}
                for key, found in totals.items()
            },
        )
        write_tasks(self._path / layout.TASKS_PATH, list(self._tasks))
        own = {"schema": json.loads(self._schema.to_json()), "metadata": self._metadata}
        self._write_json(layout.OWN_PATH, own)
        self._write_json(layout.INFO_PATH, self._information())

    def _information(self) -> dict[str, Any]:
        features = {feature.key: feature.describe() for feature in self._features}
        for feature in self._videos:
            features[feature.key]["info"] = video_information(feature.shape, self._rate)
        rate = self._schema.control_rate_hz
        robot = self._metadata.get("robot")
        return {
            "codebase_version": layout.VERSION,
            "robot_type": robot if isinstance(robot, str) else None,
            "total_episodes": self._episodes,
            "total_frames": self._frames,
            "total_tasks": len(self._tasks),
            "chunks_size": layout.FILES_PER_CHUNK,
            "data_files_size_in_mb": layout.DATA_FILE_MEGABYTES,
            "video_files_size_in_mb": layout.VIDEO_FILE_MEGABYTES,
            "fps": int(rate) if rate.is_integer() else rate,
            "splits": {"train": f"0:{self._episodes}"},
            "data_path": layout.DATA_PATH,
            "video_path": layout.VIDEO_PATH if self._videos else None,
            "features": features,
        }

    def _write_json(self, name: str, content: object) -> None:
        path = self._path / name
        with write_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _file_columns(prefix: str, place: Place) -> dict[str, int]:
    return {f"{prefix}/chunk_index": place.chunk, f"{prefix}/file_index": place.file}
