"""Stage `ImproveOffline`: improve the accepted policy on recorded episodes, then run the gate."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict

from policies import registry
from policies.behaviour import Behaviour
from policies.compute import explained_memory
from robot_rl.config import ConfigError, Settings
from robot_rl.evaluation.ledger import open_policy
from robot_rl.learning.algorithms import improves_clone
from robot_rl.learning.algorithms.generative import Generative
from robot_rl.learning.gate import Answer, Candidate, Gate
from robot_rl.learning.stages.gather import accept, check_generative, recorded_steps
from robot_rl.learning.stages.offline import Offline, OfflineTraining
from robot_rl.learning.workbench import Workbench
from robot_rl.run import ACCEPTED, CANDIDATE, GATHERED, OFFLINE

VERDICTS = "gate"  # the run's verdict records


class ImproveOffline(Offline):
    """Improves the candidate with the configured algorithm on all recorded episodes, then gates it.

    Each round makes `algorithm.schedule.offline_updates` updates. The critics carry over from round
    to round and to online learning.
    """

    datasets = (GATHERED,)

    def __init__(self, settings: Settings, round: int = 0) -> None:
        super().__init__(settings)
        self._round = max(1, round)
        # The first artifact is the candidate given to the gate.
        self.makes = (candidate_name(self._round), OFFLINE, CANDIDATE, ACCEPTED)

    @property
    def needs(self) -> Sequence[str]:
        """Return the episodes and the policy. Raise if algorithm or gate cannot be created.

        Later rounds also need the training checkpoint.
        """
        needs, settings, schedule = super().needs, self.settings, self.settings.schedule
        check_generative(settings)
        if not improves_clone(settings.algorithm):
            raise ConfigError(
                f"the recipe {settings.choices['recipe']!r} improves the cloned policy itself",
                got=f"algorithm={settings.choices['algorithm']}",
                hint="leave it out, or add algorithm=denoising_ppo or algorithm=action_gradient",
            )
        if schedule.offline_updates <= schedule.critic_only_updates:
            raise ConfigError(
                "the first round would leave the policy as it is, as only its critics would learn",
                got=f"recipe.offline_updates={schedule.offline_updates}, and"
                f" algorithm.schedule.critic_only_updates={schedule.critic_only_updates}",
                hint="raise the first, or lower the second",
            )
        registry.make(settings.gate, Gate)
        return (*needs, ACCEPTED, *((OFFLINE,) if self._round > 1 else ()))

    @explained_memory("lower algorithm.schedule.batch_size, or add device=cpu")
    def run(self, bench: Workbench) -> None:
        """Learn, or resume learning, and let the gate decide."""
        gate = registry.make(self.settings.gate, Gate)
        start = bench.policy(CANDIDATE if bench.run.has_folder(CANDIDATE) else ACCEPTED)
        each, out = self.settings.schedule.offline_updates, gate.held_out
        training = OfflineTraining(
            bench, self.datasets, start, lambda number: not out or number % out != 0
        )
        with closing(training):
            algorithm = training.algorithm
            assert isinstance(algorithm, Generative)
            rounds = self._round
            if bench.run.has_folder(OFFLINE):
                training.load()
                # Training that was interrupted within this round resumes as it is.
                begins = training.updates == (rounds - 1) * each
                if begins and start.version != training.updates:
                    algorithm.restart(start.policy)
            self.learn(bench, training, rounds * each, (rounds - 1) * each)
            candidate = start.learned(copy.deepcopy(algorithm.average), training.updates)
            descends = start.version != bench.policy(ACCEPTED).version
            if decided(bench, gate, candidate, rounds, descends=descends) == "reverted":
                algorithm.restart(bench.policy(ACCEPTED).policy)
                training.save()


def candidate_name(round_number: int) -> str:
    """Return the name of a round's candidate checkpoint. 0 is online learning."""
    return f"checkpoints/round_{round_number}" if round_number else "checkpoints/improved_online"


def decided(
    bench: Workbench,
    gate: Gate,
    candidate: Behaviour,
    round_number: int,
    *,
    descends: bool = False,
) -> Answer:
    """Let the gate judge a candidate, and deploy it if accepted.

    The candidate is always saved as checkpoints/round_<n>. `CANDIDATE` holds the policy that the
    next round improves. `descends`: this candidate was improved from the previous undecided one.
    """
    steps = recorded_steps(bench.run.gathered)
    name = candidate_name(round_number)
    if bench.run.has_folder(name):  # an earlier start was interrupted here
        candidate, steps = open_policy(bench.run.path / name)
        candidate.to(bench.device)
    else:
        bench.checkpoint(name, candidate, state={"environment_steps": steps})
    accepted = bench.policy(ACCEPTED)
    verdicts = bench.run.read_jsonl(VERDICTS)
    if verdicts and verdicts[-1]["candidate"] == name:  # an earlier start was interrupted later
        decision: Answer = verdicts[-1]["decision"]
    else:
        latest = reversed(verdicts if descends else [])
        before = itertools.takewhile(lambda each: each["decision"] == "undecided", latest)
        earlier = [each["figures"] for each in before]
        verdict = gate.judge(bench, Candidate(candidate, accepted, round_number, earlier))
        decision = verdict.decision
        where = f"round {round_number}" if round_number else "online"
        bench.say(f"gate, {where}: {decision} — {verdict.reason}")
        record = {
            "round": round_number,
            "candidate": name,
            "gathered_steps": steps,
            "gate": bench.settings.choices["gate"],
            **asdict(verdict),
        }
        bench.run.append_jsonl(VERDICTS, record)
    if decision == "accepted":
        accept(bench, candidate, steps)
    bench.checkpoint(CANDIDATE, accepted if decision == "reverted" else candidate)
    return decision
