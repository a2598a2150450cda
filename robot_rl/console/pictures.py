"""Camera images as JPEG."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from robot_rl.data.schema import Array, Observation

_IMAGES = "images/"
_JPEG_QUALITY = 80
# A page shows images no larger; a bigger one is encoded at a whole fraction of its size.
_MOST_PIXELS_WIDE = 640


def jpegs(observation: Observation) -> dict[str, bytes]:
    """Encode the colour images of an observation: camera name → JPEG."""
    return {
        name.removeprefix(_IMAGES): _jpeg(image)
        for name, image in observation.items()
        if name.startswith(_IMAGES) and image.dtype == np.uint8 and image.shape[-1] == 3
    }


def _jpeg(image: Array) -> bytes:
    every = -(-image.shape[1] // _MOST_PIXELS_WIDE)
    buffer = io.BytesIO()
    picture = Image.fromarray(np.ascontiguousarray(image[::every, ::every]))
    picture.save(buffer, "JPEG", quality=_JPEG_QUALITY)
    return buffer.getvalue()
