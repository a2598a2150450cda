"""Policies of a run, and which one is deployed; all other code looks it up here.

The ledger is `RUN/policies.jsonl`. After measuring a run's policies, `train` appends one line per
policy, with the deployed policy last. Lines without that last line do not count: if `train` is
killed while writing, it repeats the decision on resume, with the same result.
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
"""Key of `policy_checksum` in records and in policies of other formats."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line of the ledger: a policy of the run and the decision about it."""

    policy: str  # one of `POLICIES`
    checkpoint: str  # name relative to the run
    parent: str | None  # checkpoint that it was learned from; None for the first
    environment_steps: int  # environment steps behind the checkpoint
    # Successes in that many final scenes; None if it was not evaluated.
    successes: int | None
    episodes: int | None
    # "held back": neither training nor the final scenes found it significantly better.
    verdict: Literal["deployed", "held back", "not deployed"]
    why: str  # reason for deploying it, as text
    decided_after: int  # environment steps that the run had learned from at the decision
    mean_return: float | None = None  # if no success is counted

    @property
    def count(self) -> str:
        """Number of successes as text, or the mean return if no success is counted."""
        if self.successes is None:
            return "not evaluated"
        if self.mean_return is not None:
            return f"no success counted, mean return {self.mean_return:.4g}"
        return f"{self.successes} of {self.episodes}"


@dataclass(frozen=True)
class Ledger:
    """The latest decision of a run."""

    entries: Mapping[str, Entry]  # by policy, in the order they were made; empty before a decision

    @property
    def deployed(self) -> Entry | None:
        """The deployed policy; None until the run has decided."""
        return next((e for e in self.entries.values() if e.verdict == DEPLOYED), None)

    @property
    def success_rate(self) -> float | None:
        """Success rate of the deployed policy on the final scenes; None before the decision."""
        chosen = self.deployed
        if chosen is None or chosen.successes is None or not chosen.episodes:
            return None
        return chosen.successes / chosen.episodes

    def verdict(self, policy: str) -> str:
        """Decision about a policy; empty if there is none."""
        return self.entries[policy].verdict if policy in self.entries else ""

    def __str__(self) -> str:
        """Return the decision as one sentence; empty before the decision."""
        chosen = self.deployed
        if chosen is None:
            return ""
        return f"deployed: the {chosen.policy} policy ({chosen.count}) — {chosen.why}"


def read_ledger(run: RunDirectory) -> Ledger:
    """Return the run's latest decision; empty if it has learned more since.

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
    """Append a decision to the run's ledger, unless it is already the latest."""
    if read_ledger(run) == decided:
        return
    entries = sorted(decided.entries.values(), key=lambda entry: entry.verdict == DEPLOYED)
    for entry in entries:
        run.append_jsonl(LEDGER, asdict(entry))


def made(run: RunDirectory) -> dict[str, str]:
    """Return the checkpoints of a run's policies, by name and in the order of `POLICIES`.

    Before online learning, the learned policy is the last one that a gate accepted. After it, the
    learned policy is the latest snapshot whose periodic evaluation is not significantly worse than
    the best one.
    """
    accepted = run.has_folder(ACCEPTED) and steps_at(run, ACCEPTED) > 0  # initially the clone
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
    """Return the snapshot to measure at the end; `LAST` if there is no periodic evaluation."""
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
    """Environment steps behind a checkpoint; 0 for the clone."""
    return 0 if checkpoint == CLONED else steps_of(newest_folder(run.path / checkpoint))


def steps_behind(run: RunDirectory) -> int:
    """Environment steps behind the run's latest learned policy; 0 if it has only cloned."""
    last = next((name for name in (LAST, ACCEPTED) if run.has_folder(name)), CLONED)
    return steps_at(run, last)


def began_with(run: RunDirectory) -> str:
    """Which of the `POLICIES` online learning starts with, and falls back to."""
    return ACCEPTED_POLICY if ACCEPTED in made(run).values() else CLONED_POLICY


def held_back(run: RunDirectory) -> bool:
    """Whether training has not deployed the learned policy, so that the initial policy acts."""
    if not run.has_folder(LAST):
        return False
    folder = run.complete_folder(made(run)[LEARNED_POLICY]) / "policy"
    config = json.loads((folder / "policy.json").read_bytes())["policy"]["config"]
    return not config.get("enabled", True)


def deployed_policy(run: RunDirectory) -> str:
    """Return which of the run's other `POLICIES` is the deployed one.

    Before the decision it is the learned policy, or the policy that learning started with while
    training has not deployed the learned one.
    """
    if (decided := read_ledger(run).deployed) is not None:
        return decided.policy
    there, before = made(run), began_with(run)
    if LEARNED_POLICY not in there:
        return CLONED_POLICY
    return before if before in there and held_back(run) else LEARNED_POLICY


def policy_checkpoint(run: RunDirectory, which: str = DEPLOYED) -> str:
    """Return the checkpoint name of one of the run's `POLICIES`; see `load_policy`.

    Raises:
        RunError: The run has no such policy.
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
    """Load one of the run's `POLICIES`, and its environment steps (0 for the clone).

    The learned policy corrects its base even if training has not deployed the correction.

    Raises:
        CheckpointError: There is no checkpoint, or one of its files is damaged.
        RunError: The run has no such policy.
    """
    from policies import checkpoint  # late import: loads torch

    name = policy_checkpoint(run, which)
    behaviour = checkpoint.load(run.complete_folder(name) / "policy")
    if which == LEARNED_POLICY or (which == DEPLOYED and read_ledger(run).deployed):
        behaviour.hold_back(False)
    return behaviour, steps_at(run, name)


def open_policy(
    path: str | Path, which: str = DEPLOYED, runs_directory: str | Path = "runs"
) -> tuple[Behaviour, int]:
    """Load policy `which` of a run, as `load_policy` does, or the policy of a checkpoint or export.

    Also returns the environment steps behind it. `run` comes from `RunDirectory.open`. `RunError`
    if `which` is not the policy of the given checkpoint or export.
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
    from policies import checkpoint  # late import: loads torch

    return checkpoint.load(folder), steps_of(folder.parent)


def policy_checksum(folder: Path) -> str:
    """Return a policy's checksum; policies in other formats store their source checkpoint's.

    Raises:
        CheckpointError: The checksum is missing or cannot be read.
    """
    if _other_format(folder) is None:
        from policies import checkpoint  # late import: loads torch

        return checkpoint.checksum(folder)
    if CHECKSUM not in (description := _description(folder)):
        raise CheckpointError(f"{folder} does not say whose export it is", got=f"no {CHECKSUM}")
    return str(description[CHECKSUM])


def _other_format(folder: Path) -> str | None:
    """Loader for a folder in a format other than checkpoint; see `Plugin.policy_formats`."""
    formats: dict[str, str] = added("policy_formats")
    return next((load for marker, load in formats.items() if (folder / marker).is_file()), None)


def _description(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "policy.json").read_bytes()))
