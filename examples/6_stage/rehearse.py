"""A stage of one's own: the cloned policy practises, and is cloned again from what it did well."""

from __future__ import annotations

from robot_rl.data.episodes import EpisodeDataset, EpisodeWriter
from robot_rl.data.schema import SOURCE_POLICY
from robot_rl.learning.recipe import Stage
from robot_rl.learning.stages.clone import clone
from robot_rl.learning.workbench import Workbench
from robot_rl.run import CLONED, DEMONSTRATIONS

EPISODES = "rehearsal.zarr"
_SEEDS = 1 << 30  # a stream that nothing else draws from


class Rehearse(Stage):
    """Acts with some noise, and imitates the episodes that succeeded beside the demonstrations.

    Args:
        episodes: In which it acts.
        noise: Half width of the uniform noise on its actions.
        judged: Episodes on which the new policy has to do as well as the old one.
    """

    needs = (DEMONSTRATIONS, CLONED)
    makes = (EPISODES, CLONED)

    def __init__(self, episodes: int, noise: float, judged: int) -> None:
        self._episodes, self._noise, self._judged = episodes, noise, judged

    def run(self, bench: Workbench) -> None:
        """Act, clone, compare."""
        before, demonstrations = bench.policy(CLONED), bench.demonstrations()
        acting = before.exploring("mean", "uniform", self._noise)
        path = bench.run.path / EPISODES
        with EpisodeWriter(path, demonstrations.schema) as writer:
            done = len(writer)  # what an earlier start has recorded
            for episode in bench.gather(acting, self._episodes, _SEEDS, "rehearsing", done=done):
                episode.keep(writer, SOURCE_POLICY)
        shown = [demonstrations, EpisodeDataset(path)]  # of both, only what has succeeded
        after = clone(bench, shown, before.vision, bench.generator("rehearse"))
        old, new = (bench.evaluate(policy, self._judged) for policy in (before, after))
        record = {"before": old.success_rate, "after": new.success_rate}
        bench.run.append_jsonl("rehearsal", record)
        if new.successes >= old.successes:
            bench.checkpoint(CLONED, after)
