"""The rounds of RL-100: act with what was accepted, and clone it again from all that succeeded."""

from __future__ import annotations

from omegaconf import DictConfig

from policies.behaviour import Behaviour
from policies.diffusion import DiffusionPolicy
from robot_rl.config import ConfigError, check_least
from robot_rl.data.episodes import EpisodeDataset
from robot_rl.learning.gathering import Purpose, gathered, recorded_steps
from robot_rl.learning.recipe import Stage
from robot_rl.learning.stages.clone import clone
from robot_rl.learning.workbench import Workbench
from robot_rl.run import ACCEPTED, CANDIDATE, CLONED, DEMONSTRATIONS, GATHERED


class Gather(Stage):
    """The accepted policy acts, and explores by drawing the steps of its process.

    Operators may intervene and discard; steps in which they drive are marked as theirs.

    Args:
        episodes: Of each round.
        exploration_std: Least standard deviation of each step of the process.
    """

    needs = (DEMONSTRATIONS, CLONED)
    makes = (GATHERED, ACCEPTED)
    records = "gathered"

    def __init__(self, episodes: int, exploration_std: float) -> None:
        self._episodes, self._std = episodes, exploration_std

    def check(self, config: DictConfig) -> None:
        """Check the number of episodes, and that the policy can explore."""
        check_generative(config)
        if not (isinstance(self._episodes, int) and self._episodes > 0):
            problem = "the episodes to gather in a round are out of range"
            raise ConfigError(problem, got=self._episodes, expected=">= 1")

    def run(self, bench: Workbench) -> None:
        """Act for the episodes that are left of this round."""
        if not bench.run.has_folder(ACCEPTED):
            accept(bench, bench.policy(CLONED), steps=0)
        accepted = bench.policy(ACCEPTED)
        acting = exploring(accepted, self._std)
        words = f"gathering, round {self.round}" if self.round else "gathering"
        episodes = gathered(bench, acting, self._episodes, Purpose.DATA, self.round, words)
        found = list(episodes)
        won, operated = sum(o.success for o in found), sum(o.operated for o in found)
        record = {"round": self.round, "episodes": len(found), "successes": won}
        steps = recorded_steps(bench.run.gathered)
        bench.note({**record, "operated": operated, "gathered_steps": steps})
        bench.say(
            f"{words}: {won} of {len(found)} episodes succeeded while exploring; there are"
            f" {steps:,} gathered steps"
        )


class Reclone(Stage):
    """Goes on cloning the accepted policy, from demonstrations and what has succeeded since.

    What comes of it is a candidate: the gate behind its improvement decides.
    """

    needs = (DEMONSTRATIONS, GATHERED, ACCEPTED)
    makes = (CANDIDATE,)

    def run(self, bench: Workbench) -> None:
        """Train and save."""
        accepted = bench.policy(ACCEPTED)
        before, shown = accepted.policy.base, [bench.demonstrations()]
        assert before is not None
        dataset = EpisodeDataset(bench.run.gathered)
        shown += [dataset] if dataset.successes.any() else []
        generator = bench.generator(f"reclone {self.round}")
        cloned = clone(bench, shown, accepted.vision, generator, before)
        bench.checkpoint(CANDIDATE, accepted.learned(cloned.policy, accepted.version))


def exploring(behaviour: Behaviour, std: float) -> Behaviour:
    """The behaviour with each step of its process drawn, with at least this standard deviation."""
    policy = behaviour.policy
    assert isinstance(policy, DiffusionPolicy)
    return behaviour.learned(policy.under(policy.process.exploring(std)), behaviour.version)


def accept(bench: Workbench, behaviour: Behaviour, steps: int) -> None:
    """Let a behaviour be what is deployed, with the environment steps behind it."""
    bench.checkpoint(ACCEPTED, behaviour, state={"environment_steps": steps})


def check_generative(config: DictConfig) -> None:
    """Check that the configured policy is one whose chains can be improved."""
    check_least(config, {"execute_steps": 1})
    if "process" not in config.policy:
        raise ConfigError(
            f"the recipe {config.choices.recipe!r} improves a generative policy",
            got=f"policy={config.choices.policy}",
            hint="add policy=diffusion or policy=flow",
        )
