"""Reading a LeRobot dataset. See the package for the layout."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from av.video.stream import VideoStream
from PIL import Image

from robot_rl.data import lerobot as layout
from robot_rl.data._episode_files import RESTORE, damage
from robot_rl.data.episodes import DatasetDamaged, DatasetError, Episode, NotADataset
from robot_rl.data.lerobot import Feature, features_of, frame_rate
from robot_rl.data.schema import SOURCE_NAMES, Array, RowSchema
from robot_rl.data.transfer import close_episode

_HINT = "give what `robot-rl export` wrote; `robot-rl import` takes in what others wrote"
_ADDED = f"if others added episodes, remove {layout.OWN_PATH} and import all with a mapping"
_damage = partial(damage, also=(pa.ArrowException, av.FFmpegError))


@dataclass(eq=False)
class LeRobotFrames:
    """The frames of any LeRobot dataset of v3.0 or v2.1, as the features name them.

    `records` is what is known of each episode, in order. Raises `DatasetDamaged`, from `episodes`
    too, where a file is missing, cut, or not as `meta/` says.
    """

    path: Path  # directory of the dataset
    information: Mapping[str, Any]  # content of `meta/info.json`
    features: Sequence[Feature]  # those that are wanted; `INDEX_FEATURES` are needed too
    rate: Fraction  # frames per second
    # Columns of `meta/episodes` that are wanted, beside those that say where frames are.
    told: Sequence[str]

    def __post_init__(self) -> None:
        self._tabular = [feature for feature in self.features if not feature.is_video]
        self._videos = [feature for feature in self.features if feature.is_video]
        old = self.information.get("codebase_version") != layout.VERSION
        self.records = self._read_old_records() if old else self._read_records()
        total = self.information.get("total_episodes")
        if len(self.records) != total:
            raise DatasetDamaged(
                f"episodes are missing from {self.path / 'meta/episodes'}",
                got=len(self.records),
                expected=total,
                hint=RESTORE,
            )
        for number, record in enumerate(self.records):
            misplaced = record["episode_index"] != number
            frames = range(record["dataset_from_index"] or 0, record["dataset_to_index"] or 0)
            if None in record.values() or misplaced or not frames:
                raise _bad_record(self.path, number, record)

    def episodes(self) -> Iterator[tuple[dict[str, Any], dict[Feature, Array]]]:
        """Yield the record of each episode, and the values (frames, ...) of each feature."""
        data, table, first = Path(), pa.table({}), 0
        with ExitStack() as opened:
            videos = {f: opened.enter_context(closing(_Video(self.rate))) for f in self._videos}
            for record in self.records:
                path = self._file("data_path", "data", record)
                if path != data:
                    table = _read_table(path, [feature.key for feature in self._tabular])
                    data, first = path, record["dataset_from_index"]
                values = self._frames(path, table, first, record)
                for feature, video in videos.items():
                    prefix = f"videos/{feature.key}"
                    start = float(record[f"{prefix}/from_timestamp"])
                    count = record["dataset_to_index"] - record["dataset_from_index"]
                    values[feature] = np.empty((count, *feature.shape), np.uint8)
                    path = self._file("video_path", prefix, record, feature.key)
                    video.read(path, start, values[feature])
                yield record, values

    def _frames(
        self, path: Path, table: pa.Table, first: int, record: dict[str, Any]
    ) -> dict[Feature, Array]:
        """Take the frames of an episode out of its file, all but the videos."""
        start, stop = record["dataset_from_index"], record["dataset_to_index"]
        part = table.slice(start - first, stop - start)
        found = {f: _values(path, f, part[f.key]) for f in self._tabular}
        index, episode = (
            next(values[:, 0] for f, values in found.items() if f.key == key)
            for key in ("index", "episode_index")
        )
        expected = np.arange(start, stop)
        if not np.array_equal(index, expected) or (episode != record["episode_index"]).any():
            raise DatasetDamaged(
                f"{path} does not hold the frames that meta/episodes names",
                got=f"{len(index)} frames of episodes {np.unique(episode).tolist()}",
                expected=f"episode {record['episode_index']}, frames {start} to {stop - 1}",
                hint=RESTORE,
            )
        return found

    def _file(self, kind: str, prefix: str, record: dict[str, Any], key: str = "") -> Path:
        chunk, file = record[f"{prefix}/chunk_index"], record[f"{prefix}/file_index"]
        # v2.1 has a file an episode, and other words for the same numbers.
        old = {"episode_chunk": chunk, "episode_index": file}
        with _damage(self.path / layout.INFO_PATH):
            name: str = self.information[kind]
            return self.path / name.format(chunk_index=chunk, file_index=file, video_key=key, **old)

    def _read_records(self) -> list[dict[str, Any]]:
        places = ("dataset_from_index", "dataset_to_index", "data/chunk_index", "data/file_index")
        names = ["episode_index", *places, *self.told]
        for feature in self._videos:
            prefix = f"videos/{feature.key}"
            names += [f"{prefix}/{n}" for n in ("chunk_index", "file_index", "from_timestamp")]
        records: list[dict[str, Any]] = []
        for file in sorted((self.path / "meta/episodes").glob("*/*.parquet")):
            records += _read_table(file, names).to_pylist()
        return records

    def _read_old_records(self) -> list[dict[str, Any]]:
        """Read those of v2.1, and add where in v3.0 each episode would be."""
        records: list[dict[str, Any]] = []
        start, file = 0, self.path / "meta/episodes.jsonl"
        with _damage(file):
            for line in file.read_text(encoding="utf-8").splitlines():
                told = json.loads(line)
                number, stop = int(told["episode_index"]), start + int(told["length"])
                record = {"episode_index": number, "tasks": list(told.get("tasks") or ())}
                record |= {"dataset_from_index": start, "dataset_to_index": stop}
                chunk = number // int(self.information["chunks_size"])
                for prefix in ("data", *(f"videos/{feature.key}" for feature in self._videos)):
                    record |= {f"{prefix}/chunk_index": chunk, f"{prefix}/file_index": number}
                    record[f"{prefix}/from_timestamp"] = 0.0
                records.append(record)
                start = stop
        return records


class LeRobotEpisodes:
    """The episodes of the LeRobot dataset in a directory, ended as `close_episode` says.

    Raises:
        NotADataset: There is none, or one that `robot-rl export` did not write.
        DatasetError: Another version of the layout, or another rate.
        DatasetDamaged: A file cannot be read.
    """

    def __init__(self, path: Path) -> None:
        information = read_information(path, (layout.VERSION,))
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
        told = [f"robot_rl/{name}" for name in ("seed", "success", "source", "instruction")]
        features, rate = features_of(self.schema), frame_rate(self.schema.control_rate_hz)
        self._frames = LeRobotFrames(path, information, features, rate, told)
        records = self._frames.records
        self.steps = sum(r["dataset_to_index"] - r["dataset_from_index"] for r in records)
        self.successes = sum(bool(record["robot_rl/success"]) for record in records)
        for number, record in enumerate(records):
            if not 0 <= record["robot_rl/source"] < len(SOURCE_NAMES):
                raise _bad_record(path, number, record)

    def __len__(self) -> int:
        return len(self._frames.records)

    def episodes(self) -> Iterator[Episode]:
        """Yield the episodes that have a step left, or raise `DatasetDamaged`."""
        for record, found in self._frames.episodes():
            count = record["dataset_to_index"] - record["dataset_from_index"]
            rows = np.zeros(count, self.schema.dtype)
            for feature, values in found.items():
                if feature.fields:
                    feature.put(values, rows)
            closed = close_episode(rows, self.schema.observation_names)
            if closed is not None:
                yield Episode(
                    closed,
                    int(record["robot_rl/seed"]),
                    str(record["robot_rl/instruction"]),
                    bool(record["robot_rl/success"]),
                    int(record["robot_rl/source"]),
                )


def read_information(path: Path, versions: Sequence[str]) -> dict[str, Any]:
    """Read `meta/info.json` of the dataset in a directory, if it has one of these versions.

    Raises:
        DatasetError: There is none, it cannot be read, or the layout has another version.
    """
    information = _read_json(path, layout.INFO_PATH)
    version = information.get("codebase_version")
    if version not in versions:
        raise DatasetError(
            f"{path} follows another version of the LeRobot layout",
            got=version,
            expected=" or ".join(versions),
            hint="convert it with the LeRobot version that wrote it, or export again",
        )
    return information


def _bad_record(path: Path, number: int, record: dict[str, Any]) -> DatasetDamaged:
    return DatasetDamaged(
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
        """Fill `out` (frames, height, width, 3) with the pictures of a file from `start` [s] on."""
        first, found = round(start * self._rate), 0
        with _damage(path):
            if path != self._path:
                self._open(path, out.shape)
            while found < len(out):
                frame = next(self._pictures, None)
                seconds = None if frame is None else frame.time
                if frame is None or seconds is None:
                    break
                at = round(seconds * self._rate)
                if at < first:  # of an episode that was removed
                    continue
                if at != first + found:
                    break
                out[found] = frame.to_ndarray(format="rgb24")
                found += 1
        if found < len(out):
            raise DatasetDamaged(
                f"the video {path} is cut short or has gaps",
                got=f"{found} pictures from {start:g} s on",
                expected=len(out),
                hint=RESTORE,
            )

    def _open(self, path: Path, shape: tuple[int, ...]) -> None:
        self.close()
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

    def close(self) -> None:
        if self._container is not None:
            self._container.close()


def _read_table(path: Path, names: Sequence[str]) -> pa.Table:
    with _damage(path), pq.ParquetFile(path) as file:
        missing = sorted(set(names) - set(file.schema_arrow.names))
        if not missing:
            return file.read(columns=list(names))
    hint = _ADDED if missing[0].startswith("robot_rl/") else RESTORE
    raise DatasetDamaged(f"{path} lacks the column {missing[0]!r}", hint=hint)


def _values(path: Path, feature: Feature, column: Any) -> Array:
    """The values (rows, n) of a feature in a table, (rows, height, width, 3) of pictures."""
    array = column.combine_chunks()
    if feature.dtype == layout.IMAGE:
        return _pictures(path, feature, array)
    width, flat = math.prod(feature.shape), array
    while pa.types.is_nested(flat.type) or isinstance(flat, pa.ExtensionArray):
        flat = flat.storage if isinstance(flat, pa.ExtensionArray) else flat.flatten()
    fits = flat.type == pa.from_numpy_dtype(np.dtype(feature.dtype))
    if array.null_count or not fits or len(flat) != len(array) * width:
        raise DatasetDamaged(
            f"{path}: the feature {feature.key!r} has another dtype or shape, or gaps",
            got=f"{array.type}, {array.null_count} missing",
            expected=f"{width} numbers a row, {feature.dtype}",
        )
    values: Array = flat.to_numpy(zero_copy_only=False)
    return values.reshape(len(array), width)


def _pictures(path: Path, feature: Feature, array: Any) -> Array:
    """Decode pictures that are stored as files are, uint8 (rows, height, width, 3)."""
    pictures: Array = np.empty((len(array), *feature.shape), np.uint8)
    with _damage(path):
        for picture, stored in zip(pictures, array.to_pylist(), strict=True):
            picture[:] = np.asarray(Image.open(io.BytesIO(stored["bytes"])).convert("RGB"))
    return pictures


def _read_json(path: Path, name: str) -> dict[str, Any]:
    file = path / name
    if not file.is_file():
        raise NotADataset(f"there is no file {file}", hint=_HINT)
    with damage(file):
        return dict(json.loads(file.read_text(encoding="utf-8")))
