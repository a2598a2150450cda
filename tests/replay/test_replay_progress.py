"""Scores of a progress model beside stored rows, through the command line and two servers."""

import threading

import numpy as np
import pytest

from robot_rl import cli
from robot_rl.extras.progress.progress_model import PairScores, serve_progress
from robot_rl.processes.signals import ask_to_end
from robot_rl.replay.store_reader import StoreReader


class Level:
    """Takes the mean of an image for the share of the task that is done."""

    version = 3

    def __init__(self):
        self.heard = []
        self.when_asked = lambda: None

    def compare(self, pairs, instruction):
        self.heard.append(instruction)
        self.when_asked()
        level = pairs["images/front"].mean((2, 3, 4)) / 255
        return PairScores(level[:, 1] - level[:, 0], np.full(len(level), 0.5))

    def done(self, images, instruction):
        return images["images/front"].mean((1, 2, 3)) / 255


@pytest.fixture
def served():
    model, stop, ready, places = Level(), threading.Event(), threading.Event(), []

    def note(place):
        places.append(place)
        ready.set()

    thread = threading.Thread(target=serve_progress, args=(model, "tcp://127.0.0.1:0", stop, note))
    thread.start()
    assert ready.wait(20)
    yield model, places[0]
    stop.set()
    thread.join(20)


def test_each_action_gets_what_the_model_says_of_it(
    server, client, schema, make_episode, served, capsys
):
    model, address = served
    client.open_session(schema)
    for text in ("first", "second"):
        client.append_episode(make_episode(4), {"instruction": text})
    client.flush(10)
    assert cli.main(["annotate", str(server.store), address]) == 0
    assert cli.main(["annotate", str(server.store), address]) == 0
    assert "judged 2 episodes with version 3" in capsys.readouterr().out
    assert model.heard == ["first", "second"], "none is judged again by the same version"
    reader = StoreReader(server.store)
    for record in reader.episodes():
        level = reader.read_episode(record)["images/front"].mean((1, 2, 3)) / 255
        scores = {
            name: reader.annotations(name, record)
            for name in ("progress", "progress_confidence", "done")
        }
        assert all(valid.all() and set(v) == {3} for valid, v, _ in scores.values())
        np.testing.assert_allclose(scores["progress"][2], [*np.diff(level), 0], atol=1e-6)
        np.testing.assert_allclose(scores["done"][2], [*level[1:], 0], atol=1e-6)
        assert scores["progress_confidence"][2].tolist() == [0.5] * 4 + [0.0]
    reader.close()
    assert cli.main(["annotate", str(server.store / "nothing"), address]) == 2


def test_an_interrupted_annotation_ends_after_an_episode_and_goes_on(
    server, client, schema, make_episode, served, capsys
):
    model, address = served
    client.open_session(schema)
    for text in ("first", "second"):
        client.append_episode(make_episode(4), {"instruction": text})
    client.flush(10)
    model.when_asked = ask_to_end
    assert cli.main(["annotate", str(server.store), address]) == 130
    said = capsys.readouterr()
    assert "judged 1 episodes" in said.out
    assert "the same command judges the others" in said.out
    assert said.err == "robot-rl: stopped\n"
    model.when_asked = lambda: None
    assert cli.main(["annotate", str(server.store), address]) == 0
    assert model.heard == ["first", "second"]
