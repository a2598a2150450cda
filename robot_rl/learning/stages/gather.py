"""The rounds of RL-100: run the accepted policy, then re-clone it from all successes.

All gathered episodes of a run are in one dataset, gathered.zarr, which is the only record of
progress. Each purpose has its own seeds, so an interrupted gathering finds its episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from enum import IntEnum, unique
from pathlib import Path
from typing import NamedTuple

import numpy as np

from policies.behaviour import Behaviour
from policies.diffusion import DiffusionPolicy
from robot_rl.config import ConfigError, Settings
from robot_rl.data.episodes import EpisodeDataset, EpisodeWriter
from robot_rl.data.schema import SOURCE_POLICY
from robot_rl.env.rollout import SeedStream, training_seed
from robot_rl.learning.recipe import Stage
from robot_rl.learning.stages.clone import clone
from robot_rl.learning.workbench import Workbench
from robot_rl.run import ACCEPTED, CANDIDATE, CLONED, DEMONSTRATIONS, GATHERED, RunDirectory

_ROOM = 1 << 16  # maximum episodes per purpose and round


class Gather(Stage):
    """Runs the accepted policy, exploring by sampling the steps of its generative process.

    Operators may intervene and discard episodes. Steps they drive are marked as interventions.

    Args:
        episodes: Number of episodes per round.
        exploration_std: Minimum standard deviation of each step of the process.
        settings: Settings of the run.
        round: Repetition number, from 1. 0 if not repeated.
    """

    makes = (GATHERED, ACCEPTED)

    def __init__(
        self, episodes: int, exploration_std: float, settings: Settings, round: int = 0
    ) -> None:
        self._episodes, self._std = episodes, exploration_std
        self.settings, self._round = settings, round

    @property
    def needs(self) -> Sequence[str]:
        """Return the clone, which must be able to explore. Raise `ConfigError` if it cannot."""
        check_generative(self.settings)
        if not (isinstance(self._episodes, int) and self._episodes > 0):
            problem = "the episodes to gather in a round are out of range"
            raise ConfigError(problem, got=self._episodes, expected=">= 1")
        return (DEMONSTRATIONS, CLONED)

    def run(self, bench: Workbench) -> None:
        """Run the remaining episodes of this round."""
        acting = exploring(accepted_policy(bench), self._std)
        words = f"gathering, round {self._round}" if self._round else "gathering"
        episodes = gathered(bench, acting, self._episodes, Purpose.DATA, self._round, words)
        found = list(episodes)
        won, operated = sum(o.success for o in found), sum(o.operated for o in found)
        record = {"round": self._round, "episodes": len(found), "successes": won}
        steps = recorded_steps(bench.run.gathered)
        record |= {"operated": operated, "gathered_steps": steps}
        bench.run.append_jsonl("gathered", record)
        bench.say(
            f"{words}: {won} of {len(found)} episodes succeeded while exploring; {steps:,} steps"
            " are gathered so far, with those for the gate",
        )


class Reclone(Stage):
    """Continues cloning the accepted policy, from demonstrations and later successes.

    The result is a candidate. The gate decides once it has been improved.
    """

    needs = (DEMONSTRATIONS, GATHERED, ACCEPTED)
    makes = (CANDIDATE,)

    def __init__(self, round: int = 0) -> None:
        self._round = round

    def run(self, bench: Workbench) -> None:
        """Train and save."""
        accepted = bench.policy(ACCEPTED)
        before, shown = accepted.policy.base, [bench.demonstrations()]
        assert before is not None
        dataset = EpisodeDataset(bench.run.gathered)
        shown += [dataset] if dataset.successes.any() else []
        generator = bench.generator(f"reclone {self._round}")
        cloned = clone(bench, shown, accepted.vision, generator, before)
        bench.checkpoint(CANDIDATE, accepted.learned(cloned.policy, accepted.version))


def exploring(behaviour: Behaviour, std: float) -> Behaviour:
    """Return the behaviour with each process step sampled with at least this standard deviation."""
    policy = behaviour.policy
    assert isinstance(policy, DiffusionPolicy)
    return behaviour.learned(policy.under(policy.process.exploring(std)), behaviour.version)


def accepted_policy(bench: Workbench) -> Behaviour:
    """Return the last accepted policy, initially the clone."""
    if not bench.run.has_folder(ACCEPTED):
        accept(bench, bench.policy(CLONED), steps=0)
    return bench.policy(ACCEPTED)


def accept(bench: Workbench, behaviour: Behaviour, steps: int) -> None:
    """Deploy a behaviour, recording the environment steps it is based on."""
    bench.checkpoint(ACCEPTED, behaviour, state={"environment_steps": steps})


def check_generative(settings: Settings) -> None:
    """Check that the configured policy is generative, so that its chains can be improved."""
    if "process" not in settings.policy:
        raise ConfigError(
            f"the recipe {settings.choices['recipe']!r} improves a generative policy",
            got=f"policy={settings.choices['policy']}",
            hint="add policy=diffusion or policy=flow",
        )


@unique
class Purpose(IntEnum):
    """The purpose of gathered episodes."""

    DATA = 0  # to learn from
    JUDGEMENT = 1  # to judge a candidate
    ITERATIONS = 2  # of online learning


class EpisodeOutcome(NamedTuple):
    """How an episode ended."""

    success: bool
    operated: bool  # whether an operator intervened
    version: int  # version of the policy that acted


def gathered(
    bench: Workbench,
    behaviour: Behaviour | Callable[[int], Behaviour],
    episodes: int,
    purpose: Purpose,
    round_number: int,
    words: str,
    *,
    tries: int = 1,
) -> Generator[EpisodeOutcome, None, None]:
    """Yield the outcomes of `episodes` episodes: recorded ones first, then new ones.

    Close the generator to stop early. The arguments are those of `Workbench.gather`, except that a
    function `behaviour` receives the episode's number within this round, from 0.
    """
    first = len(Purpose) * _ROOM * round_number + _ROOM * purpose
    known = recorded_places(bench, purpose, round_number)[:episodes]
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
            yield EpisodeOutcome(episode.success, operated, episode.policy_version)


def recorded_places(bench: Workbench, purpose: Purpose, round_number: int) -> list[int]:
    """Return the indices in the dataset of the episodes gathered for a purpose, in order."""
    if not bench.run.gathered.exists():
        return []
    first = len(Purpose) * _ROOM * round_number + _ROOM * purpose
    seeds = EpisodeDataset(bench.run.gathered).seeds
    run_seed, numbers = bench.settings.seed, range(first, first + len(seeds))
    mine = [training_seed(run_seed, SeedStream.GATHERING, number) for number in numbers]
    places: list[int] = np.flatnonzero(np.isin(seeds, mine)).tolist()
    return places


def outcomes(run: RunDirectory) -> list[EpisodeOutcome]:
    """Return the outcome of each episode of the dataset."""
    if not run.gathered.exists():
        return []
    dataset = EpisodeDataset(run.gathered)
    columns = dataset.arrays(("intervened", "policy_version"))
    begins = np.append(0, dataset.episode_ends[:-1]).astype(int)
    operated = [bool(part.any()) for part in np.split(columns["intervened"], begins[1:])]
    versions = columns["policy_version"][begins].tolist()
    won = dataset.successes.tolist()
    return [EpisodeOutcome(*each) for each in zip(won, operated, versions, strict=True)]


def recorded_steps(path: Path) -> int:
    """Return the number of environment steps in a dataset. 0 if there is none."""
    if not path.exists():
        return 0
    dataset = EpisodeDataset(path)
    return dataset.rows_total - len(dataset)
