"""`robot-rl evaluate`: the success rate of a run's policy; and the follower of a run."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig

from policies import checkpoint, exported
from policies.behaviour import Behaviour
from policies.compute import ready
from robot_rl.commands.preparation import check_robot, robot_nodes, try_environment
from robot_rl.config import ConfigError, on_stepped_clock
from robot_rl.data.intervals import clopper_pearson, failures_allowed, trials_needed
from robot_rl.env.factory import make_env
from robot_rl.env.gym import GymError
from robot_rl.env.sim.cameras import CameraError
from robot_rl.errors import installing
from robot_rl.evaluation.evaluate import Evaluator, check_proof, first_scene
from robot_rl.evaluation.records import VIDEOS, read_run
from robot_rl.evaluation.statistics import EvaluationResult
from robot_rl.learning.blocks import EVALUATIONS, Blocks, unevaluated
from robot_rl.processes.machine import source_commit, yield_to_control_loop
from robot_rl.processes.signals import StopEvent, Stopped, stop_event
from robot_rl.run import (
    ACCEPTED,
    CLONED,
    CLONED_POLICY,
    DEPLOYED,
    LAST,
    LEARNED_POLICY,
    STUDENT_POLICY,
    RunDirectory,
    RunError,
    learned_checkpoint,
    learned_steps,
    load_policy,
    open_policy,
    policy_checkpoint,
    policy_folder,
)

_POLL_SECONDS = 0.2


def follow(config: DictConfig, run: RunDirectory, stop: StopEvent) -> None:
    """Evaluate the cloned policy and each of a run's snapshots as they appear, in order.

    What was evaluated before is not repeated, so that a resumed run goes on with its curve.
    """
    torch.set_num_threads(1)
    looks = len(Blocks.of(config).evaluation_points()) - 1
    with closing(Evaluator(config, run, note)) as evaluator:
        for steps in unevaluated(config, run):
            name = CLONED if steps == 0 else run.snapshot_name(steps)
            while not run.has_folder(name) and learned_steps(run) <= steps:
                if stop.wait(_POLL_SECONDS):
                    raise Stopped
            if not run.has_folder(name):
                continue  # the run has passed this point with other points of evaluation
            behaviour = checkpoint.load(run.complete_folder(name) / "policy")
            result = evaluator.evaluate(behaviour, steps, "periodic", stop)
            curve = read_run(run).periodic()
            cloned = [record for record in curve if record.cloned]
            if cloned and not result.cloned:
                result = replace(result, against_cloned=result.beside(cloned[-1], looks))
            run.append_jsonl(EVALUATIONS, result.to_json())


@dataclass(frozen=True)
class FinalEvaluation:
    """The cloned and the learned policy on the same scenes, and which of them is deployed.

    The one that succeeds more often is; the cloned one where learning has gained nothing. What
    training has held back has to be better beyond noise.
    """

    cloned: EvaluationResult | None  # of the cloned policy, None where it was not compared
    learned: EvaluationResult | None  # of the learned policy, None where nothing was learned
    run: Path  # where the run is
    held_back: bool = False  # whether training has held back what was learned

    @property
    def deployed(self) -> EvaluationResult:
        """Of the policy that is deployed."""
        if self.held_back and self.learned is not None and self.cloned is not None:
            compared = self.cloned.beside(self.learned)
            return self.learned if compared is not None and compared.worse else self.cloned
        made = [result for result in (self.cloned, self.learned) if result is not None]
        return max(made, key=lambda result: (result.successes, result.cloned))

    def __str__(self) -> str:
        kind = CLONED_POLICY if self.deployed.cloned else LEARNED_POLICY
        return f"deployed: the {kind} policy ({self.deployed.count}) — {self._reason()}"

    def _reason(self) -> str:
        if self.learned is None:
            judged = RunDirectory(self.run).read_jsonl("gate")
            return "the gate has accepted nothing else" if judged else "nothing was learned"
        if self.held_back and self.deployed is self.cloned:
            solved = f"what was learned solved {self.learned.count} on the same scenes"
            return f"{solved}; neither that nor training has shown it to be better beyond noise"
        if self.learned.held_back:
            return "nothing that was learned has done better on the robot"
        if self.cloned is None and not RunDirectory(self.run).has_folder(CLONED):
            return "nothing was cloned that it could be compared with"
        if self.cloned is None:
            return (
                "the cloned policy was not evaluated beside it;"
                f" robot-rl train resume={self.run} evaluation.compare=true evaluates both"
            )
        other = self.cloned if self.deployed is self.learned else self.learned
        name = CLONED_POLICY if other.cloned else LEARNED_POLICY
        if self.cloned.successes == self.learned.successes:
            return f"the {name} policy did as well on the same scenes"
        compared = self.learned.beside(self.cloned)
        chance = compared is not None and not compared.beyond_noise
        solved = f"the {name} policy solved {other.count} on the same scenes"
        return f"{solved}, which may be chance" if chance else solved


def evaluate_final(config: DictConfig, run: RunDirectory) -> FinalEvaluation:
    """Evaluate a run's learned policy on the final seeds, and the cloned one if they are compared.

    Beside the cloned one, even what training has held back acts: so many scenes can show what its
    few episodes could not. Where it would replace what a gate has accepted, that acts beside it.
    """
    torch.set_num_threads(1)
    gated = config.evaluation.compare and run.has_folder(ACCEPTED) and run.has_folder(LAST)
    learned = learned_checkpoint(run) is not None
    compared = run.has_folder(CLONED) and (config.evaluation.compare or not learned)
    wanted = [CLONED_POLICY] * compared + [LEARNED_POLICY] * learned
    results: dict[str, EvaluationResult] = {}
    held_back = False
    with closing(Evaluator(config, run, note)) as evaluator:
        count = config.evaluation.final_episodes
        for name in wanted:
            print(f"final evaluation of {count} episodes: the {name} policy", flush=True)
            behaviour, steps = load_policy(run, name)
            if name == LEARNED_POLICY and gated:
                result = _beside_accepted(evaluator, behaviour, steps)
            else:
                if not behaviour.policy.corrects and compared:
                    held_back = behaviour.policy.corrects = True
                result = evaluator.evaluate(behaviour, steps, "final")
            results[name] = result
            print(f"{result.name}: {result}", flush=True)  # whatever becomes of the files
            known = map(EvaluationResult.from_json, run.read_jsonl(EVALUATIONS))
            if all(replace(other, wall_seconds=result.wall_seconds) != result for other in known):
                run.append_jsonl(EVALUATIONS, result.to_json())
    both = results.get(CLONED_POLICY), results.get(LEARNED_POLICY)
    return FinalEvaluation(*both, run.path, held_back)


def _beside_accepted(evaluator: Evaluator, behaviour: Behaviour, steps: int) -> EvaluationResult:
    """Of what was learned online, or of what the gate had accepted before where that is better.

    What training has held back has to be better beyond noise.
    """
    held_back = not behaviour.policy.corrects
    behaviour.policy.corrects = False
    accepted = evaluator.evaluate(behaviour, steps, "final")
    print(f"what the gate had accepted: {accepted}", flush=True)
    behaviour.policy.corrects = True
    learned = evaluator.evaluate(behaviour, steps, "final")
    print(f"what was learned online: {learned}", flush=True)
    compared = accepted.beside(learned)
    beyond_noise = compared is not None and compared.worse
    better = beyond_noise if held_back else learned.successes >= accepted.successes
    return learned if better else accepted


def film_final(
    config: DictConfig, run: RunDirectory, behaviour: Behaviour, result: EvaluationResult
) -> None:
    """Film some episodes of a final evaluation, its first failures among them, if that works here.

    `evaluation.videos` says how many; they go to the run's `videos`.
    """
    if (count := int(config.evaluation.videos)) == 0:
        return
    try:
        from robot_rl.evaluation import videos
    except ModuleNotFoundError as error:
        note(f"no videos without {error.name!r}: {installing('video')}")
        return
    first = first_scene(config, final=True)
    seeds = videos.chosen_seeds(first, result.failures, result.episodes, count)
    folder = run.path / VIDEOS
    with closing(make_env(on_stepped_clock(config))) as env:
        try:
            acting = ready(behaviour, config)
            videos.save_clips(videos.film(env, acting, seeds, folder), folder)
        except (CameraError, GymError, *videos.WRITE_ERRORS) as problem:
            note(f"no videos: {problem}")


def note(words: str) -> None:
    """Say something beside the result."""
    print(words, file=sys.stderr, flush=True)


def run(config: DictConfig, overrides: Sequence[str], paths: Sequence[str]) -> None:
    """Evaluate a policy, of the run or of a path in it, and keep the result; or follow the run."""
    directory = RunDirectory.open(config.run, config.runs_directory)
    if config.evaluation.follow:
        yield_to_control_loop(config.clock)
        with stop_event() as stop, directory.claim("evaluator"):
            try:
                follow(config, directory, stop)
            except Stopped:
                raise KeyboardInterrupt from None
        return
    which = str(config.evaluation.policy)
    (path,) = paths or [config.run]
    folder = policy_folder(path)
    beside = which == STUDENT_POLICY and folder is None
    wanted = [DEPLOYED, which] if beside else [which]
    opened = [open_policy(path, name, config.runs_directory) for name in wanted]
    facts = {**circumstances(overrides), "path": path}
    changed = [word for word in facts["overrides"] if word.startswith(("domain", "robot", "task."))]
    where = f", with {' '.join(changed)}" if changed else ""
    first, count = first_scene(config, final=True), int(config.evaluation.final_episodes)
    others = "for others add evaluation.final_seed=SEED"
    print(f"scenes {first:,} to {first + count - 1:,}; {others}", flush=True)
    results = []
    with evaluator_of(config) as evaluator:
        for name, (behaviour, steps) in zip(wanted, opened, strict=True):
            results.append(result := evaluator.evaluate(behaviour, steps, "final"))
            said = f"{name}: {result.name}" if beside else result.name
            print(f"{config.task.name}, {said}{where}: {result}")
            own = folder or directory.complete_folder(policy_checkpoint(directory, name)) / "policy"
            which_one = {"evaluated": name, "policy_checksum": exported.identity(own)}
            keep(directory, "evaluate", {**facts, **which_one, **result.to_json()})
    if beside and (compared := results[1].beside(results[0])) is not None:
        print(
            f"the student against the deployed policy, on the same scenes: {results[1].count}"
            f" against {results[0].count}; {compared.lost} lost, {compared.won} won"
            f" (sign test, p = {compared.chance:.2g})"
        )
    if not changed and folder is None:  # RUN/videos shows what was trained
        film_final(config, directory, behaviour, result)


def certify(config: DictConfig, overrides: Sequence[str], paths: Sequence[str]) -> None:
    """Prove that a policy succeeds as often as `proof.claim` says, or say that this failed.

    The number of episodes is fixed before the first, and with it how many of them may fail; the
    next failure ends it. So the bound is exact: that of Clopper and Pearson, one-sided.
    """
    check_proof(config)
    proof = config.proof
    claim, confidence = float(proof.claim), float(proof.confidence)
    count = trials_needed(claim, confidence) if proof.episodes is None else int(proof.episodes)
    allowed = failures_allowed(count, claim, confidence)
    needed = ", ".join(f"{trials_needed(claim, confidence, k):,} with {k}" for k in range(4))
    stated = f"a success rate of {100 * claim:g} % at {100 * confidence:g} % confidence"
    if allowed < 0:
        raise ConfigError(
            f"so few episodes cannot prove {stated}",
            got=count,
            expected=f"with so many failures: {needed}",
        )
    print(f"episodes that prove {stated}, with so many failures: {needed}")
    print(f"{count:,} episodes will prove it if no more than {allowed} of them fail", flush=True)
    config.evaluation.final_episodes, config.evaluation.final_seed = count, proof.seed
    behaviour, steps = open_policy(paths[0], config.evaluation.policy, config.runs_directory)
    with evaluator_of(config) as evaluator:
        result = evaluator.evaluate(behaviour, steps, "final", most_failures=allowed)
    failures = result.episodes - result.successes
    # One-sided, so with twice the tail.
    low, _ = clopper_pearson(result.successes, result.episodes, 2.0 * confidence - 1.0)
    found = "proved" if failures <= allowed else "not proved"
    print(f"{config.task.name}, {result.name}: {result}")
    print(
        f"{found}: {stated}; {failures} of {result.episodes:,} episodes failed, {allowed} may have;"
        f" at this confidence the rate is at least {100 * low:.2f} %"
    )
    told = {"claim": claim, "confidence": confidence, "at_least": low, "result": found}
    record = {**circumstances(overrides), "path": paths[0], **told, **result.to_json()}
    keep(RunDirectory(Path(config.run)), "evaluate", record)


@contextmanager
def evaluator_of(config: DictConfig) -> Iterator[Evaluator]:
    """An evaluator of the run `config.run`, with its robot's nodes, operator and device."""
    torch.set_num_threads(1)
    run = RunDirectory(Path(config.run))
    if on_stepped_clock(config).clock == "realtime":
        check_robot(config)
    try_environment(config)
    with robot_nodes(config, run.path / "logs"):
        if on_stepped_clock(config).clock == "realtime":
            note("evaluation: waiting until robot, reward and operator are there")
        with closing(Evaluator(config, run, note)) as made:
            yield made


def circumstances(overrides: Sequence[str]) -> dict[str, Any]:
    """When a result was found, what was typed for it, and with which commit of robot_rl."""
    typed = [word for word in overrides if not word.startswith(("run=", "runs_directory="))]
    time = datetime.now().astimezone().isoformat(timespec="seconds")
    return {"time": time, "overrides": typed, "commit": source_commit()}


def keep(run: RunDirectory, name: str, *records: Mapping[str, Any]) -> None:
    """Add records to the run's, and say where; what cannot be written is printed whole."""
    for record in records:
        try:
            run.append_jsonl(name, record)
        except RunError:
            print(json.dumps(record), flush=True)
            raise
    print(f"details: {run.path / name}.jsonl", flush=True)
