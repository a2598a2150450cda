"""Reading a LeRobot dataset that `robot-rl export` wrote. See the package for the layout."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from robot_rl.data._episode_files import DatasetDamaged, DatasetError, NotADataset
from robot_rl.data.lerobot import layout
from robot_rl.data.lerobot.features import Feature, check_features, features_of, frame_rate
from robot_rl.data.lerobot.layout import Place
from robot_rl.data.lerobot.tables import TableReader, read_columns
from robot_rl.data.lerobot.video import VideoReader
from robot_rl.data.schema import SOURCE_NAMES, Array, RowSchema
from robot_rl.data.transfer import Episode, Rows, close_episode

_HINT = "give the directory that `robot-rl export` wrote"
_COPY = "restore it from a copy"


class LeRobotEpisodes:
    """The episodes of a LeRobot dataset, ended as `close_episode` says.

    Args:
        path: Directory of the dataset.

    Raises:
        NotADataset: There is none, or one that `robot-rl export` did not write.
        DatasetError: Another version of the layout, another rate, or a feature that differs.
        DatasetDamaged: A file cannot be read.
    """

    def __init__(self, path: Path) -> None:
        """Read the metadata; see the class."""
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
        self.metadata = dict(own.get("metadata") or {})
        _check_rate(path, information, self.schema)
        self._features = features_of(self.schema)
        described = information.get("features")
        check_features(described if isinstance(described, dict) else {}, self._features)
        self._rate = frame_rate(self.schema)
        self._templates = {
            "data": str(information.get("data_path")),
            "videos": str(information.get("video_path")),
        }
        self._records = self._read_records(information.get("total_episodes"))

    def __len__(self) -> int:
        """Return the number of episodes in the dataset."""
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
        tables = TableReader()
        videos = {feature: VideoReader() for feature in self._features if feature.is_video}
        first_of_file: dict[Path, int] = {}
        try:
            for record in self._records:
                path = self._file("data", "data", record)
                first = first_of_file.setdefault(path, record["dataset_from_index"])
                frames = self._read_frames(tables, path, first, record)
                for feature, video in videos.items():
                    self._read_pictures(video, feature, record, frames)
                rows = close_episode(frames, self.schema.observation_names)
                if rows is not None:
                    yield Episode(
                        rows,
                        int(record["robot_rl/seed"]),
                        str(record["robot_rl/instruction"]),
                        bool(record["robot_rl/success"]),
                        int(record["robot_rl/source"]),
                    )
        finally:
            tables.close()
            for video in videos.values():
                video.close()

    def _read_frames(
        self, tables: TableReader, path: Path, first: int, record: dict[str, Any]
    ) -> Rows:
        """Read the frames of an episode, all but the pictures."""
        start, stop = record["dataset_from_index"], record["dataset_to_index"]
        wanted = [feature for feature in self._features if not feature.is_video]
        columns = tables.read(path, start - first, stop - first, wanted)
        found = {feature.key: values for feature, values in columns.items()}
        index, episode = found["index"][:, 0], found["episode_index"][:, 0]
        if (index != np.arange(start, stop)).any() or (episode != record["episode_index"]).any():
            raise DatasetDamaged(
                f"{path} does not hold the frames that meta/episodes names",
                got=f"episodes {np.unique(episode).tolist()}, frames {index[0]} to {index[-1]}",
                expected=f"episode {record['episode_index']}, frames {start} to {stop - 1}",
                hint=_COPY,
            )
        rows = np.zeros(len(index), self.schema.dtype)
        for feature, values in columns.items():
            if feature.fields:
                feature.put(values, rows)
        return rows

    def _read_pictures(
        self, video: VideoReader, feature: Feature, record: dict[str, Any], rows: Rows
    ) -> None:
        path = self._file("videos", f"videos/{feature.key}", record, feature.key)
        if not path.is_file():
            raise DatasetDamaged(f"the video {path} is missing", hint=_COPY)
        start = float(record[f"videos/{feature.key}/from_timestamp"])
        pictures: Array = np.empty((len(rows), *feature.shape), np.uint8)
        video.read(path, start, self._rate, pictures)
        feature.put(pictures, rows)

    def _file(self, kind: str, prefix: str, record: dict[str, Any], key: str = "") -> Path:
        place = Place(record[f"{prefix}/chunk_index"], record[f"{prefix}/file_index"])
        try:
            return self._path / place.path(self._templates[kind], video_key=key)
        except (KeyError, ValueError, IndexError) as error:
            raise DatasetDamaged(
                f"{self._path / layout.INFO_PATH} has a path template that cannot be filled in",
                got=self._templates[kind],
            ) from error

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
            columns = read_columns(file, names)
            count = len(columns["episode_index"])
            records += [{n: columns[n][row] for n in names} for row in range(count)]
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


def _check_rate(path: Path, information: dict[str, Any], schema: RowSchema) -> None:
    if information.get("fps") != schema.control_rate_hz:
        raise DatasetError(
            f"{path / layout.INFO_PATH}: 'fps' is not the rate of the recording",
            got=information.get("fps"),
            expected=schema.control_rate_hz,
            hint="a dataset cannot be imported at another rate than it was recorded at",
        )


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
