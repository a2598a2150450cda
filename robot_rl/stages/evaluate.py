"""`robot-rl evaluate`: the success rate of a run's last checkpoint; and the follower of a run."""

from __future__ import annotations

import json
import sys
from contextlib import closing
from dataclasses import replace

import torch
from omegaconf import DictConfig

from policies import checkpoint
from robot_rl.blocks import Blocks
from robot_rl.compute import compute_device
from robot_rl.config import on_stepped_clock
from robot_rl.env.factory import make_env
from robot_rl.env.gym import GymError
from robot_rl.env.sim.cameras import CameraError
from robot_rl.evaluation.evaluate import Evaluator
from robot_rl.evaluation.records import VIDEOS
from robot_rl.evaluation.statistics import EvaluationResult
from robot_rl.machine import yield_to_control_loop
from robot_rl.run import CLONED, RunDirectory
from robot_rl.run_policies import learned_steps, load_newest
from robot_rl.signals import StopEvent, Stopped, stop_event
from robot_rl.stages.nodes import robot_nodes

RECORDS = "evaluations"
_POLL_SECONDS = 0.2


def follow(config: DictConfig, run: RunDirectory, stop: StopEvent) -> None:
    """Evaluate the cloned policy and each of a run's snapshots as they appear, in order.

    What was evaluated before is not repeated, so that a resumed run goes on with its curve.

    Args:
        config: The configuration.
        run: The run directory that a learner writes to.
        stop: Ends the waiting and the evaluation that is going on.

    Raises:
        Stopped: `stop` was set.
    """
    torch.set_num_threads(1)
    with closing(Evaluator(config, _note)) as evaluator:
        for steps in unevaluated(config, run):
            name = CLONED if steps == 0 else run.snapshot_name(steps)
            while not run.has_folder(name) and learned_steps(run) <= steps:
                if stop.wait(_POLL_SECONDS):
                    raise Stopped
            if not run.has_folder(name):
                continue  # the run has passed this point with other points of evaluation
            behaviour = checkpoint.load(run.complete_folder(name) / "policy")
            result = evaluator.evaluate(behaviour, "periodic", steps, stop)
            run.append_jsonl(RECORDS, result.to_json())


def evaluates_periodically(config: DictConfig) -> bool:
    """Whether checkpoints are evaluated while a run trains."""
    return bool(config.evaluation.get("periodic", True))


def unevaluated(config: DictConfig, run: RunDirectory) -> list[int]:
    """Environment steps of the periodic evaluations that are still to be made, or waited for."""
    if not evaluates_periodically(config):
        return []
    records = run.read_jsonl(RECORDS)
    known = {r["environment_steps"] for r in records if r["seed_set"] == "periodic"}
    learned = learned_steps(run)
    return [
        steps
        for steps in Blocks.of(config).evaluation_points()
        if steps not in known
        and (steps == 0 or steps > learned or run.has_folder(run.snapshot_name(steps)))
    ]


def evaluate_final(config: DictConfig, run: RunDirectory) -> EvaluationResult:
    """Evaluate a run's last checkpoint on the final seeds."""
    torch.set_num_threads(1)
    behaviour, steps = load_newest(run)
    with closing(Evaluator(config, _note)) as evaluator:
        return evaluator.evaluate(behaviour, "final", steps)


def save_final(run: RunDirectory, result: EvaluationResult) -> None:
    """Write `evaluation.json`.

    Raises:
        RunError: The disk is full or the folder cannot be written.
    """
    run.save_json("evaluation.json", result.to_json())


def film_final(config: DictConfig, run: RunDirectory, result: EvaluationResult) -> None:
    """Film some episodes of a final evaluation, its first failures among them, if that works here.

    Args:
        config: The configuration; its `evaluation.videos` says how many.
        run: The run directory; the films go to its `videos`.
        result: The evaluation.
    """
    count = int(config.evaluation.videos)
    if count == 0:
        return
    try:
        from robot_rl.evaluation import videos
    except ModuleNotFoundError as error:
        _note(f"no videos without {error.name!r}: pip install 'robot_rl[video]'")
        return
    first = int(config.evaluation.final_seed)
    seeds = videos.chosen_seeds(first, result.failures, result.episodes, count)
    env = make_env(on_stepped_clock(config))
    folder = run.path / VIDEOS
    try:
        behaviour = load_newest(run)[0].to(compute_device(config))
        videos.save_clips(videos.film(env, behaviour, seeds, folder), folder)
    except (CameraError, GymError, *videos.WRITE_ERRORS) as problem:
        _note(f"no videos: {problem}")
    finally:
        env.close()


def _note(words: str) -> None:
    """Say something beside the result, which is the last line of the output."""
    print(words, file=sys.stderr, flush=True)


def record_final(run: RunDirectory, result: EvaluationResult) -> None:
    """Add a final evaluation to the run's records, unless the same one is there already."""
    known = (EvaluationResult.from_json(record) for record in run.read_jsonl(RECORDS))
    if all(replace(record, wall_seconds=result.wall_seconds) != result for record in known):
        run.append_jsonl(RECORDS, result.to_json())


def run(config: DictConfig) -> None:
    """Evaluate the run `config.run` and print the result, or follow it as it trains.

    Raises:
        KeyboardInterrupt: The follower was asked to stop.
    """
    directory = RunDirectory.open(config.run, config.runs_directory)
    if config.evaluation.follow:
        yield_to_control_loop(config.clock)
        with stop_event() as stop, directory.claim("evaluator"):
            try:
                follow(config, directory, stop)
            except Stopped:
                raise KeyboardInterrupt from None
        return
    with robot_nodes(config, directory.path / "logs"):
        result = evaluate_final(config, directory)
    print(f"{config.task.name}, {result.policy} after {result.environment_steps} steps: {result}")
    print(json.dumps(result.to_json()), flush=True)
    save_final(directory, result)
    film_final(config, directory, result)
