"""Small Gymnasium environments, registered as tests/NAME-v0."""

import typing

import gymnasium
import numpy as np
from gymnasium import spaces

from robot_rl.commands.preparation import try_environment
from robot_rl.config import compose
from robot_rl.env.factory import make_env


class Point(gymnasium.Env):
    """Bring a point to 0; reward and ends are its own."""

    action_space = spaces.Box(np.array([-2.0, 0.0]), np.array([2.0, 10.0]), dtype=np.float64)
    observation_space = spaces.Dict(
        {
            "agent": spaces.Dict({"place": spaces.Box(-9, 9, (2, 1), np.float64)}),
            "goal": spaces.Box(-9, 9, (1,), np.float32),
            "view": spaces.Box(0, 255, (4, 5, 3), np.uint8),
        }
    )

    def __init__(self, key="is_success", draw_globally=False):
        self.key = key
        self.draw_globally = draw_globally
        self.actions = []
        self.closed = False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        source = np.random if self.draw_globally else self.np_random
        self.place = source.uniform(1.0, 2.0, (2, 1))
        return self._seen(), {}

    def step(self, action):
        self.actions.append(action)
        self.place = self.place + action[0]
        reached, lost = bool((self.place < 0).all()), bool((self.place > 5).any())
        info = {} if self.key is None else {self.key: reached}
        return self._seen(), float(reached) - 2.0 * lost, reached or lost, False, info

    def close(self):
        self.closed = True

    def _seen(self):
        view = np.full((4, 5, 3), int(10 * abs(self.place[0, 0])), np.uint8)
        goal = np.zeros(1, np.float32)
        return {"agent": {"place": self.place}, "goal": goal, "view": view}


class Drawn(Point):
    """Draws where its point is, in a picture of odd sides."""

    metadata: typing.ClassVar = {"render_modes": ["human", "rgb_array"]}

    def __init__(self, render_mode=None, size=(37, 51, 3)):
        super().__init__()
        self.render_mode, self.size = render_mode, size

    def render(self):
        return np.full(self.size, int(10 * abs(self.place[0, 0])), np.uint8)


class Odd(Point):
    """Does one thing that nothing can be learned from."""

    def __init__(self, does):
        super().__init__()
        self.does = does

    def reset(self, *, seed=None, options=None):
        seen, info = super().reset(seed=None if self.does == "ignores its seed" else seed)
        if self.does == "begins without info":
            return seen
        if self.does == "begins with a list":
            return [seen, info]
        if self.does == "changes its spaces":
            goal = spaces.Box(-9, 9, (2,), np.float32)
            self.observation_space = spaces.Dict({**self.observation_space.spaces, "goal": goal})
        return seen, info

    def step(self, action):
        seen, reward, *rest = super().step(action)
        if self.does == "sees NaN" or (self.does == "sees NaN later" and self.place.max() > 3):
            seen["goal"] = np.full(1, np.nan, np.float32)
        elif self.does == "sees too much":
            seen["goal"] = np.zeros(2, np.float32)
        elif self.does == "sees in floats":
            seen["view"] = seen["view"] / 255.0
        elif self.does == "loses its goal":
            del seen["goal"]
        elif self.does == "rewards NaN":
            reward = np.nan
        elif self.does == "rewards nothing":
            reward = None
        elif self.does == "rewards two":
            reward = np.zeros(2)
        elif self.does == "rewards in words":
            reward = "1.0"
        elif self.does == "informs of nothing":
            rest[-1] = None
        elif self.does == "ends in words":
            rest[0] = "no"
        elif self.does == "has an old step":
            return seen, reward, False, {}
        return seen, reward, *rest


class Unseeded(Point):
    """Moves on its own, by a source that no seed reaches."""

    source = np.random.default_rng(0)

    def step(self, action):
        self.place = self.place + 0.01 * self.source.standard_normal()
        return super().step(action)


class Passing(gymnasium.Env):
    """Is at its goal in steps 3, 4 and 7 of 8, which end nothing; its steps take 0.5 s."""

    metadata: typing.ClassVar = {"render_modes": [], "render_fps": 30}
    observation_space = spaces.Box(0, 9, (1,))
    action_space = spaces.Box(-1, 1, (1,))
    dt = 0.5

    def __init__(self, stays=False):
        self.stays = stays

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.count += 1
        reached = self.count in (3, 4, 7) or (self.stays and self.count > 5)
        return np.full(1, self.count, np.float32), 0.0, False, False, {"success": reached}


class Balance(gymnasium.Env):
    """Gives 1 for each step until it falls, after 3 to 6 of them."""

    observation_space = spaces.Box(-1, 1, (1,))
    action_space = spaces.Box(-1, 1, (1,))

    def __init__(self, key=None):
        self.key = key

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(3, 7))
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.left -= 1
        fallen = self.left == 0
        info = {self.key: False} if self.key and fallen else {}
        return np.zeros(1, np.float32), 1.0, fallen, False, info


class NoEnv:
    """Has spaces, but is none of Gymnasium's."""

    observation_space, action_space = Passing.observation_space, Passing.action_space


class Spaces(gymnasium.Env):
    """Has the spaces that a test gives it."""

    observation_space = spaces.Box(-1, 1, (2,))
    action_space = spaces.Box(-1, 1, (1,))
    seen = None  # what it observes; None: what is drawn from its space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self._look(), {}

    def step(self, action):
        return self._look(), 0.0, False, False, {"success": False}

    def _look(self):
        return self.observation_space.sample() if self.seen is None else self.seen


gymnasium.register("tests/Balance-v0", Balance, max_episode_steps=20)
gymnasium.register("tests/Point-v0", Point, max_episode_steps=20)
gymnasium.register("tests/Drawn-v0", Drawn, max_episode_steps=20)
gymnasium.register("tests/Spaces-v0", Spaces, max_episode_steps=20)
gymnasium.register("tests/Endless-v0", Point)
gymnasium.register("tests/Odd-v0", Odd, max_episode_steps=20)
gymnasium.register("tests/Unseeded-v0", Unseeded, max_episode_steps=20)
gymnasium.register("tests/Passing-v0", Passing, max_episode_steps=8)
gymnasium.register("tests/NoEnv-v0", NoEnv)
gymnasium.register("tests/Wrapped-v0", lambda: gymnasium.Wrapper(NoEnv()))


def environment(id="tests/Point-v0", *overrides, **arguments):
    given = [f"+robot.arguments.{name}={value}" for name, value in arguments.items()]
    return make_env(compose(["robot=gym", f"robot.id={id}", *overrides, *given]))


def inner(env):
    return env.robot.env.unwrapped


def tried(id, *overrides):
    config = compose(["robot=gym", f"robot.id={id}", *overrides])
    try_environment(config)
    return config
