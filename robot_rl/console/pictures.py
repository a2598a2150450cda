"""Camera images on their way to the browser, as JPEG."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from robot_rl.data.schema import Observation

_IMAGES = "images/"
_QUALITY = 80
# A page shows them no larger; a bigger image is sent at a whole fraction of its size.
_MOST_PIXELS_WIDE = 640


def encode(observation: Observation) -> dict[str, bytes]:
    """Encode the colour images of an observation: camera name → JPEG."""
    return {
        name.removeprefix(_IMAGES): _jpeg(image)
        for name, image in observation.items()
        if name.startswith(_IMAGES) and image.dtype == np.uint8 and image.shape[-1] == 3
    }


def message(view: str, camera: str, jpeg: bytes) -> bytes:
    """A binary message of a page: the length of the head, the head ``view/camera``, the JPEG."""
    head = f"{view}/{camera}".encode()
    return bytes((len(head),)) + head + jpeg


def _jpeg(image: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> bytes:
    every = -(-image.shape[1] // _MOST_PIXELS_WIDE)
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(image[::every, ::every])).save(
        buffer, "JPEG", quality=_QUALITY
    )
    return buffer.getvalue()
