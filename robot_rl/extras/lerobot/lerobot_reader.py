"""Reader for LeRobot datasets. See `layout`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from robot_rl.data.episode_files import RESTORE, damage, inside
from robot_rl.data.episodes import DatasetDamaged, DatasetError, Episode
from robot_rl.data.schema import SOURCE_NAMES, Array, RowSchema
from robot_rl.data.transfer import close_episode
from robot_rl.extras.lerobot import layout
from robot_rl.extras.lerobot.layout import Feature, features_of, frame_rate
from robot_rl.extras.lerobot.tables import (
    Video,
    file_of,
    numbers_of,
    pictures_of,
    read_json,
    read_lines,
    read_table,
)

_ADDED = f"if others added episodes, remove {layout.OWN_PATH} and import all with a mapping"
_OLD_DATA_PATH = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
_OLD_VIDEO_PATH = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
_OLD_CHUNK = 1000
# Locate the frames of an episode; without the first three no frame can be found.
_NEEDED = ("episode_index", "data/chunk_index", "data/file_index")
_PLACES = ("dataset_from_index", "dataset_to_index", "length", "tasks")
_VIDEO_PLACES = ("chunk_index", "file_index", "from_timestamp")


@dataclass(frozen=True)
class LeRobotFrame:
    """The frames of an episode: its record in `meta/`, and (frames, ...) of each feature."""

    record: Mapping[str, Any]  # None for a missing column of `meta/episodes`
    values: Mapping[Feature, Array]
    damaged: Mapping[Feature, DatasetDamaged]  # the features that cannot be read, and why


@dataclass(eq=False)
class LeRobotFrames:
    """The frames of a LeRobot dataset of v3.0, v2.1 or v2.0, by feature.

    Damaged parts are listed; the others can still be read.

    Attributes:
        records: Metadata of each episode, in order.
        damaged: Why records of other episodes cannot be read.
    """

    path: Path  # directory of the dataset
    information: Mapping[str, Any]  # content of `meta/info.json`
    features: Sequence[Feature]  # to read
    rate: Fraction  # frames per second
    own: Sequence[str] = ()  # columns of `meta/episodes` that are ours
    records: list[dict[str, Any]] = field(default_factory=list, init=False)
    damaged: list[DatasetDamaged] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self._tabular = [feature for feature in self.features if not feature.is_video]
        self._videos = [feature for feature in self.features if feature.is_video]
        self._is_old = version_of(self.information) != layout.VERSION
        for record in self._old_records() if self._is_old else self._new_records():
            self._add(record)
        total, found = self.information.get("total_episodes"), len(self.records)
        if total is not None and total != found:
            problem = f"episodes are missing from {self.path / 'meta/episodes'}"
            error = DatasetDamaged(problem, got=found, expected=total, hint=RESTORE)
            self.damaged.append(error)

    def _add(self, record: dict[str, Any]) -> None:
        """Add a record if its episode's frames can be located."""
        where = f"{self.path / 'meta/episodes'}: a record"
        with self._noting_damage(), damage(where, hint=RESTORE):
            for name in _NEEDED:
                record[name] = int(record[name])
            start, stop, count = (record[name] for name in _PLACES[:3])
            if start is not None and stop is not None:
                count = int(stop) - int(start)
            if count is not None and int(count) < 1:
                raise ValueError(f"it has {count} frames")
            record["length"] = None if count is None else int(count)
            if any(record[name] is None for name in self.own):
                raise ValueError("a column is empty")
            self.records.append(record)

    @contextmanager
    def _noting_damage(self) -> Iterator[None]:
        try:
            yield
        except DatasetDamaged as error:
            self.damaged.append(error)

    def video_file(self, record: Mapping[str, Any], feature: Feature) -> tuple[Path, float]:
        """Return the video file of an episode and its start [s]; or raise `DatasetDamaged`."""
        prefix = f"videos/{feature.key}"
        with damage(f"{self.path / 'meta/episodes'}: {prefix!r}", hint=RESTORE):
            start = float(record[f"{prefix}/from_timestamp"])
            return self._file("video_path", prefix, record, feature.key), start

    def episodes(self) -> Iterator[LeRobotFrame]:
        """Yield the episodes of `records`."""
        path, columns = Path(), dict[str, Any]()
        keys = dict.fromkeys(f.key for f in (*layout.INDEX_FEATURES, *self._tabular))
        with ExitStack() as opened:
            videos = {f: opened.enter_context(closing(Video(self.rate))) for f in self._videos}
            for record in self.records:
                values: dict[Feature, Array] = {}
                damaged: dict[Feature, DatasetDamaged] = {}
                try:
                    found = self._file("data_path", "data", record)
                    if found != path:
                        columns, path = read_table(found, keys, RESTORE), found
                    rows = self._rows(path, columns, record)
                except DatasetDamaged as error:
                    path = Path()
                    yield LeRobotFrame(record, {}, dict.fromkeys(self.features, error))
                    continue
                for feature in self.features:
                    try:
                        if feature.is_video:
                            video, start = self.video_file(record, feature)
                            count, shape = rows.stop - rows.start, feature.shape
                            values[feature] = videos[feature].read(video, start, count, shape)
                        else:
                            values[feature] = self._column(path, columns, feature, rows)
                    except DatasetDamaged as error:
                        damaged[feature] = error
                yield LeRobotFrame(record, values, damaged)

    def _column(self, path: Path, columns: Mapping[str, Any], feature: Feature, at: slice) -> Array:
        column = columns[feature.key]
        if isinstance(column, DatasetDamaged):
            raise column
        part = column.slice(at.start, at.stop - at.start)
        if feature.dtype == layout.IMAGE:
            return pictures_of(path, self.path, feature, part)
        return numbers_of(path, feature, part)

    def _rows(self, path: Path, columns: Mapping[str, Any], record: dict[str, Any]) -> slice:
        """Find the rows of an episode in its file."""
        start, count, number = (record[n] for n in (_PLACES[0], "length", "episode_index"))
        steps = max((len(c) for c in columns.values() if not isinstance(c, Exception)), default=0)
        indices = {}
        for feature in layout.INDEX_FEATURES:
            if not isinstance(columns[feature.key], DatasetDamaged):
                indices[feature.key] = self._column(path, columns, feature, slice(0, steps))[:, 0]
        rows = np.arange(steps)
        if "episode_index" in indices:
            rows = np.flatnonzero(indices["episode_index"] == number)
        elif not self._is_old:
            raise DatasetDamaged(f"{path} lacks the column 'episode_index'", hint=RESTORE)
        count = len(rows) if count is None else count
        together = len(rows) == count > 0 and rows[-1] - rows[0] == count - 1
        if together and "index" in indices:
            index = indices["index"][rows]
            first = index[0] if start is None or self._is_old else start
            together = np.array_equal(index, np.arange(first, first + count))
        if not together:
            raise DatasetDamaged(
                f"{path} does not hold the frames that meta/episodes names",
                got=f"{len(rows)} frames of episode {number}, or in another order",
                expected=f"{count} frames",
                hint=RESTORE,
            )
        return slice(int(rows[0]), int(rows[-1]) + 1)

    def _file(self, kind: str, prefix: str, record: Mapping[str, Any], key: str = "") -> Path:
        chunk, file = (int(record[f"{prefix}/{name}"]) for name in _VIDEO_PLACES[:2])
        # v2.1 has one file per episode, and other keys for the same numbers.
        numbers = {"episode_chunk": chunk, "episode_index": file}
        numbers |= {"chunk_index": chunk, "file_index": file}
        usual = {"data_path": layout.DATA_PATH, "video_path": layout.VIDEO_PATH}
        if self._is_old:
            usual = {"data_path": _OLD_DATA_PATH, "video_path": _OLD_VIDEO_PATH}
        template = self.information.get(kind)
        template = usual[kind] if template is None else template
        return file_of(self.path, template, {**numbers, "video_key": key})

    def _new_records(self) -> Iterator[dict[str, Any]]:
        names = [*_NEEDED, *_PLACES, *self.own]
        names += [f"videos/{f.key}/{name}" for f in self._videos for name in _VIDEO_PLACES]
        hint = _ADDED if self.own else RESTORE
        for file in sorted((self.path / "meta/episodes").glob("*/*.parquet")):
            with self._noting_damage():
                columns = read_table(inside(self.path, file), names, hint)
                for name in (*_NEEDED, *self.own):
                    if isinstance(error := columns[name], DatasetDamaged):
                        raise error
                lists = {
                    name: column.to_pylist()
                    for name, column in columns.items()
                    if not isinstance(column, DatasetDamaged)
                }
                for row in zip(*lists.values(), strict=True):
                    yield dict.fromkeys(names) | dict(zip(lists, row, strict=True))

    def _old_records(self) -> Iterator[dict[str, Any]]:
        """Read the records of v2.1, and add the location columns of v3.0."""
        for line in read_lines(inside(self.path, "meta/episodes.jsonl")):
            with self._noting_damage():
                if isinstance(line, DatasetDamaged):
                    raise line
                with damage(f"{self.path / 'meta/episodes.jsonl'}: {str(line)[:80]}"):
                    number = int(line["episode_index"])
                    chunk = number // int(self.information.get("chunks_size") or _OLD_CHUNK)
                record = {**dict.fromkeys(_PLACES), **line}
                for prefix in ("data", *(f"videos/{feature.key}" for feature in self._videos)):
                    record |= {f"{prefix}/chunk_index": chunk, f"{prefix}/file_index": number}
                    record[f"{prefix}/from_timestamp"] = 0.0
                yield record


class LeRobotEpisodes:
    """The episodes of the LeRobot dataset in a directory, ended by `close_episode`.

    Raises:
        NotADataset: There is none, or `robot-rl export` did not write it.
        DatasetError: Another version of the layout, or another rate.
        DatasetDamaged: A file cannot be read.
    """

    def __init__(self, path: Path) -> None:
        information = read_information(path, (layout.VERSION,))
        own = read_json(path, layout.OWN_PATH)
        self.schema = RowSchema.from_json(json.dumps(own.get("schema")))
        self.metadata: Mapping[str, Any] = dict(own.get("metadata") or {})
        if information.get("fps") != self.schema.control_rate_hz:
            raise DatasetError(
                f"{path / layout.INFO_PATH}: 'fps' is not the rate of the recording",
                got=information.get("fps"),
                expected=self.schema.control_rate_hz,
                hint="a dataset cannot be imported at another rate than it was recorded at",
            )
        facts = [f"robot_rl/{name}" for name in ("seed", "success", "source", "instruction")]
        features, rate = features_of(self.schema), frame_rate(self.schema.control_rate_hz)
        self._frames = LeRobotFrames(path, information, features, rate, facts)
        records = self._frames.records
        for error in self._frames.damaged:
            raise error
        self.steps = sum(record["length"] or 0 for record in records)
        self.successes = sum(bool(record["robot_rl/success"]) for record in records)
        for number, record in enumerate(records):
            known = 0 <= record["robot_rl/source"] < len(SOURCE_NAMES)
            if not known or record["episode_index"] != number or record["length"] is None:
                raise DatasetDamaged(
                    f"{path / 'meta/episodes'}: the record of episode {number} is not valid",
                    got=record,
                )

    def __len__(self) -> int:
        return len(self._frames.records)

    def episodes(self) -> Iterator[Episode]:
        """Yield the episodes that have a step left, or raise `DatasetDamaged`."""
        for frame in self._frames.episodes():
            for error in frame.damaged.values():
                raise error
            record = frame.record
            rows = np.zeros(record["length"], self.schema.dtype)
            for feature, values in frame.values.items():
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
        DatasetError: It is missing or unreadable, or the layout has another version.
    """
    information = read_json(path, layout.INFO_PATH)
    version = version_of(information)
    if version not in versions:
        raise DatasetError(
            f"{path} follows another version of the LeRobot layout",
            got=information.get("codebase_version"),
            expected=" or ".join(versions),
            hint="convert it with the LeRobot version that wrote it, or export again",
        )
    return information


def version_of(information: Mapping[str, Any]) -> str:
    """Return the layout version from `meta/info.json`, such as ``v2.1``."""
    return f"v{str(information.get('codebase_version')).removeprefix('v')}"
