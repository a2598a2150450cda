"""The size that an actor asks for its spool is one with which it then acts."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_runs import TINY

from policies.behaviour import Behaviour, Interface
from policies.columns import FEATURES
from policies.diffusion import DiffusionPolicy
from policies.vision import ImageEncoder, observed_keys
from robot_rl.actor import act
from robot_rl.config import compose
from robot_rl.env.factory import make_env
from robot_rl.learning.weights import publish
from robot_rl.processes.signals import StopEvent
from robot_rl.replay import SpoolError
from robot_rl.replay.client import ReplayClient
from robot_rl.replay.server import ReplayServer
from robot_rl.run import RunDirectory

OPTIONS = "_target_: robot_rl.env.sim.cameras.CameraOptions, name: front, width: 32, height: 24"
CAMERAS = f"observation.cameras=[{{{OPTIONS}}}]"


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunDirectory]:
    """A run whose policy adds features of its images to each row."""
    monkeypatch.chdir(folder)
    run = RunDirectory.open("latest", "runs")
    encoder = ImageEncoder(
        {"images/front": (24, 32, 3)},
        {"class": "policies.backbones.SmallConvolutional", "channels": [4, 8]},
        hidden=8,
        features=64,
        motion_scale=(0.1, 1.0),
        fine_scale=0.01,
        generator=torch.Generator().manual_seed(0),
    )
    schema = make_env(compose([*TINY, CAMERAS])).schema
    widths = {
        f.name: int(np.prod(f.shape)) for f in schema.fields if f.name in schema.observation_names
    }
    states = {name: width for name, width in widths.items() if name.startswith("state/")}
    random = np.random.default_rng(0)
    columns = {name: random.normal(size=(20, width)) for name, width in states.items()}
    columns["action"] = random.uniform(-1, 1, (20, len(schema.action_names)))
    policy = DiffusionPolicy.create(
        columns,
        observed_keys(states, encoder),
        generator=torch.Generator().manual_seed(0),
        observation_steps=2,
        horizon=4,
        identity=(FEATURES,),
        denoiser={"hidden": [16]},
    )
    interface = Interface(schema.task, schema.control_rate_hz, tuple(schema.action_names))
    stop, server = StopEvent(), ReplayServer(run.store)
    serving = threading.Thread(target=server.run, args=(stop,))
    serving.start()
    with ReplayClient(run.store) as client:
        publish(client, Behaviour(policy, interface, 2, vision=encoder), 10**9)
    yield run
    stop.set()
    serving.join()


def act_with(run: RunDirectory, spool_bytes: int) -> int:
    """Act for ten steps; return how many there were."""
    words = (CAMERAS, f"replay.spool_bytes={spool_bytes}")
    stop = StopEvent()
    too_long = threading.Timer(60, stop.set)  # an actor without room pauses for ever
    too_long.start()
    try:
        config = compose([*TINY, *words, "environment_steps=10"])
        return max((steps for steps, _ in act(config, run, stop)), default=0)
    finally:
        too_long.cancel()


def test_the_size_named_for_the_spool_is_enough_with_features_in_the_rows(
    run: RunDirectory,
) -> None:
    named = 70_000
    for _ in range(2):  # before the policy is known, and with it
        with pytest.raises(SpoolError, match=r"replay\.spool_bytes=") as refused:
            act_with(run, named)
        found = re.search(r"replay\.spool_bytes=(\d+)", str(refused.value))
        assert found is not None
        named = int(found[1])
    assert act_with(run, named) == 10
