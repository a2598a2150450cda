"""An episode that a killed actor left open is closed when the actor begins a later session."""

import numpy as np
import pytest
from store_writing import Recording, read_back, sampler_of

from robot_rl.replay import SessionTaken
from robot_rl.replay.client import ReplayClient

DISCOUNT = 0.9


def windows_of(sampler):
    """Steps, reward, discount and the next state's number by the number of s."""
    found = {}
    for _ in range(40):
        batch = sampler.sample()
        for b, number in enumerate(batch["state/x"][:, 0]):
            found[int(number)] = (
                int(batch["steps"][b]),
                round(float(batch["reward"][b]), 3),
                round(float(batch["discount"][b]), 3),
                int(batch["next/state/x"][b, 0]),
            )
    return found


def test_a_killed_actors_episode_is_closed_by_its_next_session(server, schema, make_episode):
    rows = make_episode(5)
    for part in (rows[:4], make_episode(2)):
        with ReplayClient(server.store) as client:
            client.open_session(schema, actor=7)
            for row in part:
                client.append(row)
    (first, stored), (second, _) = read_back(server.store)
    assert (first.sealed, first.cut, first.rows, first.environment_steps) == (True, True, 4, 4)
    assert [row.tobytes() for row in stored] == [schema.pack(row) for row in rows[:4]]
    assert (second.sealed, second.cut, second.environment_steps) == (True, False, 2)
    with ReplayClient(server.store) as client:
        totals = client.statistics()
    assert totals["environment_steps"]["policy"] == 6
    sampler = sampler_of(server.store)
    assert sampler.transitions_available() == 6
    # The last row of the first episode serves as its last observation.
    assert sampler.visible.online == 3 + 2
    sampler.close()


@pytest.mark.parametrize("terminated", [True, False])
def test_an_end_without_its_last_observation(writer, schema, make_episode, terminated):
    """Nothing bootstraps from where an episode terminated; from a truncated row windows do."""
    rows = make_episode(3, terminated=terminated)[:3]
    recording = Recording(writer, schema)
    recording.put(rows)
    live = sampler_of(writer.path)
    assert recording.steps() == live.transitions_available() == 2
    again = Recording(writer, schema)
    expected = 3 if terminated else 2
    assert recording.steps() == live.transitions_available() == expected
    again.put(make_episode(5)[:1])
    assert recording.steps() == live.transitions_available() == expected + 1
    live.refresh()
    fresh = sampler_of(writer.path)
    a, b, c = (int(row["reward"]) for row in rows)
    if terminated:
        windows = {
            a: (3, round(a + 0.9 * b + 0.81 * c, 3), 0.0, c),
            b: (2, round(b + 0.9 * c, 3), 0.0, c),
            c: (1, float(c), 0.0, c),
        }
    else:
        windows = {a: (2, round(a + 0.9 * b, 3), 0.81, c), b: (1, float(b), 0.9, c)}
    assert windows_of(live) == windows_of(fresh) == windows
    live.close()
    fresh.close()


def test_what_is_visible_does_not_depend_on_when_the_cut_is_noticed(writer, schema, make_episode):
    def draws(sampler, steps):
        sampler.refresh(steps)
        sampler.rng = np.random.default_rng(1)
        return sampler.visible.online, sampler.sample()["state/x"].tobytes()

    recording = Recording(writer, schema)
    recording.put(make_episode(6))
    recording.put(make_episode(9)[:7])
    early = sampler_of(writer.path)
    before = [draws(early, steps) for steps in (8, 12, 13)]
    again = Recording(writer, schema)
    between = [draws(early, steps) for steps in (8, 12, 13)]
    again.put(make_episode(4))
    late = sampler_of(writer.path)
    after = [draws(late, steps) for steps in (8, 12, 13)]
    assert before == between == after
    assert draws(early, 14) == draws(late, 14)
    # With the first step behind the cut, the windows up to it are there.
    assert draws(late, 14)[0] == 6 + 6
    early.close()
    late.close()


def test_nothing_can_be_added_to_a_closed_session(writer, schema, make_episode):
    rows = make_episode(5)
    old = Recording(writer, schema)
    old.put(rows[:3])
    Recording(writer, schema)
    for _ in range(2):
        old.put(rows[1:3], first=1)  # what is stored is acknowledged however often it comes
        with pytest.raises(SessionTaken, match="later one"):
            old.put(rows[1:4], first=1)
        writer.close()
        writer.__init__(writer.path)
    assert writer.session(old.key).next_sequence == 3


def test_sessions_of_other_actors_stay_open(writer, schema, make_episode):
    rows = make_episode(5)
    first, other = Recording(writer, schema, actor=1), Recording(writer, schema, actor=2)
    for recording in (first, other):
        recording.put(rows[:2])
    Recording(writer, schema, actor=1)
    other.put(rows[2:])
    cut, whole = (e for e, _ in read_back(writer.path))
    assert (cut.actor, cut.cut, cut.rows) == (1, True, 2)
    assert (whole.actor, whole.cut, whole.sealed, whole.rows) == (2, False, True, 6)
