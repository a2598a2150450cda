"""Writer for LeRobot datasets, episode by episode. See `layout`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any, Self

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from av.container import OutputContainer
from av.video.frame import PictureType
from av.video.stream import VideoStream

from robot_rl.data.episode_files import DatasetError, write_errors
from robot_rl.data.episodes import Episode
from robot_rl.data.schema import Array, RowSchema
from robot_rl.extras.lerobot import layout
from robot_rl.extras.lerobot.layout import Feature, features_of, frame_rate

Statistics = dict[str, Array]

_CODEC = "libx264"
# Every second image is a key frame, as in LeRobot's own files: a training step decodes one or two
# images instead of a whole second of them. The tuning keeps images in time order, so that the
# first one of a file is at time 0, and disables the encoder's delay.
_OPTIONS = {"crf": "18", "preset": "veryfast", "tune": "zerolatency", "g": "2"}
_QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
# As in LeRobot, statistics of images use a sample of the images and of their pixels.
_SAMPLED_PICTURES, _SAMPLED_SIDE = 100, 150


class LeRobotSink:
    """Writes episodes; a context manager whose end without an error completes the dataset.

    Holds the episodes of one file in memory, except their images. The path is an empty directory;
    ``robot`` of the metadata, JSON values, becomes the robot type. Raises `SchemaMismatch` if a
    field has no place in the layout.
    """

    def __init__(self, path: Path, schema: RowSchema, metadata: Mapping[str, Any]) -> None:
        self._path, self._schema, self._metadata = path, schema, dict(metadata)
        self._features = features_of(schema)
        self._rate = frame_rate(schema.control_rate_hz)
        self._videos = {f: VideoFile(self._rate) for f in self._features if f.is_video}
        self._statistics: dict[str, list[Statistics]] = {f.key: [] for f in self._features}
        self._tasks: dict[str, int] = {}
        self._tables: list[pa.Table] = []
        self._records: list[dict[str, Any]] = []
        self._episodes = self._frames = self._file = 0

    def add(self, episode: Episode) -> None:
        """Write one episode, without its final row, or raise `DatasetError`."""
        rows = episode.rows[:-1]
        task = episode.instruction or self._schema.task
        self._tasks.setdefault(task, len(self._tasks))
        record = {
            "episode_index": self._episodes,
            "tasks": [task],
            "length": len(rows),
            "dataset_from_index": self._frames,
            "dataset_to_index": self._frames + len(rows),
            **self._place("data"),
            **self._place("meta/episodes"),
            "robot_rl/seed": episode.seed,
            "robot_rl/success": episode.success,
            "robot_rl/source": episode.source,
            "robot_rl/instruction": episode.instruction,
        }
        columns: dict[str, pa.Array] = {}
        numbers = np.arange(len(rows))
        made = {  # features without a row field
            layout.DONE: numbers == len(rows) - 1,
            "timestamp": numbers / float(self._rate),
            "frame_index": numbers,
            "episode_index": np.full(len(rows), self._episodes),
            "index": self._frames + numbers,
            "task_index": np.full(len(rows), self._tasks[task]),
        }
        for feature in self._features:
            values = feature.values(rows) if feature.fields else made[feature.key][:, None]
            if feature.is_video:
                prefix = f"videos/{feature.key}"
                path = self._target(layout.VIDEO_PATH, video_key=feature.key)
                start, end = self._videos[feature].add(path, values)
                times = {f"{prefix}/from_timestamp": start, f"{prefix}/to_timestamp": end}
                record |= {**self._place(prefix), **times}
            else:
                columns[feature.key] = _column(feature, values)
            found = statistics_of(values)
            self._statistics[feature.key].append(found)
            record |= {f"stats/{feature.key}/{n}": value.tolist() for n, value in found.items()}
        self._tables.append(pa.table(columns))
        self._records.append(record)
        self._episodes += 1
        self._frames += len(rows)
        if len(self._records) == layout.EPISODES_PER_FILE:
            self._write_file()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        try:
            if kind is None:
                self._complete()
        finally:
            for video in self._videos.values():
                video.release()

    def _place(self, prefix: str) -> dict[str, int]:
        chunk, file = divmod(self._file, layout.FILES_PER_CHUNK)
        return {f"{prefix}/chunk_index": chunk, f"{prefix}/file_index": file}

    def _target(self, template: str, **values: str) -> Path:
        chunk, file = divmod(self._file, layout.FILES_PER_CHUNK)
        path = self._path / template.format(chunk_index=chunk, file_index=file, **values)
        with write_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _write_file(self) -> None:
        _write_table(self._target(layout.DATA_PATH), pa.concat_tables(self._tables))
        _write_table(self._target(layout.EPISODES_PATH), pa.Table.from_pylist(self._records))
        for video in self._videos.values():
            video.close()
        self._tables, self._records = [], []
        self._file += 1

    def _complete(self) -> None:
        if self._records:
            self._write_file()
        totals = {key: _combined(parts) for key, parts in self._statistics.items()}
        content = {key: {n: v.tolist() for n, v in found.items()} for key, found in totals.items()}
        self._write_json(layout.STATISTICS_PATH, content)
        _write_table(self._path / layout.TASKS_PATH, _tasks_table(list(self._tasks)))
        own = {"schema": json.loads(self._schema.to_json()), "metadata": self._metadata}
        self._write_json(layout.OWN_PATH, own)
        self._write_json(layout.INFO_PATH, self._information())

    def _information(self) -> dict[str, Any]:
        features = {feature.key: feature.describe() for feature in self._features}
        rate = self._schema.control_rate_hz
        fps = int(rate) if rate.is_integer() else rate
        for feature in self._videos:
            height, width, channels = feature.shape
            features[feature.key]["info"] = {
                "video.height": height,
                "video.width": width,
                "video.codec": "h264",
                "video.pix_fmt": _pixel_format(width, height),
                "video.fps": fps,
                "video.channels": channels,
                "has_audio": False,
                "is_depth_map": False,
            }
        robot = self._metadata.get("robot")
        return {
            "codebase_version": layout.VERSION,
            "robot_type": robot if isinstance(robot, str) else None,
            "total_episodes": self._episodes,
            "total_frames": self._frames,
            "total_tasks": len(self._tasks),
            "chunks_size": layout.FILES_PER_CHUNK,
            "data_files_size_in_mb": 100,  # as in LeRobot's own files
            "video_files_size_in_mb": 200,
            "fps": fps,
            "splits": {"train": f"0:{self._episodes}"},
            "data_path": layout.DATA_PATH,
            "video_path": layout.VIDEO_PATH if self._videos else None,
            "features": features,
        }

    def _write_json(self, name: str, content: object) -> None:
        path = self._path / name
        with write_errors(path):
            path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


class VideoFile:
    """The current MP4 file of one camera, at `rate` images per second."""

    def __init__(self, rate: Fraction) -> None:
        self._rate = rate
        self._open: tuple[Path, OutputContainer, VideoStream] | None = None
        self._frames = 0

    def add(self, path: Path, pictures: Array) -> tuple[float, float]:
        """Append the images of an episode, uint8 (frames, height, width, 3) RGB.

        The file stays the same until `close`. Returns the start of the first image and the end of
        the last in the file [s]; raises `DatasetError`.
        """
        start = self._frames
        with _video_errors(path):
            if self._open is None:
                # With the index in front, a streaming reader can start before the file is complete.
                options = {"movflags": "faststart"}
                container = av.open(str(path), "w", container_options=options)
                stream = container.add_stream(_CODEC, rate=self._rate, options=dict(_OPTIONS))
                assert isinstance(stream, VideoStream)
                stream.height, stream.width = pictures.shape[1:3]
                stream.pix_fmt = _pixel_format(stream.width, stream.height)
                self._open = (path, container, stream)
            _, container, stream = self._open
            for picture in pictures:
                frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
                frame.pts, frame.time_base = self._frames, 1 / self._rate
                if self._frames == start:  # key frame: decodable without the episode before
                    frame.pict_type = PictureType.I
                container.mux(stream.encode(frame))
                self._frames += 1
        return float(start / self._rate), float(self._frames / self._rate)

    def close(self) -> None:
        """Complete the file."""
        if self._open is not None:
            path, container, stream = self._open
            with _video_errors(path):
                container.mux(stream.encode(None))
                self.release()
        self._frames = 0

    def release(self) -> None:
        """Close the file, even if it is incomplete."""
        opened, self._open = self._open, None
        if opened is not None:
            opened[1].close()


def statistics_of(values: Array) -> Statistics:
    """Return LeRobot's statistics for the frames of an episode.

    The values are (frames, n) numbers or booleans, or (frames, height, width, 3) uint8 images.
    The statistics are (n,) each, or (3, 1, 1) for images, with 255 scaled to 1; `count` is
    (1,) int64.
    """
    shape, count = values.shape[1:], len(values)
    if len(shape) == 3:
        spacing = max(1, max(shape[:2]) // _SAMPLED_SIDE)
        chosen = np.linspace(0, count - 1, min(count, _SAMPLED_PICTURES)).round().astype(int)
        values = values[chosen, ::spacing, ::spacing].reshape(-1, 3) / 255
        shape = (3, 1, 1)
    numbers = values.astype(np.float64)
    quantiles = np.quantile(numbers, list(_QUANTILES.values()), axis=0)
    found = {
        "min": values.min(axis=0),
        "max": values.max(axis=0),
        "mean": numbers.mean(axis=0),
        "std": numbers.std(axis=0),
        **dict(zip(_QUANTILES, quantiles, strict=True)),
    }
    shaped = {name: value.reshape(shape) for name, value in found.items()}
    return {**shaped, "count": np.array([count])}


def _combined(episodes: Sequence[Statistics]) -> Statistics:
    """Combine the statistics of several episodes; quantiles are averaged, as in LeRobot."""
    parts = {name: np.stack([episode[name] for episode in episodes]) for name in episodes[0]}
    counts = parts["count"].reshape(-1, *[1] * (parts["mean"].ndim - 1))
    shares = counts / counts.sum()
    mean = (shares * parts["mean"]).sum(axis=0)
    variance = (shares * (parts["std"] ** 2 + (parts["mean"] - mean) ** 2)).sum(axis=0)
    return {
        "min": parts["min"].min(axis=0),
        "max": parts["max"].max(axis=0),
        "mean": mean,
        "std": np.sqrt(variance),
        **{name: (shares * parts[name]).sum(axis=0) for name in _QUANTILES},
        "count": parts["count"].sum(axis=0),
    }


def _pixel_format(width: int, height: int) -> str:
    """Return the pixel format: players expect 4:2:0, which needs even sides."""
    return "yuv444p" if width % 2 or height % 2 else "yuv420p"


@contextmanager
def _video_errors(path: Path) -> Iterator[None]:
    try:
        with write_errors(path):
            yield
    except av.FFmpegError as error:
        raise DatasetError(f"the video {path} cannot be written", got=repr(error)) from error


def _column(feature: Feature, values: Array) -> pa.Array:
    """The table column for values (frames, n)."""
    (width,), kind = feature.shape, pa.from_numpy_dtype(np.dtype(feature.dtype))
    flat = pa.array(np.ascontiguousarray(values, feature.dtype).reshape(-1), kind)
    return flat if width == 1 else pa.FixedSizeListArray.from_arrays(flat, width)


def _tasks_table(tasks: Sequence[str]) -> pa.Table:
    """Number the instructions, in a table that pandas reads with them as its index."""
    table = pa.table({"task_index": pa.array(range(len(tasks)), pa.int64()), "task": list(tasks)})
    columns = [
        {"name": n, "field_name": n, "pandas_type": kind, "numpy_type": numpy, "metadata": None}
        for n, kind, numpy in (("task_index", "int64", "int64"), ("task", "unicode", "object"))
    ]
    described = {
        "index_columns": ["task"],
        "column_indexes": [],
        "columns": columns,
        "pandas_version": "2.2.0",
    }
    return table.replace_schema_metadata({"pandas": json.dumps(described)})


def _write_table(path: Path, table: pa.Table) -> None:
    with write_errors(path):
        pq.write_table(table, path)
