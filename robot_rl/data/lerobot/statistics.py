"""The statistics that LeRobot keeps of each feature, over an episode and over all of them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from robot_rl.data.schema import Array

Statistics = dict[str, Array]

_QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
_LEVELS = list(_QUANTILES.values())
_SAMPLE_SIZE = 10_000


class ColumnStatistics:
    """Statistics of (n,) vectors; exact but for the quantiles of many, which a sample estimates."""

    def __init__(self) -> None:
        """Start with no vectors."""
        self._count = 0
        self._sums: Statistics = {}
        self._sample: npt.NDArray[np.float64] = np.empty((0, 0))
        self._rng = np.random.default_rng(0)

    def add(self, values: Array) -> Statistics:
        """Take in the frames of an episode, and return the statistics of these alone.

        Args:
            values: (frames, n) numbers or booleans.

        Returns:
            (n,) float64 each, `min` and `max` of the dtype of `values`; `count` is (1,) int64.
        """
        least, most = values.min(axis=0), values.max(axis=0)
        values = values.astype(np.float64)
        episode = {
            "min": least,
            "max": most,
            "mean": values.mean(axis=0),
            "std": values.std(axis=0),
        }
        self._merge(episode, len(values))
        self._draw(values)
        return {
            **episode,
            "count": np.array([len(values)]),
            **_quantiles(values),
        }

    def total(self) -> Statistics:
        """Return the statistics of all that was added."""
        return {**self._sums, "count": np.array([self._count]), **_quantiles(self._sample)}

    def _merge(self, new: Statistics, count: int) -> None:
        """Combine means and variances of two parts (Chan, Golub, LeVeque 1979, eq. 2.1)."""
        old, before, total = self._sums, self._count, self._count + count
        self._count = total
        if before == 0:
            self._sums = dict(new)
            return
        difference = new["mean"] - old["mean"]
        spread = before * old["std"] ** 2 + count * new["std"] ** 2
        spread += difference**2 * before * count / total
        self._sums = {
            "min": np.minimum(old["min"], new["min"]),
            "max": np.maximum(old["max"], new["max"]),
            "mean": old["mean"] + difference * count / total,
            "std": np.sqrt(spread / total),
        }

    def _draw(self, values: Array) -> None:
        """Keep a uniform sample of all vectors (Vitter 1985, algorithm R)."""
        room = _SAMPLE_SIZE - len(self._sample)
        if room > 0:
            filled = values[:room]
            self._sample = (
                np.concatenate([self._sample, filled]) if len(self._sample) else filled.copy()
            )
            values = values[room:]
        if len(values):
            first = self._count - len(values)
            places = self._rng.integers(0, np.arange(first, self._count) + 1)
            kept = places < _SAMPLE_SIZE
            self._sample[places[kept]] = values[kept]


class PictureStatistics:
    """Statistics of the channels of uint8 pictures, exact, with 255 scaled to 1."""

    def __init__(self) -> None:
        """Start with no pictures."""
        self._histogram = np.zeros((3, 256), np.int64)
        self._count = 0

    def add(self, pictures: Array) -> Statistics:
        """Take in the frames of an episode, and return the statistics of these alone.

        Args:
            pictures: (frames, height, width, 3) uint8.

        Returns:
            (3, 1, 1) float64 each; `count` is (1,) int64.
        """
        histogram = np.zeros((3, 256), np.int64)
        for picture in pictures:
            for channel in range(3):
                histogram[channel] += np.bincount(picture[..., channel].reshape(-1), minlength=256)
        self._histogram += histogram
        self._count += len(pictures)
        return _of_histogram(histogram, len(pictures))

    def total(self) -> Statistics:
        """Return the statistics of all that was added."""
        return _of_histogram(self._histogram, self._count)


def _quantiles(values: Array) -> Statistics:
    return dict(zip(_QUANTILES, np.quantile(values, _LEVELS, axis=0), strict=True))


def _of_histogram(histogram: npt.NDArray[np.int64], count: int) -> Statistics:
    levels = np.arange(256) / 255
    weights = histogram / histogram.sum(axis=1, keepdims=True)
    mean = weights @ levels
    variance = np.maximum(weights @ levels**2 - mean**2, 0.0)
    cumulated = weights.cumsum(axis=1)

    def level(share: float) -> Array:
        # The rounding of sums must not push a quantile past the brightest level there is.
        found: Array = levels[(cumulated >= share - 1e-12).argmax(axis=1)]
        return found

    statistics = {
        "min": levels[(histogram > 0).argmax(axis=1)],
        "max": levels[255 - (histogram[:, ::-1] > 0).argmax(axis=1)],
        "mean": mean,
        "std": np.sqrt(variance),
        **{name: level(share) for name, share in _QUANTILES.items()},
    }
    shaped = {name: value.reshape(3, 1, 1) for name, value in statistics.items()}
    return {**shaped, "count": np.array([count])}
