"""HDF5 of robomimic (`data/demo_0/obs/NAME`, filter keys in `mask`), Minari and D4RL."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from robot_rl.data.episode_files import damage, inside
from robot_rl.errors import require
from robot_rl.extras.importers.arrays import Arrays, Part, dataset_of, flat_dataset, whole_parts
from robot_rl.extras.importers.dataset import ALL, ForeignDataset, one_line, parsed

_HINT = "copy or download it again"
_EPISODE = re.compile(r"[A-Za-z]+_\d+")
_LEAST_BOUND = 1e30  # a larger bound is just the dtype's largest number: unbounded


def open_hdf5(path: Path) -> ForeignDataset:
    """Open a file of robomimic, Minari or D4RL; raises `DatasetError`."""
    h5py = require("h5py", "hdf5")
    notes: list[str] = []
    with damage(path, hint=_HINT):
        file: Any = h5py.File(path, "r")
        if _is_group(file, "data"):
            return _robomimic(path, file, notes)
        if any(_EPISODE.fullmatch(name) and _is_group(file, name) for name in file):
            whole = {ALL: [*_groups(file, notes).values()]}
            return dataset_of(path, "Minari", whole, notes, _minari_answers(path, notes))
        return flat_dataset(path, "D4RL", _arrays(path.name, file), notes)


def _robomimic(path: Path, file: Any, notes: list[str]) -> ForeignDataset:
    written = file["data"].attrs.get("env_args")
    declared = {} if written is None else parsed(written, "env_args", notes)
    options = declared.get("env_kwargs")
    rate = options.get("control_freq") if isinstance(options, dict) else None
    if not isinstance(rate, int | float) or not 0 < rate < math.inf:
        rate = None
    groups = _groups(file["data"], notes)
    choices: dict[str, Sequence[Part]] = {ALL: [*groups.values()]}
    for key in [*file["mask"]] if _is_group(file, "mask") else ():
        try:
            names = [str(name) for name in np.ravel(file["mask"][key].asstr()[:])]
        except Exception as error:  # h5py raises many kinds for a damaged mask
            notes.append(f"mask/{key} cannot be read: {one_line(str(error))}")
            continue
        choices[key] = [groups[name] for name in names if name in groups]
        if lost := [name for name in names if name not in groups]:
            notes.append(f"mask/{key} names {', '.join(lost)}, which cannot be read")
    kind = f"robomimic, environment {declared.get('env_name')}"
    return dataset_of(path, kind, choices, notes, {}, None if rate is None else float(rate))


def _minari_answers(path: Path, notes: list[str]) -> dict[str, Any]:
    file = inside(path.parent, "metadata.json")
    if not file.is_file():
        return {}
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        notes.append(f"metadata.json cannot be read: {error}")
        return {}
    declared = parsed(text, "metadata.json", notes)
    spec, space = (
        parsed(declared[key], f"{key} of metadata.json", notes) if declared.get(key) else {}
        for key in ("env_spec", "action_space")
    )
    answers: dict[str, Any] = {} if spec.get("id") is None else {"task": str(spec["id"])}
    if space.get("type") == "Box":
        try:
            bounds = [np.ravel(np.asarray(space[k], np.float64)) for k in ("low", "high")]
            low, high = np.broadcast_arrays(*bounds)
        except (KeyError, ValueError, TypeError):
            notes.append("action_space of metadata.json is not used: it has no low and high")
            return answers
        answers["action_convention"] = "environment"
        if (np.abs([low, high]) < _LEAST_BOUND).all() and (low < high).all():
            answers |= {"action_low": low.tolist(), "action_high": high.tolist()}
        else:
            notes.append("action_space of metadata.json bounds nothing: name the bounds yourself")
    return answers


def _is_group(parent: Any, name: str) -> bool:
    """Whether a group has a subgroup of this name in the same file."""
    from h5py import Group, HardLink

    link = parent.get(name, getlink=True) if name in parent else None
    return isinstance(link, HardLink) and parent.get(name, getclass=True) is Group


def _groups(parent: Any, notes: list[str]) -> dict[str, Part]:
    """One episode per group, in the order of the numbers in their names."""
    found = []
    for name in sorted(parent, key=lambda name: (len(name), name)):
        if _is_group(parent, name):
            found.append(_arrays(name, parent[name]))
        elif _EPISODE.fullmatch(name):
            notes.append(f"{name} is left out: it is no group of this file")
    return whole_parts(found, notes)


def _arrays(name: str, group: Any) -> Arrays:
    """All datasets below a group except single values, as `obs/NAME`."""
    from h5py import Dataset, HardLink

    found: dict[str, Any] = {}
    unreadable: dict[str, str] = {}

    def visit(name: str, link: Any) -> None:
        if not isinstance(link, HardLink):
            unreadable[name] = "it is a link, and what it leads to may be in another file"
            return
        try:
            it = group[name]
            if not isinstance(it, Dataset) or not it.shape:
                return
            is_elsewhere = it.external or (
                it.is_virtual and any(s.file_name != "." for s in it.virtual_sources())
            )
        except Exception as error:  # h5py raises many kinds for a damaged part
            unreadable[name] = one_line(str(error))
            return
        if is_elsewhere:
            unreadable[name] = "its numbers are in another file"
        else:
            found[name] = it

    group.visititems_links(visit)
    return Arrays(name, found, unreadable)
