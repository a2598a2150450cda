"""A progress model in another process: the protocol, its errors, and scores as annotations."""

import contextlib
import json
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import zmq

from robot_rl.data.episodes import EpisodeWriter
from robot_rl.data.schema import Field, row_schema
from robot_rl.extras.progress.progress_model import (
    ANSWERS,
    PairScores,
    ProgressError,
    RemoteProgressModel,
    judge_episode,
    serve_progress,
)
from robot_rl.processes.signals import StopEvent
from robot_rl.wire.messages import MAGIC, PREFIX, WIRE_VERSION, Decoder, Refused

BRIGHT, DARK = 200, 10


def plain(*levels, size=4):
    return np.stack([np.full((size, size, 3), level, np.uint8) for level in levels])


class Model:
    """Brightness is progress; some questions go wrong."""

    version = 1

    def compare(self, pairs, instruction):
        if instruction == "fail":
            raise ValueError("this model has had enough")
        if instruction == "lie":
            return PairScores(np.array([7.0]), np.array([0.5]))
        level = pairs["images/front"].mean((2, 3, 4))
        delta = (level[:, 1] - level[:, 0]) / (BRIGHT - DARK)
        return PairScores(delta, np.ones(len(delta)))

    def done(self, images, instruction):
        return images["images/front"].mean((1, 2, 3)) / BRIGHT


@contextlib.contextmanager
def served(model):
    """Serve a model in a thread; gives its address."""
    stop, ready, places = StopEvent(), threading.Event(), []

    def note(place):
        places.append(place)
        ready.set()

    arguments = (model, "tcp://127.0.0.1:0", stop, note)
    thread = threading.Thread(target=serve_progress, args=arguments)
    thread.start()
    assert ready.wait(20)
    try:
        yield places[0]
    finally:
        stop.set()
        thread.join(20)
    assert not thread.is_alive()


@pytest.fixture
def address():
    with served(Model()) as address:
        yield address


@pytest.fixture
def model(address):
    with RemoteProgressModel(address, 20) as model:
        yield model


def test_the_nearer_to_the_goal_the_more_progress(model):
    assert model.version == 1
    steps = np.stack([plain(DARK, 105), plain(105, BRIGHT), plain(BRIGHT, DARK)])
    delta, confidence = model.compare({"images/front": steps}, "make it bright")
    np.testing.assert_allclose(delta, [0.5, 0.5, -1.0])
    assert ((confidence >= 0) & (confidence <= 1)).all()
    done = model.done({"images/front": plain(DARK, 105, BRIGHT)}, "make it bright")
    assert done[0] < done[1] < done[2] == 1.0


def test_an_episode_is_judged_action_by_action(model):
    images = {"images/front": plain(DARK, DARK, 105, BRIGHT)}
    for batch in (1, 2, 100):
        scores = judge_episode(images, "", model, batch)
        np.testing.assert_allclose(scores["progress"], [0, 0.5, 0.5, 0])
        assert scores["done"].tolist()[2:] == [1.0, 0.0]


def test_a_model_that_fails_or_lies_is_an_error_and_the_next_question_is_answered(model):
    pair = {"images/front": plain(DARK, BRIGHT)[None]}
    with pytest.raises(ProgressError, match="this model has had enough"):
        model.compare(pair, "fail")
    with pytest.raises(ProgressError, match=r"delta.*7\.0.*\[-1, 1\]"):
        model.compare(pair, "lie")
    with pytest.raises(ProgressError, match=r"refused.*images"):
        model.compare({"images/front": plain(DARK)}, "")
    assert model.compare(pair, "").delta[0] == 1.0


def test_nonsense_is_answered_with_an_error_and_does_not_end_the_server(address, model):
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.connect(address)
    prefix, image = PREFIX.pack(MAGIC, WIRE_VERSION), plain(1).tobytes()

    def done(images, kind="done", *payload):
        text = json.dumps({"kind": kind, "request": 5, "images": images}).encode()
        return [prefix + text, *(payload or [image])]

    shape = [1, 4, 4, 3]
    for message, problem in (
        ([b""], "not a message"),
        ([b"\x80\x04pickle"], "not a message"),
        ([prefix + b"[]"], "not an object"),
        ([prefix + b"{" * 100_000], "not JSON"),
        (done({"front": [1, 4, 4, 4]}), "images[...][3]"),
        (done({"front": [-1, 4, 4, -3]}), "images[...][0]"),
        (done({"front": [1, 1 << 40, 4, 3]}), "images[...][1]"),
        (done({"front": "many"}), "images[...]"),
        (done({}), "images"),
        (done({str(number): shape for number in range(17)}), "images"),
        (done({"front": shape}, "run"), "kind"),
        (done({"front": shape}, "compare"), "images[...][1]"),
        (done({"front": shape, "wrist": [2, 4, 4, 3]}, "done", image, image), "different numbers"),
        (done({"front": shape})[:1], "payload frames"),
        (done({"front": shape}, "done", image, image), "lack a frame"),
        (done({"front": shape}, "done", image[:-1]), "not as they are announced"),
    ):
        socket.send_multipart(message)
        assert socket.poll(20_000)
        answer, _ = Decoder(*ANSWERS).decode(socket.recv_multipart())
        assert isinstance(answer, Refused)
        assert problem in answer.message, message
    socket.close()
    context.term()
    assert model.done({"images/front": plain(BRIGHT)}, "")[0] == 1.0


class Slow(Model):
    """Gives its first answer after the asker has given up."""

    asked = 0

    def done(self, images, instruction):
        self.asked += 1
        if self.asked == 1:
            time.sleep(1.0)
        return np.full(1, self.asked / 4, np.float32)


def test_an_answer_that_was_given_up_is_not_taken_for_another():
    with served(Slow()) as address, RemoteProgressModel(address, 0.5) as model:
        with pytest.raises(ProgressError, match="no progress model answers"):
            model.done({"images/front": plain(1)}, "")
        time.sleep(1.0)
        assert model.done({"images/front": plain(1)}, "") == [0.5]


@pytest.mark.parametrize("address", ["tcp://0.0.0.0:5600", "tcp://example.org:1", "ipc:///x"])
def test_it_is_asked_and_served_on_this_machine_only(address):
    for begin in (
        lambda: RemoteProgressModel(address, 1),
        lambda: serve_progress(Model(), address, StopEvent()),
    ):
        with pytest.raises(ProgressError, match="on this machine only"):
            begin()


def test_nobody_there_is_an_error():
    with pytest.raises(ProgressError, match="no progress model answers"):
        RemoteProgressModel("tcp://127.0.0.1:1", 0.2)


def test_the_example_serves_a_recording(tmp_path, checkout):
    schema = row_schema("light", [Field("images/front", "uint8", (4, 4, 3))], ["x"], 10.0)
    with EpisodeWriter(tmp_path / "demonstrations.zarr", schema) as writer:
        rows = []
        for step, level in enumerate((DARK, 105, BRIGHT)):
            row = {f.name: np.zeros(f.shape, f.dtype) for f in schema.fields}
            row |= {"images/front": plain(level)[0], "is_last": np.bool_(step == 2)}
            rows.append(row)
        writer.append(rows, seed=0, success=True, source=0)
    process = subprocess.Popen(
        [
            sys.executable,
            str(checkout / "examples/4_reward/progress.py"),
            "tcp://127.0.0.1:0",
            str(tmp_path / "demonstrations.zarr"),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        address = process.stdout.readline().split()[-1]
        with RemoteProgressModel(address, 20) as model:
            done = model.done({"images/front": plain(BRIGHT, DARK)}, "")
        assert done[0] == 1.0 > 0.1 > done[1]
    finally:
        process.terminate()
        process.wait(20)
        process.stdout.close()
    assert process.returncode == 0
