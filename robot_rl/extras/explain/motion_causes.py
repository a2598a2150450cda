"""Causes between a command and its motion: signs, columns, scale, delay, limits."""

from __future__ import annotations

import numpy as np

from robot_rl.extras.explain.evidence import (
    Cause,
    Check,
    Evidence,
    Motion,
    Origin,
    Vector,
    percent,
)

_WALL_CLOCK = 10**18  # ns: wall-clock stamps are later than 2001
_CLOSES = 5  # steps within which a gripper moves
_ACTED = "the policy's episodes"
_HELD_UP = 0.1  # response gain below which a column moves nothing
_FULL = 0.98  # action magnitude that counts as saturated
_FITS = "the arm's driver and its action columns must agree with what was demonstrated"


def action_sign(evidence: Evidence) -> Cause | None:
    """A column that moves the robot in the opposite direction."""
    if (found := _latest(evidence)) is None:
        return None
    words, motion = found
    own = np.diag(_sure(motion))
    column = int(own.argmin())
    figure = f"in {words} a command along {motion.names[column]} moves {own[column]:+.2f} of it"
    fix = f"turn the sign of {motion.names[column]}; {_FITS}"
    return Cause("action sign", 0.0 if own[column] > -0.2 else 0.95, figure, fix)


def action_columns(evidence: Evidence) -> Cause | None:
    """A column that moves the robot along another column of its kind."""
    if (found := _latest(evidence)) is None:
        return None
    words, motion = found
    size = np.abs(_sure(motion))
    turns = np.array(["rotation" in name for name in motion.names])
    across = np.where(turns == turns[:, None], size - np.diag(np.diag(size)), 0.0)
    column, other = np.unravel_index(int(across.argmax()), size.shape)
    along, moved = motion.names[column], motion.names[other]
    own = abs(float(motion.gain[column, column]))
    figure = (
        f"in {words} a command along {along} moves it by {size[column, other]:.2f} along {moved}"
        f" and by {own:.2f} along {along}"
    )
    fix = f"see whether {along} and {moved} are exchanged; {_FITS}"
    likely = 0.0 if size[column, other] < 0.4 or size[column, other] < 2.0 * own else 0.95
    return Cause("action columns", likely, figure, fix)


def action_scale(evidence: Evidence) -> Cause | None:
    """Commands that move the robot much less or more than commanded, or than demonstrated."""
    found: Cause | None = None
    usual: Vector | float = 1.0
    for words, motion in evidence.motions.items():
        own = np.abs(np.diag(motion.gain))
        here = _scale(words, motion, own / usual)
        if found is None or here.likely >= found.likely:
            found = here
        # A column that was also blocked in the demonstrations, as by contact, did not prevent
        # success.
        usual = np.where(own > _HELD_UP, own, 1.0)
    return found


def _scale(words: str, motion: Motion, share: Vector) -> Cause:
    """Judge the motion by its ratio to the expected motion."""
    own = np.abs(np.diag(motion.gain))
    turns = np.array(["rotation" in name for name in motion.names])
    parts = [share[part] for part in (turns, ~turns) if part.any()]
    # Contact blocks some columns; limits and scales affect all of a kind.
    gain = float(max((np.median(part) for part in parts), key=lambda g: abs(np.log(g + 1e-3))))
    each = ", ".join(f"{n} {g:.2f}" for n, g in zip(motion.names, own, strict=True))
    figure = f"in {words} a command moves the robot by this share of it: {each}"
    if 0.6 <= gain <= 1.8:
        if share.min() > _HELD_UP:
            return Cause("action scale", 0.0, figure)
        still = motion.names[int(share.argmin())]
        return Cause("action scale", 0.5, figure, f"{still} moves nothing: {_FITS}")
    fix = (
        f"see how far one action moves the arm, and what holds it back: {_FITS}; or see"
        " robot.limits.translation_step, robot.limits.rotation_step, robot.limits.max_lead_*"
    )
    return Cause("action scale", 0.88 if not 0.4 < gain < 2.5 else 0.7, figure, fix)


def limited(evidence: Evidence) -> Cause | None:
    """Commands that the limits change."""
    shares = {w: float(o.column("clamped", last=False).mean()) for w, o in evidence.origins.items()}
    if not shares:
        return None
    words, share = max(shares.items(), key=lambda item: item[1])
    figure = f"limits changed {percent(share)} of the commands in {words}"
    fix = (
        "act where no limit is met: docs/robot.md; or raise the limit that is met:"
        " robot.limits.max_lead_*, robot.limits.workspace_*, robot.limits.max_force"
    )
    return Cause("actions limited", 0.0 if share < 0.3 else 0.9, figure, fix)


def saturated(evidence: Evidence) -> Cause | None:
    """Saturated actions, which leave no room for corrections."""
    shares: dict[str, float] = {}
    for words, origin in evidence.origins.items():
        actions = np.delete(origin.column("action", last=False), evidence.grippers, axis=1)
        if actions.size:
            shares[words] = float((np.abs(actions) > _FULL).mean())
    if not shares:
        return None
    words, share = max(shares.items(), key=lambda item: item[1])
    figure = f"{percent(share)} of the actions in {words} are at -1 or 1"
    if share < 0.5:
        return Cause("actions saturated", 0.0, figure)
    if words == "the demonstrations":
        fix = (
            "demonstrate more slowly; or raise robot.limits.translation_step and"
            " robot.limits.rotation_step; or raise robot.joints.step; or raise robot.action_scale"
        )
    else:
        fix = (
            "see that Q does not grow (q_mean in learner.jsonl); or lower"
            " algorithm.settings.actor_rate; or lower algorithm.scale"
        )
    return Cause("actions saturated", 0.5, figure, fix)


def delayed(evidence: Evidence) -> Cause | None:
    """Motion that starts steps after its command."""
    lags = {words: motion.lag for words, motion in evidence.motions.items()}
    if not lags:
        return None
    words, lag = max(lags.items(), key=lambda item: item[1])
    least = min(lags.values())
    figure = f"in {words} half of a motion has come {lag:.0f} steps after its command" + (
        f", in the others after {least:.0f}" if len(lags) > 1 else ""
    )
    fix = (
        "find what is late (network, controller, sensors: docs/robot.md); or see robot.sensors;"
        " or a lower control_rate_hz"
    )
    return Cause("delay", 0.0 if lag < least + 2.0 and lag < 3.0 else 0.93, figure, fix)


def gripper(evidence: Evidence) -> Cause | None:
    """A gripper that does not follow its commands, or gets none."""
    if evidence.schema is None:
        return None
    for column in evidence.grippers:
        action = evidence.schema.action_names[column]
        name = f"state/{action}_position"
        closes: dict[str, float] = {}
        for words, origin in evidence.origins.items():
            closing = origin.column("action", last=False)[:, column] > 0.0
            closes[words] = float(closing.mean())
            if not origin.has(name) or not 0.02 < closes[words] < 0.98:
                continue
            follows = _follows(origin, name, column)
            figure = (
                f"in {words} {percent(closes[words])} of the commands close {action}, which was"
                f" then {follows:+.2f} of 1 further closed than otherwise"
            )
            if follows < 0.1:
                fix = "see that the gripper is switched on and its node runs: robot-rl doctor"
                return Cause("gripper", 0.95, figure, fix)
        shown, acted = (closes.get(words) for words in ("the demonstrations", _ACTED))
        if shown is not None and acted is not None and shown > 0.05 and acted < 0.01:
            figure = f"the policy never closes {action}, as the demonstrations do"
            return Cause("gripper", 0.6, figure, "clone for longer, or demonstrate more grasps")
        if closes:
            shares = ", ".join(f"in {words} {percent(share)}" for words, share in closes.items())
            return Cause("gripper", 0.0, f"{shares} of the commands close {action}, which follows")
    return None


def control_period(evidence: Evidence) -> Cause | None:
    """Steps that do not follow the control rate."""
    if evidence.schema is None or not len(evidence.acted):
        return None
    ticks = [np.diff(e["stamp_observation"]) for e in evidence.acted.episodes]
    stamps = np.concatenate(ticks)
    if not stamps.size or evidence.acted.episodes[-1]["stamp_observation"][0] < _WALL_CLOCK:
        return None  # simulated time is exact
    period = 1e9 / evidence.schema.control_rate_hz
    off = float(np.mean(np.abs(stamps - period) > 0.25 * period))
    figure = (
        f"{percent(off)} of the steps took more than a quarter less or longer than"
        f" {period / 1e6:.0f} ms; the longest {stamps.max() / 1e6:.0f} ms"
    )
    fix = "give the actor's machine less to do, or lower control_rate_hz; robot-rl bench loop"
    return Cause("control period", 0.0 if off < 0.15 else 0.9, figure, fix)


def _follows(origin: Origin, name: str, column: int) -> float:
    """How much further closed a gripper is some steps after a close command than otherwise."""
    pairs = [
        (commands[:-_CLOSES, column] > 0.0, position[_CLOSES:, 0])
        for commands, position in zip(origin.each("action"), origin.each(name), strict=True)
        if len(commands) > _CLOSES
    ]
    closing, position = (np.concatenate(part) for part in zip(*pairs, strict=True))
    if closing.all() or not closing.any():
        return 1.0  # no data to compare with
    return float(position[closing].mean() - position[~closing].mean())


def _sure(motion: Motion) -> Vector:
    """The gains (d, d) that significantly differ from 0; the others are 0."""
    return np.where(np.abs(motion.gain) > 5.0 * motion.error, motion.gain, 0.0)


def _latest(evidence: Evidence) -> tuple[str, Motion] | None:
    """Motion of the policy's episodes or, if there are too few, of the demonstrations."""
    return list(evidence.motions.items())[-1] if evidence.motions else None


CHECKS: tuple[Check, ...] = (
    action_sign,
    action_columns,
    delayed,
    limited,
    action_scale,
    saturated,
    gripper,
    control_period,
)
