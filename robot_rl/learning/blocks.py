"""Stepped clock: how many updates each block of steps allows, and which weights act when.

Environment steps are grouped in blocks of N. The weights after block j are published when
block j + 1 is complete and act in block j + 2. The actor collects one block while the learner
trains on the previous one, so the acting weights do not depend on the speed of either.
"""

from __future__ import annotations

from dataclasses import dataclass

from robot_rl.config.sections import Settings
from robot_rl.errors import RobotRLError
from robot_rl.run import CLONED, RunDirectory, learned_steps

EVALUATIONS = "evaluations"  # the run's evaluation records


class ScheduleError(RobotRLError):
    """Step counts in the configuration that do not fit together."""


@dataclass(frozen=True)
class Blocks:
    """Blocks of environment steps and the number of updates they allow."""

    block_steps: int  # environment steps N per block
    total: int  # environment steps of the run; the last block may be shorter
    every_steps: int  # environment steps between two evaluations, a multiple of N
    warmup_steps: int  # environment steps before the first update
    critic_only_updates: int  # updates due at once when the warm-up ends
    updates_per_step: int  # updates per environment step after the warm-up
    actors: int = 1  # simulated actors that act at the same time

    @classmethod
    def of(cls, settings: Settings) -> Blocks:
        """Return the blocks of a run. Raise `ScheduleError` if step counts do not fit together."""
        schedule = settings.schedule
        blocks = cls(
            block_steps=settings.block_steps,
            total=settings.environment_steps,
            every_steps=settings.evaluation.every_steps,
            warmup_steps=schedule.warmup_steps,
            # Skip the critic updates that offline learning already made.
            critic_only_updates=max(0, schedule.critic_only_updates - schedule.offline_updates),
            updates_per_step=schedule.updates_per_step,
            actors=settings.actors,
        )
        if blocks.every_steps % blocks.block_steps:
            raise ScheduleError(
                "evaluation.every_steps must be a multiple of block_steps",
                got=f"{blocks.every_steps} and {blocks.block_steps}",
                hint="weights exist at the ends of blocks only; change one of the two",
            )
        return blocks

    def check_learning(self) -> None:
        """Check that the run is long enough for the policy to learn anything.

        Raises:
            ScheduleError: The run ends with the warm-up.
        """
        if self.total <= self.warmup_steps:
            raise ScheduleError(
                "environment_steps ends with the warm-up, and nothing would be learned",
                got=self.total,
                expected=f"more than algorithm.schedule.warmup_steps={self.warmup_steps}",
                hint="raise it; to clone alone: robot-rl collect, pretrain and evaluate",
            )

    def end_after(self, steps: int) -> int:
        """Return the end of the block that contains `steps`, at most the end of the run."""
        return min((steps // self.block_steps + 1) * self.block_steps, self.total)

    def updates_at(self, steps: int) -> int:
        """Return the total number of updates allowed after `steps` environment steps."""
        if steps < self.warmup_steps:
            return 0
        paid = (steps - self.warmup_steps) * self.updates_per_step
        return self.critic_only_updates + paid

    def acts_until(self, steps: int, updates: int) -> int:
        """Return the environment step before which the weights after `steps` and `updates` may act.

        They act in the block after next. The cloned policy (no updates) acts until the first
        learned weights may. Several actors share the steps covered by those updates plus two
        blocks. This keeps the ratio of steps to updates regardless of which side is faster, like
        the `SampleToInsertRatio` of DeepMind Reverb (Cassirer et al. 2021, arXiv:2102.04736).
        """
        if self.actors > 1:
            paid = max(updates - self.critic_only_updates, 0) // self.updates_per_step
            return self.warmup_steps + paid + 2 * self.block_steps
        if updates > 0:
            return (steps // self.block_steps + 2) * self.block_steps
        first = self.warmup_steps // self.block_steps * self.block_steps
        while self.updates_at(first) == 0 or first == 0:
            first += self.block_steps
        return first + self.block_steps

    def evaluation_points(self) -> list[int]:
        """Return the environment steps at which the run is evaluated, including 0 for the clone."""
        return [*range(0, self.total, self.every_steps), self.total]


def unevaluated(settings: Settings, run: RunDirectory) -> list[int]:
    """Return the environment steps of the periodic evaluations that have no result yet."""
    if not settings.evaluation.periodic:
        return []
    records = run.read_jsonl(EVALUATIONS)
    known = {r["environment_steps"] for r in records if r["seed_set"] == "periodic"}
    learned = learned_steps(run)
    return [
        steps
        for steps in Blocks.of(settings).evaluation_points()
        if steps not in known
        and (steps > learned or run.has_folder(run.snapshot_name(steps) if steps else CLONED))
    ]
