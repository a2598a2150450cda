"""Causes in what is learned from: rewards, labels, demonstrations, and the settings of learning."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from omegaconf import DictConfig, OmegaConf
from scipy.signal import lfilter
from scipy.stats import fisher_exact, poisson

from robot_rl.config import Settings, changed_settings, flatten
from robot_rl.errors import in_shell
from robot_rl.evaluation.evidence import Check, Evidence, Finding, Origin, Vector, percent
from robot_rl.evaluation.records import intervention_rates
from robot_rl.learning.blocks import Blocks
from robot_rl.run import ACCEPTED_POLICY, CLONED_POLICY, CONFIG_FILE, LEARNED_POLICY

_FEW = 5  # demonstrations; from twice as many on nobody complains
_MANY = 40  # of them, before which success rates are not compared
_FAR = 30.0  # times that a setting may be off its default, or 1/30 of it
_SOME = 5  # episodes of the policy, before which nothing is said of them
_LINGERS = 0.3  # share of a demonstration spent where it ends, from which on that tells nothing
_CHANCE = 0.05  # of so few successes, from which on they are held for missing labels
_MOVING = ("velocity", "velocities", "wrench", "lead")


def reward_sign(evidence: Evidence) -> Finding | None:
    """Success that is punished, or demonstrations that end with less reward than they begin."""
    figure = ""
    for words, origin in evidence.origins.items():
        rewards, success = (origin.column(n, last=False) for n in ("reward", "success"))
        if not success.any() or success.all():
            continue
        at, before = rewards[success > 0].mean(), rewards[success == 0].mean()
        figure = f"in {words} the mean reward is {at:.3g} at success, {before:.3g} before"
        mend = "turn its sign; the steps that lead to success must bring more than others"
        if at < before:
            return Finding("reward sign", 0.94, figure, mend)
    thirds = [np.array_split(r[:-1, 0], 3) for r in evidence.shown.each("reward") if len(r) > 6]
    falls = [float(last.mean() < first.mean()) for first, _, last in thirds]
    share = float(np.mean(falls or [0.0]))
    if share > 0.7:
        figure = f"{percent(share)} of the demonstrations end with less reward than they begin with"
        return Finding("reward sign", 0.6, figure, mend)
    return Finding("reward sign", 0.0, figure) if figure else None


def reward_seen(evidence: Evidence) -> Finding | None:
    """Rewards that are all the same, so that there is nothing to learn from."""
    returns = np.array([sum(rewards) for rewards in evidence.shown.each("reward")])
    # The same reward at each step still tells a long episode from a short one.
    equal = len(returns) and not np.ptp(evidence.shown.column("reward", last=False))
    if equal and not np.ptp(returns):
        figure = "all rewards of the demonstrations are equal"
        mend = "record them with a reward, or say which of them succeeded: docs/rewards.md"
        return Finding("reward seen", 0.85, figure, mend)
    if len(evidence.acted) < _SOME:
        return None
    rewards = evidence.acted.column("reward", last=False)
    figure = (
        f"{evidence.acted.succeeded.sum()} of the policy's latest {len(evidence.acted)} episodes"
        f" succeeded; rewards from {rewards.min():.3g} to {rewards.max():.3g}"
    )
    mend = "give it more or better demonstrations, a longer time limit, or help: operator, teleop"
    seen = np.ptp(rewards) > 0 or evidence.acted.succeeded.any()
    # Some failures in a row are no cause; many are at least worth a word.
    return Finding("reward seen", 0.0 if seen or len(evidence.acted) < 20 else 0.35, figure, mend)


def labels(evidence: Evidence) -> Finding | None:
    """Success that is not called one, or what is none called so."""
    ends = _Ends.of(evidence)
    if ends is None or len(evidence.acted) < _SOME:
        return None
    # As often as where demonstrations ended a step was the last, it should be one here.
    there = np.array([ends.reached(e).sum() for e in evidence.acted.episodes])
    expected = float((1.0 - (1.0 - ends.rate) ** there).sum())
    success = evidence.acted.succeeded
    near = np.array([ends.reached(e, 1.0).any() for e in evidence.acted.episodes])
    elsewhere = int((success & ~near).sum())
    figure = (
        f"in {len(success)} episodes the policy was for {there.sum()} steps where demonstrations"
        f" ended ({', '.join(ends.names)}): {expected:.1f} successes are to be expected,"
        f" {success.sum()} are told, {elsewhere} of them elsewhere"
    )
    chance = float(poisson.cdf(success.sum(), expected))
    if success.sum() < 0.25 * expected and chance < _CHANCE:
        mend = "see who says success (reward=, robot-rl console), and correct its labels"
        return Finding("label missing", 0.82 if chance < 0.4 * _CHANCE else 0.6, figure, mend)
    if elsewhere >= 3 and elsewhere > 0.5 * success.sum():
        mend = "see who says success (reward=): what it takes for one is none"
        return Finding("label false", 0.82, figure, mend)
    return Finding("labels", 0.0, figure)


def detector(evidence: Evidence) -> Finding | None:
    """A reward that contradicts the task's own detector, or that has raised an alarm."""
    told = [e for e in evidence.records.episodes if "task_success" in e]
    if len(told) < _SOME:
        return None
    wrong = float(np.mean([bool(e["success"]) != bool(e["task_success"]) for e in told]))
    alarms = sum(bool(e.get("reward_alarm")) for e in told)
    figure = f"in {percent(wrong)} of the episodes reward and task disagree; {alarms} reward alarms"
    likely = 0.0 if wrong < 0.2 and alarms < 0.2 * len(told) else 0.83
    return Finding("reward and task", likely, figure, "train it on such frames: docs/rewards.md")


def value_range(evidence: Evidence) -> Finding | None:
    """Returns that the critics cannot tell."""
    bounds, gamma = (
        evidence.taken.get("value_range") or evidence.setting("algorithm.settings.value_range"),
        evidence.discount,
    )
    if not bounds or gamma is None or not evidence.origins:
        return None
    low, high = map(float, bounds)
    returns = np.concatenate([_returns(o, gamma) for o in evidence.origins.values()])
    slack = 0.02 * (high - low)
    outside = float(np.mean((returns < low - slack) | (returns > high + slack)))
    figure = (
        f"value_range is {low:g} to {high:g}; returns are {returns.min():.3g} to"
        f" {returns.max():.3g}, {percent(outside)} of them outside"
    )
    mend = (
        "see whether the rewards are right; or name the range that their returns can have, with"
        " algorithm.settings.value_range=[LOW,HIGH]"
    )
    return Finding("value range", 0.8 if outside > 0.05 else 0.0, figure, mend)


def discount(evidence: Evidence) -> Finding | None:
    """A success so far away that its discounted reward is lost in the noise."""
    gamma = evidence.discount
    if gamma is None or not len(evidence.shown):
        return None
    steps = float(np.median(evidence.shown.steps_to_success))
    left = gamma**steps
    figure = f"at a discount of {gamma:g} a success in {steps:.0f} steps is worth {left:.2g} of 1"
    mend = "leave algorithm.schedule.discount=null: it is then chosen by the demonstrations"
    return Finding("discount", 0.0 if left > 0.05 else 0.75 if left < 0.01 else 0.45, figure, mend)


def time_limit(evidence: Evidence) -> Finding | None:
    """Less time than the demonstrations needed for their success."""
    limit = evidence.setting("task.environment.time_limit_steps")
    if limit is None or not len(evidence.shown):
        return None
    steps = evidence.shown.steps_to_success
    late = float(np.mean(steps > limit))
    cut = np.array([bool(e["truncated"].any()) for e in evidence.acted.episodes] or [False])
    figure = (
        f"demonstrations succeeded after {np.median(steps):.0f} steps, at most"
        f" {steps.max():.0f}; the limit is"
        f" {limit}; it has ended {percent(cut.mean())} of the policy's episodes"
    )
    mend = f"task.environment.time_limit_steps={int(1.5 * steps.max())} or more"
    return Finding("time limit", 0.0 if late < 0.2 else 0.87, figure, mend)


def demonstrations(evidence: Evidence) -> Finding | None:
    """Too few demonstrations."""
    if evidence.setting("demonstrations", 0) == 0 and not evidence.setting("dataset"):
        return None
    count, lengths = evidence.demonstrated, evidence.shown.lengths
    steps = float(np.median(lengths)) if count else 0.0
    figure = f"{count} that succeeded, of {steps:.0f} steps"
    mend = "record more: robot-rl collect RUN goes on with a recording; 20 are a good start"
    likely = 0.0 if count >= 2 * _FEW else 0.65 if count < _FEW else 0.32
    return Finding("demonstrations", likely, figure, mend)


def clone(evidence: Evidence) -> Finding | None:
    """A clone that never succeeds, so that learning has nothing to begin with."""
    told = evidence.records.final(CLONED_POLICY)
    if told is not None:
        successes, episodes = told.successes, told.episodes
    else:
        alone = [e for e in evidence.acted.episodes if e["base_alone"][:-1].all()]
        successes, episodes = sum(bool(e["success"].any()) for e in alone), len(alone)
    if episodes < 2 * _SOME:
        return None
    made = int(evidence.setting("cloning.updates", 0))
    figure = (
        f"the cloned policy, of {made:,} updates, succeeds in {successes} of {episodes} episodes"
    )
    mend = (
        "clone for longer (cloning.updates); or from more demonstrations; or see what it observes"
    )
    return Finding("clone", 0.0 if successes else 0.4, figure, mend)


def settings(evidence: Evidence) -> Finding | None:
    """Numbers of cloning or learning that are far from their defaults, where nothing succeeds."""
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
    mend = "leave them out, or change them in small steps"
    return Finding("settings", 0.7 if fails else 0.0, "; ".join(far), mend)


def conditions(evidence: Evidence) -> Finding | None:
    """Demonstrations of another run, which were recorded on another robot or in another domain."""
    dataset = evidence.setting("dataset")
    recorded = Path(str(dataset)).parent / CONFIG_FILE
    if not dataset or not recorded.is_file():
        return None
    theirs = OmegaConf.load(recorded)
    assert isinstance(theirs, DictConfig)
    before, now = flatten(theirs), flatten(evidence.config)
    apart = [
        f"{key} {before.get(key)}, now {now[key]}"
        for key in sorted(now)  # the choices before what they hold
        if key.startswith(("domain.", "choices.domain", "choices.robot"))
        and before.get(key) != now[key]
    ]
    if not apart:
        return None
    told = evidence.records.final(CLONED_POLICY)
    fails = told is not None and told.successes <= 0.1 * told.episodes
    more = f", and {len(apart) - 3} more" if len(apart) > 3 else ""
    figure = f"the demonstrations were recorded with {'; '.join(apart[:3])}{more}"
    mend = "record them as the policy is to act, or clone for what they were recorded with"
    return Finding("conditions", 0.6 if fails else 0.0, figure, mend)


def updates(evidence: Evidence) -> Finding | None:
    """A policy that acts with weights of long ago, for the learner is slower than the robot."""
    if OmegaConf.select(evidence.config, "algorithm.schedule.updates_per_step") is None:
        return None
    blocks = Blocks.of(Settings.of(evidence.config))
    steps, acted, due = evidence.transitions, 0, 0
    for episode in reversed(evidence.acted.episodes[-_SOME:]):
        # The newest two blocks are not learned from yet.
        paid = blocks.updates_at(max(steps - 2 * blocks.block_steps, 0))
        if paid > blocks.critic_only_updates:
            acted, due = acted + int(episode["policy_version"].max()), due + paid
        steps -= len(episode) - 1
    if not due:
        return None
    wanted = blocks.updates_per_step
    speeds = [r["updates_per_second"] for r in evidence.records.learner[-20:]]
    figure = (
        f"the weights that acted had had {percent(min(acted / due, 1.0))} of their updates"
        f" ({wanted} a step are asked for, {np.median(speeds or [0.0]):.0f} a second are made)"
    )
    mend = (
        "run the learner on another machine (docs/replay.md); or use device=cuda or compile=true;"
        " or lower algorithm.schedule.updates_per_step"
    )
    likely = 0.0 if acted > 0.7 * due else 0.84 if acted < 0.4 * due else 0.5
    return Finding("updates short", likely, figure, mend)


def learner(evidence: Evidence) -> Finding | None:
    """A learner that stands still, or has had no time to learn."""
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
        mend = "see RUN/logs/learner.log; go on with robot-rl train resume=RUN"
        return Finding("learner", 0.78, figure, mend)
    if warm_up > 0.5 * total:
        figure = f"the first {warm_up} of {total} steps are warm-up, in which nothing is learned"
        return Finding("learner", 0.7, figure, "lower algorithm.schedule.warmup_steps")
    if stored < warm_up:
        return Finding("learner", 0.0, f"it warms up: {stored} of {warm_up} steps")
    return Finding("learner", 0.0, figure)


def steps(evidence: Evidence) -> Finding | None:
    """A policy that still improved when its steps were over."""
    total = int(evidence.setting("environment_steps", 0))
    told = evidence.records.episodes[-_MANY:]
    if len(told) < _MANY or told[-1]["environment_steps"] < 0.95 * total:
        return None
    half = _MANY // 2
    before, after = (sum(bool(e["success"]) for e in part) for part in (told[:half], told[half:]))
    figure = (
        f"of the last {half} episodes in its {total:,} steps {after} succeeded, of the {half}"
        f" before {before}"
    )
    table = [[after, half - after], [before, half - before]]
    rises = fisher_exact(table, alternative="greater").pvalue <= 0.05 and after < 0.9 * half
    words = (f"resume={evidence.run.path}", f"environment_steps={2 * total}")
    mend = f"learn on: {in_shell('robot-rl', 'train', *words)}"
    return Finding("steps few", 0.5 if rises else 0.0, figure, mend)


def q_values(evidence: Evidence) -> Finding | None:
    """Critics that promise more, or less, than what came."""
    gamma, told = evidence.discount, [r for r in evidence.records.learner if "q_mean" in r]
    if gamma is None or not told or not evidence.origins:
        return None
    parts = {words: _returns(origin, gamma).mean() for words, origin in evidence.origins.items()}
    share = float(evidence.setting("algorithm.schedule.demonstration_share", 0.0))
    weights = {"the demonstrations": share, "the policy's episodes": 1.0 - share}
    expected = sum(weights[w] * value for w, value in parts.items()) / sum(
        weights[w] for w in parts
    )
    said = float(np.mean([r["q_mean"] for r in told[-5:]]))
    every = np.concatenate([_returns(origin, gamma) for origin in evidence.origins.values()])
    scale = max(float(np.ptp(every)), 1e-6)
    figure = f"the critics say {said:.3g} on average, the recorded returns are {expected:.3g}"
    mend = (
        "more heads (algorithm.settings.target_heads); or a lower algorithm.settings.critic_rate;"
        " or the range that returns can have with algorithm.settings.value_range"
        if said > expected
        else "more updates for each step, or a longer run"
    )
    likely = 0.0 if abs(said - expected) < 0.5 * scale else 0.45 if said > expected else 0.35
    return Finding("critics", likely, figure, mend)


def interventions(evidence: Evidence) -> Finding | None:
    """An operator who does most of the work, so that the policy never meets its own mistakes."""
    rates = intervention_rates(evidence.records.episodes, 20)
    if not rates:
        return None
    figure = f"an operator took {percent(rates[-1][1])} of the steps of the latest episodes"
    mend = "hand back sooner; or clone with HG-DAgger (dagger.rounds), which costs less such help"
    return Finding("interventions", 0.0 if rates[-1][1] < 0.6 else 0.4, figure, mend)


def interruptions(evidence: Evidence) -> Finding | None:
    """A robot that cannot go on in most of its episodes."""
    episodes = evidence.records.episodes[-50:]
    if len(episodes) < _SOME:
        return None
    cut = [e for e in episodes if e.get("interrupted")]
    figure = f"{len(cut)} of the latest {len(episodes)} episodes were cut by the robot"
    figure += f", the last time: {str(cut[-1]['interrupted']).splitlines()[0]}" if cut else ""
    likely = 0.0 if len(cut) < 0.3 * len(episodes) else 0.8
    return Finding("interruptions", likely, figure, "see RUN/faults.jsonl: docs/troubleshooting.md")


def gate(evidence: Evidence) -> Finding | None:
    """What is learned, held back as long as it is not proved to be better than the clone."""
    notes = evidence.records.learner
    rates = {k: notes[-1][k] for k in _RATES if k in notes[-1]} if notes else {}
    if not rates:
        return None
    figure = ", ".join(f"{name.replace('_', ' ')} {percent(rate)}" for name, rate in rates.items())
    cloned, learned = rates.get("base_success"), rates.get("exploring_success")
    few = len(evidence.records.episodes) < _MANY
    mend = (
        "try a smaller algorithm.scale; or learn for longer (environment_steps): docs/policies.md"
    )
    decided = evidence.records.ledger.deployed
    won = decided is not None and decided.policy == LEARNED_POLICY
    if evidence.deployed is not None and not won:
        figure += f"; the {evidence.deployed} policy is deployed{' so far' * (decided is None)}"
    if cloned is None or learned is None or few or won or learned >= cloned - 0.3:
        return Finding("gate", 0.0, figure)
    return Finding("gate", 0.38, figure, mend)


def outcome(evidence: Evidence) -> Finding | None:
    """A learned policy that evaluations show to be worse than its clone."""
    beside = evidence.records.beside(LEARNED_POLICY, CLONED_POLICY)
    if beside is None:
        return None
    learned, cloned, compared = beside
    figure = (
        f"{learned.name} solves {learned.count} {learned.seed_set} scenes, the clone {cloned.count}"
    )
    mend = (
        "learning often costs success at first: learn for longer (environment_steps); or begin with"
        " a better clone"
    )
    return Finding("learned policy", 0.36 if compared.worse else 0.0, figure, mend)


def candidates(evidence: Evidence) -> Finding | None:
    """Rounds that improve the policy, of which a gate accepts nothing."""
    if not (told := evidence.run.read_jsonl("gate")):
        return None
    accepted = sum(verdict["decision"] == "accepted" for verdict in told)
    beside = evidence.records.beside(ACCEPTED_POLICY, CLONED_POLICY)
    if beside is not None and beside[-1].worse:
        chosen, cloned, _ = beside
        figure = f"{chosen.name} succeeds in {chosen.count} episodes, the clone in {cloned.count}"
        mend = "let gate=episodes decide; or with more pairs (gate.pairs)"
        return Finding("candidates", 0.6, f"a gate has accepted what is worse: {figure}", mend)
    figure = f"a gate has accepted {accepted} of {len(told)}; of the latest: {told[-1]['reason']}"
    judged = [verdict["figures"] for verdict in told if "pairs" in verdict["figures"]]
    if judged and not any(e["candidate_successes"] + e["accepted_successes"] for e in judged):
        # Then there was nothing to tell apart: the causes are the clone's.
        return Finding("candidates", 0.0, figure)
    gained = any(each["won"] > each["lost"] for each in judged)
    mend = "more episodes a round (recipe.stages.rounds.of.gather.episodes); or a better clone"
    mend = f"more pairs (gate.pairs), which tell smaller gains; or {mend}" if gained else mend
    return Finding("candidates", 0.0 if accepted or len(told) == 1 else 0.36, figure, mend)


def scenes(evidence: Evidence) -> Finding | None:
    """Episodes that are all the same."""
    seeds = [e["seed"] for e in evidence.records.episodes if e.get("seed") is not None]
    if len(seeds) < _SOME:
        return None
    figure = f"{len(set(seeds))} seeds in {len(seeds)} episodes"
    mend = "see that the reset draws another scene for each episode"
    return Finding("scenes", 0.0 if len(set(seeds)) > 0.5 * len(seeds) else 0.5, figure, mend)


_RATES = ("exploring_success", "learned_success", "base_success")


class _Ends:
    """Where demonstrations end: a box about their last observations, where these are alike."""

    def __init__(self, boxes: dict[str, tuple[npt.NDArray[np.intp], Vector, Vector]]) -> None:
        self._boxes, self.names = boxes, list(boxes)
        self.rate = 0.0  # share of the demonstrated steps in the box that were the last

    @classmethod
    def of(cls, evidence: Evidence) -> _Ends | None:
        """None where the ends cannot be told from the rest of what was demonstrated."""
        boxes = {}
        if len(evidence.shown) < _SOME:
            return None
        for name in evidence.observed:
            if any(word in name for word in _MOVING):
                continue
            values = evidence.shown.column(name)
            ends = np.array([v[-1] for v in evidence.shown.each(name)])
            low, high = np.quantile(ends, [0.05, 0.95], axis=0)
            width = np.ptp(values, axis=0)
            narrow = np.flatnonzero((high - low < 0.3 * width) & (width > 1e-3))
            if narrow.size:
                boxes[name] = (narrow, low[narrow], high[narrow])
        ends_ = cls(boxes)
        if not boxes:
            return None
        within = sum(int(ends_.reached(e).sum()) for e in evidence.shown.episodes)
        if within > _LINGERS * evidence.shown.lengths.sum():
            return None
        ends_.rate = len(evidence.shown) / max(within, len(evidence.shown))
        return ends_

    def reached(self, rows: npt.NDArray[np.void], slack: float = 0.5) -> npt.NDArray[np.bool_]:
        """Which rows are in the box, made larger by a share of its width on each side."""
        inside = np.ones(len(rows), bool)
        for name, (columns, low, high) in self._boxes.items():
            values = rows[name].reshape(len(rows), -1)[:, columns]
            more = slack * (high - low) + 1e-4
            inside &= ((values >= low - more) & (values <= high + more)).all(1)
        return inside


def _returns(origin: Origin, gamma: float) -> Vector:
    """Discounted returns (n,) from each step on, as they came."""
    rewards = (each[:-1, 0] for each in origin.each("reward"))
    return np.concatenate([lfilter([1.0], [1.0, -gamma], r[::-1])[::-1] for r in rewards])


CHECKS: tuple[Check, ...] = (
    interruptions,
    reward_sign,
    time_limit,
    detector,
    labels,
    value_range,
    settings,
    conditions,
    updates,
    learner,
    steps,
    discount,
    demonstrations,
    scenes,
    q_values,
    clone,
    gate,
    outcome,
    candidates,
    interventions,
    reward_seen,
)
