"""Which policy of a run is which, and which one is deployed: decided here; everything else asks.

`RUN/policies.jsonl` is the ledger. When a run has measured its policies, `train` appends one line
for each, and the line of the deployed one last. Lines that have no such end do not count: a `train`
that is killed amid them decides again when it is resumed, and comes to the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from policies import exported
from robot_rl.errors import in_shell
from robot_rl.evaluation.statistics import EvaluationResult
from robot_rl.processes.files import newest_folder
from robot_rl.run import (
    ACCEPTED,
    ACCEPTED_POLICY,
    CHECKPOINTS,
    CLONED,
    CLONED_POLICY,
    DEPLOYED,
    LAST,
    LEARNED_POLICY,
    POLICIES,
    STUDENT,
    STUDENT_POLICY,
    UNTRAINED,
    RunDirectory,
    RunError,
    policy_folder,
    steps_of,
)

if TYPE_CHECKING:
    from policies.behaviour import Behaviour

LEDGER = "policies"


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
        """How often it succeeded, or its return where no success is counted."""
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
        """What was decided about a policy; empty where nothing was."""
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


def decide(
    run: RunDirectory, results: Mapping[str, EvaluationResult], *, held_back: bool = False
) -> Ledger:
    """Decide which policy of a run is deployed.

    What succeeds most often is; of what does equally often, what was made first. What training has
    held back has to be better, beyond noise, than what it would replace.

    Args:
        run: The run.
        results: Final evaluations on the same scenes, by name of `POLICIES`.
        held_back: Whether training has held back what was learned online.
    """
    could = could_deploy(run)
    chosen = _best(results, held_back=held_back)
    made = [name for name in POLICIES if name in results or name in could]
    why = _why(run, results, chosen, held_back=held_back)
    entries = {}
    for name in made:
        result, back = results.get(name), held_back and name == LEARNED_POLICY
        checkpoint = CHECKPOINTS.get(name) or proved_checkpoint(run)
        entries[name] = Entry(
            policy=name,
            checkpoint=checkpoint,
            parent=_parent(run, checkpoint),
            environment_steps=result.environment_steps if result else _behind(run, checkpoint),
            successes=result.successes if result else None,
            episodes=result.episodes if result else None,
            mean_return=result.mean_return if result else None,
            verdict="deployed" if name == chosen else "held back" if back else "not deployed",
            why=why if name == chosen else "",
            decided_after=steps_behind(run),
        )
    return Ledger(entries)


def _best(results: Mapping[str, EvaluationResult], *, held_back: bool) -> str:
    names = [name for name in POLICIES if name in results]
    if held_back and names[-1] == LEARNED_POLICY and len(names) > 1:
        replaced, learned = (results[name] for name in names[-2:])
        compared = replaced.beside(learned)
        if compared is None or not compared.worse:
            names.pop()
    return max(names, key=lambda name: results[name].score)


def _why(
    run: RunDirectory, results: Mapping[str, EvaluationResult], chosen: str, *, held_back: bool
) -> str:
    mine, learned = results[chosen], results.get(LEARNED_POLICY)
    words = (f"resume={run.path}", "evaluation.compare=true")
    again = f"{in_shell('robot-rl', 'train', *words)} evaluates both"
    if learned is None and held_back:
        return f"training has held back what was learned; {again}"
    if learned is None:
        judged = run.read_jsonl("gate")
        return "the gate has accepted nothing else" if judged else "nothing was learned"
    others = [result for name, result in results.items() if name != chosen]
    if not others and not run.has_folder(CLONED):
        return "nothing was cloned that it could be compared with"
    if not others:
        return f"the cloned policy was not evaluated beside it; {again}"
    if all(other.score == mine.score for other in others):
        as_good = " and ".join(f"the {other.which} policy" for other in others)
        return f"{as_good} did as well on the same scenes"
    compared = [mine.beside(other) for other in others]
    chance = any(each is not None and not each.beyond_noise for each in compared)
    verb = "solved" if mine.mean_return is None else "has"
    counts = " and ".join(f"the {other.which} policy {verb} {other.count}" for other in others)
    counts += " on the same scenes"
    if held_back and learned is not mine:
        more = learned.successes > mine.successes
        shown = ", and this does not show it to be better beyond noise" if more else ""
        return f"{counts}; training held the learned policy back{shown}"
    return f"{counts}, which may be chance" if chance else counts


def _parent(run: RunDirectory, checkpoint: str) -> str | None:
    """The checkpoint that another one was learned from."""
    if checkpoint == CLONED:
        return None
    before = (ACCEPTED,) if _accepted(run) and checkpoint != ACCEPTED else ()
    return next((name for name in (*before, CLONED, UNTRAINED) if run.has_folder(name)), None)


def _behind(run: RunDirectory, checkpoint: str) -> int:
    """Environment steps behind a checkpoint; the clone has none."""
    return 0 if checkpoint == CLONED else steps_of(run.complete_folder(checkpoint))


def held_back(run: RunDirectory) -> bool:
    """Whether training holds back what was learned online, and what it began with acts instead."""
    if not run.has_folder(LAST):
        return False
    folder = run.complete_folder(proved_checkpoint(run)) / "policy"
    config = json.loads((folder / "policy.json").read_bytes())["policy"]["config"]
    return not config.get("corrects", True)


def deployed_policy(run: RunDirectory) -> str:
    """Which of the other `POLICIES` of a run the deployed one is.

    Until the run decides, it is the learned one; while training holds that back, what learning
    began with.
    """
    if (decided := read_ledger(run).deployed) is not None:
        return decided.policy
    if learned_checkpoint(run) is None:
        return CLONED_POLICY
    before = began_with(run)
    there = run.has_folder(CHECKPOINTS[before])
    return before if there and held_back(run) else LEARNED_POLICY


def load_policy(run: RunDirectory, which: str = DEPLOYED) -> tuple[Behaviour, int]:
    """Load one of the `POLICIES` of a run, and the environment steps behind it; the clone has none.

    The accepted one is what a gate has accepted last. The learned one is that of
    `proved_checkpoint`, also where training has held it back. The deployed one is
    `deployed_policy`.

    Raises:
        CheckpointError: There is none, or a file of it is damaged.
        RunError: The run has none of that name.
    """
    from policies import checkpoint  # late: loads torch

    name = policy_checkpoint(run, which)
    behaviour = checkpoint.load(run.complete_folder(name) / "policy")
    if which == LEARNED_POLICY or (which == DEPLOYED and read_ledger(run).deployed):
        behaviour.hold_back(False)
    return behaviour, _behind(run, name)


def policy_checkpoint(run: RunDirectory, which: str = DEPLOYED) -> str:
    """Name of the checkpoint with one of the `POLICIES` of a run: see `load_policy`.

    Raises:
        RunError: The run has none of that name.
    """
    if which == CLONED_POLICY and learned_checkpoint(run) and not run.has_folder(CLONED):
        raise RunError(f"{run.path} has cloned nothing", hint="evaluation.policy=learned")
    if not run.has_policy():
        raise RunError(
            f"{run.path} has no policy yet",
            hint=f"go on with {in_shell('robot-rl', 'train', f'resume={run.path}')}",
        )
    if which == STUDENT_POLICY:
        if not run.has_folder(STUDENT):
            hint = in_shell("robot-rl", "distil", run.path)
            raise RunError(f"{run.path} has no student", hint=hint)
        return STUDENT
    judged = [str(run.path / verdict["candidate"]) for verdict in run.read_jsonl("gate")]
    none_learned = which == LEARNED_POLICY and judged and learned_checkpoint(run) is None
    if none_learned or (which == ACCEPTED_POLICY and not _accepted(run)):
        instead = f"; or in place of the run what it has judged: {', '.join(judged)}"
        raise RunError(
            f"the gate of {run.path} has accepted nothing that was learned"
            if judged
            else f"no gate has judged anything in {run.path}",
            expected=f"the {DEPLOYED} policy{instead if judged else ''}",
        )
    which = deployed_policy(run) if which == DEPLOYED else which
    return CHECKPOINTS.get(which) or proved_checkpoint(run)


def proved_checkpoint(run: RunDirectory) -> str:
    """Name of the learned checkpoint that is measured at the end, and deployed if it is better.

    It is the latest whose periodic evaluation is not worse, beyond noise, than the best one.
    Without any evaluation it is the last, or what a gate has accepted where none learned online.
    """
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
    return learned_checkpoint(run) or LAST


def learned_checkpoint(run: RunDirectory) -> str | None:
    """Name of what a run has learned last: online, else what a gate has accepted in its place.

    None where it has only cloned.
    """
    if run.has_folder(LAST):
        return LAST
    return ACCEPTED if _accepted(run) else None


def steps_behind(run: RunDirectory) -> int:
    """Environment steps behind what a run has learned last; 0 where it has only cloned."""
    name = learned_checkpoint(run)
    return 0 if name is None else steps_of(newest_folder(run.path / name))


def could_deploy(run: RunDirectory) -> list[str]:
    """Names of those `POLICIES` of a run among which `train` decides, in the order of their making.

    What a gate has accepted is the learned one where nothing has learned online since.
    """
    made = {
        CLONED_POLICY: run.has_folder(CLONED),
        ACCEPTED_POLICY: run.has_folder(LAST) and _accepted(run),
        LEARNED_POLICY: learned_checkpoint(run) is not None,
    }
    return [name for name, there in made.items() if there]


def began_with(run: RunDirectory) -> str:
    """Which of the `POLICIES` online learning begins with, and goes back to."""
    return ACCEPTED_POLICY if _accepted(run) else CLONED_POLICY


def _accepted(run: RunDirectory) -> bool:
    """Whether a gate has accepted anything; at first the clone is in the place of it."""
    return run.has_folder(ACCEPTED) and steps_of(run.complete_folder(ACCEPTED)) > 0


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
    if exported.is_exported(folder):
        return exported.load(folder), int(exported.describe(folder)["environment_steps"])
    from policies import checkpoint  # late: loads torch

    return checkpoint.load(folder), steps_of(folder.parent)
