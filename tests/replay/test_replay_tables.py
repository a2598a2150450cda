"""Several tasks of different schema and several actors in one server."""

import threading
import time

import numpy as np
import pytest
from store_writing import sampler_of

from robot_rl.data.schema import Field, row_schema
from robot_rl.replay.client import ReplayClient
from robot_rl.replay.store_reader import StoreReader

EPISODES = 15


@pytest.fixture
def schemas(schema):
    flat = row_schema("push", [Field("state/x", "float32", (3,))], ["dx", "dy", "dz"], 20.0)
    return {"reach": schema, "push": flat}


def test_three_actors_in_two_tables_interleave_and_survive_a_kill(server, schemas, make_episode):
    plan = [("reach", 1), ("push", 1), ("reach", 2)]
    sent = {place: [] for place in plan}
    # Rows are made here, as their numbers are to be different; actors run side by side.
    for (table, _), episodes in sent.items():
        for number in range(EPISODES):
            episodes.append(make_episode(3 + number % 5, schema=schemas[table]))
    failures = []
    half_way = threading.Barrier(len(plan) + 1)

    def act(table, actor):
        try:
            with ReplayClient(server.store, batch_rows=3, resend_seconds=0.1) as client:
                client.open_session(table, schemas[table], actor)
                for number, rows in enumerate(sent[table, actor]):
                    for row in rows:
                        client.append(row)
                    client.flush(20)
                    if number == EPISODES // 2:
                        half_way.wait(30)
        except BaseException as failure:
            failures.append(failure)
            half_way.abort()

    threads = [threading.Thread(target=act, args=place) for place in plan]
    for thread in threads:
        thread.start()
    half_way.wait(30)
    server.kill()
    server.start()
    for thread in threads:
        thread.join()
    assert not failures
    with ReplayClient(server.store) as client:
        tables = client.statistics()["tables"]
    reader = StoreReader(server.store)
    for table, schema in schemas.items():
        expected = {place: rows for place, rows in sent.items() if place[0] == table}
        assert tables[table]["episodes"] == EPISODES * len(expected)
        steps = sum(len(rows) - 1 for episodes in expected.values() for rows in episodes)
        assert tables[table]["environment_steps"] == {"demo": 0, "policy": steps, "intervention": 0}
        for (_, actor), episodes in expected.items():
            stored = [e for e in reader.episodes(table) if e.actor == actor]
            assert [
                [row.tobytes() for row in reader.read_episode(table, episode)] for episode in stored
            ] == [[schema.pack(row) for row in rows] for rows in episodes]
        sampler = sampler_of(server.store, table=table, batch_size=256)
        assert sampler.transitions_available() == sampler.visible.online == steps
        numbers = {int(row["reward"]) for e in expected.values() for rows in e for row in rows}
        for _ in range(10):
            batch = sampler.sample()
            assert {int(n) for n in batch["state/x"][:, 0]} <= numbers
            np.testing.assert_array_equal(
                batch["next/state/x"][:, 0], batch["state/x"][:, 0] + batch["steps"]
            )
            assert batch["action"].shape == (256, len(schema.action_names))
        sampler.close()
    reader.close()


def test_what_several_actors_stored_so_far_is_visible_as_it_comes(server, schemas, make_episode):
    """A sampler that watches while actors write counts each step once, as the server does."""
    failures = []
    episodes = {actor: [make_episode(7) for _ in range(30)] for actor in (1, 2, 3)}

    def act(actor):
        try:
            with ReplayClient(server.store) as client:
                client.open_session("reach", schemas["reach"], actor)
                for rows in episodes[actor]:
                    for row in rows:
                        client.append(row)
                        time.sleep(0.0005)
                client.flush(20)
        except BaseException as failure:
            failures.append(failure)

    with ReplayClient(server.store) as client:
        client.open_session("reach", schemas["reach"], actor=9)
    threads = [threading.Thread(target=act, args=(actor,)) for actor in episodes]
    sampler = sampler_of(server.store)
    for thread in threads:
        thread.start()
    seen = [0]
    while any(thread.is_alive() for thread in threads):
        seen.append(sampler.transitions_available())
        sampler.refresh(seen[-1])
        assert seen[-1] >= seen[-2]
        assert sampler.visible.online <= seen[-1]
    for thread in threads:
        thread.join()
    assert not failures
    sampler.refresh()
    assert sampler.transitions_available() == sampler.visible.online == 3 * 30 * 7
    fresh = sampler_of(server.store)
    assert fresh.visible.online == 3 * 30 * 7
    fresh.close()
    sampler.close()
