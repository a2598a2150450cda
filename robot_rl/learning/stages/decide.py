"""Stage `Decide`: the final evaluation, and the choice of the policy to deploy."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict, replace
from typing import Any

import torch
from omegaconf import DictConfig

from policies.behaviour import Behaviour
from policies.compute import ready
from robot_rl.config import Settings, on_stepped_clock
from robot_rl.env.factory import make_env
from robot_rl.env.gym import GymError
from robot_rl.env.sim.cameras import CameraError
from robot_rl.errors import in_shell, installing
from robot_rl.evaluation.evaluator import Evaluator, first_scene
from robot_rl.evaluation.ledger import (
    LEDGER,
    Entry,
    Ledger,
    deployed_policy,
    enter,
    held_back,
    load_policy,
    made,
    steps_at,
    steps_behind,
)
from robot_rl.evaluation.records import VIDEOS, inputs_of, intervention_rates, read_run
from robot_rl.evaluation.statistics import EvaluationResult, first_confirmed, worse_than_start
from robot_rl.learning.blocks import EVALUATIONS
from robot_rl.learning.demonstrations import open_demonstrations
from robot_rl.learning.recipe import Stage
from robot_rl.learning.stages.gather import recorded_steps
from robot_rl.learning.workbench import Workbench
from robot_rl.processes.machine import describe_machine
from robot_rl.processes.progress_display import RECENT_EPISODES
from robot_rl.run import (
    ACCEPTED,
    ACCEPTED_POLICY,
    CHECKPOINTS,
    CLONED,
    CLONED_POLICY,
    LAST,
    LEARNED_POLICY,
    POLICIES,
    STUDENT_POLICY,
    SUMMARY,
    UNTRAINED,
    RunDirectory,
    resolved_settings,
)


class Decide(Stage):
    """Evaluates the cloned, accepted and learned policies, and deploys the best."""

    makes = (f"{LEDGER}.jsonl", SUMMARY)

    def done(self, run: RunDirectory, *, recorded: bool) -> bool:
        """Return whether the summary covers all learning, with the current evaluation settings."""
        summary = read_run(run).summary
        judged = summary.get("environment_steps"), summary.get("evaluation")
        return judged == (steps_behind(run), asdict(self.settings.evaluation))

    def run(self, bench: Workbench) -> None:
        """Evaluate, decide, record videos, and write the summary."""
        settings, run = self.settings, bench.run
        results = evaluate_final(settings, run, bench.say)
        decided = decide(run, results, held_back=held_back(run))
        bench.say(str(decided))  # print before any file write can fail
        enter(run, decided)
        result, count = results[deployed_policy(run)], settings.evaluation.videos
        film(settings.environment, run, load_policy(run)[0], result, count, _note)
        run.save_summary(summarize(settings, run, results))


def evaluate_final(
    settings: Settings, run: RunDirectory, say: Callable[[str], None]
) -> dict[str, EvaluationResult]:
    """Evaluate on the final seeds. Without `evaluation.compare`, only the acting policy.

    With it, even a policy that training did not deploy is evaluated: the many scenes can show what
    its few training episodes could not. Returns the results in evaluation order, keyed by a name of
    `POLICIES`.
    """
    torch.set_num_threads(1)
    found = {name: load_policy(run, name) for name in made(run) if name != STUDENT_POLICY}
    if not settings.evaluation.compare:
        back = held_back(run)
        acting = [name for name in found if not (back and name == LEARNED_POLICY)] or list(found)
        found = {acting[-1]: found[acting[-1]]}
    results: dict[str, EvaluationResult] = {}
    with closing(Evaluator(settings.environment, run, _note)) as evaluator:
        for name, (behaviour, steps) in found.items():
            count = settings.evaluation.final_episodes
            say(f"final evaluation of {count} episodes: the {name} policy")
            result = evaluator.evaluate(behaviour, steps, "final")
            results[name] = result = replace(result, policy_name=name)
            say(f"{result.name}: {result}")  # print before any file write can fail
            known = map(EvaluationResult.from_json, run.read_jsonl(EVALUATIONS))
            if all(replace(other, wall_seconds=result.wall_seconds) != result for other in known):
                run.append_jsonl(EVALUATIONS, result.to_json())
    return results


def decide(
    run: RunDirectory, results: Mapping[str, EvaluationResult], *, held_back: bool = False
) -> Ledger:
    """Decide which policy of a run is deployed.

    The policy with the highest success is deployed, or the first of equals. A policy that training
    did not deploy must beat the one it would replace by more than noise.

    Args:
        run: The run.
        results: Final evaluations on the same scenes, keyed by a name of `POLICIES`.
        held_back: Whether training did not deploy the policy it learned online.
    """
    names = [name for name in POLICIES if name in results]
    if held_back and names[-1] == LEARNED_POLICY and len(names) > 1:
        replaced, learned = (results[name] for name in names[-2:])
        compared = replaced.beside(learned)
        if compared is None or not compared.worse:
            names.pop()
    chosen = max(names, key=lambda name: results[name].score)
    why = _why(run, results, chosen, held_back=held_back)
    places = {**dict.fromkeys(results, LAST), **CHECKPOINTS, **made(run)}
    parents = [place for place in (CLONED, UNTRAINED) if run.has_folder(place)]
    entries = {}
    for name in POLICIES:
        if name == STUDENT_POLICY or not (name in results or name in made(run)):
            continue
        result, checkpoint = results.get(name), places[name]
        older = [ACCEPTED] if ACCEPTED in made(run).values() and checkpoint != ACCEPTED else []
        before = () if checkpoint == CLONED else (*older, *parents)
        held = held_back and name == LEARNED_POLICY
        entries[name] = Entry(
            policy=name,
            checkpoint=checkpoint,
            parent=next(iter(before), None),
            environment_steps=result.environment_steps if result else steps_at(run, checkpoint),
            successes=result.successes if result else None,
            episodes=result.episodes if result else None,
            mean_return=result.mean_return if result else None,
            verdict="deployed" if name == chosen else "held back" if held else "not deployed",
            why=why if name == chosen else "",
            decided_after=steps_behind(run),
        )
    return Ledger(entries)


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


def summarize(
    settings: Settings, run: RunDirectory, results: Mapping[str, EvaluationResult]
) -> dict[str, Any]:
    """Return the contents of `summary.json` for a decided run, except time and memory."""
    records = read_run(run)
    chosen = records.ledger.deployed
    assert chosen is not None
    deployed = results[chosen.policy]
    inputs = inputs_of(run, settings.dataset)
    blocks = run.read_jsonl("learner")
    intervened = intervention_rates(records.episodes, RECENT_EPISODES)
    shown = len(open_demonstrations(settings.dataset, run)) if settings.demonstrated else 0
    rated = {
        "bc": results.get(CLONED_POLICY) or records.final(CLONED_POLICY),
        "accepted": results.get(ACCEPTED_POLICY),
        "rl": results.get(LEARNED_POLICY),
    }
    return {
        "task": settings.environment.task.name,
        "algorithm": settings.choices["algorithm"],
        "seed": settings.seed,
        "deployed": chosen.policy,
        "decision": str(records.ledger),
        "held_back": held_back(run),
        "checkpoint": chosen.checkpoint,
        **{f"{name}_success_rate": r and r.success_rate for name, r in rated.items()},
        **{
            f"{name}_confidence": r and [r.confidence_low, r.confidence_high]
            for name, r in rated.items()
        },
        "worse_than_start": worse_than_start(records.learned_curve()),
        "evaluation": asdict(settings.evaluation),
        "evaluation_episodes": deployed.episodes,
        "mean_seconds_to_success": deployed.mean_seconds_to_success,
        "longest_success_run": deployed.longest_success_run,
        "inputs": None if inputs is None else inputs._asdict(),
        "demonstrations": shown,
        "environment_steps": steps_behind(run),
        "exploration_steps": recorded_steps(run.exploration),
        "gathered_steps": recorded_steps(run.gathered),
        "intervention_rate": intervened[-1][1] if intervened else 0.0,
        "steps_to_97": first_confirmed(records.deployed_curve()),
        "gradient_updates": blocks[-1]["gradient_updates"] if blocks else 0,
        "taken_by_learner": resolved_settings(run),
        "machine": describe_machine(),
    }


def film(
    environment: DictConfig,
    run: RunDirectory,
    behaviour: Behaviour,
    result: EvaluationResult,
    count: int,
    note: Callable[[str], object],
) -> None:
    """Record `count` final evaluation episodes, with the first failures among them, to `videos`.

    If that fails on this machine, `note` receives the reason.
    """
    if count == 0:
        return
    try:
        from robot_rl.evaluation import videos
    except ModuleNotFoundError as error:
        note(f"no videos without {error.name!r}: {installing('video')}")
        return
    first = first_scene(environment, final=True)
    seeds = videos.chosen_seeds(first, result.failures, result.episodes, count)
    folder = run.path / VIDEOS
    with closing(make_env(on_stepped_clock(environment))) as env:
        try:
            acting = ready(behaviour, environment.device)
            videos.save_clips(videos.film(env, acting, seeds, folder), folder)
        except (CameraError, GymError, *videos.WRITE_ERRORS) as problem:
            note(f"no videos: {problem}")


def _note(words: str) -> None:
    """Print a note to standard error."""
    sys.stderr.write(f"{words}\n")
