"""The accepted policy improved on recorded episodes, and given to the gate."""

from __future__ import annotations

import copy
import itertools
from contextlib import closing
from dataclasses import asdict

from omegaconf import DictConfig

from policies import registry
from policies.behaviour import Behaviour
from policies.compute import explained_memory
from robot_rl.config import ConfigError, check_least
from robot_rl.evaluation.ledger import open_policy
from robot_rl.learning.algorithms import improves_clone
from robot_rl.learning.algorithms.generative import Generative
from robot_rl.learning.gate import Candidate, Decision, Gate
from robot_rl.learning.recipe import Stage
from robot_rl.learning.stages.gather import accept, check_generative, recorded_steps
from robot_rl.learning.stages.offline import Offline, OfflineTraining
from robot_rl.learning.workbench import Workbench
from robot_rl.run import ACCEPTED, CANDIDATE, GATHERED, OFFLINE

VERDICTS = "gate"  # the run's records of them


class ImproveOffline(Offline):
    """Improves the candidate by the configured algorithm, on all recorded episodes; then the gate.

    Each round makes `algorithm.schedule.offline_updates` updates. What the critics know is kept
    from round to round, and goes on in online learning.
    """

    datasets = (GATHERED,)
    wanted = Stage.wanted  # `check` refuses what would do nothing

    @property
    def makes(self) -> tuple[str, ...]:  # type: ignore[override]  # by round
        """What it leaves, and among that what it has given to the gate."""
        return (candidate_name(max(1, self.round)), OFFLINE, CANDIDATE, ACCEPTED)

    def needed(self, config: DictConfig) -> tuple[str, ...]:
        """What it learns from, and improves; later rounds go on with the training."""
        later = (OFFLINE,) if self.round > 1 else ()
        return (*super().needed(config), ACCEPTED, *later)

    def check(self, config: DictConfig) -> None:
        """Check the settings of algorithm and gate."""
        super().check(config)
        check_generative(config)
        if not improves_clone(config):
            raise ConfigError(
                f"the recipe {config.choices.recipe!r} improves the cloned policy itself",
                got=f"algorithm={config.choices.algorithm}",
                hint="leave it out, or add algorithm=denoising_ppo or algorithm=action_gradient",
            )
        check_least(config, {"algorithm.schedule.offline_updates": 1})
        schedule = config.algorithm.schedule
        if int(schedule.offline_updates) <= int(schedule.critic_only_updates):
            raise ConfigError(
                "the first round would leave the policy as it is, as only its critics would learn",
                got=f"recipe.offline_updates={schedule.offline_updates}, and"
                f" algorithm.schedule.critic_only_updates={schedule.critic_only_updates}",
                hint="raise the first, or lower the second",
            )
        registry.make(config.gate, Gate)

    @explained_memory("lower algorithm.schedule.batch_size, or add device=cpu")
    def run(self, bench: Workbench) -> None:
        """Learn, or go on with that, and let the gate decide."""
        gate = registry.make(bench.config.gate, Gate)
        start = bench.policy(CANDIDATE if bench.run.has_folder(CANDIDATE) else ACCEPTED)
        each, out = int(bench.config.algorithm.schedule.offline_updates), gate.held_out
        training = OfflineTraining(
            bench, self.datasets, start, lambda number: not out or number % out != 0
        )
        with closing(training):
            algorithm = training.algorithm
            assert isinstance(algorithm, Generative)
            rounds = max(1, self.round)
            if bench.run.has_folder(OFFLINE):
                training.load(OFFLINE)
                # What this training itself has left goes on as it is.
                begins = training.updates == (rounds - 1) * each
                if begins and start.version != training.updates:
                    algorithm.restart(start.policy)
            self.learn(bench, training, rounds * each, (rounds - 1) * each)
            candidate = start.learned(copy.deepcopy(algorithm.average), training.updates)
            descends = start.version != bench.policy(ACCEPTED).version
            if decided(bench, gate, candidate, rounds, descends=descends) == "reverted":
                algorithm.restart(bench.policy(ACCEPTED).policy)
                training.save(OFFLINE)


def candidate_name(round_number: int) -> str:
    """The checkpoint of what a round has improved, as it was given to the gate; 0: online."""
    return f"checkpoints/round_{round_number}" if round_number else "checkpoints/improved_online"


def decided(
    bench: Workbench,
    gate: Gate,
    candidate: Behaviour,
    round_number: int,
    *,
    descends: bool = False,
) -> Decision:
    """Let the gate judge a candidate, and let what it has accepted be deployed.

    The candidate is kept as checkpoints/round_<n>, whatever becomes of it. In `CANDIDATE` is what
    goes on being improved. `descends` says that it was improved from the undecided one before it.
    """
    steps = recorded_steps(bench.run.gathered)
    name = candidate_name(round_number)
    if bench.run.has_folder(name):  # an earlier start was interrupted here
        candidate, steps = open_policy(bench.run.path / name)
        candidate.to(bench.device)
    else:
        bench.checkpoint(name, candidate, state={"environment_steps": steps})
    accepted = bench.policy(ACCEPTED)
    told = bench.run.read_jsonl(VERDICTS)
    if told and told[-1]["candidate"] == name:  # an earlier start was interrupted behind that
        decision: Decision = told[-1]["decision"]
    else:
        before = itertools.takewhile(lambda each: each["decision"] == "undecided", reversed(told))
        earlier = [each["figures"] for each in before] if descends else []
        verdict = gate.judge(bench, Candidate(candidate, accepted, round_number, earlier))
        decision = verdict.decision
        where = f"round {round_number}" if round_number else "online"
        bench.say(f"gate, {where}: {decision} — {verdict.reason}")
        record = {
            "round": round_number,
            "candidate": name,
            "gathered_steps": steps,
            "gate": bench.config.choices.gate,
            **asdict(verdict),
        }
        bench.run.append_jsonl(VERDICTS, record)
    if decision == "accepted":
        accept(bench, candidate, steps)
    bench.checkpoint(CANDIDATE, accepted if decision == "reverted" else candidate)
    return decision
