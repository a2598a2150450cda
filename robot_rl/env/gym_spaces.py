"""Columns from the spaces of a Gymnasium environment, and checks of its return values."""

from __future__ import annotations

import functools
import math
import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from robot_rl.data.pictures import PictureError, PictureForm, picture_form
from robot_rl.data.schema import Field
from robot_rl.errors import RobotRLError

CORRECT_IT = "correct the environment, or wrap it and register what you made"
_WRAP = "wrap the environment, and register what you made"
# Bounds beyond this count as infinite: many spaces use float32's largest number.
_LARGEST_BOUND = 1e6


class GymError(RobotRLError):
    """A Gymnasium environment that cannot be made, or that is unusable for learning."""


@dataclass(frozen=True)
class Column:
    """One entry of an observation, and its field in the rows."""

    path: tuple[Any, ...]  # its keys in nested Dicts; empty if the observation is a Box
    field: Field
    shape: tuple[int, ...]  # in the space
    picture: PictureForm | None  # None: numbers

    @property
    def stored(self) -> str:
        """The kind of value in the space, as text."""
        return "numbers" if self.picture is None else self.picture.stored

    def read(self, now: str, observation: Any) -> npt.NDArray[Any]:
        """Read its value from an observation; `now` describes the step for error messages.

        Raises:
            GymError: It does not match the space, or is not finite.
        """
        try:
            given = np.asarray(functools.reduce(operator.getitem, self.path, observation))
            if self.picture is not None:
                return self.picture.to_row(given)
            if given.dtype.kind not in "biuf" or _sides(given.shape) != _sides(self.shape):
                raise ValueError(f"{given.dtype} {given.shape}")
        except (KeyError, IndexError, TypeError, ValueError, PictureError) as error:
            raise GymError(
                f"{self.field.name} of {now} is not what its observation space declares",
                got=error if isinstance(error, PictureError) else repr(error),
                expected=None if isinstance(error, PictureError) else f"{self.stored} {self.shape}",
                hint=CORRECT_IT,
            ) from error
        with np.errstate(over="ignore"):  # float32 overflow becomes non-finite
            value = np.array(given, self.field.dtype).reshape(self.field.shape)
        if not np.isfinite(value).all():
            raise GymError(f"{self.field.name} of {now} is not finite", got=value, hint=CORRECT_IT)
        return value


def columns_of(
    id: str, space: spaces.Space[Any], cameras: Sequence[Any] | None = None
) -> list[Column]:
    """The columns of an observation space of the environment `id`.

    Numbers of a Box become float32 (n,) under `state/<key>`, RGB or depth images become
    `images/<key>`; keys of nested Dicts are joined by `_`. `cameras` selects images by name, as
    `CameraOptions` with default options; None for all.

    Raises:
        GymError: A part of the space is neither, two parts share a name, or a camera has no image.
    """
    found = _columns(id, space, ())
    names = Counter(column.field.name for column in found)
    name, count = names.most_common(1)[0] if names else ("nothing", 0)
    if count != 1:
        raise GymError(
            f"the observation of {id} has {count} columns of the name {name}"
            if found
            else f"the observation of {id} is empty",
            got=space,
            expected="one name for each part; keys of nested Dicts are joined by _",
            hint=_WRAP,
        )
    if cameras is None:
        return found
    chosen = {f"images/{camera.name}" for camera in cameras}
    known = {column.field.name for column in found if column.picture is not None}
    if not chosen <= known or any(camera != type(camera)(camera.name) for camera in cameras):
        plain = ", ".join(f"{{name: {key.removeprefix('images/')}}}" for key in sorted(known))
        asked = [
            {k: v for k, v in vars(c).items() if v != getattr(type(c), k, None)} for c in cameras
        ]
        raise GymError(
            f"observation.cameras does not fit the pictures of {id}",
            got=asked,
            expected=f"some of [{plain}]: pictures are taken as they are",
        )
    return [c for c in found if c.picture is None or c.field.name in chosen]


def _columns(id: str, space: spaces.Space[Any], path: tuple[Any, ...]) -> list[Column]:
    if isinstance(space, spaces.Dict):
        return [c for key, part in space.spaces.items() for c in _columns(id, part, (*path, key))]
    name = "_".join(map(str, path)) or "observation"
    problem = f"the observation {name!r} of {id} is not supported"
    if not isinstance(space, spaces.Box):
        expected = "a Box of numbers or of a picture, alone or in a Dict"
        raise GymError(problem, got=space, expected=expected, hint=_WRAP)
    try:
        form = picture_form(space.shape, space.dtype, space.low, space.high)
        if form and "depth" in name.lower() and not form.is_depth and 3 not in form.shape:
            raise PictureError(
                "depth whose unit nobody knows",
                got=f"{form.stored} {form.shape}",
                expected="uint16 millimetres, (height, width) or with 1 channel",
            )
    except PictureError as error:
        raise GymError(problem, got=error, hint=_WRAP) from error
    if form is not None:
        return [
            Column(path, Field(f"images/{name}", form.row_dtype, form.row_shape), space.shape, form)
        ]
    if not (width := int(np.prod(space.shape))):
        return []
    return [Column(path, Field(f"state/{name}", "float32", (width,)), space.shape, None)]


def bounds_of(id: str, space: spaces.Space[Any]) -> npt.NDArray[np.float64]:
    """The lowest and highest actions (2, c) of an action space of the environment `id`.

    Raises:
        GymError: It is not a Box, or its bounds are not usable.
    """
    if isinstance(space, spaces.Box) and np.prod(space.shape):
        bounds = np.stack([space.low.ravel(), space.high.ravel()]).astype(np.float64)
        if (np.abs(bounds) <= _LARGEST_BOUND).all():  # false for NaN
            return bounds
    raise GymError(
        f"the action space of {id} is not supported",
        got=space,
        expected=f"a Box with bounds, none of them beyond {_LARGEST_BOUND:,.0f}:"
        " actions in [-1, 1] are scaled to them",
        hint="wrap the environment, for example with gymnasium.wrappers.RescaleAction",
    )


def number_of(what: str, given: Any) -> float:
    """Convert a finite number, or an array with one; `GymError` for anything else."""
    value, number = np.asarray(given), math.nan
    if value.size == 1 and value.dtype.kind in "biufO":
        with suppress(TypeError, ValueError, OverflowError):
            number = float(value.item())
    if not math.isfinite(number):
        got = "NaN" if value.dtype.kind == "f" and np.isnan(value).any() else repr(given)
        raise GymError(f"{what} is no finite number", got=got, hint=CORRECT_IT)
    return number


def flag_of(what: str, given: Any) -> bool:
    """Convert a bool, or an array with one; `GymError` for anything else."""
    value = np.asarray(given)
    if value.size != 1 or value.dtype.kind not in "biuf" or np.isnan(value).any():
        raise GymError(f"{what} is neither true nor false", got=repr(given), hint=CORRECT_IT)
    return bool(value.item())


def parts_of(what: str, given: Any, names: str) -> tuple[Any, ...]:
    """Check the return value of reset or step: a tuple with these parts, the last a dict.

    Raises:
        GymError: The return value is something else.
    """
    expected = names.split(", ")
    if isinstance(given, tuple) and len(given) == len(expected):
        if isinstance(given[-1], Mapping):
            return given
        got = f"{expected[-1]} {type(given[-1]).__name__}"
    else:
        got = f"{len(given)} values" if isinstance(given, tuple) else type(given).__name__
    raise GymError(
        f"{what} does not return what gymnasium.Env describes",
        got=got,
        expected=f"{names}, and info a dict",
        hint=CORRECT_IT,
    )


def _sides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape without dimensions of size 1."""
    return tuple(n for n in shape if n != 1)
