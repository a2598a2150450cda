"""`robot-rl evaluate`: the success rate of a run's last checkpoint; and the follower of a run."""

from __future__ import annotations

import json
import threading

import torch
from omegaconf import DictConfig

from policies import checkpoint
from policies.behaviour import Behaviour
from robot_rl.evaluation.evaluate import Evaluator
from robot_rl.evaluation.statistics import EvaluationResult
from robot_rl.learner import LAST
from robot_rl.run import RunDirectory
from robot_rl.signals import stop_event
from robot_rl.stages.pretrain import CLONED, load_cloned

_POLL_SECONDS = 0.2


def load_newest(run: RunDirectory) -> tuple[Behaviour, int]:
    """Load a run's last policy, and the environment steps behind it; the cloned one if none yet.

    Raises:
        CheckpointError: There is none, or a file of it is damaged.
    """
    if not run.has_folder(LAST):
        return load_cloned(run), 0
    folder = run.complete_folder(LAST)
    state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    return checkpoint.load(folder / "policy"), int(state["environment_steps"])


def follow(config: DictConfig, run: RunDirectory, stop: threading.Event) -> None:
    """Evaluate the cloned policy and each of a run's snapshots as they appear, in order.

    What was evaluated before is not repeated, so that a resumed run goes on with its curve.

    Args:
        config: The configuration.
        run: The run directory that a learner writes to.
        stop: Ends the waiting.
    """
    torch.set_num_threads(1)
    evaluator = Evaluator(config)
    every = int(config.evaluation.every_steps)
    total = int(config.environment_steps)
    known = {record["environment_steps"] for record in run.read_jsonl("evaluations")}
    for steps in [*range(0, total, every), total]:
        if steps in known:
            continue
        name = CLONED if steps == 0 else run.snapshot_name(steps)
        while not run.has_folder(name):
            if stop.wait(_POLL_SECONDS):
                return
        behaviour = checkpoint.load(run.complete_folder(name) / "policy")
        run.append_jsonl("evaluations", evaluator.evaluate(behaviour, "periodic", steps).to_json())


def evaluate_final(config: DictConfig, run: RunDirectory) -> EvaluationResult:
    """Evaluate a run's last checkpoint on the final seeds and write `evaluation.json`."""
    torch.set_num_threads(1)
    behaviour, steps = load_newest(run)
    result = Evaluator(config).evaluate(behaviour, "final", steps)
    text = json.dumps(result.to_json(), indent=2) + "\n"
    (run.path / "evaluation.json").write_text(text, encoding="utf-8")
    return result


def run(config: DictConfig) -> None:
    """Evaluate the run `config.run` and print the result, or follow it as it trains."""
    directory = RunDirectory.open(config.run, config.runs_directory)
    if config.evaluation.follow:
        with stop_event() as stop:
            follow(config, directory, stop)
        return
    result = evaluate_final(config, directory)
    print(f"{config.task.name}, {result.policy} after {result.environment_steps} steps: {result}")
    print(json.dumps(result.to_json()), flush=True)
