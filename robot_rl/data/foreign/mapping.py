"""The mapping file: what the columns of a foreign dataset are in a row of ours.

`propose` writes one, with what the dataset says of itself and `???` for all else. A person fills it
in, and `read_mapping` reads it. What cannot be told is never guessed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from robot_rl.data.foreign import ForeignDataset
from robot_rl.data.schema import SchemaMismatch
from robot_rl.errors import did_you_mean

BLANK = "???"
SUCCESS, NEVER, ALL, TERMINATED, ANY = "success", "never", "all", "terminated", "any "
# Columns that mean what they are called, in the formats that are read.
_CALLED = {
    "action": ("action", "actions"),
    "reward": ("next.reward", "reward", "rewards"),
    "terminated": ("next.terminated", "terminated", "terminations", "terminals"),
    "success": ("next.success", "success", "is_success", "infos/success", "infos/is_success"),
}
_OBSERVED = re.compile(r"(?:observations?|obs)(?:[./](?:images?[./])?(.+))?")
_PART = re.compile(r"(.+)\[(\d*):(\d*)\]")
_TEXT = """\
# {kind}: {count} episodes, {steps:,} steps. Fill in each {blank}, correct what is not so, then
#     robot-rl import {path} {out} map={file}
# What names a column may name a part of it, as in NAME[0:3], or be a list of such names.
{columns}

task: {task}  # as in task=NAME; with robot=gym the environment's id, as in robot.id=
control_rate_hz: {rate}  # steps per second of the recording
observations:  # state/NAME and images/CAMERA, as the robot or the environment has them
{observations}
action: {action}
# environment: what a Gymnasium environment takes; its names are action_0, action_1, ...
# joint: positions of joints, or what else a robot of yours takes that moves no tool
# delta: steps of the tool in the base frame [m, rad]
# rates: its velocity [m/s, rad/s]
# absolute: the pose that it is to reach [m, rad]
action_convention: {action_convention}
# A tool has x, y, z, rotation_x, rotation_y, rotation_z (a rotation vector) and gripper; qx, qy,
# qz, qw or roll, pitch, yaw become a rotation; left/x and so on of two arms; null leaves one out.
action_names: {action_names}
# What becomes -1 and 1: the bounds of the environment or joint, the largest step of the tool (as in
# robot.limits), the open and the closed gripper. A number, or one for each name of ours.
action_low: {action_low}
action_high: {action_high}
reward: {reward}  # a column; success: 1 in a step that is a success, else 0
terminated: {terminated}  # a column; success: a success ends it; never: it was cut at some time
success: {success}  # a column, true in the last step; any COLUMN: in some step; all; terminated
"""


@dataclass(frozen=True)
class ForeignMapping:
    """What a mapping file says: its keys, as the text that `propose` writes explains them."""

    task: str
    control_rate_hz: float
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
    """Write a mapping file for a dataset, with what it says of itself.

    Args:
        path: The dataset.
        out: Where the import is to go, for the command in the text.
        file: The mapping file.
        dataset: The dataset, opened.

    Raises:
        SchemaMismatch: There is something at `file`.
        DatasetDamaged: The dataset cannot be read.
    """
    first, _ = next(dataset.episodes(dataset.columns))
    told: dict[str, Any] = {
        key: next((name for name in names if name in dataset.columns), BLANK)
        for key, names in _CALLED.items()
    }
    for key in ("task", "action_convention", "action_names", "action_low", "action_high"):
        told[key] = BLANK
    if told["action"] != BLANK:
        width = first[told["action"]][0].size
        names = dataset.columns[told["action"]] or (f"action_{i}" for i in range(width))
        told["action_names"] = list(names)
    observations = {}
    for name in dataset.columns:
        if called := _OBSERVED.fullmatch(name):
            kind = "images" if first[name].dtype == np.uint8 and first[name].ndim == 4 else "state"
            own = re.sub(r"[^\w-]+", "_", called[1] or "observation")
            observations[f"{kind}/{own}"] = name
    lines = [f"  {_flow(ours)}: {_flow(name)}" for ours, name in observations.items()]
    columns, steps = _columns(dataset, [name for name in first if first[name].ndim < 3])
    pictures = [f"#   {n}  {a.dtype} {a.shape[1:]}" for n, a in first.items() if a.ndim > 2]
    text = _TEXT.format(
        kind=dataset.kind,
        count=dataset.count,
        steps=steps,
        blank=BLANK,
        path=path,
        out=out,
        file=file,
        columns="\n".join([*columns, *pictures]),
        rate=dataset.rate or BLANK,
        observations="\n".join(lines) or f"  state/observation: {BLANK}",
        **{key: _flow(value) for key, value in {**told, **dataset.answers}.items()},
    )
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(text)
    except FileExistsError as error:
        raise SchemaMismatch(
            f"there is a mapping file {file} already",
            hint=f"fill it in and give map={file}, or remove it for a new proposal",
        ) from error


def read_mapping(file: Path, dataset: ForeignDataset) -> ForeignMapping:
    """Read a mapping file that somebody has filled in.

    Raises:
        SchemaMismatch: It cannot be read, has a blank, or names what the dataset does not have.
    """
    keys = {field.name: str(field.type) for field in fields(ForeignMapping)}
    try:
        told = dict(yaml.safe_load(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, yaml.YAMLError) as error:
        raise SchemaMismatch(
            f"the mapping file {file} cannot be read", got=" ".join(repr(error).split())
        ) from error
    for key in sorted({*keys} ^ {*told}, key=str):
        raise SchemaMismatch(
            f"{file} {'lacks the' if key in keys else 'has an unknown'} key {key!r}",
            expected=", ".join(keys),
            hint=None if key in keys else did_you_mean(str(key), keys),
        )
    for key, kinds in keys.items():
        given = "list" if isinstance(told[key], list) else type(told[key]).__name__
        if BLANK not in str(told[key]) and given.replace("int", "float") not in kinds:
            raise SchemaMismatch(f"{file}: {key} is not right", got=repr(told[key]), expected=kinds)
    blanks = [key for key in keys if told[key] in (None, {}, []) or BLANK in str(told[key])]
    if blanks:
        hint = "the comments there say what may stand"
        raise SchemaMismatch(f"fill in {', '.join(blanks)} in {file}", hint=hint)
    mapping = ForeignMapping(**told)
    _check(file, mapping, dataset)
    return mapping


def parts(named: Any) -> list[tuple[str, slice]]:
    """The columns, and which of their numbers, that NAME, NAME[0:3] or a list of these means."""
    found = []
    for text in named if isinstance(named, list) else [named]:
        part = _PART.fullmatch(str(text))
        name, *edges = part.groups() if part else (str(text), "", "")
        found.append((name, slice(*(int(edge) if edge else None for edge in edges))))
    return found


def _check(file: Path, mapping: ForeignMapping, dataset: ForeignDataset) -> None:
    """Check what the dataset itself can contradict."""
    rate = mapping.control_rate_hz
    if not 0.0 < rate < math.inf:
        raise SchemaMismatch(f"{file}: control_rate_hz is not right", got=rate, expected="above 0")
    if dataset.rate is not None and abs(rate / dataset.rate - 1.0) > 1e-3:
        raise SchemaMismatch(
            f"{file}: the demonstrations were recorded at another rate than control_rate_hz",
            got=rate,
            expected=dataset.rate,
            hint="import them at their own rate, and train with control_rate_hz= of that",
        )
    if (mapping.success, mapping.terminated) == (TERMINATED, SUCCESS):
        raise SchemaMismatch(
            f"{file}: success and terminated refer to each other", hint="name a column in one"
        )
    words = {"reward": {SUCCESS}, "terminated": {SUCCESS, NEVER}, "success": {ALL, TERMINATED}}
    told: dict[str, Any] = {**vars(mapping), "success": str(mapping.success).removeprefix(ANY)}
    named = {key: told[key] for key in (*words, "action")}
    for key, value in {**named, **dict(mapping.observations)}.items():
        allowed = {*dataset.columns, *words.get(key, ())}
        for name, _ in parts(value):
            if name not in allowed:
                raise SchemaMismatch(
                    f"{file}: {key} names a column that the dataset does not have",
                    got=name,
                    expected=f"one of {', '.join(sorted(allowed))}",
                )


def _columns(dataset: ForeignDataset, names: Collection[str]) -> tuple[list[str], int]:
    """A line for each of these columns, with its range, and the number of steps."""
    spans = dict.fromkeys(names, (math.inf, -math.inf))
    lines, steps = {}, 0
    for values, _ in dataset.episodes(names):
        steps += min((len(values[name]) for name in names), default=0)
        for name, (low, high) in spans.items():
            column = values[name]
            spans[name] = min(low, float(column.min())), max(high, float(column.max()))
            called = " ".join(dataset.columns[name])
            span = "{:.4g} to {:.4g}".format(*spans[name])
            lines[name] = (
                f"#   {name}  {column.dtype} {column.shape[1:]}  {span}  {called}".rstrip()
            )
    return list(lines.values()), steps


def _flow(value: Any) -> str:
    """A value as YAML, on one line."""
    text = str(yaml.safe_dump(value, default_flow_style=True, width=math.inf))
    return BLANK if value == BLANK else text.removesuffix("\n").removesuffix("\n...")
