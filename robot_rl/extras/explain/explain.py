"""`robot-rl explain RUN`: find out from its records why a run does not learn."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from dataclasses import asdict, replace
from fnmatch import fnmatchcase
from typing import Any

from omegaconf import DictConfig

from robot_rl.commands.runs import load_resolved
from robot_rl.config import flatten
from robot_rl.errors import in_shell
from robot_rl.extras.explain import course_causes, motion_causes, reward_causes, sensing_causes
from robot_rl.extras.explain.evidence import NAMED, Cause, Check, Evidence, gather
from robot_rl.processes.progress_display import plain_console
from robot_rl.run import RunDirectory

_GOOD = 0.95  # success rate of the deployed policy; above it, causes are only remarks
CHECKS = (
    *sensing_causes.CHECKS,
    *motion_causes.CHECKS,
    *reward_causes.CHECKS,
    *course_causes.CHECKS,
)
_OR = "; or "  # separates alternative fixes
_SETTING = re.compile(
    r"(?<![\w/.])(?:([a-z_]+(?:\.[a-z_]+)*)=|([a-z_]+(?:\.[a-z_]+)+\*?)(?![\w/]|\.\w))"
)


def run(path: str = "latest", *, runs_directory: str, **options: Any) -> None:
    """Print the causes, most likely first, and the checks that passed.

    Changes nothing and creates no robot or network. The run may be in progress.
    """
    directory = RunDirectory.open(path, runs_directory)
    evidence = gather(directory, load_resolved(directory.path))
    causes, in_order = explain(evidence)
    if options["json"]:
        lists = {"causes": causes, "in_order": in_order}
        facts = {name: [asdict(each) for each in found] for name, found in lists.items()}
        sys.stdout.write(json.dumps({"run": str(directory.path), **facts}) + "\n")
    else:
        _print(evidence, causes, in_order)


def warnings(run: RunDirectory, config: DictConfig) -> list[str]:
    """Return a run's problems, before learning wears the robot."""
    causes, _ = explain(gather(run, config))
    return [
        f"robot-rl explain: {cause.name}: {cause.figure}{'; next: ' * bool(cause.fix)}{cause.fix}"
        for cause in causes
    ]


def explain(
    evidence: Evidence, checks: Iterable[Check] = CHECKS
) -> tuple[list[Cause], list[Cause]]:
    """Run the checks; return the causes, most likely first, and the checks that passed.

    Fixes with settings that the configuration does not have are left out.
    """
    known = flatten(evidence.config)

    def has(key: str) -> bool:  # a `*` at the end matches any rest of the name
        return any(fnmatchcase(each, key) or each.startswith(f"{key}.") for each in known)

    causes, in_order = [], []
    for check in checks:
        if (found := check(evidence)) is None:
            continue
        if found.likely < NAMED:
            in_order.append(replace(found, fix=""))
            continue
        ways = found.fix.split(_OR)
        possible = (way for way in ways if all(map(has, settings_named(way, evidence.config))))
        causes.append(replace(found, fix=_OR.join(possible)))
    # Python's sort is stable: equally likely causes stay in the order of the checks.
    return sorted(causes, key=lambda cause: -cause.likely), in_order


def settings_named(words: str, config: DictConfig) -> list[str]:
    """Keys of a configuration that a text names: with a dot in them, or followed by =."""
    found = (one or other for one, other in _SETTING.findall(words))
    return [key for key in found if "." not in key or key.split(".")[0] in config]


def _print(evidence: Evidence, causes: list[Cause], in_order: list[Cause]) -> None:
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
        if cause.fix:
            console.print(f"   next: {cause.fix}")
    console.print("\nlooked at, and found in order:")
    for finding in in_order:
        console.print(f"  {finding.name}: {finding.figure}")
