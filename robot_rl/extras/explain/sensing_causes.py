"""Causes in the observations: cameras, poses, units, noise, unfamiliar states."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.spatial import cKDTree

from robot_rl.data.schema import OBJECT_POSES
from robot_rl.extras.explain.evidence import Cause, Check, Evidence, Origin, Vector, percent

_POSE = "state/tcp_pose"
_DARK = 3.0  # grey levels: an image that varies less shows nothing
_NEIGHBOURS = 2000  # latest policy steps to compare with the demonstrations
_MOVED = 0.03  # m of TCP motion that a working camera shows
_FRAMES = 3  # minimum number of image pairs that far apart for a verdict
# Signals that react to each command at once, and so jitter without a fault.
_LIVELY = ("velocity", "velocities", "wrench", "lead", "command")


def dead_camera(evidence: Evidence) -> Cause | None:
    """A camera whose images show nothing."""
    contrast: dict[str, float] = {}
    for words, films in _films(evidence):
        contrast[words] = float(np.median([p.std() for _, film in films for p in film]))
    if not contrast:
        return None
    worst = min(contrast, key=lambda words: contrast[words])
    figure = f"{worst}: grey levels vary by {contrast[worst]:.1f} of 255 in a picture"
    fix = "look at the live picture (robot-rl console): cap, exposure, cable, or the wrong device"
    return Cause("camera dead", 0.0 if contrast[worst] >= _DARK else 0.97, figure, fix)


def frozen_camera(evidence: Evidence) -> Cause | None:
    """A camera that repeats one image while the robot moves."""
    repeated: dict[str, float] = {}
    for words, films in _films(evidence):
        same = [
            bool((film[a] == film[b]).all())
            for rows, film in films
            for a, b in itertools.pairwise(_places(rows[: len(film)]))
        ]
        if len(same) > _FRAMES and max(p.std() for _, film in films for p in film) >= _DARK:
            repeated[words] = float(np.mean(same))
    if not repeated:
        return None
    worst = max(repeated, key=lambda words: repeated[words])
    figure = (
        f"{worst}: {percent(repeated[worst])} of the pictures equal the one from"
        f" {100 * _MOVED:g} cm away"
    )
    fix = "restart the camera's driver; see that its stamps go on: robot-rl doctor cell=PATH"
    return Cause("camera frozen", 0.0 if repeated[worst] < 0.95 else 0.97, figure, fix)


def constant_features(evidence: Evidence) -> Cause | None:
    """An image encoder whose output does not depend on the image."""
    for name in evidence.acted.episodes[0].dtype.names or () if len(evidence.acted) else ():
        if not name.startswith("features/"):
            continue
        values = evidence.acted.column(name)
        spread = float(values.std(0).max() / max(np.abs(values).max(), 1e-3))
        figure = f"the liveliest of {values.shape[1]} features varies by {percent(spread)}"
        fix = "train the encoder again, and longer: observation.vision_training.cloning.updates"
        return Cause("features", 0.0 if spread > 0.01 else 0.95, figure, fix)
    return None


def quaternions(evidence: Evidence) -> Cause | None:
    """Quaternions with the scalar first, or that are invalid."""
    name = "quaternion"
    worst = 0.0
    reference = evidence.setting("robot.limits.reference_orientation")
    # Allowed TCP orientation, and the orientation in the demonstrations.
    expected = [("the reference of its limits", np.array(reference, float))] if reference else []
    if len(evidence.shown) and evidence.shown.has(_POSE):
        expected.append(("the demonstrations", evidence.shown.column(_POSE)[0, 3:]))
    for words, origin in evidence.origins.items():
        if not origin.has(_POSE):
            continue
        turns = origin.column(_POSE)[:, 3:]
        norms = np.linalg.norm(turns, axis=1)
        if np.median(np.abs(norms - 1.0)) > 0.02:
            figure = f"in {words} {_POSE}[3:7] has a length of {np.median(norms):.2f}"
            fix = "a unit quaternion xyzw is expected: see what the driver or the mapping gives"
            return Cause(name, 0.97, figure, fix)
        for against, turn in expected:
            angle = _median_angle(turns, turn)
            other = _median_angle(turns[:, [1, 2, 3, 0]], turn)
            worst = max(worst, angle) if against != "the demonstrations" else worst
            if angle > 1.0 and other < 0.5 * angle and other < 0.8:
                figure = (
                    f"in {words} the tool is {angle:.1f} rad away from {against};"
                    f" read with the scalar first, as wxyz, {other:.1f} rad"
                )
                fix = f"{_POSE} must be xyzw: reorder what the driver or the mapping gives"
                return Cause(name, 0.98, figure, fix)
    if not expected or not evidence.origins:
        return None
    return Cause(name, 0.0, f"of unit length, within {worst:.1f} rad of the reference")


def units(evidence: Evidence) -> Cause | None:
    """Values in another unit: mm for m, degrees for rad."""
    for words, origin in evidence.origins.items():
        if origin.has(_POSE):
            far = float(np.median(np.linalg.norm(origin.column(_POSE)[:, :3], axis=1)))
            if far > 10.0:
                figure = f"in {words} the tool is {far:.0f} m away from the base"
                return Cause("unit", 0.99, figure, f"{_POSE} is in m: is it mm?")
        joints = "state/joint_positions"
        if origin.has(joints) and np.median(np.abs(origin.column(joints)).max(1)) > 15.0:
            figure = f"in {words} a joint stands at {np.abs(origin.column(joints)).max():.0f} rad"
            return Cause("unit", 0.99, figure, f"{joints} is in rad: is it degrees?")
    if len(evidence.origins) < 2:
        return None
    largest, name = 1.0, ""
    for field in _numbers(evidence):
        # A unit error changes the median by the same factor; a missing event, such as a lift, does
        # not.
        shown, acted = (
            np.quantile(np.abs(origin.column(field)), [0.5, 0.95], axis=0)
            for origin in (evidence.shown, evidence.acted)
        )
        for part in (slice(0, 3), slice(3, None)):
            # Compare the largest number of each kind: others may be close to 0.
            before, now = (np.max(v[:, part], axis=1, initial=0.0) for v in (shown, acted))
            if min(*before, *now) <= 1e-6:
                continue
            times = float(min(now / before, key=lambda ratio: abs(np.log(ratio))))
            if abs(np.log(times)) > abs(np.log(largest)):
                largest, name = times, field
    figure = f"{name or 'each state'} is {largest:.3g} times as large as in the demonstrations"
    fix = "SI is expected everywhere: m for mm, rad for degrees"
    return Cause("unit", 0.0 if 1 / 40.0 < largest < 40.0 else 0.96, figure, fix)


def constant_observation(evidence: Evidence) -> Cause | None:
    """An observed field that does not change while the robot moves."""
    still: dict[str, dict[str, float]] = {}
    for name in evidence.observed:
        for words, origin in evidence.origins.items():
            alike = [not np.ptp(values, axis=0).any() for values in origin.each(name)]
            still.setdefault(name, {})[words] = float(np.mean(alike))
    if not still:
        return None
    for name, shares in still.items():
        acted = shares.get("the policy's episodes", 0.0)
        shown = shares.get("the demonstrations", 0.0)
        touched = "wrench" not in name or evidence.acted.column(name).any()  # else no contact
        if acted > 0.9 and shown < 0.5 and touched and "the demonstrations" in shares:
            figure = (
                f"{name} stands still in {percent(acted)} of the policy's episodes, and in"
                f" {percent(shown)} of the demonstrations"
            )
            return Cause("observation constant", 0.95, figure, f"see what publishes {name}")
    fixed = [
        name
        for name, shares in still.items()
        if min(shares.values()) > 0.9 and name != OBJECT_POSES and "goal" not in name
    ]
    if fixed:
        figure = f"{', '.join(fixed)} never changes within an episode, not even where demonstrated"
        fix = "if it should, see what publishes it; or leave it out: observation.states=[...]"
        return Cause("observation constant", 0.6, figure, fix)
    return Cause("observation constant", 0.0, f"each of {len(still)} fields changes")


def noise(evidence: Evidence) -> Cause | None:
    """White noise on measured poses."""
    found: list[tuple[float, str, float]] = []
    for name in _calm(evidence):
        levels = {words: _white(origin, name) for words, origin in evidence.origins.items()}
        for words, (share, correlation) in levels.items():
            clean = min(level for level, _ in levels.values())
            if correlation < -0.35 and (share > 4 * clean or len(levels) < 2 or clean > 0.1):
                found.append((share, f"{name} in {words}", correlation))
    if not evidence.origins:
        return None
    share, words, correlation = max(found, default=(0.0, "", 0.0))
    if share < 0.1:
        return Cause("noise", 0.0, f"at most {percent(share)} of what a state varies by is noise")
    figure = (
        f"{words}: {percent(share)} of what it varies by is white noise (one change undoes the one"
        f" before: correlation {correlation:.2f})"
    )
    fix = "look at the sensor or tracker: light, distance, filter; or average over some frames"
    return Cause("noise", 0.92, figure, fix)


def elsewhere(evidence: Evidence) -> Cause | None:
    """Episodes that start where no demonstration started."""
    if len(evidence.shown) < 2 or not len(evidence.acted):
        return None
    outside: dict[str, tuple[float, float, Vector]] = {}
    for name in _calm(evidence):
        starts = np.array([v[0] for v in _without_turns(evidence.shown, name)])
        began = np.array([v[0] for v in _without_turns(evidence.acted, name)])
        low, high = starts.min(0), starts.max(0)
        margin = (
            0.3 * (high - low)
            + 0.3 * np.concatenate(list(_without_turns(evidence.shown, name))).std(0)
            + 1e-3
        )
        beyond = np.maximum(low - began, began - high)
        share = (beyond > margin).mean(0)
        column = int(share.argmax())
        outside[f"{name}[{column}]"] = (
            float(share[column]),
            float(np.median(beyond[:, column])),
            np.array([low[column], high[column]]),
        )
    if not outside:
        return None
    worst = max(outside, key=lambda words: outside[words][0])
    share, by, (low_, high_) = outside[worst]
    figure = (
        f"{percent(share)} of the policy's episodes begin with {worst} outside of the"
        f" demonstrations' {low_:.3g} to {high_:.3g}"
    )
    if share < 0.7:
        return Cause("demonstrations elsewhere", 0.0, figure)
    fix = "demonstrate from where the policy begins, or put robot and objects back there"
    return Cause("demonstrations elsewhere", 0.85, f"{figure}, mostly by {by:.3g}", fix)


def overlap(evidence: Evidence) -> Cause | None:
    """A policy that is mostly far from all demonstrations."""
    names = _calm(evidence)
    if len(evidence.shown) < 2 or not len(evidence.acted) or not names:
        return None

    def states(origin: Origin) -> list[Vector]:
        columns = zip(*(_without_turns(origin, name) for name in names), strict=True)
        return [np.concatenate(episode, axis=1) for episode in columns]

    shown, acted = states(evidence.shown), states(evidence.acted)
    spread = np.concatenate(shown).std(0)
    scale = np.where(spread > 1e-4, spread, np.inf)  # a constant column adds no distance
    tree = cKDTree(np.concatenate(shown[1:]) / scale)
    # Usual distance of one demonstration from the others.
    usual = float(np.quantile(tree.query(shown[0] / scale)[0], 0.95))
    others = cKDTree(np.concatenate(shown) / scale)
    away = others.query(np.concatenate(acted)[-_NEIGHBOURS:] / scale)[0] > 2.0 * usual
    figure = f"{percent(away.mean())} of the policy's steps are far from all that was demonstrated"
    fix = "demonstrate more widely; or correct the policy where it goes: operator, dagger.rounds"
    return Cause("overlap", 0.0 if away.mean() < 0.7 else 0.37, figure, fix)


def _films(evidence: Evidence) -> Iterator[tuple[str, list[tuple[Any, npt.NDArray[np.uint8]]]]]:
    """Yield for each camera and origin, as text: episodes with the images of their first steps."""
    for camera in evidence.schema.colour_cameras if evidence.schema else ():
        for words, origin in evidence.origins.items():
            films = [(rows, film) for rows, film in origin.pictures(camera) if len(film) > 1]
            if films:
                yield f"{camera.removeprefix('images/')} in {words}", films


def _places(rows: npt.NDArray[np.void]) -> list[int]:
    """Rows from which the TCP moves, up to the next, far enough to show in an image."""
    if _POSE not in (rows.dtype.names or ()):
        return []
    kept = [0]
    for row, place in enumerate(rows[_POSE][:, :3]):
        if np.linalg.norm(place - rows[_POSE][kept[-1], :3]) > _MOVED:
            kept.append(row)
    return kept


def _numbers(evidence: Evidence) -> list[str]:
    """States that the policy observes or that are poses, and that both origins have."""
    names = [*evidence.observed, _POSE, OBJECT_POSES]
    return [n for n in dict.fromkeys(names) if all(o.has(n) for o in evidence.origins.values())]


def _calm(evidence: Evidence) -> list[str]:
    """The states of `_numbers` that do not jitter."""
    return [n for n in _numbers(evidence) if not any(word in n for word in _LIVELY)]


def _without_turns(origin: Origin, name: str) -> Iterator[Vector]:
    """Values by episode; only positions of poses, since a quaternion may flip its sign."""
    poses = name in (_POSE, OBJECT_POSES)
    for values in origin.each(name):
        if poses:
            values = values.reshape(len(values), -1, 7)[..., :3].reshape(len(values), -1)
        yield values


def _median_angle(turns: Vector, turn: Vector) -> float:
    return float(np.median(2.0 * np.arccos(np.clip(np.abs(turns @ turn), 0.0, 1.0))))


def _white(origin: Origin, name: str) -> tuple[float, float]:
    """Return noise relative to spread, and how much a change undoes the previous one.

    For the noisiest column. Successive changes of white noise have a correlation of -0.5.
    """
    episodes = list(_without_turns(origin, name))
    changes = [np.diff(values, axis=0) for values in episodes]
    spread = np.concatenate(episodes).std(0)
    pairs = [(c[:-1], c[1:]) for c in changes if len(c) > 1]
    if not pairs:
        return 0.0, 0.0
    first, second = (np.concatenate(part) for part in zip(*pairs, strict=True))
    power = np.maximum((first**2).mean(0), 1e-18)
    correlation = (first * second).mean(0) / power
    # The variance of a change in white noise is twice the noise variance.
    share = np.sqrt(power / 2.0) / np.maximum(spread, 1e-6)
    share[correlation > -0.35] = 0.0
    share[spread < 1e-4] = 0.0
    column = int(share.argmax())
    return float(share[column]), float(correlation[column])


CHECKS: tuple[Check, ...] = (
    units,
    quaternions,
    dead_camera,
    frozen_camera,
    constant_features,
    constant_observation,
    noise,
    elsewhere,
    overlap,
)
