"""Detects image columns and converts them to the cameras of a row."""

from __future__ import annotations

import numpy as np

from robot_rl.data.pictures import PictureError, PictureForm, millimetres, picture_form
from robot_rl.data.schema import Array

_DEPTH = "_depth"
_BRIGHTEST = (1.0, 255.0)


def is_picture(column: Array) -> bool:
    """Whether the values (T, ...) of a column are images, convertible or not."""
    try:
        return _form(column) is not None
    except PictureError:
        return True


def camera_name(name: str, column: Array) -> str:
    """Propose the field for an image column, by its name and shape."""
    one_number = column.ndim == 3 or 1 in (column.shape[1], column.shape[-1])
    is_depth = one_number and column.dtype != np.uint8
    return f"images/{name.removesuffix(_DEPTH)}{_DEPTH if is_depth else ''}"


def camera_form(name: str, column: Array) -> PictureForm:
    """Determine the format of the images (T, ...) in the column for camera `name`.

    Raises:
        PictureError: They are not supported, or are depth while the name means colour.
    """
    form = _form(_in_millimetres(name, column))
    expected = f"depth as {name}" if name.endswith(_DEPTH) else f"colour, or {name}{_DEPTH}"
    if form is None or form.is_depth != name.endswith(_DEPTH):
        got = f"{column.dtype} {column.shape[1:]}"
        raise PictureError("the column is no such picture", got=got, expected=expected)
    return form


def as_camera(name: str, column: Array, form: PictureForm) -> Array:
    """Convert images for a field: uint8 (T, H, W, 3), or uint16 (T, H, W, 1) of depth [mm].

    Raises `PictureError` if they differ from the images that defined the form.
    """
    return form.to_row(_in_millimetres(name, column))


def _in_millimetres(name: str, column: Array) -> Array:
    if not name.endswith(_DEPTH) or column.dtype.kind != "f":
        return column
    if not (column >= 0).all():  # also rejects NaN
        raise PictureError("depth is below 0, or not a number", expected="metres")
    return millimetres(column)


def _form(column: Array) -> PictureForm | None:
    low, high = (float(edge(initial=0.0)) for edge in (column.min, column.max))
    brightest = next((b for b in _BRIGHTEST if high <= b and low >= 0.0), high)
    return picture_form(column.shape[1:], column.dtype, low, brightest)
