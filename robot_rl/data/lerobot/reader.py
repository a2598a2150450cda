"""Reading a LeRobot dataset that `robot-rl export` wrote. See the package for the layout."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from av.video.stream import VideoStream

from robot_rl.data import lerobot as layout
from robot_rl.data.episodes import DatasetDamaged, DatasetError, Episode, NotADataset, Rows
from robot_rl.data.lerobot import Feature, features_of, frame_rate
from robot_rl.data.schema import SOURCE_NAMES, Array, RowSchema
from robot_rl.data.transfer import close_episode

_HINT = "give the directory that `robot-rl export` wrote"
_COPY = "restore it from a copy"


class LeRobotEpisodes:
    """The episodes of a LeRobot dataset, ended as `close_episode` says.

    Args:
        path: Directory of the dataset.

    Raises:
        NotADataset: There is none, or one that `robot-rl export` did not write.
        DatasetError: Another version of the layout, or another rate.
        DatasetDamaged: A file cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        information = _read_json(path, layout.INFO_PATH)
        version = information.get("codebase_version")
        if version != layout.VERSION:
            raise DatasetError(
                f"{path} follows another version of the LeRobot layout",
                got=version,
                expected=layout.VERSION,
                hint="convert it with the LeRobot version that wrote it, or export again",
            )
        own = _read_json(path, layout.OWN_PATH)
        self.schema = RowSchema.from_json(json.dumps(own.get("schema")))
        self.metadata: Mapping[str, Any] = dict(own.get("metadata") or {})
        if information.get("fps") != self.schema.control_rate_hz:
            raise DatasetError(
                f"{path / layout.INFO_PATH}: 'fps' is not the rate of the recording",
                got=information.get("fps"),
                expected=self.schema.control_rate_hz,
                hint="a dataset cannot be imported at another rate than it was recorded at",
            )
        self._features = features_of(self.schema)
        self._rate = frame_rate(self.schema)
        self._records = self._read_records(information.get("total_episodes"))

    def __len__(self) -> int:
        return len(self._records)

    @property
    def steps(self) -> int:
        """Number of frames."""
        return sum(r["dataset_to_index"] - r["dataset_from_index"] for r in self._records)

    @property
    def successes(self) -> int:
        """Number of episodes that reached their goal."""
        return sum(bool(record["robot_rl/success"]) for record in self._records)

    def episodes(self) -> Iterator[Episode]:
        """Yield the episodes that have a step left.

        Raises:
            DatasetDamaged: A file of frames or pictures is missing, cut or of another shape.
        """
        tabular = [feature for feature in self._features if not feature.is_video]
        data, table, first = Path(), pa.table({}), 0
        with ExitStack() as opened:
            videos = {
                f: opened.enter_context(_Video(self._rate)) for f in self._features if f.is_video
            }
            for record in self._records:
                path = self._file(layout.DATA_PATH, "data", record)
                if path != data:
                    table = _read_table(path, [feature.key for feature in tabular])
                    data, first = path, record["dataset_from_index"]
                rows = self._frames(path, table, first, record)
                for feature, video in videos.items():
                    prefix = f"videos/{feature.key}"
                    start = float(record[f"{prefix}/from_timestamp"])
                    pictures: Array = np.empty((len(rows), *feature.shape), np.uint8)
                    path = self._file(layout.VIDEO_PATH, prefix, record, feature.key)
                    video.read(path, start, pictures)
                    feature.put(pictures, rows)
                closed = close_episode(rows, self.schema.observation_names)
                if closed is not None:
                    yield Episode(
                        closed,
                        int(record["robot_rl/seed"]),
                        str(record["robot_rl/instruction"]),
                        bool(record["robot_rl/success"]),
                        int(record["robot_rl/source"]),
                    )

    def _frames(self, path: Path, table: pa.Table, first: int, record: dict[str, Any]) -> Rows:
        """Take the frames of an episode out of its file, all but the pictures."""
        start, stop = record["dataset_from_index"], record["dataset_to_index"]
        part = table.slice(start - first, stop - start)
        found = {
            f.key: (f, _values(path, f, part[f.key])) for f in self._features if not f.is_video
        }
        index, episode = found["index"][1][:, 0], found["episode_index"][1][:, 0]
        expected = np.arange(start, stop)
        if not np.array_equal(index, expected) or (episode != record["episode_index"]).any():
            raise DatasetDamaged(
                f"{path} does not hold the frames that meta/episodes names",
                got=f"{len(index)} frames of episodes {np.unique(episode).tolist()}",
                expected=f"episode {record['episode_index']}, frames {start} to {stop - 1}",
                hint=_COPY,
            )
        rows = np.zeros(len(index), self.schema.dtype)
        for feature, values in found.values():
            if feature.fields:
                feature.put(values, rows)
        return rows

    def _file(self, template: str, prefix: str, record: dict[str, Any], key: str = "") -> Path:
        place = {name: record[f"{prefix}/{name}"] for name in ("chunk_index", "file_index")}
        return self._path / template.format(video_key=key, **place)

    def _read_records(self, total: object) -> list[dict[str, Any]]:
        """Read what is known of each episode, in order."""
        names = [
            "episode_index",
            "dataset_from_index",
            "dataset_to_index",
            "data/chunk_index",
            "data/file_index",
            *(f"robot_rl/{name}" for name in ("seed", "success", "source", "instruction")),
        ]
        for feature in self._features:
            if feature.is_video:
                prefix = f"videos/{feature.key}"
                names += [f"{prefix}/{n}" for n in ("chunk_index", "file_index", "from_timestamp")]
        records: list[dict[str, Any]] = []
        for file in sorted((self._path / "meta/episodes").glob("*/*.parquet")):
            records += _read_table(file, names).to_pylist()
        if len(records) != total:
            raise DatasetDamaged(
                f"episodes are missing from {self._path / 'meta/episodes'}",
                got=len(records),
                expected=total,
                hint=_COPY,
            )
        for number, record in enumerate(records):
            _check_record(self._path, number, record)
        return records


def _check_record(path: Path, number: int, record: dict[str, Any]) -> None:
    whole = all(value is not None for value in record.values())
    if (
        not whole
        or record["episode_index"] != number
        or record["dataset_to_index"] <= record["dataset_from_index"]
        or not 0 <= record["robot_rl/source"] < len(SOURCE_NAMES)
    ):
        raise DatasetDamaged(
            f"{path / 'meta/episodes'}: the record of episode {number} is not valid", got=record
        )


class _Video:
    """Reads the pictures of one camera in their order, keeping the file open that it read last."""

    def __init__(self, rate: Fraction) -> None:
        self._rate = rate
        self._path: Path | None = None
        self._container: Any = None
        self._pictures: Iterator[av.VideoFrame] = iter(())

    def read(self, path: Path, start: float, out: Array) -> None:
        """Fill `out` with the next pictures.

        Args:
            path: The file.
            start: Time of the first picture in it [s].
            out: (frames, height, width, 3) uint8 RGB.

        Raises:
            DatasetDamaged: The file is missing, cut, of another rate or size.
        """
        first, found = round(start * self._rate), 0
        with _read_errors(path):
            if path != self._path:
                self._open(path, out.shape)
            while found < len(out):
                frame = next(self._pictures, None)
                seconds = None if frame is None else frame.time
                if frame is None or seconds is None or round(seconds * self._rate) != first + found:
                    break
                out[found] = frame.to_ndarray(format="rgb24")
                found += 1
        if found < len(out):
            raise DatasetDamaged(
                f"the video {path} is cut short or has gaps",
                got=f"{found} pictures from {start:g} s on",
                expected=len(out),
                hint=_COPY,
            )

    def _open(self, path: Path, shape: tuple[int, ...]) -> None:
        self.__exit__()
        self._container, self._path = av.open(str(path)), path
        stream: VideoStream = self._container.streams.video[0]
        rate, size = stream.average_rate, (stream.height, stream.width)
        if rate is None or abs(rate - self._rate) > self._rate / 1000:
            raise DatasetDamaged(
                f"the video {path} has another rate", got=rate, expected=self._rate
            )
        if size != shape[1:3]:
            raise DatasetDamaged(
                f"the pictures of {path} have another size", got=size, expected=shape[1:3]
            )
        self._pictures = self._container.decode(stream)

    def __enter__(self) -> _Video:
        return self

    def __exit__(self, *error: object) -> None:
        if self._container is not None:
            self._container.close()


def _read_table(path: Path, names: Sequence[str]) -> pa.Table:
    with _read_errors(path), pq.ParquetFile(path) as file:
        missing = sorted(set(names) - set(file.schema_arrow.names))
        if not missing:
            return file.read(columns=list(names))
    raise DatasetDamaged(f"{path} lacks the column {missing[0]!r}", expected=list(names))


def _values(path: Path, feature: Feature, column: Any) -> Array:
    """The values (rows, n) of a feature in a table."""
    array = column.combine_chunks()
    (width,) = feature.shape
    flat = array if width == 1 and not pa.types.is_nested(array.type) else array.flatten()
    fits = flat.type == pa.from_numpy_dtype(np.dtype(feature.dtype))
    if array.null_count or not fits or len(flat) != len(array) * width:
        raise DatasetDamaged(
            f"{path}: the feature {feature.key!r} has another dtype or shape, or gaps",
            got=f"{array.type}, {array.null_count} missing",
            expected=f"{width} numbers a row, {feature.dtype}",
        )
    values: Array = flat.to_numpy(zero_copy_only=False)
    return values.reshape(len(array), width)


@contextmanager
def _read_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, IndexError, pa.ArrowException, av.FFmpegError) as error:
        raise DatasetDamaged(f"{path} cannot be read", got=repr(error)[:500], hint=_COPY) from error


def _read_json(path: Path, name: str) -> dict[str, Any]:
    file = path / name
    if not file.is_file():
        own = "only what `robot-rl export` wrote can be imported" if name == layout.OWN_PATH else ""
        raise NotADataset(f"there is no file {file}", expected=own or None, hint=_HINT)
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("not an object")
    except (OSError, ValueError) as error:
        raise DatasetDamaged(f"{file} cannot be read", got=repr(error), hint=_COPY) from error
    return content
