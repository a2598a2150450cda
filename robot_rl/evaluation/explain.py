"""Why does a run not learn? Named causes, each with the figure behind it: `robot-rl explain`.

A check is a function of the evidence. It returns a `Finding`, or None where there is nothing to
look at. Thresholds are wide: a check speaks where a person who saw the figure would stop the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from robot_rl.evaluation.evidence import Evidence

# Below this a finding is no cause: what was looked at is in order.
NAMED = 0.3


@dataclass(frozen=True)
class Finding:
    """What a check came to.

    How `likely` it is why the run does not learn orders the causes: 0.9 and more for a part that
    works wrongly and makes others look wrong, such as a sensor; 0.7 for a setting with which
    nothing can be learned; 0.4 for what may as well follow from something else.
    """

    name: str  # of what was looked at, two words
    likely: float  # 0: it is in order
    figure: str  # what was measured
    mend: str = ""  # what to do, if it is not


Check = Callable[[Evidence], Finding | None]


def explain(evidence: Evidence, checks: Iterable[Check]) -> tuple[list[Finding], list[Finding]]:
    """Run the checks; returns the causes, the likeliest first, and what is in order."""
    found = [finding for check in checks if (finding := check(evidence)) is not None]
    causes = [finding for finding in found if finding.likely >= NAMED]
    # Python's sort is stable: of equally likely ones the earlier check comes first.
    causes.sort(key=lambda finding: -finding.likely)
    return causes, [replace(each, mend="") for each in found if each.likely < NAMED]


def percent(share: float) -> str:
    """A share in words."""
    return f"{100 * float(share):.0f} %"
