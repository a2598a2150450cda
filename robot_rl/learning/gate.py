"""The gate: whether an improved policy is accepted, and acts from now on.

A gate never sees a simulator's true score. It looks at episodes as the robot's own reward judges
them, or at a model of them.
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
Figures = Mapping[str, Any]  # behind a verdict, as JSON


@dataclass(frozen=True)
class Verdict:
    """The answer of a gate.

    An accepted candidate is deployed, and improved further. A reverted one is dropped, and the
    accepted policy is improved again. An undecided one is improved further, but not deployed:
    success often falls before it rises.
    """

    decision: Answer
    reason: str  # in words
    figures: Figures


class Candidate(NamedTuple):
    """An improved policy, and the accepted one that it is compared with."""

    behaviour: Behaviour
    accepted: Behaviour
    round_number: int
    # Of the verdicts on undecided candidates since that one was accepted.
    earlier: Sequence[Figures] = ()


class Gate(Protocol):
    """Judges a candidate beside the accepted policy.

    Attributes:
        held_out: Improvement leaves out each episode whose number is a multiple of it, so that the
            gate can learn from episodes that the candidate has not seen; 0: it leaves out none.
    """

    held_out: int

    def judge(self, bench: Workbench, candidate: Candidate) -> Verdict:
        """Decide; episodes of an earlier start are not run again."""


class OpenGate:
    """Accepts every candidate."""

    held_out: ClassVar[int] = 0

    def judge(self, bench: Workbench, candidate: Candidate) -> Verdict:
        """Accept it."""
        return Verdict("accepted", "not judged, as gate=none accepts every candidate", {})


@dataclass(frozen=True)
class EpisodeGate:
    """Both policies act in turns, as they are deployed, until one is shown to be better.

    In simulation both meet the same scenes. On a robot the turns keep a drift from favouring
    either. All episodes are kept to learn from.
    """

    pairs: int  # most episodes of each
    level: float  # chance to find a difference between equal ones, in either direction
    collapse: float  # chance to take a candidate as good as the accepted one for collapsed

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
        """Let them act until the answer is known."""
        accepted, round_number = candidate.accepted, candidate.round_number
        acting = [each.exploring("mean") for each in (accepted, candidate.behaviour)]
        # Some of these very episodes may be there already; `gathered` gives them again.
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
    """The successes of pairs of episodes, of the accepted policy and of a candidate.

    Better or worse is decided by `Comparison`'s sequential sign test, which may be read after each
    pair. A small gain needs more pairs than one round has. So the pairs of the undecided candidates
    before it count as well, if it won more than it lost itself. They don't count against it, as
    success often falls before it rises.

    The sign test needs pairs that differ, so it is slow to find that a candidate never succeeds.
    Wald's test (1945) of the candidate's episodes alone is quicker: that it succeeds as often as
    the accepted policy, against a quarter of that. The accepted policy's rate is that of all of its
    episodes. Those in which it explored count too, as exploring can only cost successes.
    """

    gate: EpisodeGate
    before: Sequence[bool]  # successes of the accepted policy in earlier episodes
    # Pairs that each undecided candidate before this one lost and won.
    earlier: Sequence[tuple[int, int]] = ()
    accepted: list[bool] = field(default_factory=list)
    candidate: list[bool] = field(default_factory=list)
    operated: int = 0  # pairs in which an operator took part; they do not count

    _FEWEST: ClassVar[int] = 10  # episodes after which the accepted policy's rate counts
    _TRIED: ClassVar[int] = 3  # episodes after which the candidate's do
    _COLLAPSED: ClassVar[float] = 0.25  # of that rate

    def decide(self, pairs: Iterable[tuple[EpisodeOutcome, EpisodeOutcome]]) -> Verdict:
        """Add pairs, of the accepted policy and the candidate, until the answer is known."""
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
        """The pairs that differ."""
        pairs = list(zip(self.accepted, self.candidate, strict=True))
        lost, won = pairs.count((True, False)), pairs.count((False, True))
        return Comparison(lost, won, self.gate.level, most=self.gate.pairs)

    @property
    def with_earlier(self) -> Comparison:
        """The pairs that differ, with those of the undecided candidates before."""
        own, most = self.comparison, self.gate.pairs * (1 + len(self.earlier))
        lost = own.lost + sum(lost for lost, _ in self.earlier)
        won = own.won + sum(won for _, won in self.earlier)
        return Comparison(lost, won, self.gate.level, most=most)

    @property
    def collapse_evidence(self) -> float:
        """How many times likelier the candidate's episodes are if it has collapsed."""
        known = [*self.before, *self.accepted]
        if len(known) < self._FEWEST or len(self.candidate) < self._TRIED:
            return 1.0
        rate = (sum(known) + 0.5) / (len(known) + 1.0)
        low, won = self._COLLAPSED * rate, sum(self.candidate)
        lost = len(self.candidate) - won
        return math.exp(won * math.log(low / rate) + lost * math.log((1 - low) / (1 - rate)))

    def verdict(self) -> Verdict:
        """The answer by the pairs so far."""
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
