"""Any Gymnasium environment by its id, behind the same seam as a robot.

`GymRobot` steps the environment, `GymTask` judges by what it returned: its own reward, its own
termination and truncation, and the success that its info reports.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Real
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.envs.registration import load_env_creator

from policies import registry
from robot_rl.data.schema import Field, Observation
from robot_rl.env.robot import Action
from robot_rl.env.sim import choose_backend
from robot_rl.env.task import Outcome, Task, refuse_resume
from robot_rl.errors import RobotRLError
from robot_rl.safety import rotations

# What environments call success in their info; the first that is there counts.
SUCCESS_KEYS = ("success", "is_success", "succeed")
# At which step of an episode its success counts.
SUCCESS_AT = ("last", "any")
# Where the observation of an environment with goals holds what is reached, and what is wanted.
ACHIEVED, DESIRED = "state/achieved_goal", "state/desired_goal"
_UNKNOWN_RATE_HZ = 10.0
_MEND = "mend the environment, or wrap it and register what you made"
_SEEDS = 2**31
_GOAL_REWARD = "compute_reward"
_RENDER_MODE, _FILMED = "render_mode", "rgb_array"
_NOTHING_YET = Outcome(0.0, terminated=False, truncated=False, success=False)

Goals = npt.NDArray[Any]
GoalReward = Callable[[Goals, Goals], npt.NDArray[np.float64]]


class GymError(RobotRLError):
    """A Gymnasium environment that cannot be made, or does what nothing can be learned from."""


class GymTask:
    """The task of a Gymnasium environment: all of it is the environment's own.

    Args:
        name: Name of the task, recorded with every episode.
        instruction: What the robot is to do, in words.
        time_limit_steps: Steps after which an episode is truncated; None: the environment's own
            `max_episode_steps`.
    """

    observation_fields: tuple[Field, ...] = ()

    def __init__(self, name: str, instruction: str, time_limit_steps: int | None) -> None:
        self.name = name
        self.instruction = instruction
        self.time_limit_steps = time_limit_steps or 0
        self._robot: GymRobot | None = None

    def attach(self, robot: GymRobot) -> None:
        """Take the robot whose environment this is the task of, and its time limit.

        Raises:
            GymError: Neither the configuration nor the environment has a limit.
        """
        self._robot = robot
        self.time_limit_steps = self.time_limit_steps or robot.time_limit_steps
        if not self.time_limit_steps:
            raise GymError(
                f"the environment {robot.id!r} has no time limit",
                expected="a number of steps",
                hint="register it with max_episode_steps, or set task.environment.time_limit_steps",
            )

    @property
    def robot(self) -> GymRobot:
        """The robot that steps the environment."""
        if self._robot is None:
            hint = "run it with robot=gym"
            raise GymError(f"the task {self.name!r} has no environment", hint=hint)
        return self._robot

    def reset(self, rng: np.random.Generator) -> npt.NDArray[np.float64]:
        """Nothing to draw: the environment places its robot itself, wherever this pose is."""
        return np.concatenate([np.zeros(3), rotations.about_z(0.0)])

    def resume(self, rng: np.random.Generator) -> None:
        """See `Task`: Gymnasium environments begin with a reset."""
        refuse_resume(self.name)

    def observe(self) -> Observation:
        """Nothing: all that the environment shows is the robot's observation."""
        return {}

    def outcome(self) -> Outcome:
        """What the environment said of the last step."""
        return self.robot.last_outcome


class GymRobot:
    """Steps a Gymnasium environment as if it were a robot.

    Its observation space is a Box, which becomes `state/observation`, or a Dict, whose entries
    become `state/<key>`; keys of nested Dicts are joined by `_`. Numbers become float32 (n,),
    flattened; uint8 (height, width, 3) becomes `images/<key>`. Its action space is a bounded Box;
    actions in [-1, 1] are scaled to its bounds. Where it offers the render mode "rgb_array", it is
    made with that, so that it can be filmed.

    Args:
        task: A `GymTask`.
        id: Id of the environment; with `module:id`, or `namespace/id` and a module of that name,
            the module is imported first, so that it can register its environments.
        arguments: Keyword arguments of the environment.
        action_scale: Share of the action space's range about its middle that is used, for each
            of its columns; a column with 0 stays in the middle and is no column of the action.
            None uses all of the range. For environments whose actions are in metres.
        success_key: Name in the info that reports success; None: the first of `SUCCESS_KEYS` that
            is there. An environment that reports none has succeeded when it terminates with a
            positive reward.
        success: Which steps of an episode make it a success: its "last" one, as at the goals of
            gymnasium-robotics, where the object has to stay; or "any", as in Meta-World, after
            which all later steps count as successful too.
        success_return: Sum of rewards from which an episode is a success at its end, in place of
            what the info says; None: that is not asked.

    Attributes:
        control_rate_hz: The environment's own steps per second, and `rate_source` what says so:
            its `dt`, or "render_fps" in its metadata; 10 where it says nothing.
        success_from: Key that the newest info has reported success with; None while there is none.

    Raises:
        GymError: See there.
    """

    simulated = True
    clamped = False  # actions in [-1, 1] are within its bounds
    opens_grippers = True

    def __init__(
        self,
        task: Task,
        id: str,
        arguments: Mapping[str, Any],
        action_scale: Sequence[float] | None,
        success_key: str | None,
        success: str = SUCCESS_AT[0],
        success_return: float | None = None,
    ) -> None:
        if success not in SUCCESS_AT:
            expected = " or ".join(SUCCESS_AT)
            raise GymError("robot.success is unknown", got=success, expected=expected)
        if not isinstance(task, GymTask):
            raise GymError(
                f"a Gymnasium environment cannot do the task {task.name!r}",
                got=type(task).__name__,
                hint="leave task=... out, or give task=gym",
            )
        self.id = id
        self._success_key, self.success_return = success_key, success_return
        self._task, self._return = task, 0.0
        self.any_step, self._reached = success == "any", False
        self.success_from: str | None = None
        self._env = _make(id, arguments)
        self._spaces = _spaces(self._env)
        self._columns = _columns(id, self._spaces[0])
        self._low, self._high = _bounds(id, self._spaces[1])
        self.control_rate_hz, self.rate_source = _own_rate(self._env)
        self._scale = _scale(action_scale, self._low.size)
        self._used = np.flatnonzero(self._scale)
        self.action_names = tuple(f"action_{index}" for index in self._used)
        self.observation_fields = tuple(column for _, column in self._columns)
        self.last_observation: Any = None
        self.last_outcome = _NOTHING_YET
        self._action = np.zeros(self._low.size)
        self._seed = self._steps = 0
        spec = self._env.spec  # with the environment's own time limit, or 0
        self.time_limit_steps = (spec and spec.max_episode_steps) or 0
        task.attach(self)

    @property
    def action_range(self) -> npt.NDArray[np.float64]:
        """What -1 and 1 of each action column are to the environment, (2, d)."""
        middle, half = (self._low + self._high) / 2, self._scale * (self._high - self._low) / 2
        return np.stack([middle - half, middle + half])[:, self._used]

    @property
    def goal_reward(self) -> GoalReward | None:
        """The environment's own reward for any goal; None where it knows none.

        It maps goals (n, g) that were reached, and those that were wanted, to rewards (n,).
        """
        fields = {field.name for field in self.observation_fields}
        if not {ACHIEVED, DESIRED} <= fields or not self._env.has_wrapper_attr(_GOAL_REWARD):
            return None
        function = self._env.get_wrapper_attr(_GOAL_REWARD)

        def rewards(achieved: Goals, desired: Goals) -> npt.NDArray[np.float64]:
            pairs = zip(achieved, desired, strict=True)
            try:
                return np.array([float(function(a, d, {})) for a, d in pairs])
            except Exception as error:  # whatever its own code does
                raise GymError(
                    f"{_GOAL_REWARD} of {self.id} does not give a reward for other goals",
                    got=repr(error),
                    hint="mend it, or do without: algorithm.schedule.hindsight_share=0",
                ) from error

        return rewards

    def reset(self, start_pose: npt.NDArray[np.float64], rng: np.random.Generator) -> None:
        """Reset the environment with a seed from `rng`; it starts where it likes."""
        self._seed, self._steps = int(rng.integers(_SEEDS)), 0
        with _seeded_global_generator(self._seed):
            self.last_observation, _ = self._env.reset(seed=self._seed)
        if _spaces(self._env) != self._spaces:
            raise GymError(
                f"the spaces of {self.id} change from one episode to the next",
                got=_spaces(self._env),
                expected=self._spaces,
                hint=_MEND,
            )
        self._reached, self._return = False, 0.0
        self.last_outcome = _NOTHING_YET

    def resume(self, rng: np.random.Generator) -> None:
        """Nothing moves between steps."""

    def apply(self, action: Action) -> Action:
        """Take an action (d,) in [-1, 1] for the coming step."""
        self._action[self._used] = action
        return action

    def advance(self, period: float) -> None:
        """Step the environment once; how long that is, it knows itself.

        Raises:
            GymError: Its reward is no finite number.
        """
        share = 0.5 * (1.0 + self._scale * self._action)
        wanted = self._low + share * (self._high - self._low)
        space = self._env.action_space
        action = wanted.reshape(space.shape).astype(space.dtype)
        seen, given, terminated, truncated, info = self._env.step(action)
        self._steps += 1
        self.last_observation = seen
        reward = _finite_reward(self._now, given)
        self._return += reward
        if self.success_return is not None:
            ended = terminated or truncated or self._steps >= self._task.time_limit_steps
            now = bool(ended) and self._return >= self.success_return
        else:
            now = self._success(info, bool(terminated), reward)
        self._reached = now or (self.any_step and self._reached)
        self.last_outcome = Outcome(reward, bool(terminated), bool(truncated), self._reached)

    def observe(self) -> Observation:
        """What the environment returned last.

        Raises:
            GymError: It is not what the observation space declares, or not finite.
        """
        last = self.last_observation
        return {column.name: _read(self._now, last, path, column) for path, column in self._columns}

    @property
    def _now(self) -> str:
        """Where to look for what was wrong: which environment, episode and step."""
        return f"{self.id}, in step {self._steps} after reset(seed={self._seed}),"

    def picture(self) -> npt.NDArray[np.uint8]:
        """What the environment draws: uint8 (height, width, 3) RGB, cut to an even size.

        Raises:
            GymError: It draws nothing, or cannot do so on this machine.
        """
        if self._env.render_mode != _FILMED:
            raise GymError(
                f"the environment {self.id} cannot be filmed",
                got=f"{_RENDER_MODE} {self._env.render_mode}",
                expected=f"{_RENDER_MODE} {_FILMED}",
            )
        try:
            drawn: Any = self._env.render()
        except Exception as error:  # each environment has a renderer of its own
            raise GymError(
                f"the environment {self.id} cannot be drawn",
                got=repr(error),
                hint="robot-rl doctor looks at rendering",
            ) from error
        frame = np.asarray(drawn[0] if isinstance(drawn, list | tuple) else drawn)  # several views
        is_rgb = frame.dtype == np.uint8 and frame.ndim == 3 and frame.shape[2] == 3
        if not is_rgb or min(frame.shape) < 2:
            raise GymError(
                f"the environment {self.id} draws no RGB picture",
                got=f"{frame.dtype} {frame.shape}",
                expected="uint8 (height, width, 3)",
            )
        height, width = (size // 2 * 2 for size in frame.shape[:2])
        return np.ascontiguousarray(frame[:height, :width])

    def hold(self) -> None:
        """Nothing moves between steps."""

    def close(self) -> None:
        """Close the environment."""
        self._env.close()

    def _success(self, info: Mapping[str, Any], terminated: bool, reward: float) -> bool:
        keys = (self._success_key,) if self._success_key else SUCCESS_KEYS
        for key in keys:
            if key in info:
                self.success_from = key
                return bool(info[key])
        if self._success_key:
            raise GymError(
                f"the info of {self.id} has no {self._success_key!r}",
                got=sorted(info),
                hint="set robot.success_key to one of them, or to null",
            )
        return terminated and reward > 0.0


def _make(id: str, arguments: Mapping[str, Any]) -> gymnasium.Env[Any, Any]:
    """Make the environment, with one error for all that can be missing."""
    choose_backend()  # some make a renderer even where no image is asked for
    namespace, slash, _ = id.partition("/")
    module, _, _ = id.rpartition(":")
    try:
        registry.make_importable(module or namespace)
        if slash and not module and id not in gymnasium.registry:
            importlib.import_module(namespace)
        given = {**_drawing(id), **arguments}
        return gymnasium.make(id, disable_env_checker=True, **given)
    except (ImportError, gymnasium.error.DependencyNotInstalled) as error:  # or of a display
        raise GymError(
            f"the environment {id!r} cannot be imported",
            got=error,
            hint="install its package (gym_hil and gymnasium_robotics: pip install robot_rl[gym]),"
            " or add --config-dir FOLDER where it is a file of your own in that folder",
        ) from error
    except gymnasium.error.Error as error:
        raise GymError(
            f"there is no environment {id!r}",
            got=error,
            expected="an id that Gymnasium knows, or module:id, where importing the module adds it",
        ) from error
    except RobotRLError:
        raise
    except Exception as error:  # whatever its own code does
        if "gymnasium.Env" in str(error):  # in other words in each version, but always with these
            raise GymError(
                f"the environment {id!r} is no gymnasium.Env, or wraps what is none",
                got=error,
                hint="inherit from gymnasium.Env, and in wrappers from gymnasium.Wrapper",
            ) from error
        if isinstance(error, TypeError) and "argument" in str(error):
            raise GymError(
                f"the environment {id!r} does not take these arguments",
                got=f"{dict(arguments)}: {error}",
                hint="correct robot.arguments",
            ) from error
        raise GymError(
            f"the environment {id!r} cannot be made",
            got=repr(error),
            hint=f"make it work first: gymnasium.make({id!r})",
        ) from error


def _drawing(id: str) -> dict[str, str]:
    """The argument that makes an environment draw itself when asked to, if it takes it."""
    module, _, name = id.rpartition(":")
    if module:
        importlib.import_module(module)
    spec = gymnasium.registry.get(name)
    if spec is None or spec.entry_point is None or _RENDER_MODE in spec.kwargs:
        return {}
    entry = spec.entry_point
    made_by: Any = load_env_creator(entry) if isinstance(entry, str) else entry
    offered = (getattr(made_by, "metadata", None) or {}).get("render_modes") or ()
    parameters = inspect.signature(made_by).parameters
    takes = _RENDER_MODE in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    return {_RENDER_MODE: _FILMED} if takes and _FILMED in offered else {}


def _spaces(env: gymnasium.Env[Any, Any]) -> tuple[Any, Any]:
    """Its observation and action space, None where it has none."""
    return getattr(env, "observation_space", None), getattr(env, "action_space", None)


def _own_rate(env: gymnasium.Env[Any, Any]) -> tuple[float, str | None]:
    """Steps per second [Hz], and what of the environment says so."""
    # A wrapper that repeats actions can have its own dt.
    step = env.get_wrapper_attr("dt") if env.has_wrapper_attr("dt") else None
    rate = (env.metadata or {}).get("render_fps")
    if isinstance(step, Real) and 0.0 < float(step) < math.inf:
        return round(1.0 / float(step), 6), "dt"
    if isinstance(rate, Real) and 0.0 < float(rate) < math.inf:
        return float(rate), "render_fps"
    return _UNKNOWN_RATE_HZ, None


def _finite_reward(now: str, given: Any) -> float:
    try:
        reward = float(given)
    except (TypeError, ValueError):
        reward = math.nan
    if not math.isfinite(reward):
        raise GymError(f"the reward of {now} is no finite number", got=f"{given}", hint=_MEND)
    return reward


def _read(now: str, observation: Any, path: tuple[str, ...], column: Field) -> npt.NDArray[Any]:
    """A column of an observation, as its field declares it."""
    try:
        given = np.asarray(functools.reduce(operator.getitem, path, observation))
        if column.dtype == "uint8" and given.dtype != np.uint8:
            raise ValueError(f"{given.dtype} {given.shape}")
        value = np.array(given, column.dtype).reshape(column.shape)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise GymError(
            f"{column.name} of {now} is not what its observation space declares",
            got=repr(error),
            expected=f"{column.dtype} {column.shape}",
            hint=_MEND,
        ) from error
    if column.dtype != "uint8" and not np.isfinite(value).all():
        raise GymError(f"{column.name} of {now} is not finite", got=value, hint=_MEND)
    return value


def _columns(
    id: str, space: spaces.Space[Any], path: tuple[str, ...] = ()
) -> list[tuple[tuple[str, ...], Field]]:
    """Where each column is in the observation, and what it is."""
    if isinstance(space, spaces.Dict):
        parts = space.spaces.items()
        return [column for key, part in parts for column in _columns(id, part, (*path, key))]
    name = "_".join(path) or "observation"
    shape = getattr(space, "shape", None)
    if isinstance(space, spaces.Box) and shape is not None:
        if space.dtype != np.uint8 or len(shape) < 2:
            return [(path, Field(f"state/{name}", "float32", (int(np.prod(shape)),)))]
        if len(shape) == 3 and shape[2] == 3:
            return [(path, Field(f"images/{name}", "uint8", shape))]
    raise GymError(
        f"the observation {name!r} of {id} is not supported",
        got=space,
        expected="a Box of numbers, or a Box of uint8 (height, width, 3), in any Dict",
        hint="wrap the environment, and register what you made",
    )


def _bounds(
    id: str, space: spaces.Space[Any]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    if isinstance(space, spaces.Box) and space.is_bounded():
        return space.low.ravel().astype(np.float64), space.high.ravel().astype(np.float64)
    raise GymError(
        f"the action space of {id} is not supported",
        got=space,
        expected="a Box with finite bounds",
        hint="wrap the environment, for example with gymnasium.wrappers.RescaleAction",
    )


def _scale(scale: Sequence[float] | None, count: int) -> npt.NDArray[np.float64]:
    values = np.ones(count) if scale is None else np.asarray(scale, np.float64)
    fits = values.shape == (count,) and ((values >= 0.0) & (values <= 1.0)).all()
    if not (fits and values.any()):
        raise GymError(
            "robot.action_scale does not fit the action space",
            got=scale,
            expected=f"{count} numbers in [0, 1], not all 0",
        )
    return values


@contextmanager
def _seeded_global_generator(seed: int) -> Iterator[None]:
    """Let an environment that draws from NumPy's global generator follow the episode's seed too.

    gym_hil places its cube so; without this, no evaluation of it could be repeated.
    """
    state = np.random.get_state()
    np.random.seed(seed)
    try:
        yield
    finally:
        np.random.set_state(state)
