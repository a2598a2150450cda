"""What a reader of another format gives: columns as they are, and why others cannot be read."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from robot_rl.data.episode_files import DatasetDamaged
from robot_rl.data.schema import Array

ALL = "all"


@dataclass(frozen=True)
class ForeignEpisode:
    """The requested columns of one episode."""

    name: str  # as the dataset calls it
    # (T, ...) each, or (T + 1, ...) with the observation after the last action.
    columns: Mapping[str, Array]
    unreadable: Mapping[str, str] = field(default_factory=dict)  # the other columns, and why
    instruction: str = ""  # the task of the episode in words


Episodes = Iterator[ForeignEpisode]


@dataclass(frozen=True)
class ForeignDataset:
    """A dataset in a format that is not ours."""

    kind: str  # the format in words, with what its metadata says
    # The choices of episodes that the mapping file has, and how many each takes.
    counts: Mapping[str, int]
    # What the numbers of each column are called, () where they have no names.
    columns: Mapping[str, tuple[str, ...]]
    # Takes names of columns and a choice; yields episodes, each with its unreadable columns.
    # `DatasetDamaged` where the data contradicts itself.
    episodes: Callable[[Collection[str], str], Episodes]
    rate: float | None = None  # steps per second [Hz]; None where nothing says it
    # Values that the metadata gives to keys of the mapping file.
    answers: Mapping[str, Any] = field(default_factory=dict)
    # Observations, and the columns that these are for certain.
    observed: Mapping[str, str] = field(default_factory=dict)
    # Columns that no episode has in a form that can be read, and why.
    unreadable: Mapping[str, str] = field(default_factory=dict)
    notes: Collection[str] = ()  # missing and unreadable parts, for a person


def one_line(text: str) -> str:
    """A text that is not ours, without what would begin another line or command a terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def reason(error: BaseException) -> str:
    """Why something cannot be read, on one line and without advice."""
    return one_line(str(error).partition("; next: ")[0])


def read_columns(
    names: Collection[str], read: Callable[[str], Any]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Read columns one by one; gives those that can be read, and why the others cannot."""
    columns, unreadable = dict[str, Any](), dict[str, str]()
    for name in names:
        try:
            columns[name] = read(name)
        except DatasetDamaged as error:
            unreadable[name] = reason(error)
    return columns, unreadable


def parsed(text: object, what: str, notes: list[str]) -> dict[str, Any]:
    """Parse a JSON object of a dataset; gives {}, and adds a note, if it is not one."""
    if isinstance(text, Mapping):
        return dict(text)
    try:
        content = json.loads(text if isinstance(text, bytes) else str(text))
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        notes.append(f"{what} is not used: it is no JSON object")
        return {}
    return content


def first_readable(dataset: ForeignDataset, names: Collection[str], choice: str) -> ForeignEpisode:
    """Find the first episode in which all of these columns can be read.

    Raises:
        DatasetDamaged: There is none; the message says why the first one cannot be used.
    """
    why = ""
    for episode in dataset.episodes(names, choice):
        if not episode.unreadable:
            return episode
        why = why or f"{episode.name}: {'; '.join(sorted({*episode.unreadable.values()}))}"
    raise DatasetDamaged(
        f"no episode has all of {', '.join(sorted(names))} in a form that can be read",
        got=why or "no episode",
        hint="leave out of the mapping what it marks as unreadable, or repair the files",
    )
