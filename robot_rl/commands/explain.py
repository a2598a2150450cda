"""`robot-rl explain RUN`: why a run does not learn, as far as what it has recorded tells."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any

from robot_rl.commands.runs import load_resolved
from robot_rl.errors import in_shell
from robot_rl.evaluation import learning_causes, motion_causes, sensing_causes
from robot_rl.evaluation.evidence import Evidence, Finding, explain, gather
from robot_rl.processes.progress import plain_console
from robot_rl.run import RunDirectory

_GOOD = 0.95  # success of what is deployed, from which on nothing has to be explained
CHECKS = (*sensing_causes.CHECKS, *motion_causes.CHECKS, *learning_causes.CHECKS)


def run(path: str = "latest", *, runs_directory: str, **options: Any) -> None:
    """Print the causes that are found, the likeliest first, and what else was looked at.

    Nothing is changed, no robot and no network is made, and the run may go on meanwhile.
    """
    directory = RunDirectory.open(path, runs_directory)
    evidence = gather(directory, load_resolved(directory.path))
    causes, in_order = explain(evidence, CHECKS)
    if options["json"]:
        lists = {"causes": causes, "in_order": in_order}
        facts = {name: [asdict(each) for each in found] for name, found in lists.items()}
        sys.stdout.write(json.dumps({"run": str(directory.path), **facts}) + "\n")
    else:
        _print(evidence, causes, in_order)


def _print(evidence: Evidence, causes: list[Finding], in_order: list[Finding]) -> None:
    console = plain_console()
    shown, acted = len(evidence.shown), len(evidence.acted)
    steps = f"{evidence.transitions} environment steps"
    if evidence.gathered:
        steps = f"{evidence.gathered} environment steps gathered by the recipe's stages"
    console.print(
        f"run directory {evidence.run.path}: {shown} demonstrations, {steps}, of which the"
        f" policy's latest {acted} episodes were looked at"
    )
    if not evidence.origins:
        console.print("nothing is recorded yet: begin with robot-rl train or robot-rl collect")
        return
    if not acted:
        console.print("no policy has acted yet, so only the demonstrations were looked at")
    if not evidence.records.summary:
        again = in_shell("robot-rl", "train", f"resume={evidence.run.path}")
        console.print(f"the run is not finished; unless it is still at work, go on with {again}")
    ledger = evidence.records.ledger
    if ledger.entries:
        console.print(str(ledger))
    if (rate := ledger.success_rate) is not None and rate >= _GOOD:
        if causes:
            console.print("what follows are remarks")
    elif not causes:
        console.print("\nno cause was found; what the policy does: robot-rl inspect, report.html")
    for number, cause in enumerate(causes, 1):
        console.print(f"\n{number}. {cause.name}: {cause.figure}")
        if cause.mend:
            console.print(f"   next: {cause.mend}")
    console.print("\nlooked at, and found in order:")
    for finding in in_order:
        console.print(f"  {finding.name}: {finding.figure}")
