"""The gate: decides whether an improved policy is accepted and deployed.

A gate never sees a simulator's ground-truth score. It uses episodes scored by the robot's own
reward, or a model of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

from policies.behaviour import Behaviour
from robot_rl.evaluation.statistics import Comparison
from robot_rl.learning.algorithms.base import AlgorithmError, check_settings
from robot_rl.learning.stages.gather import (
    EpisodeOutcome,
    Purpose,
    gathered,
    outcomes,
    recorded_places,
)
from robot_rl.learning.workbench import Workbench

Answer = Literal["accepted", "reverted", "undecided"]
Figures = Mapping[str, Any]  # data behind a verdict, as JSON


@dataclass(frozen=True)
class Verdict:
    """A gate's decision.

    An accepted candidate is deployed and improved further. A reverted one is dropped, and the
    accepted policy is improved again. An undecided one is improved further but not deployed, since
    success often drops before it rises.
    """

    decision: Answer
    reason: str  # human-readable
    figures: Figures


class Candidate(NamedTuple):
    """An improved policy and the accepted policy it is compared with."""

    behaviour: Behaviour
    accepted: Behaviour
    round_number: int
    # Figures of the undecided verdicts since the accepted policy was accepted.
    earlier: Sequence[Figures] = ()


class Gate(Protocol):
    """Judges a candidate against the accepted policy.

    Attributes:
        held_out: Improvement skips every episode whose number is a multiple of this, so the gate
            can learn from episodes the candidate has not seen. 0 skips no episodes.
    """

    held_out: int

    def judge(self, bench: Workbench, candidate: Candidate) -> Verdict:
        """Decide. Episodes from an earlier start are reused, not run again."""


class OpenGate:
    """Accepts every candidate."""

    held_out: ClassVar[int] = 0

    def judge(self, bench: Workbench, candidate: Candidate) -> Verdict:
        """Accept the candidate."""
        return Verdict("accepted", "not judged, as gate=none accepts every candidate", {})


@dataclass(frozen=True)
class EpisodeGate:
    """Runs both policies in turns, as deployed, until one is shown to be better.

    In simulation both policies get the same scenes. On a robot, taking turns keeps drift from
    favouring one of them. All episodes are kept for learning.
    """

    pairs: int  # maximum episodes of each policy
    level: float  # false-positive rate for equal policies, in either direction
    collapse: float  # probability of calling a candidate collapsed when it equals the accepted one

    held_out: ClassVar[int] = 0

    def __post_init__(self) -> None:
        check_settings(self, pairs=1, level=(1e-6, 1), collapse=(1e-6, 1))
        enough = (n for n in range(1, 200) if Comparison(0, n, self.level, most=n).beyond_noise)
        least = next(enough, 200)
        if self.pairs < least:
            raise AlgorithmError(
                "so few pairs of episodes cannot show that a candidate is better",
                got=f"gate.pairs={self.pairs} with gate.level={self.level}",
                expected=f"gate.pairs={least} or more, or a higher level",
            )

    def judge(self, bench: Workbench, candidate: Candidate) -> Verdict:
        """Run both policies until the outcome is clear."""
        accepted, round_number = candidate.accepted, candidate.round_number
        acting = [each.exploring("mean") for each in (accepted, candidate.behaviour)]
        # An earlier start may have recorded some of these episodes. `gathered` yields those again.
        mine = recorded_places(bench, Purpose.JUDGEMENT, round_number)
        others = (o for at, o in enumerate(outcomes(bench.run)) if at not in mine)
        known = [o.success for o in others if o.version == accepted.version and not o.operated]
        earlier = [(each["lost"], each["won"]) for each in candidate.earlier]
        test = PairedTest(self, known, earlier)
        episodes = gathered(
            bench,
            lambda number: acting[number % 2],
            2 * self.pairs,
            Purpose.JUDGEMENT,
            round_number,
            f"judging round {round_number}" if round_number else "judging",
            tries=2,
        )
        with closing(episodes):
            return test.decide(zip(episodes, episodes, strict=False))


@dataclass
class PairedTest:
    """Successes in pairs of episodes, one by the accepted policy and one by the candidate.

    `Comparison`'s sequential sign test decides better or worse. It may be read after each pair. A
    small gain needs more pairs than one round has, so the pairs of earlier undecided candidates
    count too if this candidate won more pairs than it lost. They never count against it, since
    success often drops before it rises.

    The sign test uses only pairs that differ, so it is slow to detect a candidate that never
    succeeds. Wald's test (1945) on the candidate's episodes is faster. It compares two hypotheses:
    the candidate succeeds as often as the accepted policy, or a quarter as often. The accepted
    policy's rate is taken over all of its episodes. Exploring episodes are included, since
    exploration can only reduce success.
    """

    gate: EpisodeGate
    before: Sequence[bool]  # successes of the accepted policy in earlier episodes
    # Pairs lost and won by each earlier undecided candidate.
    earlier: Sequence[tuple[int, int]] = ()
    accepted: list[bool] = field(default_factory=list)
    candidate: list[bool] = field(default_factory=list)
    operated: int = 0  # pairs with operator intervention, which are not counted

    _FEWEST: ClassVar[int] = 10  # episodes needed before the accepted policy's rate counts
    _TRIED: ClassVar[int] = 3  # episodes needed before the candidate's rate counts
    _COLLAPSED: ClassVar[float] = 0.25  # fraction of that rate

    def decide(self, pairs: Iterable[tuple[EpisodeOutcome, EpisodeOutcome]]) -> Verdict:
        """Add (accepted, candidate) pairs until the outcome is clear."""
        for accepted, candidate in pairs:
            self.add(accepted, candidate)
            if self.verdict().decision != "undecided":
                break
        return self.verdict()

    def add(self, accepted: EpisodeOutcome, candidate: EpisodeOutcome) -> None:
        """Add a pair."""
        if accepted.operated or candidate.operated:
            self.operated += 1
            return
        self.accepted.append(accepted.success)
        self.candidate.append(candidate.success)

    @property
    def comparison(self) -> Comparison:
        """Pairs that differ."""
        pairs = list(zip(self.accepted, self.candidate, strict=True))
        lost, won = pairs.count((True, False)), pairs.count((False, True))
        return Comparison(lost, won, self.gate.level, most=self.gate.pairs)

    @property
    def with_earlier(self) -> Comparison:
        """Pairs that differ, including those of earlier undecided candidates."""
        own, most = self.comparison, self.gate.pairs * (1 + len(self.earlier))
        lost = own.lost + sum(lost for lost, _ in self.earlier)
        won = own.won + sum(won for _, won in self.earlier)
        return Comparison(lost, won, self.gate.level, most=most)

    @property
    def collapse_evidence(self) -> float:
        """Likelihood ratio of the candidate's episodes: collapsed against not collapsed."""
        known = [*self.before, *self.accepted]
        if len(known) < self._FEWEST or len(self.candidate) < self._TRIED:
            return 1.0
        rate = (sum(known) + 0.5) / (len(known) + 1.0)
        low, won = self._COLLAPSED * rate, sum(self.candidate)
        lost = len(self.candidate) - won
        return math.exp(won * math.log(low / rate) + lost * math.log((1 - low) / (1 - rate)))

    def verdict(self) -> Verdict:
        """Return the verdict after the pairs so far."""
        compared, pooled, evidence = self.comparison, self.with_earlier, self.collapse_evidence
        pairs = len(self.accepted)
        counts = (
            f"the candidate succeeded in {sum(self.candidate)} of {pairs} episodes, the accepted"
            f" policy in {sum(self.accepted)} of {pairs}"
        )
        figures = {
            "pairs": pairs,
            "candidate_successes": sum(self.candidate),
            "accepted_successes": sum(self.accepted),
            "accepted_before": [sum(self.before), len(self.before)],
            "won": compared.won,
            "lost": compared.lost,
            "chance": compared.chance,
            "earlier_candidates": len(self.earlier),
            "won_with_earlier": pooled.won,
            "lost_with_earlier": pooled.lost,
            "chance_with_earlier": pooled.chance,
            "level": self.gate.level,
            "collapse_evidence": evidence,
            "collapse_limit": 1 / self.gate.collapse,
            "operated": self.operated,
        }
        if evidence >= 1 / self.gate.collapse:
            reason = f"it has collapsed: {counts}, {evidence:.3g} times likelier so"
            return Verdict("reverted", reason, figures)
        counts += f" (p = {compared.chance:.2g})"
        if self.earlier:
            before = "round" if len(self.earlier) == 1 else f"{len(self.earlier)} rounds"
            counts += (
                f"; together with the {before} before, which left it undecided, it won"
                f" {pooled.won} and lost {pooled.lost} of the pairs (p = {pooled.chance:.2g})"
            )
        if compared.worse:
            return Verdict("reverted", f"it does worse: {counts}", figures)
        if compared.won > compared.lost and (compared.better or pooled.better):
            return Verdict("accepted", f"it does better: {counts}", figures)
        reason = f"the difference may be chance: {counts}; what was accepted stays deployed"
        return Verdict("undecided", reason, figures)
