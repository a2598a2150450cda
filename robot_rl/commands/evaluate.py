"""`robot-rl evaluate` and `certify`: the success rate of a policy, also during training."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig

from policies import checkpoint
from robot_rl.commands.preparation import check_robot, robot_nodes, try_environment
from robot_rl.config import ConfigError, Settings, on_stepped_clock, section
from robot_rl.config.sections import EvaluationSection, ProofSection
from robot_rl.data.intervals import clopper_pearson, failures_allowed, trials_needed
from robot_rl.evaluation.evaluator import Evaluator, first_scene
from robot_rl.evaluation.ledger import (
    CHECKSUM,
    began_with,
    deployed_policy,
    open_policy,
    policy_checkpoint,
    policy_checksum,
)
from robot_rl.evaluation.records import read_run
from robot_rl.learning.blocks import EVALUATIONS, Blocks, unevaluated
from robot_rl.learning.stages.decide import film
from robot_rl.processes.machine import source_commit, yield_to_control_loop
from robot_rl.processes.signals import StopEvent, Stopped, stop_event
from robot_rl.run import (
    CHECKPOINTS,
    DEPLOYED,
    LEARNED_POLICY,
    STUDENT_POLICY,
    RunDirectory,
    RunError,
    learned_steps,
    policy_folder,
)

_POLL_SECONDS = 0.2


def follow(config: DictConfig, run: RunDirectory, stop: StopEvent) -> None:
    """Evaluate the initial policy, then each snapshot of the run as it appears.

    For a snapshot the learned policy acts, even if training has not deployed it. Earlier
    evaluations are not repeated, so a resumed run continues its curve.
    """
    torch.set_num_threads(1)
    settings = Settings.of(config)
    looks = len(Blocks.of(settings).evaluation_points()) - 1
    with closing(Evaluator(config, run, note)) as evaluator:
        for steps in unevaluated(settings, run):
            which = began_with(run) if steps == 0 else LEARNED_POLICY
            name = run.snapshot_name(steps) if steps else CHECKPOINTS[which]
            while not run.has_folder(name) and learned_steps(run) <= steps:
                if stop.wait(_POLL_SECONDS):
                    raise Stopped
            if not run.has_folder(name):
                note(f"evaluation: none after {steps:,} steps: training passed that point before")
                continue
            behaviour = checkpoint.load(run.complete_folder(name) / "policy")
            # If not deployed, the initial policy would act, and that is evaluated already.
            deployed = not behaviour.held_back
            behaviour.hold_back(False)
            result = evaluator.evaluate(behaviour, steps, "periodic", stop)
            result = replace(result, policy_name=which, deployed=deployed)
            curve = read_run(run).periodic()
            cloned = [record for record in curve if record.cloned]
            if cloned and not result.cloned:
                result = replace(result, against_cloned=result.beside(cloned[-1], looks))
            run.append_jsonl(EVALUATIONS, result.to_json())


def note(words: str) -> None:
    """Print to stderr, separate from the result."""
    print(words, file=sys.stderr, flush=True)


def run(config: DictConfig, overrides: Sequence[str], paths: Sequence[str]) -> None:
    """Evaluate a policy of the run, or the one at the path, and record it; or follow the run."""
    directory = RunDirectory.open(config.run, config.runs_directory)
    if config.evaluation.follow:
        yield_to_control_loop(config.clock)
        with stop_event() as stop, directory.claim("evaluator"):
            try:
                follow(config, directory, stop)
            except Stopped:
                raise KeyboardInterrupt from None
        return
    evaluation = section(config, "evaluation", EvaluationSection)
    which = str(config.evaluation.policy)
    (path,) = paths or [config.run]
    folder = policy_folder(path)
    beside = which == STUDENT_POLICY and folder is None
    policies = []
    for name in (DEPLOYED, which) if beside else (which,):
        behaviour, steps = open_policy(path, name, config.runs_directory)
        if folder is not None:
            policies.append((str(path), folder, behaviour, steps))
            continue
        found = deployed_policy(directory) if name == DEPLOYED else name
        place = directory.complete_folder(policy_checkpoint(directory, found)) / "policy"
        policies.append((found, place, behaviour, steps))
    facts = {**circumstances(overrides), "path": path}
    changed = [word for word in facts["overrides"] if word.startswith(("domain", "robot", "task."))]
    where = f", with {' '.join(changed)}" if changed else ""
    first, count = first_scene(config, final=True), evaluation.final_episodes
    others = "for others add evaluation.final_seed=SEED"
    print(f"scenes {first:,} to {first + count - 1:,}; {others}", flush=True)
    results = []
    with evaluator_of(config) as evaluator:
        for name, place, behaviour, steps in policies:
            result = replace(evaluator.evaluate(behaviour, steps, "final"), policy_name=name)
            results.append(result)
            print(f"{config.task.name}, {result.name}{where}: {result}")
            record = {**facts, CHECKSUM: policy_checksum(place), **result.to_json()}
            keep(directory, "evaluate", record)
    if beside and (compared := results[1].beside(results[0])) is not None:
        print(
            f"the student against the deployed policy, on the same scenes: {results[1].count}"
            f" against {results[0].count}; {compared.lost} lost, {compared.won} won"
            f" (sign test, p = {compared.chance:.2g})"
        )
    if not changed and folder is None:  # RUN/videos is for the training's own scenes
        film(config, directory, behaviour, result, evaluation.videos, note)


def certify(config: DictConfig, overrides: Sequence[str], paths: Sequence[str]) -> None:
    """Test whether a policy succeeds at least as often as `proof.claim` states.

    The number of episodes and of allowed failures is fixed in advance; one failure more ends the
    test. This makes the one-sided Clopper-Pearson bound exact.
    """
    proof = section(config, "proof", ProofSection)
    claim, confidence = proof.claim, proof.confidence
    count = proof.episodes or trials_needed(claim, confidence)
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
    # One-sided: twice the tail of the two-sided interval.
    low, _ = clopper_pearson(result.successes, result.episodes, 2.0 * confidence - 1.0)
    found = "proved" if failures <= allowed else "not proved"
    print(f"{config.task.name}, {result.name}: {result}")
    print(
        f"{found}: {stated}; {failures} of {result.episodes:,} episodes failed, {allowed} may have;"
        f" at this confidence the rate is at least {100 * low:.2f} %"
    )
    record = {
        **circumstances(overrides),
        "path": paths[0],
        "claim": claim,
        "confidence": confidence,
        "at_least": low,
        "result": found,
        **result.to_json(),
    }
    keep(RunDirectory(Path(config.run)), "evaluate", record)


@contextmanager
def evaluator_of(config: DictConfig) -> Iterator[Evaluator]:
    """Run the robot's nodes and yield an evaluator for the run `config.run`."""
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
    """Return time, typed overrides and robot_rl commit, for the record of a result."""
    typed = [word for word in overrides if not word.startswith(("run=", "runs_directory="))]
    time = datetime.now().astimezone().isoformat(timespec="seconds")
    return {"time": time, "overrides": typed, "commit": source_commit()}


def keep(run: RunDirectory, name: str, *records: Mapping[str, Any]) -> None:
    """Append records to the run's and print the file; print a record that cannot be written."""
    for record in records:
        try:
            run.append_jsonl(name, record)
        except RunError:
            print(json.dumps(record), flush=True)
            raise
    print(f"details: {run.path / name}.jsonl", flush=True)
