"""Any Gymnasium environment by its id, through the robot interface.

`GymRobot` steps the environment; `GymTask` passes on its reward, episode end and success.
"""

from __future__ import annotations

import importlib
import inspect
import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.envs.registration import load_env_creator

from policies import places
from robot_rl.data.schema import Field, Observation
from robot_rl.env.gym_spaces import (
    CORRECT_IT,
    bounds_of,
    columns_of,
    flag_of,
    number_of,
    parts_of,
)
from robot_rl.env.gym_spaces import GymError as GymError
from robot_rl.env.robot import Action
from robot_rl.env.sim import choose_backend
from robot_rl.env.sim.cameras import CameraOptions
from robot_rl.env.task import Outcome, refuse_resume
from robot_rl.errors import RobotRLError, installing

_SUCCESS_KEYS = ("success", "is_success", "succeed")  # in an info; the first one present counts
# Values of `GymRobot.success` other than a key; see there.
LAST, ANY, REWARDED, TERMINATED, NO_SUCCESS = "last", "any", "rewarded", "terminated", "none"
# Observation names of goal environments: the achieved goal, and the desired goal.
ACHIEVED, DESIRED = "state/achieved_goal", "state/desired_goal"
_FILMED = "rgb_array"  # the render mode
_STEPPED = "observation, reward, terminated, truncated, info"
# Environment packages that the extra `gym` installs.
_PEERS = ("gym_hil", "gymnasium_robotics")


@dataclass(eq=False)
class GymTask:
    """The task of a Gymnasium environment, defined entirely by the environment."""

    name: str  # recorded with every episode
    instruction: str  # the robot's task as text
    # Steps after which an episode is truncated; if None, `GymRobot` sets it to the environment's
    # own `max_episode_steps`.
    time_limit_steps: Any
    observation_fields: tuple[Field, ...] = field(default=(), init=False)
    robot: GymRobot = field(init=False)  # steps the environment; sets this itself

    def reset(self, rng: np.random.Generator) -> npt.NDArray[np.float64]:
        """Return a placeholder pose: the environment places its robot itself."""
        return np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0])

    def resume(self, rng: np.random.Generator) -> None:
        """Refuse: Gymnasium environments start with a reset."""
        refuse_resume(self.name)

    def observe(self) -> Observation:
        """Return nothing: `GymRobot` provides the whole observation."""
        return {}

    def outcome(self) -> Outcome:
        """Return the environment's own result of the last step."""
        return self.robot.last_outcome


@dataclass(eq=False)
class GymRobot:
    """Steps a Gymnasium environment as if it were a robot.

    The observation space is a Box, named `observation`, or a Dict; keys of nested Dicts are joined
    by `_`. Numbers become `state/<key>` float32 (n,), flattened. Images become `images/<key>`:
    colour uint8 (height, width, 3), depth uint16 (height, width, 1) [mm]; see
    `robot_rl.data.pictures`. Actions in [-1, 1] are scaled to the bounds of the action space, a
    Box. The environment is made with the render mode "rgb_array" if it has that.

    Attributes:
        env: The environment itself.
        control_rate_hz: The environment's steps per second, 10 if not specified. `rate_source`
            names its source: `dt`, or "render_fps" in the metadata.
        success_from: Info key that last reported success; None if there was none yet.
    """

    task: GymTask
    # Environment id. For `module:id`, or `namespace/id` with a module of that name, the module is
    # imported first, so that it can register its environments.
    id: str
    arguments: Mapping[str, Any]  # keyword arguments of the environment
    # Images to observe, each named `<key>`; None for all.
    cameras: Sequence[CameraOptions] | None = None
    # Fraction of the action range to use about its centre, per column; a column with 0 stays at the
    # centre and is not part of the action. None for the full range.
    action_scale: Sequence[float] | None = None
    # Success criterion of an episode:
    # - KEY: the info's value of this key at the "last" step, as in gymnasium-robotics, where the
    #   object has to stay; "any KEY": at any step, as in Meta-World, and at all steps after it.
    #   "last" and "any" without a key read success, is_success or succeed.
    # - "rewarded": as "last"; if the info has no such key, termination with a positive reward.
    #   "terminated": any termination.
    # - "none": no success is counted.
    success: str = LAST
    # Least return for success at the end of an episode, overriding the info; or None.
    success_return: float | None = None
    simulated = True
    clamped = False  # actions in [-1, 1] are within its bounds
    opens_grippers = True

    def __post_init__(self) -> None:
        if not isinstance(self.task, GymTask):
            raise GymError(
                f"a Gymnasium environment cannot do the task {self.task.name!r}",
                got=type(self.task).__name__,
                hint="leave task=... out, or give task=gym",
            )
        first, _, rest = self.success.strip().partition(" ")
        if not first or (rest and first not in (LAST, ANY)):
            raise GymError(
                "robot.success cannot be read",
                got=repr(self.success),
                expected=f"KEY of the info, any KEY, {LAST}, {ANY}, {REWARDED}, {TERMINATED} or"
                f" {NO_SUCCESS}",
            )
        known = first in (LAST, ANY, REWARDED, TERMINATED, NO_SUCCESS)
        self._judge, key = (first, rest.strip()) if known else (LAST, first)
        self._success_keys = (key,) if key else _SUCCESS_KEYS
        self.success_from: str | None = None
        self.env = _make(self.id, self.arguments)
        try:
            self._look()
        except BaseException:
            self.env.close()
            raise

    def _look(self) -> None:
        """Read the environment's observations, actions, rate and time limit."""
        id, task = self.id, self.task
        self._spaces = _spaces(self.env)
        self._columns = columns_of(id, self._spaces[0], self.cameras)
        self._low, self._high = bounds_of(id, self._spaces[1])
        self.control_rate_hz, self.rate_source = _own_rate(self.env)
        count, given = self._low.size, self.action_scale
        self._scale = np.ones(count) if given is None else np.asarray(given, np.float64)
        fits = self._scale.shape == (count,) and ((self._scale >= 0.0) & (self._scale <= 1.0)).all()
        if not (fits and self._scale.any()):
            raise GymError(
                "robot.action_scale does not fit the action space",
                got=given,
                expected=f"{count} numbers in [0, 1], not all 0",
            )
        self._used = np.flatnonzero(self._scale)
        self.action_names = tuple(f"action_{index}" for index in self._used)
        self.observation_fields = tuple(column.field for column in self._columns)
        self._action = np.zeros(count)
        spec = self.env.spec
        task.time_limit_steps = task.time_limit_steps or (spec and spec.max_episode_steps) or 0
        if not task.time_limit_steps:
            raise GymError(
                f"the environment {id!r} has no time limit",
                hint="register it with max_episode_steps, or set task.environment.time_limit_steps",
            )
        self.task.robot = self

    @property
    def action_range(self) -> npt.NDArray[np.float64]:
        """The environment's values for -1 and 1 of each action column, (2, d)."""
        middle, half = (self._low + self._high) / 2, self._scale * (self._high - self._low) / 2
        return np.stack([middle - half, middle + half])[:, self._used]

    @property
    def has_goals(self) -> bool:
        """Whether it observes goals and can compute the reward of any goal."""
        fields = {field.name for field in self.observation_fields}
        return {ACHIEVED, DESIRED} <= fields and self.env.has_wrapper_attr("compute_reward")

    def reset(self, start_pose: npt.NDArray[np.float64], rng: np.random.Generator) -> None:
        """Reset the environment with a seed from `rng`; `start_pose` is ignored."""
        self._seed, self._steps, self._return = int(rng.integers(2**31)), 0, 0.0
        self.last_outcome = Outcome(0.0, terminated=False, truncated=False, success=False)
        # Some, such as gym_hil, use NumPy's global generator; seed it for reproducibility.
        state = np.random.get_state()
        np.random.seed(self._seed)
        try:
            given = self._called(f"reset of {self.id}", lambda: self.env.reset(seed=self._seed))
        finally:
            np.random.set_state(state)
        self.last_observation: Any = parts_of(f"reset of {self.id}", given, "observation, info")[0]
        if _spaces(self.env) != self._spaces:
            raise GymError(
                f"the spaces of {self.id} change from one episode to the next",
                got=_spaces(self.env),
                expected=self._spaces,
                hint=CORRECT_IT,
            )

    def resume(self, rng: np.random.Generator) -> None:
        """Do nothing: the environment does not move between steps."""

    def apply(self, action: Action) -> Action:
        """Store an action (d,) in [-1, 1] for the next step."""
        self._action[self._used] = action
        return action

    def advance(self, period: float) -> None:
        """Step the environment once, whatever its own step duration; `period` is ignored."""
        share = 0.5 * (1.0 + self._scale * self._action)
        target = (self._low + share * (self._high - self._low)).clip(self._low, self._high)
        space = self.env.action_space
        whole = np.issubdtype(space.dtype, np.integer)
        action = (np.rint(target) if whole else target).reshape(space.shape).astype(space.dtype)
        self._steps += 1
        now = self._now
        stepped = self._called(f"step of {now}", lambda: self.env.step(action))
        self.last_observation, given, *ends, info = parts_of(f"step of {now}", stepped, _STEPPED)
        terminated = flag_of(f"terminated of {now}", ends[0])
        truncated = flag_of(f"truncated of {now}", ends[1])
        reward = number_of(f"the reward of {now}", given)
        self._return += reward
        if self.success_return is not None:
            over = terminated or truncated or self._steps >= self.task.time_limit_steps
            success = over and self._return >= self.success_return
        else:
            success = self._success(info, terminated, truncated, reward)
        success = success or (self._judge == ANY and self.last_outcome.success)
        self.last_outcome = Outcome(reward, terminated, truncated, success)

    def observe(self) -> Observation:
        """Return the latest observation of the environment."""
        now, last = self._now, self.last_observation
        return {column.field.name: column.read(now, last) for column in self._columns}

    @property
    def within_its_space(self) -> bool:
        """Whether the latest observation has the dtypes and bounds of its space."""
        return bool(self._spaces[0].contains(self.last_observation))

    @property
    def _now(self) -> str:
        """Environment, episode and step, for error messages."""
        return f"{self.id}, in step {self._steps} after reset(seed={self._seed}),"

    def picture(self) -> npt.NDArray[np.uint8]:
        """Render an image: uint8 (height, width, 3) RGB, cropped to an even size."""
        if self.env.render_mode != _FILMED:
            raise GymError(
                f"the environment {self.id} cannot be filmed",
                got=f"render_mode {self.env.render_mode}",
                expected=f"render_mode {_FILMED}",
            )
        try:
            drawn: Any = self.env.render()
        except Exception as error:  # from its own renderer
            raise GymError(
                f"the environment {self.id} cannot be drawn",
                got=repr(error),
                hint="robot-rl doctor looks at rendering",
            ) from error
        frame = np.asarray(drawn[0] if isinstance(drawn, list | tuple) else drawn)  # several views
        if frame.dtype != np.uint8 or frame.shape[2:] != (3,) or min(frame.shape) < 2:
            raise GymError(
                f"the environment {self.id} draws no RGB picture",
                got=f"{frame.dtype} {frame.shape}",
                expected="uint8 (height, width, 3)",
            )
        height, width = (size // 2 * 2 for size in frame.shape[:2])
        return np.ascontiguousarray(frame[:height, :width])

    def hold(self) -> None:
        """Do nothing: the environment does not move between steps."""

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _called(self, what: str, call: Callable[[], Any]) -> Any:
        """Call the environment's own code; wrap its errors in `GymError`."""
        try:
            return call()
        except RobotRLError:
            raise
        except Exception as error:  # whatever its own code does
            frame = traceback.extract_tb(error.__traceback__)[-1]
            raise GymError(
                f"{what} fails",
                got=f"{error!r} in {frame.filename}:{frame.lineno}, {frame.name}",
                expected="reset and step as gymnasium.Env describes them: they return observation,"
                f" info and {_STEPPED}",
            ) from error

    def _success(
        self, info: Mapping[str, Any], terminated: bool, truncated: bool, reward: float
    ) -> bool:
        if self._judge == NO_SUCCESS:
            return False
        if self._judge == TERMINATED:
            return terminated
        for key in self._success_keys:
            if key in info:
                self.success_from = key
                # Some report None until the end.
                return info[key] is not None and flag_of(f"info[{key!r}] of {self._now}", info[key])
        if self._success_keys is not _SUCCESS_KEYS and (terminated or truncated):
            raise GymError(
                f"the info of {self.id} has no {self._success_keys[0]!r}",
                got=sorted(map(str, info)),
                hint=f"set robot.success to one of them, or to {REWARDED}, {TERMINATED} or"
                f" {NO_SUCCESS}",
            )
        return self._judge == REWARDED and terminated and reward > 0.0


def _make(id: str, arguments: Mapping[str, Any]) -> gymnasium.Env[Any, Any]:
    choose_backend()  # some create a renderer even if no image is requested
    # Importing `module:id`'s module, or the namespace of an unknown `namespace/id`, registers it.
    package, namespace = id.rpartition(":")[0], id.partition("/")[0]
    if not package and namespace != id and id not in gymnasium.registry:
        package = namespace
    if package and package.partition(".")[0] not in _PEERS and not places.may_import(package):
        raise GymError(
            f"the environment {id!r} is of a package that this command does not name",
            got=package,
            hint=f"if you trust that package, add robot.id={id}",
        )
    try:
        if package:
            places.make_importable(package)
            importlib.import_module(package)
        return gymnasium.make(id, disable_env_checker=True, **{**_drawing(id), **arguments})
    except RobotRLError:
        raise
    except Exception as error:  # whatever its own code does
        problem, hint = _explained(id, error)
        given = f"{dict(arguments)}: " if arguments else ""
        raise GymError(problem, got=f"{given}{error!r}", hint=hint) from error


def _explained(id: str, error: Exception) -> tuple[str, str]:
    named = f"the environment {id!r}"
    if isinstance(error, ImportError | gymnasium.error.DependencyNotInstalled):  # or of a display
        return f"{named} cannot be imported", (
            f"install its package (gym_hil and gymnasium_robotics: {installing('gym')}),"
            " or add --config-dir FOLDER where it is a file of your own in that folder;"
            " robot.id=FILE:ID names another environment"
        )
    if isinstance(error, gymnasium.error.Error):
        hint = "give an id that Gymnasium knows, or FILE:ID, where importing the file adds it"
        return f"there is no environment {id!r}", hint
    if "gymnasium.Env" in str(error):  # the wording varies by version but always has this
        hint = "inherit from gymnasium.Env, and in wrappers from gymnasium.Wrapper"
        return f"{named} is no gymnasium.Env, or wraps what is none", hint
    if isinstance(error, TypeError) and "argument" in str(error):
        return f"{named} does not take these arguments", "correct robot.arguments"
    return f"{named} cannot be made", f"make it work first: gymnasium.make({id!r})"


def _drawing(id: str) -> dict[str, str]:
    """The `render_mode` argument for off-screen rendering, if the environment takes it."""
    spec = gymnasium.registry.get(id.rpartition(":")[2])
    if spec is None or spec.entry_point is None or "render_mode" in spec.kwargs:
        return {}
    entry = spec.entry_point
    made_by: Any = load_env_creator(entry) if isinstance(entry, str) else entry
    offered = (getattr(made_by, "metadata", None) or {}).get("render_modes") or ()
    parameters = inspect.signature(made_by).parameters
    takes = "render_mode" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    return {"render_mode": _FILMED} if takes and _FILMED in offered else {}


def _spaces(env: gymnasium.Env[Any, Any]) -> tuple[Any, Any]:
    return getattr(env, "observation_space", None), getattr(env, "action_space", None)


def _own_rate(env: gymnasium.Env[Any, Any]) -> tuple[float, str | None]:
    # A wrapper that repeats actions can have its own dt.
    step = env.get_wrapper_attr("dt") if env.has_wrapper_attr("dt") else None
    for source, said in (("dt", step), ("render_fps", (env.metadata or {}).get("render_fps"))):
        if isinstance(said, Real) and 0.0 < float(said) < math.inf:
            return (round(1.0 / float(said), 6) if source == "dt" else float(said)), source
    return 10.0, None


@dataclass(kw_only=True, eq=False)
class GymHilPickExpert:
    """Imperfect expert for `gym_hil/PandaPickCubeBase-v0`, which has none of its own.

    The action is x, y, z [action_scale metres] and the gripper's change, as in `robot=gym_hil`.
    """

    task: GymTask
    offset: float  # standard deviation of its error in the cube's position, per axis [m]
    action_noise: float  # standard deviation of noise on each action column
    step: float  # metres that an action of 1 moves the TCP's target
    speed_low: float  # slowest pace of an episode, as a fraction of the largest action
    hover: float  # height over the cube until it is above it [m]
    align: float  # distance at which the next phase starts [m]
    close_steps: int  # control steps allowed for closing the gripper
    _descending: bool = field(default=False, init=False)
    _closing: int = field(default=0, init=False)

    def reset(self, rng: np.random.Generator) -> None:
        """Draw this episode's error and pace."""
        self._error = rng.normal(0.0, self.offset, 3) * np.array([1.0, 1.0, 0.0])
        self._speed = float(rng.uniform(self.speed_low, 1.0))
        self._descending = False
        self._closing = 0

    def act(self, rng: np.random.Generator) -> Action:
        """Move over the cube, descend, close, lift."""
        seen = self.task.robot.last_observation
        # `agent_pos` has 7 joint angles, 7 velocities, the gripper, the TCP's position.
        way = seen["environment_state"] + self._error - seen["agent_pos"][-3:]
        self._descending = self._descending or float(np.hypot(way[0], way[1])) < self.align
        if self._closing or (self._descending and abs(float(way[2])) < self.align):
            self._closing += 1
        if self._closing > self.close_steps:
            way = np.array([0.0, 0.0, self.hover])
        elif not self._descending:
            way = way + np.array([0.0, 0.0, self.hover])
        motion = np.clip(way / self.step, -self._speed, self._speed)
        action = np.array([*motion, 1.0 if self._closing else -1.0])
        noisy = action + rng.normal(0.0, self.action_noise, action.shape)
        return np.clip(noisy, -1.0, 1.0).astype(np.float32)
