"""Memory of server and learner stays flat over as many rows as days of work make."""

import multiprocessing
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from store_writing import sampler_of

from robot_rl.bench.replay import camera_schema, episode_rows, state_schema
from robot_rl.replay.client import ReplayClient

MIB = 1 << 20

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]


def anonymous_bytes(pid):
    """Memory of a process that is no page of a file."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return 1024 * int(re.search(r"^Anonymous:\s+(\d+) kB", text, re.MULTILINE)[1])


def learn(store, fields, capacity, orders, answers):
    """A learner's process: on each order it looks, draws a few batches and tells its memory."""
    sampler = out = None
    while orders.get():
        if sampler is None:
            sampler = sampler_of(Path(store), fields=fields, batch_size=256, capacity_rows=capacity)
            out = sampler.allocate()
        sampler.refresh()
        for _ in range(10):
            sampler.sample(out)
        answers.put((anonymous_bytes(os.getpid()), sampler.transitions_available()))
    if sampler is not None:
        sampler.close()


@pytest.mark.parametrize(
    ("kind", "rows", "capacity"), [("state", 1_000_000, 100_000), ("camera", 30_000, 5_000)]
)
def test_memory_is_flat(start_server, kind, rows, capacity):
    schema = state_schema() if kind == "state" else camera_schema()
    server = start_server(capacity_rows=capacity)
    context = multiprocessing.get_context("spawn")
    orders, answers = context.Queue(), context.Queue()
    fields = [*schema.observation_names, "action"]
    learner = context.Process(
        target=learn, args=(str(server.store), fields, capacity, orders, answers)
    )
    learner.start()
    episode = episode_rows(schema)
    of_server, of_learner = [], []
    with ReplayClient(server.store, batch_rows=16) as client:
        client.open_session(schema)
        appended = 0
        for part in range(1, 21):
            while appended < part * rows // 20:
                client.append_episode(episode)
                appended += len(episode)
            client.flush(60)
            orders.put(True)
            anonymous, steps = answers.get(timeout=120)
            assert steps == appended // len(episode) * (len(episode) - 1)
            of_server.append(anonymous_bytes(server.process.pid) / MIB)
            of_learner.append(anonymous / MIB)
        totals = client.statistics()
    orders.put(False)
    learner.join()
    report = {
        "rows": appended,
        "stored_mib": totals["rows"] * schema.dtype.itemsize // MIB,
        "server_mib": np.round(of_server).astype(int).tolist(),
        "learner_mib": np.round(of_learner).astype(int).tolist(),
    }
    sys.stdout.write(f"\nanonymous memory by twentieths: {report}\n")
    assert totals["rows"] <= capacity
    for figures in (of_server, of_learner):
        # The store is full from the fourth on at the latest.
        assert max(figures[10:]) <= max(figures[4:10]) + 16
    assert max(of_server) < 300
