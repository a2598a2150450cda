"""Stage `ImproveOnline`: improve the accepted policy online with PPO, then run the gate."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

from policies import registry
from policies.behaviour import Behaviour
from policies.compute import compute_device, explained_memory
from robot_rl.config import ConfigError, Settings
from robot_rl.data.episodes import EpisodeDataset
from robot_rl.extras.zoo.denoising_ppo import ChainSettings
from robot_rl.extras.zoo.online_ppo import OnlinePPO, OnlineSettings, executed_chunks, joined
from robot_rl.learning.demonstrations import fill_from_demonstrations
from robot_rl.learning.gate import Gate
from robot_rl.learning.recipe import Stage
from robot_rl.learning.stages.gather import (
    Purpose,
    accepted_policy,
    check_generative,
    gathered,
    recorded_places,
    recorded_steps,
)
from robot_rl.learning.stages.improve import decided
from robot_rl.learning.workbench import Workbench
from robot_rl.run import ACCEPTED, CLONED, DEMONSTRATIONS, GATHERED

IMPROVED = "checkpoints/improved"  # the stage resumes from here


class ImproveOnline(Stage):
    """Alternates between running the policy and learning from its episodes, then runs the gate.

    Acting and learning take turns, as on-policy learning requires, so no replay server is needed.

    Args:
        iterations: Number of iterations.
        episodes: Number of episodes per iteration.
        ppo: Settings of the learning.
        chain: How transitions of the process are scored.
        settings: Settings of the run.
    """

    makes = (IMPROVED, GATHERED, ACCEPTED)

    def __init__(
        self,
        iterations: int,
        episodes: int,
        ppo: OnlineSettings,
        chain: ChainSettings,
        settings: Settings,
    ) -> None:
        self._iterations, self._episodes = iterations, episodes
        self._ppo, self._chain, self.settings = ppo, chain, settings

    @property
    def needs(self) -> Sequence[str]:
        """Return the demonstrations and the clone. Raise if an option is invalid."""
        check_generative(self.settings)
        compute_device(self.settings.device)
        registry.make(self.settings.gate, Gate)
        for name, value in (("iterations", self._iterations), ("episodes", self._episodes)):
            if not (isinstance(value, int) and value > 0):
                raise ConfigError(f"improve_online.{name} is out of range", got=value)
        return (DEMONSTRATIONS, CLONED)

    @explained_memory("lower improve_online.ppo.batch_size, or add device=cpu")
    def run(self, bench: Workbench) -> None:
        """Act and learn, or resume, and let the gate decide."""
        accepted = accepted_policy(bench)
        base, seed = accepted.policy.base, self.settings.seed
        assert base is not None
        ppo, version = OnlinePPO(base, self._ppo, self._chain, seed), accepted.version
        ppo.to(bench.device)
        if bench.run.has_folder(IMPROVED):
            tensors, state = bench.training_state(IMPROVED)
            ppo.load_state_dict(tensors)
            ppo.iterations, version = int(state["iterations"]), int(state["version"])
        acting: dict[int, Behaviour] = {}

        def who(number: int) -> Behaviour:
            """Return the policy of an episode's iteration."""
            if ppo.iterations not in acting:
                acting.clear()
                learned = accepted.learned(ppo.acting_policy(), version + 1 + ppo.iterations)
                acting[ppo.iterations] = learned.exploring("mean")
            return acting[ppo.iterations]

        total, words = self._iterations * self._episodes, "improving online"
        episodes = gathered(bench, who, total, Purpose.ITERATIONS, 0, words)
        won = 0
        with closing(episodes):
            for count, outcome in enumerate(episodes, 1):
                won += outcome.success
                ended, rest = divmod(count, self._episodes)
                if rest == 0 and ended > ppo.iterations:
                    metrics = self._learn(bench, ppo, who(count - 1))
                    record = {**metrics, "success": won / self._episodes}
                    bench.run.append_jsonl("learner", record)
                    bench.checkpoint(
                        IMPROVED,
                        accepted.learned(ppo.policy(), version + ppo.iterations),
                        ppo.state_dict(),
                        {"iterations": ppo.iterations, "version": version}
                        | {"environment_steps": recorded_steps(bench.run.gathered)},
                    )
                won = won if rest else 0
        gate = registry.make(self.settings.gate, Gate)
        decided(bench, gate, accepted.learned(ppo.policy(), version + ppo.iterations), 0)

    def _learn(self, bench: Workbench, ppo: OnlinePPO, acted: Behaviour) -> dict[str, Any]:
        """Learn from the episodes of one iteration."""
        settings, dataset = self.settings, EpisodeDataset(bench.run.gathered)
        annotation = settings.reward["annotation"]
        shown = bench.demonstrations()
        filled = fill_from_demonstrations(settings.algorithm, annotation, shown)
        first = ppo.iterations * self._episodes
        places = recorded_places(bench, Purpose.ITERATIONS, 0)[first : first + self._episodes]
        parts = [
            executed_chunks(
                dataset.episode(at),
                acted,
                int(dataset.seeds[at]),
                dataset.instructions[at],
                float(filled["schedule"]["discount"]),
            )
            for at in places
        ]
        metrics = ppo.learn(joined(parts), acted.execute_steps)
        made = {
            "environment_steps": recorded_steps(bench.run.gathered),
            "gradient_updates": ppo.updates,
        }
        return {**made, "iteration": ppo.iterations, **metrics}
