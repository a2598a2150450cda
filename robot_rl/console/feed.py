"""Snapshots of a session for the operator's consoles."""

from __future__ import annotations

import io
import time
from typing import Any

import numpy as np
from PIL import Image

from robot_rl.console.link import Activity, ConsoleLink, InControl, Situation, Snapshot
from robot_rl.data.schema import Array, Observation
from robot_rl.env.operator import OperatorEvent
from robot_rl.env.session import Session, Watcher
from robot_rl.errors import RobotRLError
from robot_rl.run import RunDirectory

_LOOK_SECONDS = 0.1
_IMAGES = "images/"
_JPEG_QUALITY = 80
# Largest width shown on the page; wider images are downsampled by an integer factor.
_MOST_PIXELS_WIDE = 640


class ConsoleFeed(Watcher):
    """Publishes the state of a session to the consoles of a run.

    It does not measure, copy or send data: without a console a step costs one flag check, with a
    console one small object.

    Attributes:
        run_steps: Environment steps of the whole run so far, from the actor.
        policy_version: Gradient updates behind the acting policy, from the actor.
        wanted_scene: Seed of the scene that a person must restore, until the next episode starts.
    """

    def __init__(self, session: Session, run: RunDirectory, actor: int = 1) -> None:
        self._session = session
        self._link = ConsoleLink(run, session.inbox, actor)
        self.run_steps = self.policy_version = 0
        self.wanted_scene: int | None = None
        self._newest = Snapshot()
        self._look_at = 0.0
        session.watcher = self

    def resetting(self) -> None:
        """Show the reset with the last observation."""
        self._show_again(activity=Activity.RESETTING)

    def began(self, observation: Observation, info: dict[str, Any]) -> None:
        """Show the first observation."""
        self.wanted_scene = None
        stamp = int(info["stamp_observation"])
        self._show(observation, stamp, activity=Activity.ACTING, in_control=InControl.POLICY)

    def stepped(self, observation: Observation, reward: float, info: dict[str, Any]) -> None:
        """Show the step if a console is open or the robot is halted."""
        if not (self._link.open_consoles or self._session.operator.waits_for):
            return
        halted = self._halted()
        acting = InControl.OPERATOR if info["intervened"] else InControl.POLICY
        self._show(
            observation,
            int(info["stamp_observation"]),
            activity=halted or Activity.ACTING,
            in_control=InControl.NOBODY if halted else acting,
            reward=reward,
            advice=info.get("advice", ""),
            decision_seconds=float(info["decision_seconds"]),
            lateness_seconds=float(info["lateness"]),
            action=tuple(np.asarray(info["executed_action"]).tolist()),
        )

    def waiting(self, reason: str) -> None:
        """Show why no episode runs."""
        self._show_again(activity=self._halted() or Activity.WAITING, reason=reason)

    def look(self) -> None:
        """Observe at intervals, so that the console keeps showing the robot."""
        now = time.monotonic()
        if self._link.open_consoles and now >= self._look_at:
            self._look_at, stamp = now + _LOOK_SECONDS, self._session.clock.now_ns()
            try:
                observation = self._session.env.observe()
            except RobotRLError as error:  # not fatal while the robot need not move
                self.waiting(str(error))
            else:
                reason = self._newest.situation.reason
                activity = self._halted() or Activity.WAITING
                self._show(observation, stamp, activity=activity, reason=reason)

    def close(self) -> None:
        """Publish the end of the session and disconnect."""
        self._show_again(activity=Activity.ENDED)
        self._link.close()

    def _show_again(self, **facts: Any) -> None:
        newest = self._newest
        self._show(newest.observation, newest.situation.stamp_observation, **facts)

    def _show(self, observation: Observation, stamp: int, **facts: Any) -> None:
        session = self._session
        situation = Situation(
            episode=session.episode,
            episode_step=session.result.steps,
            time_limit_steps=session.task.time_limit_steps,
            total_reward=session.result.total_reward,
            intervened_steps=session.result.intervened_steps,
            run_steps=self.run_steps,
            policy_version=self.policy_version,
            instruction=session.task.instruction,
            action_names=session.schema.action_names,
            wanted_scene=self.wanted_scene,
            stamp_observation=stamp,
            **facts,
        )
        self._newest = Snapshot(situation, observation)
        self._link.publish(self._newest)

    def _halted(self) -> Activity | None:
        """Whether the robot is stopped or paused; None if neither."""
        waits_for = self._session.operator.waits_for
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
