"""Memories of others for `transition_cases`, each filled and read as its own training script does.

Their packages come from the environment, or from the folders in `ROBOT_RL_PEERS`, separated as in
PATH. What follows is ours; of theirs only the classes are used that a training script uses.
"""

from __future__ import annotations

import copy
import importlib
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from transition_cases import GAMMA, Asked, Memory, NotOffered, Step

STATE, PICTURE, EDGE = "observation.state", "observation.images.front", 4
_BATCHES, _SIZE = 6, 64


class PeerAbsent(Exception):
    """A peer cannot be imported; says why."""


def _only(asked: Asked, *offered: str) -> None:
    """Refuse what a peer has not."""
    for name, value in asked._asdict().items():
        if value != Asked._field_defaults[name] and name not in offered:
            raise NotOffered(name)


def load(*modules: str) -> list[Any]:
    """Import modules of a peer.

    Raises:
        PeerAbsent: One is not there.
    """
    for folder in filter(None, os.environ.get("ROBOT_RL_PEERS", "").split(os.pathsep)):
        if folder not in sys.path:
            sys.path.append(folder)
    try:
        return [importlib.import_module(module) for module in modules]
    except Exception as error:
        raise PeerAbsent(f"{modules[0]}: {type(error).__name__}: {error}") from error


class LeRobot:
    """LeRobot's `ReplayBuffer`, as `lerobot.rl.learner` of 0.4.4 makes, fills and reloads it.

    Its actor sends an episode when it has ended, and tells nobody who acted; its learner saves the
    buffer as a dataset with each checkpoint, and resumes from that. Augmentation is off.
    """

    name = "LeRobot"
    modules = ("lerobot", "lerobot.rl.buffer", "lerobot.datasets.lerobot_dataset")

    def __init__(self, asked: Asked, folder: Path) -> None:
        _only(asked, "capacity", "of_operator")
        _, buffers, datasets = load(*self.modules)
        self._class, self._dataset = buffers.ReplayBuffer, datasets.LeRobotDataset
        self._torch = importlib.import_module("torch")
        self._capacity = asked.capacity or 100
        self._options = {
            "device": "cpu",
            "state_keys": [STATE, PICTURE],
            "storage_device": "cpu",
            "optimize_memory": True,
            "use_drq": False,
        }
        # Operators' steps are also meant for a second buffer, of demonstrations.
        self._online, self._shown = self._empty(), self._empty()
        self._drawn = self._shown if asked.of_operator else self._online
        self._saved = folder / "dataset"

    @classmethod
    def version(cls) -> str:
        return str(load(*cls.modules)[0].__version__)

    def _empty(self) -> Any:
        return self._class(capacity=self._capacity, **self._options)

    def _seen(self, number: int) -> dict[str, Any]:
        torch = self._torch
        picture = torch.full((1, 3, EDGE, EDGE), number / 255.0)
        return {STATE: torch.full((1, 2), float(number)), PICTURE: picture}

    def episode(self, steps: Sequence[Step], killed: bool) -> None:
        if killed or not (steps[-1].terminated or steps[-1].truncated):
            return
        for step in steps:
            facts = {"discrete_penalty": self._torch.zeros(1)}
            transition = {
                "state": self._seen(step.seen),
                "action": self._torch.full((1, 2), float(step.done)),
                "reward": step.reward,
                "next_state": self._seen(step.following),
                "done": step.terminated,
                "truncated": step.truncated,
                "complementary_info": facts,
            }
            self._online.add(**transition)
            if facts.get("is_intervention"):  # what its learner asks, and its actor does not say
                self._shown.add(**transition)

    def save(self) -> None:
        self._online.to_lerobot_dataset(repo_id="peer/case", fps=10, root=self._saved)

    def restart(self) -> None:
        dataset = self._dataset(repo_id="peer/case", root=self._saved)
        self._drawn = self._online = self._class.from_lerobot_dataset(
            dataset, capacity=self._capacity, **self._options
        )

    def size(self) -> int:
        return len(self._drawn)

    def draw(self) -> Iterator[dict[str, Any]]:
        for _ in range(_BATCHES * _SIZE // len(self._drawn)):
            batch = self._drawn.sample(_SIZE)
            pictures = (batch[of][PICTURE][:, 0, 0, 0] * 255 for of in ("state", "next_state"))
            yield from _rows(
                s=batch["state"][STATE][:, 0],
                next=batch["next_state"][STATE][:, 0],
                image=next(pictures),
                next_image=next(pictures),
                action=batch["action"][:, 0],
                reward=batch["reward"],
                discount=GAMMA * (1 - batch["done"]),
            )


class HilSerl:
    """HIL-SERL's memory-efficient data store and agentlace's queue, as in its `train_rlpd.py`.

    Its actor sends its queues at an episode's end, and pickles its transitions now and then; a
    learner that is started again reads these, and takes from the queue what it has not had.
    """

    name = "HIL-SERL"
    modules = ("serl_launcher.data.data_store", "agentlace.data.data_store", "gymnasium.spaces")

    def __init__(self, asked: Asked, folder: Path) -> None:
        _only(asked, "capacity", "of_operator", "history")
        stores, queues, spaces = load(*self.modules)
        self._stack, self._capacity = asked.history or 1, asked.capacity or 100
        picture = spaces.Box(0, 255, (self._stack, EDGE, EDGE, 3), np.uint8)
        state = spaces.Box(-np.inf, np.inf, (self._stack, 1), np.float32)
        observations = spaces.Dict({"state": state, "front": picture})
        actions = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        self._store = lambda: stores.MemoryEfficientReplayBufferDataStore(
            observations, actions, capacity=self._capacity, image_keys=("front",)
        )
        self._queue = lambda: queues.QueuedDataStore(50000)
        self._of_operator = asked.of_operator
        self._learner, self._sent = self._store(), -1
        self._actor = self._queue()
        self._transitions: list[Any] = []
        self._pickled: list[Any] = []

    @classmethod
    def version(cls) -> str:
        load(*cls.modules)
        return "without a version"

    def episode(self, steps: Sequence[Step], killed: bool) -> None:
        numbers = [steps[0].seen] * self._stack
        for step in steps:
            before, numbers = numbers, [*numbers[1:], step.following]
            transition = {
                "observations": self._seen(before),
                "actions": np.array([step.done], np.float32),
                "next_observations": self._seen(numbers),
                "rewards": step.reward,
                "masks": 1.0 - step.terminated,
                "dones": step.terminated,
            }
            if not self._of_operator or step.by == "o":
                self._actor.insert(transition)
            self._transitions.append(copy.deepcopy(transition))
        if killed:
            self._actor, self._transitions = self._queue(), []
        elif steps[-1].terminated or steps[-1].truncated:
            self._send()

    def _seen(self, numbers: Sequence[int]) -> dict[str, np.ndarray]:
        pictures = np.zeros((len(numbers), EDGE, EDGE, 3), np.uint8)
        pictures += np.array(numbers, np.uint8)[:, None, None, None]
        return {"state": np.array(numbers, np.float32)[:, None], "front": pictures}

    def _send(self) -> None:
        news = self._actor.get_latest_data(self._sent)
        if news:
            self._learner.batch_insert(news)
            self._sent = self._actor.latest_data_id()

    def save(self) -> None:
        self._pickled += self._transitions
        self._transitions = []

    def restart(self) -> None:
        self._learner, self._sent = self._store(), -1
        for transition in self._pickled:
            self._learner.insert(transition)

    def size(self) -> int:
        return int(self._learner._is_correct_index.sum())

    def draw(self) -> Iterator[dict[str, Any]]:
        for _ in range(_BATCHES):
            batch = self._learner.sample(_SIZE, pack_obs_and_next_obs=True)
            pictures = np.asarray(batch["observations"]["front"])[..., 0, 0, 0]
            before, after = pictures[:, :-1], pictures[:, 1:]
            yield from _rows(
                s=batch["observations"]["state"][:, -1, 0],
                next=batch["next_observations"]["state"][:, -1, 0],
                image=before if self._stack > 1 else before[:, 0],
                next_image=after if self._stack > 1 else after[:, 0],
                action=batch["actions"][:, 0],
                reward=batch["rewards"],
                discount=GAMMA * batch["masks"],
            )


def _rows(**columns: Any) -> Iterator[dict[str, Any]]:
    """Windows from columns of numbers."""
    arrays = {name: np.asarray(column) for name, column in columns.items()}
    for b in range(len(arrays["s"])):
        yield {name: array[b] for name, array in arrays.items()} | {"s": int(arrays["s"][b])}


PEERS = (LeRobot, HilSerl)


@contextmanager
def opened(peer: type[LeRobot] | type[HilSerl], asked: Asked) -> Iterator[Memory]:
    """A new memory of a peer."""
    with tempfile.TemporaryDirectory() as folder:
        yield peer(asked, Path(folder))
