"""Between control loop and console: what operators say comes in, what is seen goes out."""

from __future__ import annotations

import asyncio
import stat
import time

import msgspec
import numpy as np
import pytest
import zmq
from console_links import make_run, until, with_client

from robot_rl.console.link import (
    Activity,
    Alive,
    ConsoleError,
    ConsoleLink,
    Event,
    InControl,
    Jog,
    Situation,
    Snapshot,
    SnapshotMessage,
    Taken,
    loop_folder,
)
from robot_rl.env.operator import OperatorEvent, OperatorInbox
from robot_rl.extras.console import loop_client
from robot_rl.extras.console.loop_client import LoopClient
from robot_rl.wire import WireError
from robot_rl.wire.endpoint import (
    ENDPOINT_FILE,
    Endpoint,
    client_socket,
    read_endpoint,
)
from robot_rl.wire.messages import MAGIC, PREFIX, WIRE_VERSION, Decoder, Refused, encode

SEEN = {
    "images/front": np.arange(6 * 8 * 3, dtype=np.uint8).reshape(6, 8, 3),
    "state/tcp_pose": np.linspace(0, 1, 7, dtype=np.float32),
}


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "run")


@pytest.fixture
def inbox():
    return OperatorInbox()


@pytest.fixture
def link(run, inbox, opened):
    return opened(ConsoleLink(run, inbox))


def test_speaking_does_not_hide_what_has_come_meanwhile(run, link, monkeypatch):
    monkeypatch.setattr(loop_client, "_HELLO_SECONDS", 1e3)  # which would wake it again

    async def use(console):
        await until(lambda: console.connected)
        await asyncio.sleep(0.2)
        for number in range(1, 6):
            link.publish(Snapshot(Situation(episode=number)))
            time.sleep(0.1)  # it comes while the program is busy,
            console.jog([0.1] * 6, None)  # which then speaks before it looks
            assert (await console.next_snapshot()).situation.episode == number
            await asyncio.sleep(0.3)

    with_client(run, use)


def test_a_console_sees_the_newest_moment_whole(run, link):
    situation = Situation(
        activity=Activity.ACTING,
        in_control=InControl.OPERATOR,
        episode=3,
        action_names=("x", "y"),
        action=(0.5, -1.0),
    )
    link.publish(Snapshot())
    link.publish(Snapshot(situation, SEEN))

    async def use(client: LoopClient) -> None:
        seen = await client.next_snapshot()
        assert client.connected
        assert seen.situation == situation
        assert seen.observation.keys() == SEEN.keys()
        for name, value in SEEN.items():
            np.testing.assert_array_equal(seen.observation[name], value)

    with_client(run, use)


def test_without_a_console_nobody_is_counted_and_with_one_it_is(run, link):
    assert link.open_consoles == 0

    async def use(client: LoopClient) -> None:
        await until(lambda: link.open_consoles == 1)

    with_client(run, use)


def test_what_the_operator_says_reaches_the_inbox_in_order(run, link, inbox):
    async def use(client: LoopClient) -> None:
        await until(lambda: client.connected)
        await client.post("take_over")
        client.jog([0.5, 0, 0, 0, 0, 0], 1.0)
        await client.post("stop")
        assert client.round_trip_seconds > 0

    with_client(run, use)
    said = inbox.poll()
    assert said.events == (OperatorEvent.TAKE_OVER, OperatorEvent.STOP)
    assert said.motion.tolist() == [0.5, 0, 0, 0, 0, 0]
    assert said.gripper == 1.0


def test_what_nobody_can_have_meant_is_refused_and_said_to_the_console(run, link, inbox):
    async def use(client: LoopClient) -> None:
        await until(lambda: client.connected)
        with pytest.raises(ConsoleError, match="no such operator event"):
            await client.post("explode")
        client.jog([2.0, 0, 0, 0, 0, 0], None)
        await client.post("pause")

    with_client(run, use)
    assert inbox.poll().events == (OperatorEvent.PAUSE,)
    assert not inbox.poll().motion.any()


def test_a_console_that_would_jog_a_robot_of_other_columns_is_refused_and_heard_as_ever(
    run, link, inbox
):
    inbox.unmovable = ("left/x", "right/x")

    async def use(client: LoopClient) -> None:
        await until(lambda: client.connected)
        client.jog([0.5, 0, 0, 0, 0, 0], 1.0)
        await client.post("pause")
        with pytest.raises(ConsoleError, match=r"cannot move this robot.*left/x, right/x"):
            client.check_jogged()
        client.check_jogged()  # once

    with_client(run, use)
    said = inbox.poll()
    assert said.events == (OperatorEvent.PAUSE,)
    assert (said.gripper, said.moving) == (None, False)


def test_an_event_for_nobody_is_an_error_and_not_lost_in_silence(run):
    async def use(client: LoopClient) -> None:
        with pytest.raises(ConsoleError, match="no control loop answers"):
            await client.post("stop")

    with_client(run, use)


def test_a_loop_that_is_started_again_is_found(run, inbox):
    first = ConsoleLink(run, inbox)

    async def use(client: LoopClient) -> None:
        await until(lambda: client.connected)
        first.close()
        second = ConsoleLink(run, inbox)
        try:
            second.publish(Snapshot(Situation(episode=7), {}))
            while (await client.next_snapshot()).situation.episode != 7:
                pass
            await client.post("stop")
        finally:
            second.close()

    with_client(run, use)
    assert inbox.poll().events == (OperatorEvent.STOP,)


@pytest.mark.parametrize("before", ["nobody", "killed"])
def test_a_stop_that_nobody_took_is_taken_by_the_loop_that_comes_next(run, inbox, before):
    async def use(client: LoopClient) -> None:
        if before == "killed":
            loop_folder(run, 1).mkdir(parents=True)
            old = Endpoint("tcp://127.0.0.1:1", pid=1, secret="gone")
            (loop_folder(run, 1) / ENDPOINT_FILE).write_bytes(msgspec.json.encode(old))
            await asyncio.sleep(1.0)  # it looks twice a second
        for event in ("stop", "take_over"):  # only a stop never comes too late
            with pytest.raises(ConsoleError, match="no control loop answers"):
                await client.post(event)
        found = ConsoleLink(run, inbox)
        try:
            await until(lambda: OperatorEvent.STOP in heard())
            await client.post("clear_errors")
            await until(lambda: OperatorEvent.CLEAR_ERRORS in heard())
        finally:
            found.close()
        assert heard()[-1] == OperatorEvent.CLEAR_ERRORS
        assert set(heard()) == {OperatorEvent.STOP, OperatorEvent.CLEAR_ERRORS}

    said: list[OperatorEvent] = []

    def heard() -> list[OperatorEvent]:
        said.extend(inbox.poll().events)
        return said

    with_client(run, use)


def test_a_new_console_is_told_at_once_what_the_others_know(run, link):
    link.publish(Snapshot(Situation(episode=5), {}))

    async def use(client: LoopClient) -> None:
        assert (await client.next_snapshot()).situation.episode == 5

    with_client(run, use)
    with_client(run, use)


def say(endpoint, *messages):
    """Say something to the loop, as anybody on the machine can; returns the last answer, if any."""
    answers = []
    with zmq.Context() as context, client_socket(context, endpoint) as socket:
        socket.connect(endpoint.address)
        for message in messages:
            socket.send_multipart(message)
            while socket.poll(500):
                answer, _ = Decoder(SnapshotMessage, Alive, Taken, Refused).decode(
                    socket.recv_multipart()
                )
                answers.append(answer)
                if not isinstance(answer, Alive):
                    break
    return answers[-1] if answers else None


class TestStranger:
    """Somebody who reaches the port, and cannot read the file."""

    @pytest.mark.parametrize("secret", ["guess", None])
    def test_is_not_heard(self, run, link, inbox, secret):
        endpoint = Endpoint(read_endpoint(loop_folder(run, 1)).address, pid=1, secret=secret)
        stop = encode(Event(request=1, event="stop", at=time.monotonic()))
        assert say(endpoint, stop) is None
        assert inbox.poll().events == ()

    def test_cannot_read_the_file(self, run, link):
        mode = (loop_folder(run, 1) / ENDPOINT_FILE).stat().st_mode
        assert stat.S_IMODE(mode) == 0o600


def test_what_lay_in_a_queue_is_refused_but_for_a_stop(run, link, inbox):
    endpoint, old = read_endpoint(loop_folder(run, 1)), time.monotonic() - 10
    answer = say(endpoint, encode(Event(request=1, event="success", at=old)))
    assert answer.request == 1
    assert "too late" in answer.message
    jog = Jog(motion=(1.0, 0.0, 0.0, 0.0, 0.0, 0.0), gripper=None, at=old)
    stop = Event(request=2, event="stop", at=old)
    assert say(endpoint, encode(jog), encode(stop)) == Taken(request=2)
    assert inbox.poll().events == (OperatorEvent.STOP,)
    assert not inbox.poll().motion.any()


def test_nonsense_is_answered_and_does_not_end_the_link(run, link, inbox):
    endpoint, prefix = read_endpoint(loop_folder(run, 1)), PREFIX.pack(MAGIC, WIRE_VERSION)
    for text, problem in (
        (b'{"kind": "event"}', "'event'"),
        (b'{"kind": "event", "event": 3, "at": 1}', "'event'"),
        (b'{"kind": "event", "event": "stop", "at": null}', "'at'"),
        (b'{"kind": "event", "event": "stop", "at": 1e999}', "$.at"),
        (b'{"kind": "jog", "motion": "up", "gripper": 1, "at": 1}', "'motion'"),
        (b'{"kind": "nothing"}', "'kind'"),
        (b"no json", "not JSON"),
    ):
        answer = say(endpoint, [prefix + text])
        assert isinstance(answer, Refused)
        assert problem in answer.message
    assert "not a message" in say(endpoint, [b"junk"]).message
    assert inbox.poll().events == ()
    link.publish(Snapshot())
    pause = Event(request=1, event="pause", at=time.monotonic())
    assert say(endpoint, encode(pause)) == Taken(request=1)


def test_a_link_that_failed_says_so_to_the_loop(run, link):
    broken = Snapshot(Situation(), {"state/x": "no array"})

    def failed() -> bool:
        try:
            link.publish(broken)
        except ConsoleError as problem:
            return "no attribute" in str(problem)
        return False

    async def use(client: LoopClient) -> None:
        await until(lambda: link.open_consoles == 1)
        await until(failed)

    with_client(run, use)


def test_what_is_no_snapshot_is_named():
    whole = Snapshot(Situation(episode=2), SEEN).to_frames()
    decode = Decoder(SnapshotMessage).decode
    assert Snapshot.of(*decode(whole)).situation.episode == 2
    for frames, problem in (
        (whole[:-1], "not as they are announced"),
        ([*whole[:-1], b"x"], "not as they are announced"),
        ([whole[0].replace(b'"float32"', b'"object"'), *whole[1:]], "not as they are announced"),
        ([whole[0].replace(b'"waiting"', b'"dancing"'), *whole[1:]], "situation.activity"),
        ([whole[0].replace(b'"episode":2', b'"episode":"2"'), *whole[1:]], "situation.episode"),
    ):
        with pytest.raises(WireError, match=problem):
            Snapshot.of(*decode(frames))
