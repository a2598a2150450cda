"""The files of a LeRobot dataset: JSON, parquet and videos, each read independently."""

from __future__ import annotations

import io
import json
import math
import re
import string
from collections.abc import Collection, Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from av.video.stream import VideoStream
from PIL import Image

from robot_rl.data.episode_files import RESTORE, damage, inside
from robot_rl.data.episodes import DatasetDamaged, NotADataset
from robot_rl.data.schema import Array
from robot_rl.extras.lerobot import layout
from robot_rl.extras.lerobot.layout import Feature

_HINT = "give what `robot-rl export` wrote; `robot-rl import` takes in what others wrote"
_AGAIN = "copy or download it again"
_WHOLE_NUMBER = re.compile(r"(0?\d?\dd)?")  # number formats allowed in a path template
_AS_STORED = ("I;16", "I;16B", "I", "F")  # depth: modes that are not colours


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """Read a required JSON object of a dataset; `NotADataset` if it is missing."""
    file = inside(folder, name)
    if not file.is_file():
        raise NotADataset(f"there is no file {file}", hint=_HINT)
    with damage(file):
        return dict(json.loads(file.read_text(encoding="utf-8")))


def read_lines(file: Path) -> Iterator[dict[str, Any] | DatasetDamaged]:
    """Yield the JSON objects of a file with one per line, or why a line is invalid."""
    with damage(file, hint=_AGAIN):
        lines = file.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            with damage(f"line {number} of {file}", hint=_AGAIN):
                yield dict(json.loads(line))
        except DatasetDamaged as error:
            yield error


def file_of(folder: Path, template: object, numbers: Mapping[str, object]) -> Path:
    """Resolve a path template of `meta/info.json`, inside the dataset."""
    where = f"{folder / layout.INFO_PATH}: the path {str(template)[:100]!r}"
    with damage(where, hint="correct it"):
        if not isinstance(template, str):
            raise TypeError("it is no text")
        for _, name, form, conversion in string.Formatter().parse(template):
            if name is None:
                continue
            if name not in numbers or conversion or not _WHOLE_NUMBER.fullmatch(form or ""):
                raise ValueError(f"{{{name}}} is none of {', '.join(numbers)}")
        return inside(folder, template.format(**numbers))


def read_table(
    file: Path, names: Collection[str], missing_hint: str = _AGAIN
) -> dict[str, pa.ChunkedArray | DatasetDamaged]:
    """Read columns of a parquet file one by one; an unreadable one is replaced by its error."""
    found: dict[str, pa.ChunkedArray | DatasetDamaged] = {}
    with damage(file), pq.ParquetFile(file) as opened:
        for name in names:
            if name not in opened.schema_arrow.names:
                problem = f"{file} lacks the column {name!r}"
                found[name] = DatasetDamaged(problem, hint=missing_hint)
                continue
            try:
                with damage(f"{file}: the column {name!r}"):
                    found[name] = opened.read(columns=[name])[name]
            except DatasetDamaged as error:
                found[name] = error
    return found


def numbers_of(file: Path, feature: Feature, column: pa.ChunkedArray) -> Array:
    """The values (rows, n) of a feature, in its dtype unless that would change them.

    Raises `DatasetDamaged` if a row lacks values, has more than another, or is not numeric.
    """
    array = column.combine_chunks()
    width, flat, gaps = math.prod(feature.shape), array, array.null_count
    while pa.types.is_nested(flat.type) or isinstance(flat, pa.ExtensionArray):
        flat = flat.storage if isinstance(flat, pa.ExtensionArray) else flat.flatten()
        gaps += flat.null_count
    rows = max(1, len(array))
    width = len(flat) // rows if width < 0 else width
    with damage(f"{file}: the feature {feature.key!r}"):
        values: Array = np.asarray(flat.to_numpy(zero_copy_only=False))
    if gaps or values.dtype.kind not in "biuf" or len(flat) != len(array) * width:
        raise DatasetDamaged(
            f"{file}: the feature {feature.key!r} has another dtype or shape, or gaps",
            got=f"{array.type}, {len(flat)} numbers in {len(array)} rows, {gaps} missing",
            expected=f"{width} numbers a row, {feature.dtype or 'of any dtype'}",
            hint=f"correct it, or its entry in {layout.INFO_PATH}",
        )
    if feature.dtype and np.can_cast(values.dtype, feature.dtype, "same_kind"):
        with np.errstate(over="ignore"):  # to inf, which rows refuse
            values = values.astype(feature.dtype)
    return values.reshape(len(array), width)


def pictures_of(file: Path, folder: Path, feature: Feature, column: pa.ChunkedArray) -> Array:
    """Decode images stored as files: uint8 (rows, height, width, 3), or depth."""
    pictures = []
    with damage(f"{file}: the pictures {feature.key!r}"):
        for stored in column.to_pylist():
            content = stored if isinstance(stored, bytes) else stored["bytes"]
            if content is None:
                content = inside(folder, stored["path"]).read_bytes()
            image = Image.open(io.BytesIO(content))
            as_stored = image.mode in _AS_STORED
            pictures.append(np.asarray(image if as_stored else image.convert("RGB")))
        return np.stack(pictures)


class Video:
    """Reads one camera's images, fastest in order because it keeps its last file open."""

    def __init__(self, rate: Fraction) -> None:
        self._rate = rate
        self._path: Path | None = None
        self._next = 0  # index of the next image in the file
        self._container: Any = None
        self._size = (0, 0)
        self._pictures: Iterator[av.VideoFrame] = iter(())

    def read(self, path: Path, start: float, count: int, shape: tuple[int, ...]) -> Array:
        """Return the images (count, height, width, 3) of a file from `start` [s] on.

        `shape` is the expected shape of one image; () accepts any. Raises `DatasetDamaged`.
        """
        try:
            with damage(path):
                return self._read(path, start, count, shape)
        except DatasetDamaged:
            self.close()
            raise

    def _read(self, path: Path, start: float, count: int, shape: tuple[int, ...]) -> Array:
        first, found = round(start * self._rate), 0
        if path != self._path or first < self._next:
            self._open(path)
        if shape and self._size != shape[:2]:
            raise DatasetDamaged(
                f"the pictures of {path} have another size", got=self._size, expected=shape[:2]
            )
        out = np.empty((count, *self._size, 3), np.uint8)
        while found < count:
            frame = next(self._pictures, None)
            seconds = None if frame is None else frame.time
            if frame is None or seconds is None:
                break
            at = round(seconds * self._rate)
            if at < first:  # from an episode that was removed
                continue
            if at != first + found:
                break
            out[found] = frame.to_ndarray(format="rgb24")
            found, self._next = found + 1, at + 1
        if found < count:
            raise DatasetDamaged(
                f"the video {path} is cut short or has gaps",
                got=f"{found} pictures from {start:g} s on",
                expected=count,
                hint=RESTORE,
            )
        return out

    def _open(self, path: Path) -> None:
        self.close()
        self._container = av.open(str(path))
        stream: VideoStream = self._container.streams.video[0]
        rate, self._size = stream.average_rate, (stream.height, stream.width)
        if rate is None or abs(rate - self._rate) > self._rate / 1000:
            raise DatasetDamaged(
                f"the video {path} has another rate",
                got=rate,
                expected=self._rate,
                hint=f"correct the video, or 'fps' in {layout.INFO_PATH}",
            )
        self._pictures, self._path, self._next = self._container.decode(stream), path, 0

    def close(self) -> None:
        """Close the file; the next `read` reopens one."""
        self._path, self._pictures = None, iter(())
        if self._container is not None:
            self._container.close()
            self._container = None
