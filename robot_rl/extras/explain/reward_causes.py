"""Causes in the training signal: rewards, labels and demonstrations."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.signal import lfilter
from scipy.stats import poisson

from robot_rl.extras.explain.evidence import Cause, Check, Evidence, Origin, Vector, percent
from robot_rl.run import CLONED_POLICY

_FEW = 5  # demonstrations; twice as many are enough
_SOME = 5  # minimum number of policy episodes for a verdict
_LINGERS = 0.3  # fraction of demonstrated steps in the end box, above which it is useless
_CHANCE = 0.05  # probability of so few successes below which labels are missing
_MOVING = ("velocity", "velocities", "wrench", "lead")


def reward_sign(evidence: Evidence) -> Cause | None:
    """Success that is punished, or demonstrations that end with less reward than at the start."""
    figure = ""
    for words, origin in evidence.origins.items():
        rewards, success = (origin.column(n, last=False) for n in ("reward", "success"))
        if not success.any() or success.all():
            continue
        at, before = rewards[success > 0].mean(), rewards[success == 0].mean()
        figure = f"in {words} the mean reward is {at:.3g} at success, {before:.3g} before"
        fix = "turn its sign; the steps that lead to success must bring more than others"
        if at < before:
            return Cause("reward sign", 0.94, figure, fix)
    thirds = [np.array_split(r[:-1, 0], 3) for r in evidence.shown.each("reward") if len(r) > 6]
    falls = [float(last.mean() < first.mean()) for first, _, last in thirds]
    share = float(np.mean(falls or [0.0]))
    if share > 0.7:
        figure = f"{percent(share)} of the demonstrations end with less reward than they begin with"
        return Cause("reward sign", 0.6, figure, fix)
    return Cause("reward sign", 0.0, figure) if figure else None


def reward_seen(evidence: Evidence) -> Cause | None:
    """Rewards that are all equal, so they carry no information."""
    returns = np.array([sum(rewards) for rewards in evidence.shown.each("reward")])
    # With the same reward at each step, the return still depends on the length.
    equal = len(returns) and not np.ptp(evidence.shown.column("reward", last=False))
    if equal and not np.ptp(returns):
        figure = "all rewards of the demonstrations are equal"
        fix = "record them with a reward, or say which of them succeeded: docs/rewards.md"
        return Cause("reward seen", 0.85, figure, fix)
    if len(evidence.acted) < _SOME:
        return None
    rewards = evidence.acted.column("reward", last=False)
    figure = (
        f"{evidence.acted.succeeded.sum()} of the policy's latest {len(evidence.acted)} episodes"
        f" succeeded; rewards from {rewards.min():.3g} to {rewards.max():.3g}"
    )
    fix = "give it more or better demonstrations, a longer time limit, or help: operator, teleop"
    seen = np.ptp(rewards) > 0 or evidence.acted.succeeded.any()
    # A few consecutive failures are normal; many are worth reporting.
    return Cause("reward seen", 0.0 if seen or len(evidence.acted) < 20 else 0.35, figure, fix)


def labels(evidence: Evidence) -> Cause | None:
    """Success without its label, or a label without success."""
    ends = _Ends.of(evidence)
    if ends is None or len(evidence.acted) < _SOME:
        return None
    # Assume that each step in the box succeeds at the rate at which demonstrated ones were last.
    there = np.array([ends.reached(e).sum() for e in evidence.acted.episodes])
    expected = float((1.0 - (1.0 - ends.rate) ** there).sum())
    success = evidence.acted.succeeded
    near = np.array([ends.reached(e, 1.0).any() for e in evidence.acted.episodes])
    elsewhere = int((success & ~near).sum())
    figure = (
        f"in {len(success)} episodes the policy was for {there.sum()} steps where demonstrations"
        f" ended ({', '.join(ends.names)}): {expected:.1f} successes are to be expected,"
        f" {success.sum()} are labelled, {elsewhere} of them elsewhere"
    )
    chance = float(poisson.cdf(success.sum(), expected))
    if success.sum() < 0.25 * expected and chance < _CHANCE:
        fix = "see what labels success (reward=, robot-rl console), and correct its labels"
        return Cause("label missing", 0.82 if chance < 0.4 * _CHANCE else 0.6, figure, fix)
    if elsewhere >= 3 and elsewhere > 0.5 * success.sum():
        fix = "see what labels success (reward=): it labels other states as success"
        return Cause("label false", 0.82, figure, fix)
    return Cause("labels", 0.0, figure)


def detector(evidence: Evidence) -> Cause | None:
    """A reward that contradicts the task's own detector, or has raised an alarm."""
    episodes = [e for e in evidence.records.episodes if "task_success" in e]
    if len(episodes) < _SOME:
        return None
    wrong = float(np.mean([bool(e["success"]) != bool(e["task_success"]) for e in episodes]))
    alarms = sum(bool(e.get("reward_alarm")) for e in episodes)
    figure = f"in {percent(wrong)} of the episodes reward and task disagree; {alarms} reward alarms"
    likely = 0.0 if wrong < 0.2 and alarms < 0.2 * len(episodes) else 0.83
    return Cause("reward and task", likely, figure, "train it on such frames: docs/rewards.md")


def value_range(evidence: Evidence) -> Cause | None:
    """Returns outside the range of the critics."""
    set_bounds, gamma = evidence.setting("algorithm.settings.value_range"), evidence.discount
    bounds = evidence.taken.get("value_range") or set_bounds
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
    fix = (
        "see whether the rewards are right; or name the range that their returns can have, with"
        " algorithm.settings.value_range=[LOW,HIGH]"
    )
    return Cause("value range", 0.8 if outside > 0.05 else 0.0, figure, fix)


def discount(evidence: Evidence) -> Cause | None:
    """A success so far ahead that its discounted reward is lost in the noise."""
    gamma = evidence.discount
    if gamma is None or not len(evidence.shown):
        return None
    steps = float(np.median(evidence.shown.steps_to_success))
    left = gamma**steps
    figure = f"at a discount of {gamma:g} a success in {steps:.0f} steps is worth {left:.2g} of 1"
    fix = "leave algorithm.schedule.discount=null: it is then chosen by the demonstrations"
    return Cause("discount", 0.0 if left > 0.05 else 0.75 if left < 0.01 else 0.45, figure, fix)


def time_limit(evidence: Evidence) -> Cause | None:
    """A time limit shorter than the demonstrations needed for success."""
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
    fix = f"task.environment.time_limit_steps={int(1.5 * steps.max())} or more"
    return Cause("time limit", 0.0 if late < 0.2 else 0.87, figure, fix)


def demonstrations(evidence: Evidence) -> Cause | None:
    """Too few demonstrations."""
    if evidence.setting("demonstrations", 0) == 0 and not evidence.setting("dataset"):
        return None
    count, lengths = evidence.demonstrated, evidence.shown.lengths
    steps = float(np.median(lengths)) if count else 0.0
    figure = f"{count} that succeeded, of {steps:.0f} steps"
    fix = "record more: robot-rl collect RUN goes on with a recording; 20 are a good start"
    likely = 0.0 if count >= 2 * _FEW else 0.65 if count < _FEW else 0.32
    return Cause("demonstrations", likely, figure, fix)


def clone(evidence: Evidence) -> Cause | None:
    """A clone that never succeeds, so that learning has no successes to start from."""
    final = evidence.records.final(CLONED_POLICY)
    if final is not None:
        successes, episodes = final.successes, final.episodes
    else:
        alone = [e for e in evidence.acted.episodes if e["base_alone"][:-1].all()]
        successes, episodes = sum(bool(e["success"].any()) for e in alone), len(alone)
    if episodes < 2 * _SOME:
        return None
    made = int(evidence.setting("cloning.updates", 0))
    figure = (
        f"the cloned policy, of {made:,} updates, succeeds in {successes} of {episodes} episodes"
    )
    fix = "clone for longer (cloning.updates); or from more demonstrations; or see what it observes"
    return Cause("clone", 0.0 if successes else 0.4, figure, fix)


def q_values(evidence: Evidence) -> Cause | None:
    """Critics that predict more or less than the actual returns."""
    gamma, notes = evidence.discount, [r for r in evidence.records.learner if "q_mean" in r]
    if gamma is None or not notes or not evidence.origins:
        return None
    parts = {words: _returns(origin, gamma).mean() for words, origin in evidence.origins.items()}
    share = float(evidence.setting("algorithm.schedule.demonstration_share", 0.0))
    weights = {"the demonstrations": share, "the policy's episodes": 1.0 - share}
    expected = sum(weights[w] * value for w, value in parts.items()) / sum(
        weights[w] for w in parts
    )
    said = float(np.mean([r["q_mean"] for r in notes[-5:]]))
    every = np.concatenate([_returns(origin, gamma) for origin in evidence.origins.values()])
    scale = max(float(np.ptp(every)), 1e-6)
    figure = f"the critics say {said:.3g} on average, the recorded returns are {expected:.3g}"
    fix = (
        "more heads (algorithm.settings.target_heads); or a lower algorithm.settings.critic_rate;"
        " or the range that returns can have with algorithm.settings.value_range"
        if said > expected
        else "more updates for each step, or a longer run"
    )
    likely = 0.0 if abs(said - expected) < 0.5 * scale else 0.45 if said > expected else 0.35
    return Cause("critics", likely, figure, fix)


class _Ends:
    """A box around the demonstrations' last observations, if these are similar."""

    def __init__(self, boxes: dict[str, tuple[npt.NDArray[np.intp], Vector, Vector]]) -> None:
        self._boxes, self.names = boxes, list(boxes)
        self.rate = 0.0  # fraction of demonstrated steps in the box that were the last step

    @classmethod
    def of(cls, evidence: Evidence) -> _Ends | None:
        """Build the box; None if the ends do not differ from the rest of the demonstrations."""
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
        """Which rows are in the box, extended on each side by `slack` times its width."""
        inside = np.ones(len(rows), bool)
        for name, (columns, low, high) in self._boxes.items():
            values = rows[name].reshape(len(rows), -1)[:, columns]
            more = slack * (high - low) + 1e-4
            inside &= ((values >= low - more) & (values <= high + more)).all(1)
        return inside


def _returns(origin: Origin, gamma: float) -> Vector:
    """Actual discounted returns (n,) from each step on."""
    rewards = (each[:-1, 0] for each in origin.each("reward"))
    return np.concatenate([lfilter([1.0], [1.0, -gamma], r[::-1])[::-1] for r in rewards])


CHECKS: tuple[Check, ...] = (
    reward_sign,
    time_limit,
    detector,
    labels,
    value_range,
    discount,
    demonstrations,
    q_values,
    clone,
    reward_seen,
)
