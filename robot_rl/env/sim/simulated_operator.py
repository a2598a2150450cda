"""Simulated operator: watches the policy, takes over when it fails, and hands back."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from robot_rl.data.schema import Observation
from robot_rl.env.operator import Motion, OperatorEvent, OperatorInbox
from robot_rl.env.robot import ARM_ACTIONS, GRIPPER_ACTION
from robot_rl.env.sim.task import ScriptedExpert

_SEED_STREAM = 6
_SOURCE = "simulated operator"
# Smaller operator motions count as no motion [fraction of an action].
_LEAST_MOTION = 0.2


@dataclass(frozen=True)
class Habits:
    """Perception, attention, reaction and driving of the simulated person."""

    look_s: float  # time between two looks at the goal [s]
    look_noise: float  # standard deviation of a look's error, per horizontal axis [m]
    look_yaw_noise: float  # the same for the goal's yaw [rad]
    patience_s: float  # time without progress before the person notices a problem [s]
    progress: float  # fraction of their own pace along their own motion that counts as progress
    reaction_low_s: float  # shortest time from noticing to the first motion [s]
    reaction_high_s: float  # longest
    attention: float  # fraction of the time the person watches
    spell_s: float  # mean time of watching before they look away [s]
    correction_s: float  # time of progress after a take-over before they hand back [s]
    # Standard deviation of each column of a motion, relative to its value: motor noise grows with
    # the command and is zero at rest (Harris & Wolpert 1998, "Signal-dependent noise determines
    # motor planning").
    motor_noise: float
    follows_coach: bool  # whether they also take over on the coach's advice, watching or not


@dataclass
class _Reaction:
    """Reaction time: counts steps from noticing a condition; restarts when it ends."""

    left: int | None = None

    def has_come(self, sees: bool, drawn: Callable[[], int]) -> bool:
        """Return whether the `drawn` number of steps has passed since the condition started."""
        if not sees:
            self.left = None
            return False
        if self.left is None:
            self.left = drawn()
        self.left -= 1
        return self.left < 0


@dataclass(eq=False)
class SimulatedOperator:
    """Watches like a person, and drives with the task's `hand` expert.

    It knows what a person next to the robot knows: the measured tool pose; the poses of goal and
    objects, with the episode's observation error plus `look_noise` and `look_yaw_noise`, drawn at
    each look; and the measured forces, to feel how the peg fits
    (`robot_rl.env.sim.tasks.insertion_by_feel`). An operator with more information than the policy
    would teach it behaviour it cannot reproduce.

    It compares the tool's motion over the last `patience_s` with its own motion, or with the
    straight path to where an object is picked or placed. While it watches and sees no progress, it
    takes over after a reaction time. It hands back after `correction_s` of progress; the second
    time in an episode it finishes the task. If success is impossible, it sends `failure` after a
    reaction time.

    All randomness comes from the episode's seed, and time is counted in control steps: on the
    stepped clock a run with it is repeatable.
    """

    inbox: OperatorInbox  # inbox it writes to
    # The task's `hand` or, if it has none, its `expert`, with the person's imperfections.
    hand: ScriptedExpert
    habits: Habits
    control_rate_hz: float  # steps per second

    def __post_init__(self) -> None:
        names = self.hand.task.action_names
        self._arm = [ARM_ACTIONS.index(name) for name in names if name != GRIPPER_ACTION]
        self._has_gripper = GRIPPER_ACTION in names
        self._judged: deque[tuple[float, float]] = deque()
        self.begin(0)

    def begin(self, seed: int) -> None:
        """Release control and watch a new episode."""
        self._rng = np.random.default_rng([_SEED_STREAM, seed])
        self.hand.reset(self._rng)
        self._pose = self.hand.task.world.tcp_pose()
        self._wanted: Motion = np.zeros(6)
        self._ways = [self._wanted]
        self._watching = bool(self._rng.random() < self.habits.attention)
        self._driving = self._helped = False
        self._next_look = 0
        self._resignation = _Reaction()
        self._forget()
        self.inbox.jog(np.zeros(6), source=_SOURCE)

    def watch(self, observation: Observation) -> None:
        """Process one step: keep watching, take over, drive, or hand back."""
        habits = self.habits
        self._judge()
        self._next_look -= 1
        if self._next_look < 0:
            self.hand.error = self._rng.normal(0.0, habits.look_noise, 3) * (1.0, 1.0, 0.0)
            self.hand.yaw_error = float(self._rng.normal(0.0, habits.look_yaw_noise))
            self._next_look = self._steps(habits.look_s) - 1
        action = self.hand.act(self._rng)
        self._wanted = np.zeros(6)
        self._wanted[self._arm] = action[: len(self._arm)]
        destination = self.hand.destination()
        straight = [] if destination is None else [self.hand.motion(destination)]
        self._ways = [self._wanted, *straight]  # motions that count as progress
        looks = self._watching or self._driving
        hopeless = looks and self.hand.is_beyond_help()
        if self._resignation.has_come(hopeless, self._drawn_reaction):
            self.inbox.post(OperatorEvent.FAILURE)
        elif self._driving:
            if not self._helped and self._makes_progress(habits.correction_s):
                self._driving, self._helped = False, True
                self._forget()
                self.inbox.post(OperatorEvent.HAND_BACK)
                self.inbox.jog(np.zeros(6), source=_SOURCE)
        else:
            leave = 1.0 / self._steps(habits.spell_s)
            come_back = leave * habits.attention / max(1.0 - habits.attention, 1e-9)
            if self._rng.random() < (leave if self._watching else come_back):
                self._watching = habits.attention >= 1.0 or not self._watching
            advised = habits.follows_coach and self.inbox.advice != ""
            if not self._watching and not advised:
                self._forget()
            elif self._reaction.has_come(
                advised or self._makes_progress(habits.patience_s) is False, self._drawn_reaction
            ):
                self._driving = True
                self._forget()
                self.inbox.post(OperatorEvent.TAKE_OVER)
        if self._driving:
            gripper = float(action[-1]) if self._has_gripper else None
            noise = habits.motor_noise * self._rng.standard_normal(6)
            moved = np.clip(self._wanted * (1.0 + noise), -1.0, 1.0)
            self.inbox.jog(moved, gripper, source=_SOURCE)

    def listen(self, observation: Observation) -> None:
        """Send zero motion and no events between episodes."""
        self.inbox.jog(np.zeros(6), source=_SOURCE)

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def _judge(self) -> None:
        """Record the last step's progress, and the pace the person would have had."""
        pose = self.hand.task.world.tcp_pose()
        moved = self.hand.motion_between(self._pose, pose)[self._arm]
        self._pose = pose
        pace = _length(self._wanted[self._arm])
        along = max(float(moved @ way[self._arm]) / _length(way[self._arm]) for way in self._ways)
        self._judged.append((along, pace))
        span = self.habits.correction_s if self._driving else self.habits.patience_s
        while len(self._judged) > self._steps(span):
            self._judged.popleft()

    def _makes_progress(self, span_s: float) -> bool | None:
        """Whether the last steps made progress; None if there are too few."""
        if len(self._judged) < self._steps(span_s):
            return None
        along, pace = np.sum(self._judged, axis=0)
        return bool(along >= self.habits.progress * pace)

    def _drawn_reaction(self) -> int:
        """Draw a reaction time [control steps]."""
        low, high = self.habits.reaction_low_s, self.habits.reaction_high_s
        return self._steps(float(self._rng.uniform(low, high)))

    def _forget(self) -> None:
        self._judged.clear()
        self._reaction = _Reaction()

    def _steps(self, seconds: float) -> int:
        return max(1, round(seconds * self.control_rate_hz))


def _length(motion: Motion) -> float:
    return max(float(np.sqrt(motion @ motion)), _LEAST_MOTION)
