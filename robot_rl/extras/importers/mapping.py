"""The mapping file: which row field each column of a foreign dataset becomes.

`propose` writes one, with the values that the dataset's metadata declares and `???` for the others.
The user fills it in, and `read_mapping` reads it. It does not guess.
"""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from robot_rl.data.episodes import DatasetDamaged
from robot_rl.data.schema import Array, SchemaMismatch
from robot_rl.errors import did_you_mean, in_shell
from robot_rl.extras.importers.dataset import ALL, ForeignDataset, one_line
from robot_rl.extras.importers.foreign_pictures import camera_name, is_picture

BLANK = "???"
# Meanings of an action's numbers; the text below explains them.
ENVIRONMENT, RATES, ABSOLUTE = "environment", "rates", "absolute"
CONVENTIONS = (ENVIRONMENT, "joint", "delta", RATES, ABSOLUTE)
SUCCESS, NEVER, TERMINATED, ANY = "success", "never", "terminated", "any "
# Column names with the same meaning in all formats.
_CALLED = {
    "action": ("action", "actions"),
    "reward": ("next.reward", "reward", "rewards"),
    "terminated": ("next.terminated", "terminated", "terminations", "terminals"),
    "success": ("next.success", "success", "is_success", "infos/success", "infos/is_success"),
}
_MEANT = {name for names in _CALLED.values() for name in names}
_OBSERVED = re.compile(r"(?:observations?|obs)(?:[./](?:images?[./])?(.+))?")
_PART = re.compile(r"(.+)\[(\d*):(\d*)\]")
_TEXT = """\
# {kind}: {count} episodes, {steps:,} steps. Replace each {blank}, correct what is wrong, then run
#     {command}
# Its columns are below. Instead of one you may name a part, as in NAME[0:3], or a list of both.
{columns}{notes}

task: {task}  # as in task=NAME; with robot=gym the environment's id, as in robot.id=
control_rate_hz: {control_rate_hz}  # steps per second of the recording
# Which episodes: {choices}.
# Where all steps lie in a row, this is what ends an episode. If that is only its termination, and
# some were cut short, add timeouts or episode_ends to the file: nothing else tells them apart.
episodes: {episodes}
# state/NAME or images/CAMERA, named as the robot or the environment names them. images/NAME_depth
# is depth: uint16 in millimetres, or floats in metres.
observations:
{seen}
action: {action}
# environment: what a Gymnasium environment takes; its names are action_0, action_1, ...
# joint: positions of joints, or anything else that your robot takes as it is
# delta: steps of the tool in the base frame [m, rad]
# rates: velocity of the tool in the base frame [m/s, rad/s]
# absolute: the pose that the tool is to reach, in the base frame [m, rad]
action_convention: {action_convention}
# One name for each number of an action. A tool has x, y, z, rotation_x, rotation_y, rotation_z (a
# rotation vector; or qx, qy, qz, qw, or roll, pitch, yaw) and gripper; with two arms left/x and so
# on. null leaves a number out.
action_names: {action_names}
# The values that become -1 and 1: bounds of the environment or joint, the largest step of the tool
# (as in robot.limits), the open and the closed gripper. One number for all, or a list with one for
# each name; rotations count as rotation_x, rotation_y, rotation_z.
action_low: {action_low}
action_high: {action_high}
reward: {reward}  # a column; or success: 1 in each step that is a success, else 0
terminated: {terminated}  # a column; success: it ends an episode; never: all were cut short
# An episode is a success if COLUMN is true in its last step; any COLUMN: in any step; terminated:
# if it terminated; all: each is one.
success: {success}
"""


@dataclass(frozen=True)
class ForeignMapping:
    """The keys of a mapping file; the comments that `propose` writes explain them."""

    task: str
    control_rate_hz: float
    episodes: str
    observations: dict[str, Any]
    action: str | list[str]
    action_convention: str
    action_names: list[str | None]
    action_low: float | list[float]
    action_high: float | list[float]
    reward: str
    terminated: str
    success: str


def propose(path: Path, out: Path, file: Path, dataset: ForeignDataset) -> None:
    """Write a mapping file for the dataset at `path`, with the values that it declares.

    Its comments show the command that imports the dataset to `out`.

    Raises:
        SchemaMismatch: `file` exists, or cannot be written.
        DatasetDamaged: The dataset cannot be read.
    """
    choice = next(iter(dataset.counts))
    first, lines, steps = _survey(dataset, choice)
    answers: dict[str, Any] = {key.name: BLANK for key in fields(ForeignMapping)}
    for key, names in _CALLED.items():
        answers[key] = next((name for name in names if name in first), BLANK)
    answers.update(dataset.answers)
    if (action := answers["action"]) in first:
        numbered = (f"action_{i}" for i in range(first[action][0].size))
        answers["action_names"] = list(dataset.columns[action] or numbered)
    if dataset.rate:
        answers["control_rate_hz"] = dataset.rate
    if ALL in dataset.counts:
        answers["episodes"] = ALL
    observed = {own: name for own, name in dataset.observed.items() if name.split("[")[0] in first}
    others = {n: c for n, c in first.items() if n not in _MEANT and c.dtype != np.bool_}
    named = {n: called[1] for n in others if (called := _OBSERVED.fullmatch(n))}
    if not observed:  # without named observations, any other column may be one
        for name, part in (named or dict(zip(others, others, strict=True))).items():
            column, own = others[name], re.sub(r"[^\w-]+", "_", part or "observation")
            observed[camera_name(own, column) if is_picture(column) else f"state/{own}"] = name
    observations = [f"  {_flow(own)}: {_flow(name)}" for own, name in observed.items()]
    text = _TEXT.format(
        kind=one_line(dataset.kind),
        count=dataset.counts[choice],
        choices=one_line(", ".join(f"{name} ({count})" for name, count in dataset.counts.items())),
        steps=steps,
        blank=BLANK,
        command=one_line(in_shell("robot-rl", "import", path, out, f"map={file}")),
        columns="\n".join(lines),
        notes="".join(f"\n# {one_line(note)}." for note in dataset.notes),
        seen="\n".join(observations) or f"  state/observation: {BLANK}",
        **{key: _flow(value) for key, value in answers.items()},
    )
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(text)
    except OSError as error:
        raise SchemaMismatch(
            f"the mapping file {file} cannot be written",
            got=error.strerror,
            hint=f"if it is there, fill it in and give map={file}, or remove it",
        ) from error


def read_mapping(file: Path, dataset: ForeignDataset) -> ForeignMapping:
    """Read a mapping file that the user has filled in, or raise `SchemaMismatch`."""
    keys = {field.name: str(field.type) for field in fields(ForeignMapping)}
    try:
        given = dict(yaml.safe_load(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError, yaml.YAMLError) as error:
        raise SchemaMismatch(
            f"the mapping file {file} cannot be read", got=" ".join(repr(error).split())
        ) from error
    for key in sorted({*keys} ^ {*given}, key=str):
        raise SchemaMismatch(
            f"{file} {'lacks the' if key in keys else 'has an unknown'} key {key!r}",
            expected=", ".join(keys),
            hint=None if key in keys else did_you_mean(str(key), keys),
        )
    blanks = [key for key in keys if given[key] in (None, {}, []) or BLANK in str(given[key])]
    if blanks:
        raise SchemaMismatch(f"fill in {', '.join(blanks)} in {file}", hint="its comments help")
    for key, kinds in keys.items():
        if type(given[key]).__name__.replace("int", "float") not in kinds:
            raise SchemaMismatch(
                f"{file}: {key} is not right", got=repr(given[key]), expected=kinds
            )
    if named := [key for key in given["observations"] if not isinstance(key, str)]:
        raise SchemaMismatch(f"{file}: an observation has no name", got=named, expected="a text")
    mapping = ForeignMapping(**given)
    _check(file, mapping, dataset)
    return mapping


def parts(named: Any) -> list[tuple[str, slice]]:
    """Split NAME, NAME[0:3] or a list of these into columns and slices of their numbers."""
    found = []
    for text in named if isinstance(named, list) else [named]:
        part = _PART.fullmatch(str(text))
        name, *edges = part.groups() if part else (str(text), "", "")
        found.append((name, slice(*(int(edge) if edge else None for edge in edges))))
    return found


def _check(file: Path, mapping: ForeignMapping, dataset: ForeignDataset) -> None:
    """Refuse a mapping that contradicts the dataset."""
    rate = mapping.control_rate_hz
    if not 0.0 < rate < math.inf or abs(rate / (dataset.rate or rate) - 1.0) > 1e-3:
        raise SchemaMismatch(
            f"{file}: the demonstrations were recorded at another rate than control_rate_hz",
            got=rate,
            expected=dataset.rate or "above 0",
            hint="import them at their own rate, and train with control_rate_hz= of that",
        )
    columns = {*dataset.columns}
    allowed = {
        "episodes": {*dataset.counts},
        "action": columns,
        "action_convention": {*CONVENTIONS},
        "reward": {*columns, SUCCESS},
        "terminated": {*columns, SUCCESS, NEVER},
        "success": {*columns, ALL, TERMINATED},
    }
    given: dict[str, Any] = {**vars(mapping), "success": mapping.success.removeprefix(ANY)}
    for key, value in {**{key: given[key] for key in allowed}, **mapping.observations}.items():
        known = allowed.get(key, columns)
        for name, _ in parts(value):
            if name not in known and name in dataset.unreadable:
                raise SchemaMismatch(
                    f"{file}: {key} names a column that cannot be read",
                    got=f"{name}: {dataset.unreadable[name]}",
                    hint="name another one, or repair the files",
                )
            if name not in known:
                valid = f"one of {', '.join(sorted(known))}"
                valid += ", or any COLUMN" if key == "success" else ""
                raise SchemaMismatch(f"{file}: {key} is not right", got=name, expected=valid)


def _survey(dataset: ForeignDataset, choice: str) -> tuple[dict[str, Array], list[str], int]:
    """Inspect every column.

    Returns each column's values in the first episode in which it can be read, a line of text per
    column, and the number of steps.
    """
    missing, lost, found = dict.fromkeys(dataset.columns), dict[str, str](), dict[str, Array]()
    for number in range(dataset.counts[choice]):
        if number and not missing:
            break
        # Do not read columns again that were found: images take long.
        episode = next(itertools.islice(dataset.episodes(missing, choice), number, None))
        found |= {name: c for name, c in episode.columns.items() if len(c)}
        lost = {**episode.unreadable, **lost}
        missing = dict.fromkeys(name for name in missing if name not in found)
    if not found:
        raise DatasetDamaged(
            "no column of any episode can be read",
            got="; ".join(sorted({*lost.values()}))[:500],
            hint="copy or download the dataset again",
        )
    first = {name: found[name] for name in dataset.columns if name in found}
    spans = {name: (np.inf, -np.inf) for name, c in first.items() if not is_picture(c)}
    steps, counts = 0, dict.fromkeys(spans, 0)
    for episode in dataset.episodes(spans, choice):
        steps += min(map(len, episode.columns.values()), default=0)
        for name, why in episode.unreadable.items():
            counts[name] += 1
            lost[name] = f"{why}; {counts[name]} of {dataset.counts[choice]} episodes lack it"
        for name, column in episode.columns.items():
            low, high = spans[name]
            spans[name] = np.minimum(low, column.min()), np.maximum(high, column.max())
    ranges = {name: "  {:.4g} to {:.4g}".format(*span) for name, span in spans.items()}
    lines = []
    for name, c in first.items():
        line = f"{name}  {c.dtype} {c.shape[1:]}{ranges.get(name, '')}"
        line += f"  {' '.join(dataset.columns[name])}".rstrip()
        lines.append(line + (f"  (unreadable in part: {lost[name]})" if name in lost else ""))
    unreadable = {**dataset.unreadable, **{n: why for n, why in lost.items() if n not in first}}
    lines += [f"{name}  unreadable: {why}" for name, why in unreadable.items()]
    return first, [f"#   {one_line(line)}" for line in lines], steps


def _flow(value: Any) -> str:
    """A value as YAML, on one line."""
    text = str(yaml.safe_dump(value, default_flow_style=True, width=math.inf))
    return BLANK if value == BLANK else text.removesuffix("\n").removesuffix("\n...")
