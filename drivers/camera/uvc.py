"""UVC webcams on Linux (V4L2), or a video file played in place of one, through PyAV."""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from drivers.base import DriverError, DriverTimeout, check_ranges
from drivers.camera.base import RATES, Frame, Intrinsics, check_color
from robot_rl.errors import require

_STOP_S = 5.0
# Trust the camera's own stamps if its first image is at most this old on arrival [s]. An older
# image was queued while this process was paused, and is dropped.
_PLAUSIBLE_DELAY_S = 1.0
# This many damaged or outdated images in a row count as a camera failure.
_LOST_IN_A_ROW = 30
# Slot for the latest frame, or for the error that ended receiving.
Place = queue.Queue[Frame | DriverError]


class UvcCamera:
    """A webcam or a video file.

    A thread receives and decodes, so a slow reader gets the latest image. Stamps are the kernel's,
    from the start of the transfer, if the camera provides them.

    Args:
        device: `/dev/video0`, or better `/dev/v4l/by-id/…`, which does not change; or a video file.
        width: Pixels; a camera is set to this size, a video must have it.
        height: Pixels.
        rate_hz: Frames per second of a camera; a video plays at its own rate.
        encoding: Camera's pixel format: `mjpeg`, or `yuyv422`, which is uncompressed.
        repeat: Whether a video loops; if not, its end is an error.
        intrinsics: A mapping with the fields of `Intrinsics`, from `robot-rl calibrate`; UVC
            cameras do not store their own.
    """

    def __init__(
        self,
        device: str,
        width: int = 640,
        height: int = 480,
        rate_hz: int = 30,
        encoding: str = "mjpeg",
        repeat: bool = True,
        intrinsics: Mapping[str, Any] | None = None,
    ) -> None:
        self._av = require("av", "uvc")
        self.device = device
        self._size = (width, height)
        self.rate_hz = rate_hz
        check_ranges("camera", self, rate_hz=RATES)
        self._encoding = encoding
        self._repeat = repeat
        self._intrinsics: Intrinsics | None = None
        if intrinsics is not None:
            self._intrinsics = made = Intrinsics.of(intrinsics, "the camera's configuration")
            if (made.width, made.height) != self._size:
                raise DriverError(
                    "the camera's intrinsics are those of another size",
                    got=f"{made.width}×{made.height}",
                    expected=f"{width}×{height}",
                    hint="calibrate the camera at the size that it is used with",
                )
        self._newest = Place(1)
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def connect(self) -> None:
        """Open the device and start receiving."""
        self.close()
        source = self._open()
        # Created per connection, so that a hung thread cannot write into the next one.
        self._newest, self._ending = Place(1), threading.Event()
        work = (source, self._newest, self._ending)
        self._thread = threading.Thread(
            target=self._receive, args=work, name=f"camera {self.device}", daemon=True
        )
        self._thread.start()

    def read(self, timeout_s: float) -> Frame:
        """Wait for a new frame."""
        try:
            newest = self._newest.get(timeout=max(timeout_s, 0.0))
        except queue.Empty:
            raise DriverTimeout(
                f"{self.device} gave no picture",
                got=f"none within {timeout_s:g} s",
                hint="is it plugged in and running?",
            ) from None
        if isinstance(newest, DriverError):
            self._newest.put(newest)  # so that every later read raises it too
            raise newest
        return newest

    def intrinsics(self) -> Intrinsics | None:
        """Return the configured intrinsics."""
        return self._intrinsics

    def close(self) -> None:
        """Stop receiving and release the device."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(_STOP_S)
            self._thread = None

    @property
    def _is_camera(self) -> bool:
        return Path(self.device).is_char_device() or self.device.startswith("/dev/")

    def _open(self) -> Any:
        if not Path(self.device).exists():
            problem = f"there is no camera {self.device}"
            raise DriverError(problem, hint="plug it in; ls -l /dev/v4l/by-id shows what there is")
        width, height = self._size
        camera: dict[str, Any] = {
            "format": "v4l2",
            "options": {
                "video_size": f"{width}x{height}",
                "framerate": str(self.rate_hz),
                "input_format": self._encoding,
                "timestamps": "abs",  # the system clock
            },
        }
        try:
            return self._av.open(self.device, **(camera if self._is_camera else {}))
        except (self._av.FFmpegError, OSError) as error:
            raise DriverError(
                f"the camera {self.device} cannot be opened",
                got=error,
                expected=f"{width}×{height} at {self.rate_hz} Hz as {self._encoding}"
                if self._is_camera
                else "a film",
                hint="another program may use it, it may lack this size, or this user lacks the"
                " group video; v4l2-ctl --list-formats-ext shows what it can do",
            ) from error

    def _receive(self, source: Any, newest: Place, ending: threading.Event) -> None:
        """Forward frames until closed. The next `read` raises any error."""
        try:
            with source:
                if self._is_camera:
                    frames = live_frames(source.demux(video=0), self.device)
                else:
                    frames = self._film(source, ending)
                for frame in frames:
                    if ending.is_set():
                        return
                    check_color(self.device, frame.color, *self._size)
                    _put(newest, frame)
            if not ending.is_set():
                _put(newest, DriverError(f"{self.device} gives no more pictures: it is at its end"))
        except DriverError as error:
            _put(newest, error)
        except Exception as error:  # from FFmpeg, or from the system when the camera is unplugged
            stopped = f"the camera {self.device} stopped"
            _put(newest, DriverError(stopped, got=error, hint="is it still plugged in?"))

    def _film(self, source: Any, ending: threading.Event) -> Iterator[Frame]:
        sequence = itertools.count()
        while True:
            started, first = time.monotonic(), None
            for picture in source.decode(video=0):
                first = picture.time if first is None else first
                due = started + float(picture.time - first)
                if ending.wait(max(0.0, due - time.monotonic())):
                    return
                yield Frame(time.time_ns(), next(sequence), picture.to_ndarray(format="rgb24"))
            if not self._repeat or first is None:
                return
            source.seek(0)


def _put(place: Place, newest: Frame | DriverError) -> None:
    """Replace the content of the slot; only one thread may call this."""
    with contextlib.suppress(queue.Empty):
        place.get_nowait()
    place.put(newest)


def live_frames(packets: Iterable[Any], name: str) -> Iterator[Frame]:
    """Decode a live camera's PyAV packets, each with one image.

    Uses the camera's stamps if the first one is plausible; later images that are too old are
    dropped. Cameras occasionally send a damaged or empty packet: it leaves a gap in `sequence`, as
    does a dropped image. Too many in a row raise `DriverError`.
    """
    believed: bool | None = None
    lost = 0
    for sequence, packet in enumerate(packets):
        picture, now = _picture(packet), time.time_ns()
        if picture is not None:
            said = now if picture.time is None else round(picture.time * 1e9)
            plausible = 0 <= now - said <= _PLAUSIBLE_DELAY_S * 1e9
            if believed is None:
                believed = plausible and picture.time is not None
            if plausible or not believed:
                lost = 0
                pixels = picture.to_ndarray(format="rgb24")
                yield Frame(said if believed else now, sequence, pixels)
                continue
        lost += 1
        if lost == _LOST_IN_A_ROW:
            raise DriverError(
                f"the camera {name} gives no usable picture",
                got=f"{lost} in a row are damaged, or not of the last {_PLAUSIBLE_DELAY_S:g} s",
                hint="look at its cable; was the system clock set?",
            )


def _picture(packet: Any) -> Any:
    """Decode a packet; None if it has no usable image."""
    if packet.size == 0:  # the decoder would treat it as end of stream
        return None
    try:
        return next(iter(packet.decode()), None)
    except require("av", "uvc").error.InvalidDataError:
        return None
