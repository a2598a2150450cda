"""Which policy of a run is which, and which one is deployed: everything else asks here.

`RUN/policies.jsonl` is the ledger. When a run has measured its policies, `train` appends one line
for each, and the line of the deployed one last. Lines that have no such end do not count: a `train`
that is killed amid them decides again when it is resumed, and comes to the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from robot_rl.errors import CheckpointError, in_shell
from robot_rl.evaluation.statistics import EvaluationResult
from robot_rl.plugins import added, resolve
from robot_rl.processes.files import newest_folder
from robot_rl.run import (
    ACCEPTED,
    ACCEPTED_POLICY,
    CLONED,
    CLONED_POLICY,
    DEPLOYED,
    LAST,
    LEARNED_POLICY,
    POLICIES,
    STUDENT,
    STUDENT_POLICY,
    RunDirectory,
    RunError,
    policy_folder,
    steps_of,
)

if TYPE_CHECKING:
    from policies.behaviour import Behaviour

LEDGER = "policies"
CHECKSUM = "policy_checksum"
"""The key of records, and of policies in other formats, for `policy_checksum`."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line of the ledger: a policy of the run, and what was decided about it."""

    policy: str  # one of `POLICIES`
    checkpoint: str  # its name, below the run
    parent: str | None  # the checkpoint that it was learned from; None for the first
    environment_steps: int  # behind the checkpoint
    # How many of so many final scenes it solved; None where it was not evaluated.
    successes: int | None
    episodes: int | None
    # Held back: training had not found it better, and neither did the final scenes, beyond noise.
    verdict: Literal["deployed", "held back", "not deployed"]
    why: str  # of the deployed one, in words
    decided_after: int  # environment steps that the run had learned from by then
    mean_return: float | None = None  # where no success is counted

    @property
    def count(self) -> str:
        """Its number of successes, or its return where no success is counted."""
        if self.successes is None:
            return "not evaluated"
        if self.mean_return is not None:
            return f"no success counted, mean return {self.mean_return:.4g}"
        return f"{self.successes} of {self.episodes}"


@dataclass(frozen=True)
class Ledger:
    """The newest decision of a run."""

    entries: Mapping[str, Entry]  # by policy, in the order of their making; empty before a decision

    @property
    def deployed(self) -> Entry | None:
        """The deployed policy; None as long as the run has not decided."""
        return next((e for e in self.entries.values() if e.verdict == DEPLOYED), None)

    @property
    def success_rate(self) -> float | None:
        """Of the deployed policy on the final scenes; None before the decision."""
        chosen = self.deployed
        if chosen is None or chosen.successes is None or not chosen.episodes:
            return None
        return chosen.successes / chosen.episodes

    def verdict(self, policy: str) -> str:
        """The decision about a policy; empty where there is none."""
        return self.entries[policy].verdict if policy in self.entries else ""

    def __str__(self) -> str:
        """Say the decision in one sentence; empty before it."""
        chosen = self.deployed
        if chosen is None:
            return ""
        return f"deployed: the {chosen.policy} policy ({chosen.count}) — {chosen.why}"


def read_ledger(run: RunDirectory) -> Ledger:
    """Return what a run has decided last; nothing where it has learned on since.

    Raises:
        RunError: A line of the ledger is damaged.
    """
    try:
        entries = [msgspec.convert(line, Entry) for line in run.read_jsonl(LEDGER)]
    except msgspec.ValidationError as error:
        raise RunError(f"{run.path / LEDGER}.jsonl is damaged", got=error) from error
    ends = [number for number, entry in enumerate(entries) if entry.verdict == DEPLOYED]
    if not ends or entries[ends[-1]].decided_after != steps_behind(run):
        return Ledger({})
    first = ends[-2] + 1 if len(ends) > 1 else 0
    after = entries[ends[-1]].decided_after
    newest = {e.policy: e for e in entries[first : ends[-1] + 1] if e.decided_after == after}
    return Ledger({name: newest[name] for name in POLICIES if name in newest})


def enter(run: RunDirectory, decided: Ledger) -> None:
    """Append a decision to the run's ledger, unless it stands there as the newest."""
    if read_ledger(run) == decided:
        return
    entries = sorted(decided.entries.values(), key=lambda entry: entry.verdict == DEPLOYED)
    for entry in entries:
        run.append_jsonl(LEDGER, asdict(entry))


def made(run: RunDirectory) -> dict[str, str]:
    """The checkpoint of each policy that a run has made, by name of `POLICIES`, in their order.

    What a gate has accepted last is the learned one as long as nothing has learned online; of what
    has, it is the latest whose periodic evaluation is not worse, beyond noise, than the best one.
    """
    accepted = run.has_folder(ACCEPTED) and steps_at(run, ACCEPTED) > 0  # at first it is the clone
    online = run.has_folder(LAST)
    learned = _proved(run) if online else ACCEPTED if accepted else None
    found = {
        CLONED_POLICY: CLONED if run.has_folder(CLONED) else None,
        ACCEPTED_POLICY: ACCEPTED if accepted and online else None,
        LEARNED_POLICY: learned,
        STUDENT_POLICY: STUDENT if run.has_folder(STUDENT) else None,
    }
    return {name: place for name, place in found.items() if place is not None}


def _proved(run: RunDirectory) -> str:
    """The snapshot that is measured at the end; without any periodic evaluation `LAST`."""
    found: dict[str, EvaluationResult] = {}
    for line in run.read_jsonl("evaluations"):
        result = EvaluationResult.from_json(line)
        name = run.snapshot_name(result.environment_steps)
        if result.seed_set == "periodic" and result.gradient_updates and run.has_folder(name):
            found[name] = result
    best = max(found.values(), key=lambda result: result.score, default=None)
    for name in sorted(found, reverse=True):
        compared = None if best is None else found[name].beside(best)
        if compared is None or not compared.worse:
            return name
    return LAST


def steps_at(run: RunDirectory, checkpoint: str) -> int:
    """Environment steps behind a checkpoint; the clone has none."""
    return 0 if checkpoint == CLONED else steps_of(newest_folder(run.path / checkpoint))


def steps_behind(run: RunDirectory) -> int:
    """Environment steps behind what a run has learned last; 0 where it has only cloned."""
    last = next((name for name in (LAST, ACCEPTED) if run.has_folder(name)), CLONED)
    return steps_at(run, last)


def began_with(run: RunDirectory) -> str:
    """Which of the `POLICIES` online learning begins with, and goes back to."""
    return ACCEPTED_POLICY if ACCEPTED in made(run).values() else CLONED_POLICY


def held_back(run: RunDirectory) -> bool:
    """Whether training holds back what was learned online, and what it began with acts instead."""
    if not run.has_folder(LAST):
        return False
    folder = run.complete_folder(made(run)[LEARNED_POLICY]) / "policy"
    config = json.loads((folder / "policy.json").read_bytes())["policy"]["config"]
    return not config.get("enabled", True)


def deployed_policy(run: RunDirectory) -> str:
    """Which of the other `POLICIES` of a run the deployed one is.

    Until the run decides, it is the learned one; while training holds that back, what learning
    began with.
    """
    if (decided := read_ledger(run).deployed) is not None:
        return decided.policy
    there, before = made(run), began_with(run)
    if LEARNED_POLICY not in there:
        return CLONED_POLICY
    return before if before in there and held_back(run) else LEARNED_POLICY


def policy_checkpoint(run: RunDirectory, which: str = DEPLOYED) -> str:
    """Name of the checkpoint with one of the `POLICIES` of a run: see `load_policy`.

    Raises:
        RunError: The run has none of that name.
    """
    there = made(run)
    if which == CLONED_POLICY and CLONED not in there.values() and LEARNED_POLICY in there:
        raise RunError(f"{run.path} has cloned nothing", hint="evaluation.policy=learned")
    if not run.has_policy():
        raise RunError(
            f"{run.path} has no policy yet",
            hint=f"go on with {in_shell('robot-rl', 'train', f'resume={run.path}')}",
        )
    name = deployed_policy(run) if which == DEPLOYED else which
    if name == ACCEPTED_POLICY and ACCEPTED in there.values():
        return ACCEPTED
    if name in there:
        return there[name]
    if name == STUDENT_POLICY:
        hint = in_shell("robot-rl", "distil", run.path)
        raise RunError(f"{run.path} has no student", hint=hint)
    judged = [str(run.path / verdict["candidate"]) for verdict in run.read_jsonl("gate")]
    instead = f"; or in place of the run what it has judged: {', '.join(judged)}" if judged else ""
    raise RunError(
        f"the gate of {run.path} has accepted nothing that was learned"
        if judged
        else f"no gate has judged anything in {run.path}",
        expected=f"the {DEPLOYED} policy{instead}",
    )


def load_policy(run: RunDirectory, which: str = DEPLOYED) -> tuple[Behaviour, int]:
    """Load one of the `POLICIES` of a run, and the environment steps behind it; the clone has none.

    The learned one corrects its base also where training has held that back.

    Raises:
        CheckpointError: There is none, or a file of it is damaged.
        RunError: The run has none of that name.
    """
    from policies import checkpoint  # late: loads torch

    name = policy_checkpoint(run, which)
    behaviour = checkpoint.load(run.complete_folder(name) / "policy")
    if which == LEARNED_POLICY or (which == DEPLOYED and read_ledger(run).deployed):
        behaviour.hold_back(False)
    return behaviour, steps_at(run, name)


def open_policy(
    path: str | Path, which: str = DEPLOYED, runs_directory: str | Path = "runs"
) -> tuple[Behaviour, int]:
    """Load the policy `which` of a run, as `load_policy`, or that of a checkpoint or an export.

    With it come the environment steps behind it. The run is one of `RunDirectory.open`. `RunError`
    where another policy is asked for than the one of a checkpoint or an export.
    """
    folder = policy_folder(path)
    if folder is not None and which != DEPLOYED:
        raise RunError(
            f"{path} is one policy, not a run that has several",
            got=f"the {which} policy",
            hint="leave evaluation.policy out, or name the run",
        )
    if folder is None:
        return load_policy(RunDirectory.open(path, runs_directory, with_policy=True), which)
    if (load := _other_format(folder)) is not None:
        behaviour = resolve(load)(folder)
        return behaviour, int(_description(folder)["environment_steps"])
    from policies import checkpoint  # late: loads torch

    return checkpoint.load(folder), steps_of(folder.parent)


def policy_checksum(folder: Path) -> str:
    """The checksum of a checkpoint's policy; one in another format says which it was made from.

    Raises:
        CheckpointError: It does not say so, or cannot be read.
    """
    if _other_format(folder) is None:
        from policies import checkpoint  # late: loads torch

        return checkpoint.checksum(folder)
    if CHECKSUM not in (description := _description(folder)):
        raise CheckpointError(f"{folder} does not say whose export it is", got=f"no {CHECKSUM}")
    return str(description[CHECKSUM])


def _other_format(folder: Path) -> str | None:
    """The loader of a folder in another format than a checkpoint; see `Plugin.policy_formats`."""
    formats: dict[str, str] = added("policy_formats")
    return next((load for marker, load in formats.items() if (folder / marker).is_file()), None)


def _description(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "policy.json").read_bytes()))
