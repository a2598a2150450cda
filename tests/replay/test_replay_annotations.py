"""Annotations: values beside the rows, by name and version of the model that made them."""

import sqlite3
from contextlib import closing

import numpy as np
import pytest
from store_writing import Recording, sampler_of

from robot_rl.replay import AnnotationRefused, NotEnoughData
from robot_rl.replay.protocol import Annotations
from robot_rl.replay.store import StoreWriter
from robot_rl.replay.store_reader import StoreReader
from robot_rl.wire import WireError


@pytest.fixture
def recorded(server, client, schema, make_episode, opened):
    """Two episodes in the store, and a reader."""
    client.open_session(schema)
    for steps in (5, 3):
        client.append_episode(make_episode(steps))
    client.flush(10)
    return opened(StoreReader(server.store))


def test_the_newest_version_of_each_row_is_read_and_rows_stay_as_they_are(
    server, start_server, client, recorded
):
    first, second = recorded.episodes()
    before = recorded.read_episode(first).tobytes()
    place, rows = first.session_key, first.sequences
    old = np.arange(6, dtype=np.float32)
    assert client.annotate(Annotations(place, "progress", 7, rows, old)) == 6
    assert client.annotate(Annotations(place, "progress", 300, rows[2:4], -old[2:4])) == 2
    assert client.annotate(Annotations(place, "progress", 8, rows[3:5], old[3:5] + 10)) == 2
    scores = np.random.default_rng(0).normal(size=4).astype(np.float32)
    assert (
        client.annotate(
            Annotations(second.session_key, "progress_confidence", 1, second.sequences, scores)
        )
        == 4
    )
    server.kill()
    server.start()
    assert recorded.read_episode(first).tobytes() == before
    valid, versions, values = recorded.annotations("progress", first)
    assert valid.all()
    assert versions.tolist() == [7, 7, 300, 300, 8, 7]
    assert values.tolist() == [0, 1, -2, -3, 14, 5]
    assert values.dtype == np.float32
    valid, _, values = recorded.annotations("progress_confidence", second)
    np.testing.assert_array_equal(values, scores)
    valid, versions, values = recorded.annotations("progress", second)
    assert not valid.any()
    assert not values.any()
    assert recorded.annotation_counts() == {"progress": 10, "progress_confidence": 4}


def test_a_version_never_changes(client, recorded):
    first = recorded.episodes()[0]
    place, rows = first.session_key, first.sequences
    values = np.linspace(0, 1, 6, dtype=np.float32)
    assert client.annotate(Annotations(place, "score", 1, rows, values)) == 6
    assert client.annotate(Annotations(place, "score", 1, rows, values)) == 0
    other = values.copy()
    other[4] = 0.3
    with pytest.raises(AnnotationRefused, match=r"version 1 .* another value.*newer"):
        client.annotate(Annotations(place, "score", 1, rows[3:], other[3:]))
    assert client.annotate(Annotations(place, "score", 2, rows[3:], other[3:])) == 3


def test_what_cannot_be_annotated_is_refused_whole(client, recorded):
    (first, _) = recorded.episodes()
    place, rows = first.session_key, first.sequences
    good = np.zeros(6, np.float32)
    client.annotate(Annotations(place, "score", 1, rows, good))
    absent = rows.copy()
    absent[5] = 77
    text = np.array(["a"] * 6)
    for session, name, version, at, values, error, message in (
        (place, "score", 2, absent, good, AnnotationRefused, r"not in the store.*77"),
        ((9, place[1]), "score", 2, rows, good, AnnotationRefused, "not in the store"),
        (place, "score", 2, rows, good[:5], AnnotationRefused, "one float32 for each row"),
        (place, "score", 2, rows, good + np.inf, AnnotationRefused, "not finite"),
        (place, "score", 2, rows, good.astype(float), AnnotationRefused, "values float64"),
        (place, "score", 2, rows, np.zeros((6, 2), np.float32), AnnotationRefused, r"\(6, 2\)"),
        (place, "score", 2, rows, text, AnnotationRefused, "values <U1"),
        (place, "score", -1, rows, good, WireError, "version"),
        (place, "a\0b", 1, rows, good, WireError, "name"),
    ):
        with pytest.raises(error, match=message):
            client.annotate(Annotations(session, name, version, at, values))
    _, versions, _ = recorded.annotations("score", first)
    assert versions.tolist() == [1] * 6
    assert list(recorded.annotation_counts()) == ["score"]


def test_long_annotations_arrive_in_parts(client, schema, make_episode, server):
    client.open_session(schema)
    client.append_episode(make_episode(4999))
    client.flush(20)
    reader = StoreReader(server.store)
    (episode,) = reader.episodes()
    values = np.random.default_rng(0).normal(size=5000).astype(np.float32)
    place, rows = episode.session_key, episode.sequences
    assert client.annotate(Annotations(place, "feature", 1, rows, values)) == 5000
    valid, _, stored = reader.annotations("feature", episode)
    assert valid.all()
    np.testing.assert_array_equal(stored, values)
    reader.close()


@pytest.fixture
def writer(tmp_path, opened):
    return opened(StoreWriter(tmp_path / "direct", capacity_rows=30))


def annotate(writer, episode, name, version, values):
    rows = episode.sequences[: len(values)]
    new = Annotations(episode.session_key, name, version, rows, np.float32(values))
    return writer.annotate(new)


def test_n_step_returns_are_of_the_newest_rewards(writer, schema, make_episode):
    recording = Recording(writer, schema)
    recording.put(make_episode(6, terminated=True))
    reader = StoreReader(writer.path)
    (episode,) = reader.episodes()
    sampler = sampler_of(writer.path, rewards="relabelled", batch_size=64)

    def returns():
        batch = sampler.sample()
        return dict(zip(batch["state/x"][:, 0].astype(int), batch["reward"], strict=True))

    def expected(rewards):
        return {
            t + 1: pytest.approx(sum(0.9**j * r for j, r in enumerate(rewards[t : min(t + 3, 6)])))
            for t in range(6)
        }

    annotate(writer, episode, "relabelled", 4, np.float32([1, 2, 3, 4, 70, 6]))
    sampler.refresh()
    assert returns() == expected([1, 2, 3, 4, 70, 6])
    annotate(writer, episode, "relabelled", 5, np.float32([10, 20, 30, 40]))
    assert returns() == expected([1, 2, 3, 4, 70, 6])  # nothing changes without a refresh
    sampler.refresh()
    assert returns() == expected([10, 20, 30, 40, 70, 6])
    annotate(writer, episode, "relabelled", 6, np.float32([-1]))
    assert sampler.transitions_available() == 6
    sampler.refresh(6)
    assert returns() == expected([-1, 20, 30, 40, 70, 6])
    sampler.close()
    fresh = sampler_of(writer.path, rewards="relabelled")
    assert fresh.sample()["reward"].tobytes() == _first_batch(writer.path)
    fresh.close()
    reader.close()


def test_one_reward_is_never_mixed_with_another(writer, schema, make_episode):
    recording = Recording(writer, schema)
    for _ in range(2):
        recording.put(make_episode(6, terminated=True))
    reader = StoreReader(writer.path)
    first, second = reader.episodes()
    sampler = sampler_of(writer.path, rewards="progress", batch_size=64)
    assert sampler.visible.online == 0
    assert sampler.transitions_available() == 12, "the steps of the run count all the same"
    with pytest.raises(NotEnoughData):
        sampler.sample()
    annotate(writer, second, "progress", 1, np.float32([0.1] * 7))
    annotate(writer, first, "progress", 1, np.float32([0.2] * 4))
    sampler.refresh(12)
    # Of the first episode the two windows of three steps that lie among its annotated rows.
    assert sampler.visible.online == 6 + 2
    full, ends = 1 + 0.9 + 0.81, (1 + 0.9, 1)
    assert set(sampler.sample()["reward"].tolist()) == {
        np.float32(share * steps) for share in (0.1,) for steps in (full, *ends)
    } | {np.float32(0.2 * full)}
    sampler.close()
    reader.close()


def _first_batch(store):
    sampler = sampler_of(store, rewards="relabelled")
    try:
        return sampler.sample()["reward"].tobytes()
    finally:
        sampler.close()


def test_evicting_an_episode_evicts_its_annotations(writer, schema, make_episode):
    recording = Recording(writer, schema)
    reader = StoreReader(writer.path)
    for _ in range(6):
        recording.put(make_episode(9))
        episode = reader.episodes()[-1]
        for version in range(3):
            annotate(writer, episode, "score", version, np.zeros(10, np.float32))
    with closing(sqlite3.connect(writer.path / "catalogue.sqlite")) as catalogue:
        ((count,),) = catalogue.execute("SELECT count(*) FROM annotations")
    assert count == 3 * 30
    for episode in reader.episodes():
        assert reader.annotations("score", episode)[0].all()
    reader.close()
