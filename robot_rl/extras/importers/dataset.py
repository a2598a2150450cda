"""The result of reading another format: raw columns, and why others cannot be read."""

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

    name: str  # the dataset's name for it
    # Each (T, ...), or (T + 1, ...) with the observation after the last action.
    columns: Mapping[str, Array]
    unreadable: Mapping[str, str] = field(default_factory=dict)  # the other columns, and why
    instruction: str = ""  # the episode's task as text


Episodes = Iterator[ForeignEpisode]


@dataclass(frozen=True)
class ForeignDataset:
    """A dataset in a foreign format."""

    kind: str  # human-readable format, with details from its metadata
    # The mapping file's choices of episodes, and how many episodes each selects.
    counts: Mapping[str, int]
    # Names of the numbers in each column, () if they have no names.
    columns: Mapping[str, tuple[str, ...]]
    # Takes column names and a choice; yields episodes, each with its unreadable columns. Raises
    # `DatasetDamaged` if the data contradicts itself.
    episodes: Callable[[Collection[str], str], Episodes]
    rate: float | None = None  # steps per second [Hz]; None if unspecified
    # Values for keys of the mapping file, from the metadata.
    answers: Mapping[str, Any] = field(default_factory=dict)
    # Observations whose columns are known for certain.
    observed: Mapping[str, str] = field(default_factory=dict)
    # Columns that are unreadable in every episode, and why.
    unreadable: Mapping[str, str] = field(default_factory=dict)
    notes: Collection[str] = ()  # missing and unreadable parts, for the user


def one_line(text: str) -> str:
    """Remove line breaks and terminal control characters from foreign text."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def reason(error: BaseException) -> str:
    """Return why something cannot be read, on one line and without the hint."""
    return one_line(str(error).partition("; next: ")[0])


def read_columns(
    names: Collection[str], read: Callable[[str], Any]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Read columns one by one; return the readable ones, and why the others failed."""
    columns, unreadable = dict[str, Any](), dict[str, str]()
    for name in names:
        try:
            columns[name] = read(name)
        except DatasetDamaged as error:
            unreadable[name] = reason(error)
    return columns, unreadable


def parsed(text: object, what: str, notes: list[str]) -> dict[str, Any]:
    """Parse a JSON object of a dataset; on failure add a note and return {}."""
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
    """Find the first episode in which all the named columns can be read.

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
