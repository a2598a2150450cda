"""The codec: what is sent comes back, and what is wrong is named."""

import json
import pkgutil
import subprocess
import sys
from contextlib import suppress
from typing import Annotated, ClassVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from robot_rl import wire
from robot_rl.wire import WireError, messages
from robot_rl.wire.messages import (
    MAGIC,
    MAXIMUM_HEADER_BYTES,
    MAXIMUM_PAYLOAD_FRAMES,
    PREFIX,
    WIRE_VERSION,
    Decoder,
    Facts,
    Message,
    Name,
    Natural,
    encode,
    json_text,
)


class PutThing(Message):
    payload_frames: ClassVar[tuple[int, int]] = (0, MAXIMUM_PAYLOAD_FRAMES)
    name: Name
    count: Natural = 0
    share: Annotated[float, Meta(ge=0, le=1)] = 0.5
    shape: tuple[Annotated[int, Meta(ge=1)], ...] = ()
    facts: Facts = msgspec.field(default_factory=dict)


class GetThing(Message):
    name: Name


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=5), children, max_size=3)
    ),
    max_leaves=8,
)
read = Decoder(PutThing, GetThing).decode


@given(
    st.integers(0, 2**63 - 1),
    st.dictionaries(st.text(max_size=10), json_values, max_size=5),
    st.lists(st.binary(max_size=50), max_size=4),
)
def test_what_is_encoded_comes_back_and_the_payload_uncopied(count, facts, payload):
    sent = PutThing(name="x", count=count, facts=facts)
    frames = encode(sent, payload)
    assert all(frame is given for frame, given in zip(frames[1:], payload, strict=True))
    message, got = read(frames)
    assert message == sent
    assert [view.obj for view in got] == payload


@given(st.lists(st.binary(max_size=80), max_size=4))
def test_random_frames_are_a_wire_error(frames):
    with pytest.raises(WireError):
        read(frames)


@given(st.integers(0, 10_000), st.binary(min_size=1, max_size=3))
def test_a_damaged_message_decodes_or_is_a_wire_error(place, damage):
    first, *rest = encode(PutThing(name="x", facts={"deep": [[[{}]]]}), [b"abc"])
    place %= len(first)
    with suppress(WireError):
        read([first[:place] + damage + first[place + len(damage) :], *rest])
    with pytest.raises(WireError):
        read([first[:place], *rest])


def raw(text, version=WIRE_VERSION, magic=MAGIC):
    return PREFIX.pack(magic, version) + text


def put(**entries):
    return raw(json.dumps({"kind": "put_thing", "name": "x", **entries}).encode())


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        ([], "not a message of robot_rl"),
        ([b"GET / HTTP/1.1\r\n\r\n"], "not a message of robot_rl"),
        ([raw(b"{}", magic=b"RRLX")], "not a message of robot_rl"),
        ([raw(b"{}", version=9)], r"wire version; got: 9; expected: \d+; next: run the same"),
        ([raw(b"{")], "not JSON"),
        ([raw(b"[" * 100_000)], "not JSON"),
        ([put(facts={"a": 1.5}).replace(b"1.5", b"NaN")], "not JSON"),
        ([put(facts={"a": 1.5}).replace(b"1.5", b"1e999")], "not JSON"),
        ([put(facts={"a": 1.5}).replace(b"1.5", b"9" * 5000)], "not JSON"),
        ([put(facts={"a": "é"}).replace(b"u00e9", b"ud800")], "not JSON"),
        ([raw(b"\xff{}")], "not JSON"),
        ([raw(b"[1]")], "not an object; got: list"),
        ([raw(b"{}")], "bad entry.*`kind`"),
        ([raw(b'{"kind": "get_lost"}')], "'get_lost' has a bad entry.*kind"),
        ([raw(b'{"kind": "get_thing"}')], "'get_thing' has a bad entry.*required field `name`"),
        ([put(count=-1)], "'put_thing' has a bad entry.*`int` >= 0.*count.*got: .*'count': -1"),
        ([put(count=2**63)], "`int` <=.*count.*got: .*9223372036854775808"),
        ([put(count=True)], "`int`, got `bool`.*count"),
        ([put(count="1")], "`int`, got `str`.*count"),
        ([put(share=1.5)], "`float` <= 1.0.*share"),
        ([put(name="")], "`str` of length >= 1.*name"),
        ([put(name="x" * 65)], "`str` of length <= 64.*name"),
        ([put(name="a\nb")], r"matching regex.*name.*got: .*'a\\nb'"),
        ([put(shape=[3, 0])], r"`int` >= 1.*shape"),
        ([put(facts=[1])], "`object`, got `array`.*facts"),
        ([put(colour="red")], "unknown field `colour`"),
        ([put(**{"\n\x1b[31m": 1})], r"unknown field `\\n\\x1b\[31m`"),
        ([put(facts=json.loads('{"a":' * 16 + "1" + "}" * 16))], "nested too deeply"),
        ([raw(b'{"kind": "get_thing", "name": "x"}'), b""], "payload frames; got: 1; expected: 0"),
        (
            [put(), *[b""] * (MAXIMUM_PAYLOAD_FRAMES + 1)],
            "payload frames; got: 257; expected: 0 to 256",
        ),
        ([put(facts={"a": "x" * MAXIMUM_HEADER_BYTES})], "too large: its header"),
    ],
)
def test_bad_messages_name_the_entry_and_what_is_wrong_with_it(frames, expected):
    with pytest.raises(WireError, match=expected):
        read(frames)


@given(st.lists(st.integers(0, 35).map(bytes), max_size=6))
def test_a_payload_frame_of_any_size_travels_in_pieces(payload):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(messages, "PIECE_BYTES", 10)
        frames = encode(PutThing(name="x"), payload)
        assert all(len(frame) <= 10 for frame in frames[1:])
        assert read(frames)[1] == payload
        if payload and len(payload[-1]) >= 10:
            with pytest.raises(WireError, match="in the middle of a payload frame"):
                read(frames[:-1])
        with pytest.raises(WireError, match=r"largest piece; got: 11 bytes"):
            read([*frames, bytes(11)])


def test_a_payload_has_a_limit_in_all():
    message, decode = PutThing(name="x"), Decoder(PutThing, payload_bytes=150).decode
    assert len(decode(encode(message, [bytes(100), bytes(50)]))[1]) == 2
    with pytest.raises(WireError, match=r"its payload; got: 200 bytes; expected: <= 150 bytes"):
        decode(encode(message, [bytes(100)] * 2))


def test_what_cannot_be_sent_is_refused_by_the_sender():
    deep: object = 1
    for _ in range(13):
        deep = [deep]
    assert json.loads(json_text({"a": deep, "b": "[{" * 20}))["a"] == deep
    for content in ({"a": [deep]}, {"a": float("inf")}, {"a": object()}, {"a": "\ud800"}):
        with pytest.raises(WireError, match=r"cannot be sent as JSON|too deeply"):
            json_text(content)
    with pytest.raises(WireError, match="too large; got: 108; expected: <= 100"):
        json_text({"a": "x" * 99}, limit=100)
    with pytest.raises(WireError, match="cannot be sent as JSON"):
        encode(PutThing(name="x", facts={"a": object()}))


def test_the_wire_loads_nothing_of_what_is_sent_over_it():
    modules = [f"robot_rl.wire.{module.name}" for module in pkgutil.iter_modules(wire.__path__)]
    code = f"import sys, {', '.join(modules)}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    others = ("torch", "robot_rl.replay", "robot_rl.rewards", "robot_rl.console", "robot_rl.data")
    assert [name for name in done.stdout.split() if name.startswith(others)] == []
