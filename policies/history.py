"""The last observations of every slot, as the encoders want them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from policies.errors import PolicyError

Array = npt.NDArray[Any]
Rows = npt.NDArray[np.intp]


def of_rows(array: Array, rows: Rows) -> Array:
    """What an array (slots, ...) has of some slots, in ascending order; no copy where it is all."""
    return array if len(rows) == len(array) else np.asarray(array[rows])


class ObservationHistory:
    """Keeps `steps` observations of each of some slots, which are episodes side by side.

    Before an episode's first observation, that one is repeated.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.steps = 1
        self._names: tuple[str, ...] = ()
        self._values: dict[str, Array] = {}
        self._filled: dict[str, npt.NDArray[np.bool_]] = {}

    def require(self, names: Iterable[str], steps: int) -> None:
        """Keep these names, and at least so many steps; what is known already stays."""
        self._names = tuple(dict.fromkeys([*self._names, *names]))
        if steps > self.steps:
            extra = steps - self.steps
            self._values = {
                name: np.concatenate([np.repeat(value[:, :1], extra, 1), value], 1)
                for name, value in self._values.items()
            }
            self.steps = steps

    def forget(self, rows: Rows) -> None:
        """Start new episodes in these slots."""
        for filled in self._filled.values():
            filled[rows] = False

    def shifted(self, observation: Mapping[str, Array], rows: Rows) -> dict[str, Array]:
        """Give the histories that end with this observation, without keeping it.

        Of each array (slots, ...shape) the `rows` (r,) are looked at: name → (r, steps, ...shape).

        Raises:
            PolicyError: A name is missing, or an array has another batch size or shape.
        """
        windows = {}
        for name in self._names:
            new = of_rows(self._checked(name, observation), rows)
            if self.steps == 1:
                windows[name] = new[:, None]
                continue
            if name not in self._values:
                windows[name] = np.repeat(new[:, None], self.steps, 1)
                continue
            window = np.concatenate([self._values[name][rows, 1:], new[:, None]], 1)
            fresh = ~self._filled[name][rows]
            if fresh.any():
                window[fresh] = new[fresh, None]
            windows[name] = window
        return windows

    def keep(self, windows: Mapping[str, Array], rows: Rows) -> None:
        """Remember the histories that `shifted` gave for the same rows."""
        for name, window in windows.items():
            if name not in self._values:
                shape = (self.slots, *window.shape[1:])
                self._values[name] = np.zeros(shape, window.dtype)
                self._filled[name] = np.zeros(self.slots, np.bool_)
            self._values[name][rows] = window
            self._filled[name][rows] = True

    def _checked(self, name: str, observation: Mapping[str, Array]) -> Array:
        if name not in observation:
            raise PolicyError(
                f"the observation lacks {name!r}", got=sorted(observation), expected=name
            )
        array = np.asarray(observation[name])
        known = self._values.get(name)
        expected = (self.slots, *(array.shape[1:] if known is None else known.shape[2:]))
        if array.shape != expected:
            raise PolicyError(
                f"the observation {name!r} has another shape", got=array.shape, expected=expected
            )
        return array


def episode_windows(
    observations: Mapping[str, Array], names: Iterable[str], at: Rows, steps: int
) -> dict[str, Array]:
    """Give the histories that end at rows `at` (r,) of one recorded episode.

    Of each array (T + 1, ...shape) it is name → (r, steps, ...shape); before the episode its first
    row is repeated.

    Raises:
        PolicyError: A name is missing.
    """
    rows = np.maximum(at[:, None] + np.arange(1 - steps, 1), 0)
    windows = {}
    for name in names:
        if name not in observations:
            raise PolicyError(
                f"the episode lacks {name!r}", got=sorted(observations), expected=name
            )
        windows[name] = np.asarray(observations[name])[rows]
    return windows
