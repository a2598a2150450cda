"""Episodes that a run gathers with the policies that it improves: one dataset, gathered.zarr.

The dataset alone says what is done. Each purpose has seeds of its own, so that whoever goes on with
an interrupted gathering finds its episodes again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from enum import IntEnum, unique
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from policies.behaviour import Behaviour
from robot_rl.data.episodes import EpisodeDataset, EpisodeWriter
from robot_rl.data.schema import SOURCE_POLICY
from robot_rl.env.rollout import SeedStream, training_seed
from robot_rl.learning.workbench import Workbench
from robot_rl.run import RunDirectory

_ROOM = 1 << 16  # most episodes of one purpose in one round


@unique
class Purpose(IntEnum):
    """What episodes are gathered for."""

    DATA = 0  # to learn from
    JUDGEMENT = 1  # to judge a candidate
    ITERATIONS = 2  # of online learning


class Outcome(NamedTuple):
    """How an episode ended."""

    success: bool
    operated: bool  # whether an operator took part
    version: int  # of the policy that acted


def gathered(
    bench: Workbench,
    behaviour: Behaviour | Callable[[int], Behaviour],
    episodes: int,
    purpose: Purpose,
    round_number: int,
    words: str,
    *,
    tries: int = 1,
) -> Generator[Outcome, None, None]:
    """Give the outcomes of so many episodes, in order: what is recorded first, then what it runs.

    Whoever wants no more closes this. The arguments are those of `Workbench.gather`; a function
    `behaviour` is asked with the number of the episode here, from 0.
    """
    first = len(Purpose) * _ROOM * round_number + _ROOM * purpose
    known = recorded(bench, purpose, round_number)[:episodes]
    yield from (outcomes(bench.run)[at] for at in known)
    if len(known) == episodes:
        return
    who = (lambda number: behaviour(number - first)) if callable(behaviour) else behaviour
    acted = bench.gather(
        who, episodes, SeedStream.GATHERING, words, first=first, done=len(known), tries=tries
    )
    with closing(acted), EpisodeWriter(bench.run.gathered, bench.demonstrations().schema) as writer:
        for episode in acted:
            episode.keep(writer, SOURCE_POLICY)
            operated = episode.intervened_steps > 0
            yield Outcome(episode.success, operated, episode.policy_version)


def recorded(bench: Workbench, purpose: Purpose, round_number: int) -> list[int]:
    """Places in the dataset of the episodes that were gathered for a purpose, in order."""
    if not bench.run.gathered.exists():
        return []
    first = len(Purpose) * _ROOM * round_number + _ROOM * purpose
    seeds = EpisodeDataset(bench.run.gathered).seeds
    run_seed, numbers = int(bench.config.seed), range(first, first + len(seeds))
    mine = [training_seed(run_seed, SeedStream.GATHERING, number) for number in numbers]
    places: list[int] = np.flatnonzero(np.isin(seeds, mine)).tolist()
    return places


def outcomes(run: RunDirectory) -> list[Outcome]:
    """How each episode of the dataset ended."""
    if not run.gathered.exists():
        return []
    dataset = EpisodeDataset(run.gathered)
    columns = dataset.arrays(("intervened", "policy_version"))
    begins = np.append(0, dataset.episode_ends[:-1]).astype(int)
    operated = _any_of(columns["intervened"], begins)
    versions = columns["policy_version"][begins].tolist()
    won = dataset.successes.tolist()
    return [Outcome(*each) for each in zip(won, operated, versions, strict=True)]


def recorded_steps(path: Path) -> int:
    """Environment steps in a dataset, which need not be there."""
    if not path.exists():
        return 0
    dataset = EpisodeDataset(path)
    return dataset.rows_total - len(dataset)


def _any_of(flags: npt.NDArray[np.bool_], begins: npt.NDArray[np.intp]) -> list[bool]:
    return [bool(part.any()) for part in np.split(flags, begins[1:])]
