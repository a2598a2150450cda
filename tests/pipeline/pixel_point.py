"""A point in a picture, which shows where it has to go; registered as PixelPoint-v0."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import numpy as np
from gymnasium import spaces

SIDE, STEP = 24, 0.3


class PixelPoint(gymnasium.Env):
    """The picture shows point and goal, with float colours; the numbers show the point alone."""

    action_space = spaces.Box(-STEP, STEP, (2,), np.float32)

    def __init__(self, picture=True, numbers=True):
        parts = {
            "view": spaces.Box(0, 1, (SIDE, SIDE, 3), np.float32),
            "range": spaces.Box(0, 9000, (SIDE, SIDE), np.uint16),
        }
        parts = parts if picture else {}
        parts |= {"point": spaces.Box(-1, 1, (2,), np.float32)} if numbers else {}
        self.observation_space = spaces.Dict(parts)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.point, self.goal = self.np_random.uniform(-0.9, 0.9, (2, 2))
        return self._seen(), {}

    def step(self, action):
        self.point = np.clip(self.point + action, -1, 1)
        near = bool(np.abs(self.point - self.goal).max() < 0.1)
        return self._seen(), float(near), near, False, {"success": near}

    def _seen(self):
        view = np.zeros((SIDE, SIDE, 3), np.float32)
        for place, colour in ((self.goal, 1), (self.point, 0)):
            x, y = ((place + 1) / 2 * (SIDE - 4)).astype(int)
            view[y : y + 4, x : x + 4, colour] = 1.0
        far = np.full((SIDE, SIDE), 1500, np.uint16)
        whole = {"view": view, "range": far, "point": self.point.astype(np.float32)}
        return {name: whole[name] for name in self.observation_space}


gymnasium.register("PixelPoint-v0", PixelPoint, max_episode_steps=20)

MAP = """
task: pixel_point:PixelPoint-v0
control_rate_hz: 10.0
episodes: all
observations: {observations}
action: action
action_convention: environment
action_names: [action_0, action_1]
action_low: -0.3
action_high: 0.3
reward: reward
terminated: terminated
success: success
"""


def record(folder: Path, episodes: int = 4) -> None:
    """Write demonstrations, one .npz each, and `shown.map.yaml`; `robot-rl import` takes them."""
    (folder / "shown").mkdir()
    env = PixelPoint()
    for seed in range(episodes):
        seen = [env.reset(seed=seed)[0]]
        acted = []
        while not (acted and acted[-1][2]):
            action = np.clip(env.goal - env.point, -STEP, STEP).astype(np.float32)
            observation, *caused, _, _ = env.step(action)
            seen.append(observation)
            acted.append((action, *caused))
        caused = map(np.array, zip(*acted, strict=True))
        columns = dict(zip(("action", "reward", "terminated"), caused, strict=True))
        columns |= {name: np.stack([each[name] for each in seen]) for name in seen[0]}
        columns["view"] = np.rint(255 * columns["view"]).astype(np.uint8)
        np.savez(folder / f"shown/{seed}.npz", success=columns["terminated"], **columns)
    observations = "{state/point: point, images/view: view}"
    (folder / "shown.map.yaml").write_text(MAP.format(observations=observations))
