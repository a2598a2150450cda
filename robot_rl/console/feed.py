"""The environment as the operator's console watches it: every moment of it becomes a snapshot."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from PIL import Image

from robot_rl.console.link import Activity, ConsoleLink, InControl, Situation, Snapshot
from robot_rl.data.schema import Array, Observation
from robot_rl.env.intervention import Intervention
from robot_rl.env.operator import OperatorEvent
from robot_rl.env.robot import Action, RobotInterrupted, watchers_of
from robot_rl.env.robot_env import Begun, Options, RobotEnv, RobotEnvWrapper, Stepped
from robot_rl.errors import RobotRLError

_LOOK_SECONDS = 0.1
_IMAGES = "images/"
_JPEG_QUALITY = 80
# A page shows images no larger; a bigger one is encoded at a whole fraction of its size.
_MOST_PIXELS_WIDE = 640


class TelemetryEnv(RobotEnvWrapper):
    """Publishes what happens in an environment to the consoles of its link.

    Nothing is measured, copied or sent here: while no console is open a step costs one look at a
    flag, and while one is, the making of a small object. `operated` is the wrapper in `env` that
    listens to the operator; so many episodes were before the first one of this process.
    """

    def __init__(
        self,
        env: RobotEnv | RobotEnvWrapper,
        operated: Intervention,
        link: ConsoleLink,
        episodes: int = 0,
    ) -> None:
        super().__init__(env)
        self._operated, self._link = operated, link
        self._episode = episodes
        self._steps, self._intervened_steps, self._total_reward = 0, 0, 0.0
        self._run_steps = self._policy_version = 0
        self._wanted_scene: int | None = None
        self._watchers = watchers_of(self.robot)
        self._newest = Snapshot()
        self._look_at = 0.0

    def reset(self, *, seed: int | None = None, options: Options = None) -> Begun:
        """Begin an episode."""
        self._show_again(activity=Activity.RESETTING)
        try:
            with self._told():
                observation, info = super().reset(seed=seed, options=options)
        except RobotInterrupted:  # a person who puts the scene back looks at it meanwhile
            self.look()
            raise
        self._episode, self._wanted_scene = self._episode + 1, None
        self._steps, self._intervened_steps, self._total_reward = 0, 0, 0.0
        if self._watchers is not None:
            self._watchers.tell_event(f"episode {self._episode} begins with seed {seed}")
        stamp = int(info["stamp_observation"])
        self._show(observation, stamp, activity=Activity.ACTING, in_control=InControl.POLICY)
        return observation, info

    def step(self, action: Action) -> Stepped:
        """Step, and let the consoles see it."""
        with self._told():
            observation, reward, terminated, truncated, info = super().step(action)
        intervened = bool(info["intervened"])
        self._steps += 1
        self._intervened_steps += intervened
        self._total_reward += float(reward)
        if self._watchers is not None:
            executed = info["executed_action"]
            self._watchers.tell_step(self.schema.action_names, executed, float(reward))
            if terminated or truncated:
                outcome = "success" if info["success"] else "failure"
                outcome += "" if terminated else ", cut short"
                self._watchers.tell_event(f"episode {self._episode} ends with {outcome}")
        if self._link.open_consoles or self._operated.waits_for:
            halted = self._halted()
            acting = InControl.OPERATOR if intervened else InControl.POLICY
            self._show(
                observation,
                int(info["stamp_observation"]),
                activity=halted or Activity.ACTING,
                in_control=InControl.NOBODY if halted else acting,
                reward=float(reward),
                advice=info.get("advice", ""),
                decision_seconds=float(info["decision_seconds"]),
                lateness_seconds=float(info["lateness"]),
                action=tuple(np.asarray(info["executed_action"]).tolist()),
            )
        return observation, float(reward), terminated, truncated, info

    def note_progress(self, run_steps: int, policy_version: int) -> None:
        """Take in what only the actor knows: steps of the run, and the policy that acts."""
        self._run_steps, self._policy_version = run_steps, policy_version

    def note_wanted(self, seed: int) -> None:
        """Until the next episode begins, show which scene a person is to put back."""
        self._wanted_scene = seed

    def note_waiting(self, reason: str) -> None:
        """Say why no episode begins."""
        self._show_again(activity=self._halted() or Activity.WAITING, reason=reason)

    def look(self) -> None:
        """Between episodes: observe now and then, so that the console goes on showing the robot."""
        now = time.monotonic()
        if self._link.open_consoles and now >= self._look_at:
            self._look_at, stamp = now + _LOOK_SECONDS, self.clock.now_ns()
            try:
                observation = self.observe()
            except RobotRLError as error:  # no reason to end, as long as nothing has to move
                self.note_waiting(str(error))
            else:
                reason = self._newest.situation.reason
                activity = self._halted() or Activity.WAITING
                self._show(observation, stamp, activity=activity, reason=reason)

    def wait_until_free(self, stopped: Callable[[], bool], note: Callable[[str], None]) -> None:
        """As `Intervention.wait_until_free`; consoles see the robot and the reason meanwhile."""

        def looked() -> bool:
            self.look()
            return stopped()

        def noted(reason: str) -> None:
            note(reason)
            self.note_waiting(reason)

        self._operated.wait_until_free(looked, noted)

    def close(self) -> None:
        """Say so, hang up, and close the environment."""
        try:
            self._show_again(activity=Activity.ENDED)
            self._link.close()
        finally:  # whatever has become of the link, the robot is to hold
            super().close()

    def _show_again(self, **facts: Any) -> None:
        newest = self._newest
        self._show(newest.observation, newest.situation.stamp_observation, **facts)

    def _show(self, observation: Observation, stamp: int, **facts: Any) -> None:
        situation = Situation(
            episode=self._episode,
            episode_step=self._steps,
            time_limit_steps=self.task.time_limit_steps,
            total_reward=self._total_reward,
            intervened_steps=self._intervened_steps,
            run_steps=self._run_steps,
            policy_version=self._policy_version,
            instruction=self.task.instruction,
            action_names=self.schema.action_names,
            wanted_scene=self._wanted_scene,
            stamp_observation=stamp,
            **facts,
        )
        self._newest = Snapshot(situation, observation)
        self._link.publish(self._newest)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Let the consoles know what goes wrong inside."""
        try:
            yield
        except RobotRLError as error:
            self.note_waiting(str(error))
            raise

    def _halted(self) -> Activity | None:
        """How the operator has halted the robot, if so."""
        waits_for = self._operated.waits_for
        if OperatorEvent.CLEAR_ERRORS in waits_for:
            return Activity.STOPPED
        return Activity.PAUSED if OperatorEvent.RESUME in waits_for else None


def jpegs(observation: Observation) -> dict[str, bytes]:
    """Encode the colour images of an observation: camera name → JPEG."""
    return {
        name.removeprefix(_IMAGES): _jpeg(image)
        for name, image in observation.items()
        if name.startswith(_IMAGES) and image.dtype == np.uint8 and image.shape[-1] == 3
    }


def _jpeg(image: Array) -> bytes:
    every = -(-image.shape[1] // _MOST_PIXELS_WIDE)
    buffer = io.BytesIO()
    picture = Image.fromarray(np.ascontiguousarray(image[::every, ::every]))
    picture.save(buffer, "JPEG", quality=_JPEG_QUALITY)
    return buffer.getvalue()
