"""Causes in the learning settings and in the course of a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from omegaconf import DictConfig, OmegaConf
from scipy.stats import fisher_exact

from robot_rl.config import Settings, changed_settings, flatten
from robot_rl.errors import in_shell
from robot_rl.evaluation.records import intervention_rates
from robot_rl.extras.explain.evidence import Cause, Check, Evidence, percent
from robot_rl.learning.blocks import Blocks
from robot_rl.run import ACCEPTED_POLICY, CLONED_POLICY, CONFIG_FILE, LEARNED_POLICY

_MANY = 40  # minimum number of episodes to compare success rates
_FAR = 30.0  # factor by which a setting may differ from its default, either way
_SOME = 5  # minimum number of policy episodes for a verdict
_RATES = ("exploring_success", "learned_success", "base_success")


def settings(evidence: Evidence) -> Cause | None:
    """Cloning or learning settings far from their defaults, while nothing succeeds."""
    far = []
    for key, value, default in changed_settings(evidence.config):
        numbers = all(type(each) in (int, float) and each > 0 for each in (value, default))
        if numbers and key.startswith(("algorithm.", "cloning.", "policy.")):
            ratio = value / default
            if not 1 / _FAR < ratio < _FAR:
                words = f"{ratio:,.0f} times" if ratio > 1 else f"1/{1 / ratio:,.0f} of"
                far.append(f"{key}={value} ({words} the default, {default})")
    if not far:
        return None
    finals = [evidence.records.final(name) for name in (CLONED_POLICY, LEARNED_POLICY)]
    fails = any(each and each.successes == 0 for each in finals)
    beside = evidence.records.beside(LEARNED_POLICY, CLONED_POLICY)
    fails = fails or bool(beside and beside[-1].worse)
    fix = "leave them out, or change them in small steps"
    return Cause("settings", 0.7 if fails else 0.0, "; ".join(far), fix)


def conditions(evidence: Evidence) -> Cause | None:
    """Demonstrations recorded on another robot or in another domain."""
    dataset = evidence.setting("dataset")
    recorded = Path(str(dataset)).parent / CONFIG_FILE
    if not dataset or not recorded.is_file():
        return None
    theirs = OmegaConf.load(recorded)
    assert isinstance(theirs, DictConfig)
    before, now = flatten(theirs), flatten(evidence.config)
    apart = [
        f"{key} {before.get(key)}, now {now[key]}"
        for key in sorted(now)  # choices before the values they contain
        if key.startswith(("domain.", "choices.domain", "choices.robot"))
        and before.get(key) != now[key]
    ]
    if not apart:
        return None
    clone = evidence.records.final(CLONED_POLICY)
    fails = clone is not None and clone.successes <= 0.1 * clone.episodes
    more = f", and {len(apart) - 3} more" if len(apart) > 3 else ""
    figure = f"the demonstrations were recorded with {'; '.join(apart[:3])}{more}"
    fix = "record them as the policy is to act, or clone for what they were recorded with"
    return Cause("conditions", 0.6 if fails else 0.0, figure, fix)


def updates(evidence: Evidence) -> Cause | None:
    """A policy that acts with outdated weights, since the learner is slower than the robot."""
    if OmegaConf.select(evidence.config, "algorithm.schedule.updates_per_step") is None:
        return None
    blocks = Blocks.of(Settings.of(evidence.config))
    steps, acted, due = evidence.transitions, 0, 0
    for episode in reversed(evidence.acted.episodes[-_SOME:]):
        # The latest two blocks are not used for learning yet.
        paid = blocks.updates_at(max(steps - 2 * blocks.block_steps, 0))
        if paid > blocks.critic_only_updates:
            acted, due = acted + int(episode["policy_version"].max()), due + paid
        steps -= len(episode) - 1
    if not due:
        return None
    speeds = [r["updates_per_second"] for r in evidence.records.learner[-20:]]
    figure = (
        f"the weights that acted had had {percent(min(acted / due, 1.0))} of their updates"
        f" ({blocks.updates_per_step} a step are asked for, {np.median(speeds or [0.0]):.0f} a"
        " second are made)"
    )
    fix = (
        "run the learner on another machine (docs/replay.md); or use device=cuda or compile=true;"
        " or lower algorithm.schedule.updates_per_step"
    )
    likely = 0.0 if acted > 0.7 * due else 0.84 if acted < 0.4 * due else 0.5
    return Cause("updates short", likely, figure, fix)


def learner(evidence: Evidence) -> Cause | None:
    """A learner that has stalled, or has had no time to learn."""
    warm_up = evidence.setting("algorithm.schedule.warmup_steps")
    if warm_up is None or not evidence.transitions:
        return None
    total = int(evidence.setting("environment_steps", 0))
    noted = evidence.records.learner[-1] if evidence.records.learner else {}
    learned, done = noted.get("environment_steps", 0), noted.get("gradient_updates", 0)
    stored = evidence.transitions
    figure = f"{stored} steps are stored, {learned} are learned from, with {done} updates"
    behind = stored - learned
    if behind > max(500, 5 * int(evidence.setting("block_steps", 50))):
        fix = "see RUN/logs/learner.log; go on with robot-rl train resume=RUN"
        return Cause("learner", 0.78, figure, fix)
    if warm_up > 0.5 * total:
        figure = f"the first {warm_up} of {total} steps are warm-up, in which nothing is learned"
        return Cause("learner", 0.7, figure, "lower algorithm.schedule.warmup_steps")
    if stored < warm_up:
        return Cause("learner", 0.0, f"it warms up: {stored} of {warm_up} steps")
    return Cause("learner", 0.0, figure)


def steps(evidence: Evidence) -> Cause | None:
    """A policy that was still improving when its steps ran out."""
    total = int(evidence.setting("environment_steps", 0))
    episodes = evidence.records.episodes[-_MANY:]
    if len(episodes) < _MANY or episodes[-1]["environment_steps"] < 0.95 * total:
        return None
    half = _MANY // 2
    before, after = (
        sum(bool(e["success"]) for e in part) for part in (episodes[:half], episodes[half:])
    )
    figure = (
        f"of the last {half} episodes in its {total:,} steps {after} succeeded, of the {half}"
        f" before {before}"
    )
    table = [[after, half - after], [before, half - before]]
    rises = fisher_exact(table, alternative="greater").pvalue <= 0.05 and after < 0.9 * half
    words = (f"resume={evidence.run.path}", f"environment_steps={2 * total}")
    fix = f"learn on: {in_shell('robot-rl', 'train', *words)}"
    return Cause("steps few", 0.5 if rises else 0.0, figure, fix)


def interventions(evidence: Evidence) -> Cause | None:
    """An operator who does most of the work, so the policy never meets its own mistakes."""
    rates = intervention_rates(evidence.records.episodes, 20)
    if not rates:
        return None
    figure = f"an operator took {percent(rates[-1][1])} of the steps of the latest episodes"
    fix = "hand back sooner; or clone with HG-DAgger (dagger.rounds), which costs less such help"
    return Cause("interventions", 0.0 if rates[-1][1] < 0.6 else 0.4, figure, fix)


def interruptions(evidence: Evidence) -> Cause | None:
    """A robot that cannot continue in most of its episodes."""
    episodes = evidence.records.episodes[-50:]
    if len(episodes) < _SOME:
        return None
    cut = [e for e in episodes if e.get("interrupted")]
    figure = f"{len(cut)} of the latest {len(episodes)} episodes were cut by the robot"
    figure += f", the last time: {str(cut[-1]['interrupted']).splitlines()[0]}" if cut else ""
    likely = 0.0 if len(cut) < 0.3 * len(episodes) else 0.8
    return Cause("interruptions", likely, figure, "see RUN/faults.jsonl: docs/troubleshooting.md")


def gate(evidence: Evidence) -> Cause | None:
    """A learned policy that is not deployed until it is proved better than the clone."""
    notes = evidence.records.learner
    rates = {k: notes[-1][k] for k in _RATES if k in notes[-1]} if notes else {}
    if not rates:
        return None
    figure = ", ".join(f"{name.replace('_', ' ')} {percent(rate)}" for name, rate in rates.items())
    cloned, learned = rates.get("base_success"), rates.get("exploring_success")
    few = len(evidence.records.episodes) < _MANY
    fix = "try a smaller algorithm.scale; or learn for longer (environment_steps): docs/policies.md"
    decided = evidence.records.ledger.deployed
    won = decided is not None and decided.policy == LEARNED_POLICY
    if evidence.deployed is not None and not won:
        figure += f"; the {evidence.deployed} policy is deployed{' so far' * (decided is None)}"
    if cloned is None or learned is None or few or won or learned >= cloned - 0.3:
        return Cause("gate", 0.0, figure)
    return Cause("gate", 0.38, figure, fix)


def outcome(evidence: Evidence) -> Cause | None:
    """A learned policy that evaluates worse than its clone."""
    beside = evidence.records.beside(LEARNED_POLICY, CLONED_POLICY)
    if beside is None:
        return None
    learned, cloned, compared = beside
    figure = (
        f"{learned.name} solves {learned.count} {learned.seed_set} scenes, the clone {cloned.count}"
    )
    fix = (
        "learning often costs success at first: learn for longer (environment_steps); or begin with"
        " a better clone"
    )
    return Cause("learned policy", 0.36 if compared.worse else 0.0, figure, fix)


def candidates(evidence: Evidence) -> Cause | None:
    """Rounds in which a gate accepts no policy, or a worse one."""
    if not (verdicts := evidence.run.read_jsonl("gate")):
        return None
    accepted = sum(each["decision"] == "accepted" for each in verdicts)
    beside = evidence.records.beside(ACCEPTED_POLICY, CLONED_POLICY)
    if beside is not None and beside[-1].worse:
        chosen, cloned, _ = beside
        figure = f"{chosen.name} succeeds in {chosen.count} episodes, the clone in {cloned.count}"
        fix = "let gate=episodes decide; or with more pairs (gate.pairs)"
        return Cause("candidates", 0.6, f"a gate has accepted a worse policy: {figure}", fix)
    figure = f"a gate has accepted {accepted} of {len(verdicts)}"
    figure += f"; of the latest: {verdicts[-1]['reason']}"
    judged = [each["figures"] for each in verdicts if "pairs" in each["figures"]]
    if judged and not any(e["candidate_successes"] + e["accepted_successes"] for e in judged):
        # No comparison was possible: the clone's causes apply.
        return Cause("candidates", 0.0, figure)
    gained = any(each["won"] > each["lost"] for each in judged)
    fix = "more episodes a round (recipe.stages.rounds.of.gather.episodes); or a better clone"
    fix = f"more pairs (gate.pairs), which prove smaller gains; or {fix}" if gained else fix
    return Cause("candidates", 0.0 if accepted or len(verdicts) == 1 else 0.36, figure, fix)


def scenes(evidence: Evidence) -> Cause | None:
    """Episodes that are all identical."""
    seeds = [e["seed"] for e in evidence.records.episodes if e.get("seed") is not None]
    if len(seeds) < _SOME:
        return None
    figure = f"{len(set(seeds))} seeds in {len(seeds)} episodes"
    fix = "see that the reset draws another scene for each episode"
    return Cause("scenes", 0.0 if len(set(seeds)) > 0.5 * len(seeds) else 0.5, figure, fix)


CHECKS: tuple[Check, ...] = (
    interruptions,
    settings,
    conditions,
    updates,
    learner,
    steps,
    scenes,
    gate,
    outcome,
    candidates,
    interventions,
)
