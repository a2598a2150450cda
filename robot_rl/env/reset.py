"""Resets between training episodes, besides the robot's own.

Reset motions are not stored. ``info["facts"]`` of a reset describes how the episode started and is
recorded with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from omegaconf import DictConfig

from policies import registry
from policies.behaviour import Behaviour
from policies.compute import compute_device
from policies.runner import PolicyRunner
from robot_rl.config import ConfigError
from robot_rl.data.policy_columns import check_fit
from robot_rl.env.controllers import ExpertController
from robot_rl.env.operator import OperatorEvent
from robot_rl.env.robot import RobotInterrupted
from robot_rl.env.robot_env import PoseSigns, ResetResult, RobotEnv
from robot_rl.env.rollout import Controller
from robot_rl.env.session import Reset, Session
from robot_rl.env.sim.task import SimTask
from robot_rl.env.task import Expert
from robot_rl.run import RunDirectory

_SEED_STREAM = 7


class HumanReset(Reset):
    """Waits before every episode until a person has restored the scene and sent `start`."""

    by_person = True

    def begin(self, session: Session, seed: int) -> ResetResult:
        """Start an episode; raise `RobotInterrupted`, with the robot at rest, before a `start`."""
        said = session.operator.overhear()
        session.operator.check_free()
        if OperatorEvent.START not in said.events:
            raise RobotInterrupted(
                "a person has to put the scene back", hint="put it back, then say start"
            )
        return session.put_back(seed)


class NoReset(Reset):
    """Starts every episode except the first where the last one ended.

    If the goal is already reached there, the robot's own reset is used.
    """

    _in_place = False

    def begin(self, session: Session, seed: int) -> ResetResult:
        """Start an episode."""
        first = session.put_back(seed, in_place=self._in_place)
        self._in_place = True
        return first


class BackwardReset(Reset):
    """Undoes each episode with a backward task, which ends where the forward task starts.

    After the backward task succeeds, the next episode starts in place. An attempt that hits its
    time limit is repeated; after `attempts` of them the robot's own reset is used. The operator may
    drive, pause and stop throughout. If `stopped` returns true the motion ends.

    The facts of an episode have ``reset_steps``, control steps of backward motion before it, and
    ``put_back``, whether it started with the robot's own reset.
    """

    def __init__(
        self,
        task: SimTask,
        controller: Controller,
        attempts: int,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._task, self._controller = task, controller
        self._attempts, self._stopped = attempts, stopped
        self._may_undo = False
        self._steps = 0

    def begin(self, session: Session, seed: int) -> ResetResult:
        """Undo the last episode, then start one.

        Raises `RobotInterrupted`, with the robot at rest, if the operator has halted it, a
        measurement is missing, or the process should end.
        """
        _check_free(session)
        brought_back = self._may_undo and any(
            self._bring_back(session, seed, attempt) for attempt in range(self._attempts)
        )
        observation, info = session.put_back(seed, in_place=brought_back)
        facts = {"reset_steps": self._steps, "put_back": not info["in_place"]}
        self._may_undo, self._steps = True, 0
        return observation, {**info, "facts": facts}

    def _bring_back(self, session: Session, seed: int, attempt: int) -> bool:
        """Run the backward task once; return whether it succeeded."""
        rng = np.random.default_rng([_SEED_STREAM, seed, attempt])
        session.operator.let_go()
        self._task.resume(rng)
        seeds, instructions = [int(rng.integers(1 << 31))], [self._task.instruction]
        self._controller.reset([0], seeds=seeds, instructions=instructions)
        signs = PoseSigns(self._task.observation_fields)
        for _ in range(self._task.time_limit_steps):
            if self._stopped():
                raise RobotInterrupted("the backward motion is cut, as the process ends")
            seen = {**session.operator.observation, **signs.kept(self._task.observe())}
            decision = self._controller.act({name: value[None] for name, value in seen.items()})
            _, info = session.move(decision.action[0])
            self._steps += 1
            _check_free(session)
            if session.operator.ended_by is not None:
                return False
            if info["intervened"]:
                self._controller.observe_override([0])
            if self._task.outcome().success:
                return True
        return False


def _check_free(session: Session) -> None:
    if session.operator.waits_for:
        session.operator.overhear()
    session.operator.check_free()


def make_reset(
    config: DictConfig,
    env: RobotEnv,
    stopped: Callable[[], bool],
    load_policy: Callable[[RunDirectory], tuple[Behaviour, int]] | None,
) -> Reset:
    """Make the configured reset, other than the robot's own.

    Raises:
        ConfigError: The backward task does not undo the task, or not on this robot; or its policy
            comes from a run and this command cannot load policies.
        PolicyError: The backward policy was made for another task, rate or observation.
    """
    reset = config["reset"]
    if "backward" not in reset:
        return registry.make(reset["strategy"], Reset)
    forward = env.task
    if not isinstance(forward, SimTask):
        raise ConfigError(
            "a backward policy needs the scene of the simulation",
            got=f"a task of {type(forward).__module__}",
            hint="add robot=sim, or take reset=human",
        )
    task = registry.make(reset["backward"]["environment"], SimTask)
    task.attach(forward.world)
    if task.action_names != forward.action_names:
        raise ConfigError(
            f"the task {task.name!r} does not undo {forward.name!r}",
            got=f"actions {', '.join(task.action_names)}",
            expected=", ".join(forward.action_names),
            hint="take reset=scripted, or another task with task@reset.backward=TASK",
        )
    controller: Controller
    if reset["run"] is None:
        controller = ExpertController(registry.make(reset["backward"]["expert"], Expert, task=task))
    elif load_policy is None:
        raise ConfigError(
            "no policy can put the scene back here",
            got=f"reset.run={reset['run']}",
            hint="take reset=scripted or human",
        )
    else:
        behaviour, _ = load_policy(RunDirectory.open(reset["run"], config["runs_directory"]))
        schema = env.schema.with_fields(task.observation_fields)
        check_fit(behaviour, replace(schema, task=task.name))
        controller = PolicyRunner(behaviour.exploring("mean").to(compute_device(config.device)))
    return registry.make(
        reset["strategy"], Reset, task=task, controller=controller, stopped=stopped
    )
