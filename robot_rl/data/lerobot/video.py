"""Several episodes of one camera in MP4 files. Needs the package `av`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.container import InputContainer, OutputContainer
from av.video.frame import PictureType
from av.video.stream import VideoStream

from robot_rl.data._episode_files import DatasetDamaged, DatasetWriteFailed
from robot_rl.data.lerobot.layout import VIDEO_PATH, Place
from robot_rl.data.schema import Array

_CODEC = "libx264"
# Every second picture stands alone, as in LeRobot's own files: a training step decodes one or two
# pictures and not a whole second of them. The tuning keeps pictures in the order of time, so that
# the first one of a file is at time 0, and lets the encoder hold none back.
_OPTIONS = {"crf": "18", "preset": "veryfast", "tune": "zerolatency", "g": "2"}


class VideoFiles:
    """Writes the episodes of one camera.

    Args:
        root: Directory of the dataset.
        key: Name of the camera's feature.
        rate: Pictures per second.
        limit_bytes: A file that would grow beyond this with another episode is ended.
    """

    def __init__(self, root: Path, key: str, rate: Fraction, limit_bytes: int) -> None:
        """Write nothing yet; see the class."""
        self._root, self._key, self._rate = root, key, rate
        self._limit = limit_bytes
        self._place = Place()
        self._path = root
        self._container: OutputContainer | None = None
        self._stream: VideoStream | None = None
        self._frames = self._bytes = self._largest = 0

    def add(self, pictures: Array) -> tuple[Place, float, float]:
        """Append the pictures of an episode.

        Args:
            pictures: (frames, height, width, 3) uint8 RGB.

        Returns:
            The file, and the times in it of the first picture and of the end of the last [s].

        Raises:
            DatasetWriteFailed: They cannot be encoded or written.
        """
        if self._frames and self._bytes + self._largest > self._limit:
            self.close()
            self._place = self._place.following()
        with _write_errors(self._path):
            if self._container is None:
                self._open(pictures.shape[2], pictures.shape[1])
            start, before = self._frames, self._bytes
            for index, picture in enumerate(pictures):
                self._encode(np.ascontiguousarray(picture), begins=index == 0)
        self._largest = max(self._largest, self._bytes - before)
        return self._place, float(start / self._rate), float(self._frames / self._rate)

    def close(self) -> None:
        """Complete the file that is open."""
        container, self._container = self._container, None
        if container is None or self._stream is None:
            return
        with _write_errors(self._path), container:
            container.mux(self._stream.encode(None))
        self._frames = self._bytes = self._largest = 0

    def release(self) -> None:
        """Close the file that is open; it need not be whole."""
        container, self._container = self._container, None
        if container is not None:
            container.close()

    def _open(self, width: int, height: int) -> None:
        self._path = self._root / self._place.path(VIDEO_PATH, video_key=self._key)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # The index in front lets a reader that streams the file begin before all of it is there.
        options = {"movflags": "faststart"}
        self._container = av.open(str(self._path), "w", container_options=options)
        stream = self._container.add_stream(_CODEC, rate=self._rate, options=dict(_OPTIONS))
        assert isinstance(stream, VideoStream)
        stream.width, stream.height = width, height
        stream.pix_fmt = pixel_format(width, height)
        self._stream = stream

    def _encode(self, picture: Array, *, begins: bool) -> None:
        assert self._container is not None
        assert self._stream is not None
        frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
        frame.pts, frame.time_base = self._frames, 1 / self._rate
        if begins:  # an episode can be decoded without the one before it
            frame.pict_type = PictureType.I
        for packet in self._stream.encode(frame):
            self._bytes += packet.size
            self._container.mux(packet)
        self._frames += 1


class VideoReader:
    """Reads pictures of one camera, keeping the file open that it read last."""

    def __init__(self) -> None:
        """Open nothing yet."""
        self._path: Path | None = None
        self._container: InputContainer | None = None

    def read(self, path: Path, start_seconds: float, rate: Fraction, out: Array) -> None:
        """Fill `out` with consecutive pictures.

        Args:
            path: The file.
            start_seconds: Time of the first picture.
            rate: Pictures per second that the file must have.
            out: (frames, height, width, 3) uint8 RGB.

        Raises:
            DatasetDamaged: The file is missing, cut, of another rate or size.
        """
        with _read_errors(path):
            container = self._open(path)
            stream = container.streams.video[0]
            _check_stream(path, stream, rate, out.shape)
            base = stream.time_base
            assert base is not None
            container.seek(round((start_seconds - float(0.5 / rate)) / base), stream=stream)
            found = 0
            for frame in container.decode(stream):
                number = round((float((frame.pts or 0) * base) - start_seconds) * rate)
                if number < 0:
                    continue
                if number != found:
                    break
                out[found] = frame.to_ndarray(format="rgb24")
                found += 1
                if found == len(out):
                    return
        raise DatasetDamaged(
            f"the video {path} is cut short or has gaps",
            got=f"{found} pictures from {start_seconds:g} s on",
            expected=f"{len(out)}",
            hint="restore it from a copy",
        )

    def close(self) -> None:
        """Close the file that is open."""
        if self._container is not None:
            self._container.close()
            self._container = self._path = None

    def _open(self, path: Path) -> InputContainer:
        if self._container is None or self._path != path:
            self.close()
            self._container, self._path = av.open(str(path)), path
        return self._container


def pixel_format(width: int, height: int) -> str:
    """Return how pictures are encoded: players expect 4:2:0, which needs even sides."""
    return "yuv444p" if width % 2 or height % 2 else "yuv420p"


def video_information(shape: tuple[int, ...], rate: Fraction) -> dict[str, Any]:
    """Return what LeRobot notes of a camera's files."""
    height, width, channels = shape
    return {
        "video.height": height,
        "video.width": width,
        "video.codec": "h264",
        "video.pix_fmt": pixel_format(width, height),
        "video.fps": int(rate) if rate.denominator == 1 else float(rate),
        "video.channels": channels,
        "has_audio": False,
        "is_depth_map": False,
    }


def _check_stream(path: Path, stream: VideoStream, rate: Fraction, shape: tuple[int, ...]) -> None:
    got = (stream.average_rate, stream.height, stream.width)
    expected = (rate, shape[1], shape[2])
    if stream.average_rate is None or abs(stream.average_rate - rate) > rate / 1000:
        raise DatasetDamaged(f"the video {path} has another rate", got=got[0], expected=rate)
    if got[1:] != expected[1:]:
        raise DatasetDamaged(
            f"the pictures of {path} have another size", got=got[1:], expected=expected[1:]
        )


@contextmanager
def _read_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (av.FFmpegError, IndexError) as error:
        raise DatasetDamaged(
            f"the video {path} cannot be read", got=repr(error), hint="restore it from a copy"
        ) from error


@contextmanager
def _write_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except av.FFmpegError as error:
        raise DatasetWriteFailed(f"the video {path} cannot be written", got=repr(error)) from error
