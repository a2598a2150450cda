"""Nothing that arrives can hurt the server or its other clients."""

import json
import random
import struct
from contextlib import suppress

import numpy as np
import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from robot_rl.replay import ReplayClient, RowRefused, WireError, read_endpoint
from robot_rl.replay.messages import parse_episodes
from robot_rl.replay.spool import metadata_bytes
from robot_rl.replay.wire import (
    MAGIC,
    MAXIMUM_EPISODE_METADATA,
    PREFIX,
    WIRE_VERSION,
    Kind,
    decode,
    encode,
)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=5), children, max_size=3)
    ),
    max_leaves=8,
)


@given(
    st.sampled_from(Kind),
    st.dictionaries(st.text(max_size=10), json_values, max_size=5),
    st.lists(st.binary(max_size=50), max_size=4),
)
def test_what_is_encoded_comes_back(kind, header, payload):
    message = decode(encode(kind, header, payload))
    assert (message.kind, message.header) == (kind, header)
    assert [bytes(frame) for frame in message.payload] == payload


@given(st.lists(st.binary(max_size=80), max_size=4))
def test_random_frames_are_a_wire_error(frames):
    with pytest.raises(WireError):
        decode(frames)


@given(st.integers(0, 10_000), st.binary(min_size=1, max_size=3))
def test_a_damaged_message_decodes_or_is_a_wire_error(place, damage):
    first, *rest = encode(Kind.APPEND, {"table": 1, "first": 0, "deep": [[[{}]]]}, [b"abc"])
    place %= len(first)
    with suppress(WireError):
        decode([first[:place] + damage + first[place + len(damage) :], *rest])
    with pytest.raises(WireError):
        decode([first[:place], *rest])


def raw(kind, header, payload=b"", version=WIRE_VERSION, frames=0):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return [PREFIX.pack(MAGIC, version, kind, len(text), frames) + text, *([payload] * frames)]


def test_bad_messages_name_what_is_wrong():
    for frames, expected in (
        (raw(3, {}, version=9), "wire version"),
        (raw(99, {}), "unknown message kind"),
        (raw(3, b"{"), "not JSON"),
        (raw(3, b"[" * 100_000), "not JSON"),
        (raw(3, b'{"a": 1e999}'), "not JSON"),
        (raw(3, b'{"a": NaN}'), "not JSON"),
        (raw(3, b"\xff{}"), "not JSON"),
        (raw(3, b'{"a":' * 17 + b"1" + b"}" * 17), "nested too deeply"),
        (raw(3, [1]), "not an object"),
        ([*raw(3, {}), b"extra"], "number of frames"),
        ([b"GET / HTTP/1.1\r\n\r\n"], "not a replay message"),
    ):
        with pytest.raises(WireError, match=expected):
            decode(frames)


def test_the_server_answers_and_counts_bad_messages_and_goes_on(
    server, client, schema, make_episode
):
    session = client.open_session("reach", schema)
    place = {"table": session.table, "actor": 0, "session": session.number, "owner": session.owner}
    row = schema.pack(make_episode(1)[0])
    at = schema.dtype.fields["is_last"][1]
    not_a_bool = row[:at] + b"\2" + row[at + 1 :]
    opening = {"table": "t", "actor": 0, "owner": "o", "metadata": {}}

    sampling = {"table": "reach", "fields": [], "batch_size": 1, "n_step": 1, "discount": 1.0}
    sampling |= {"demonstration_share": 0.0, "environment_steps": None}
    sampling["rng"] = np.random.default_rng(0).bit_generator.state

    def other_schema(*fields):
        content = json.loads(schema.to_json())
        content["fields"] = list(fields)
        return json.dumps(content)

    hostile = [
        ([b"junk"], "WireError"),
        ([], "WireError"),
        (raw(Kind.ACKNOWLEDGED, {}), "WireError"),
        (raw(Kind.APPEND, {}), "WireError"),
        (raw(Kind.APPEND, {**place, "first": 0}), "WireError"),
        (raw(Kind.APPEND, {**place, "first": 0}, row[:-1], frames=1), "WireError"),
        (raw(Kind.APPEND, {**place, "first": -1}, row, frames=1), "WireError"),
        (raw(Kind.APPEND, {**place, "first": 2**80}, row, frames=1), "WireError"),
        (raw(Kind.APPEND, {**place, "first": 3}, row, frames=1), "SequenceGap"),
        (raw(Kind.APPEND, {**place, "table": 77, "first": 0}, row, frames=1), "StoreError"),
        (raw(Kind.APPEND, {**place, "session": 9, "first": 0}, row, frames=1), "SessionTaken"),
        (raw(Kind.APPEND, {**place, "owner": "me", "first": 0}, row, frames=1), "SessionTaken"),
        (raw(Kind.APPEND, {**place, "first": 0}, b"\xff" * len(row), frames=1), "SchemaMismatch"),
        (raw(Kind.APPEND, {**place, "first": 0}, not_a_bool, frames=1), "RowRefused"),
        (raw(Kind.APPEND, {**place, "first": 0, "episodes": {"a": 1}}, row, frames=1), "WireError"),
        (raw(Kind.OPEN, {**opening, "schema": "{}"}), "SchemaMismatch"),
        (raw(Kind.OPEN, {**opening, "schema": other_schema()}), "SchemaMismatch"),
        (raw(Kind.OPEN, {**opening, "schema": other_schema(["a", "O", []])}), "SchemaMismatch"),
        (
            raw(Kind.OPEN, {**opening, "schema": other_schema(["a", "f8", [2**40, 2**40]])}),
            "SchemaMismatch",
        ),
        (
            raw(Kind.OPEN, {**opening, "schema": other_schema(["a", "f8", []], ["a", "f8", []])}),
            "SchemaMismatch",
        ),
        (raw(Kind.PUT_WEIGHTS, {"name": "p", "version": "1"}, b"x", frames=1), "WireError"),
        (raw(Kind.PUT_WEIGHTS, {"name": "", "version": 1}, b"x", frames=1), "WireError"),
        (raw(Kind.GET_WEIGHTS, {"name": "p", "wait": 1e9}), "WireError"),
        (raw(Kind.GET_WEIGHTS, {"name": "p", "wait": 1, "request": [1] * 999}), "WireError"),
        (raw(Kind.PUT_WEIGHTS, {"name": "p", "version": 1}), "WireError"),
        (raw(Kind.SAMPLE, {"table": "reach", "fields": [1]}), "WireError"),
        (raw(Kind.SAMPLE, sampling, b"x", frames=1), "WireError"),
        (raw(Kind.SAMPLE, {**sampling, "draws": 0}), "WireError"),
        (raw(Kind.SAMPLE, {**sampling, "draws": 1, "rng": {}}), "ReplayError"),
        (raw(Kind.SAMPLE, {**sampling, "draws": 1, "environment_steps": "1"}), "WireError"),
        (raw(Kind.COUNT_WINDOWS, {**sampling, "n_step": 1 << 20}), "WireError"),
    ]
    context = zmq.Context()
    with context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(read_endpoint(server.store).address)
        for frames, expected in hostile:
            socket.send_multipart(frames or [b""])
            assert socket.poll(5000), frames
            answer = decode(socket.recv_multipart())
            assert (answer.kind, answer.header["error"]) == (Kind.ERROR, expected), (frames, answer)
    context.term()
    client.append_episode(make_episode(3))
    client.flush(10)
    statistics = client.statistics()
    assert statistics["internal_errors"] == 0
    assert statistics["bad_messages"] == sum(name == "WireError" for _, name in hostile)
    assert statistics["tables"]["reach"]["rows"] == 4


def test_random_bytes_do_not_stop_the_server(server, client, schema, make_episode):
    session = client.open_session("reach", schema)
    good = encode(
        Kind.APPEND,
        {
            "table": session.table,
            "actor": 0,
            "session": session.number,
            "owner": "nobody",
            "first": 0,
            "episodes": {"0": {}},
        },
        [schema.pack(make_episode(1)[0])],
    )
    random_bytes = random.Random(0)
    context = zmq.Context()
    with context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(read_endpoint(server.store).address)
        for _ in range(1000):
            first = bytearray(good[0])
            for _ in range(random_bytes.randint(1, 4)):
                first[random_bytes.randrange(len(first))] = random_bytes.randrange(256)
            if random_bytes.random() < 0.3:
                # Keep the prefix right, so that damage inside the header gets further.
                first[: PREFIX.size] = good[0][: PREFIX.size]
            cut = random_bytes.choice([0, 0, 1, 100])
            socket.send_multipart([bytes(first), good[1][cut:]])
            while socket.poll(0):
                socket.recv_multipart()
    context.term()
    with ReplayClient(server.store) as other:
        other.open_session("reach", schema, actor=1)
        other.append_episode(make_episode(3))
        other.flush(10)
        assert other.statistics()["internal_errors"] == 0


def test_half_a_message_on_a_plain_socket_is_harmless(server, client, schema, make_episode):
    import socket

    host, port = read_endpoint(server.store).address.removeprefix("tcp://").split(":")
    with socket.create_connection((host, int(port))) as plain:
        plain.sendall(struct.pack(">Q", 1 << 60) + b"half")
    client.open_session("reach", schema)
    client.append_episode(make_episode(2))
    client.flush(10)


def test_metadata_that_the_server_would_refuse_are_refused_before_they_are_queued(
    client, schema, make_episode
):
    client.open_session("reach", schema)
    deep: object = 1
    for _ in range(13):
        deep = [deep]
    for metadata in ({"a": [deep]}, {"a": float("inf")}, {"a": object()}, {"a": "x" * 9000}):
        with pytest.raises(RowRefused, match="episode metadata"):
            client.append(make_episode(1)[0], metadata)
    client.append_episode(make_episode(2), {"a": deep, "b": "[{" * 20})
    client.flush(10)


def test_client_and_server_have_one_limit_for_the_metadata_of_an_episode():
    def both(length):
        metadata = {"a": "x" * length}
        size = len(metadata_bytes(metadata))
        parse_episodes(decode(encode(Kind.APPEND, {"episodes": {"0": metadata}})))
        return size

    most = MAXIMUM_EPISODE_METADATA - len('{"a": ""}')
    assert both(most) == MAXIMUM_EPISODE_METADATA
    longer = {"a": "x" * (most + 1)}
    with pytest.raises(RowRefused, match="too large"):
        metadata_bytes(longer)
    with pytest.raises(WireError, match="too large"):
        parse_episodes(decode(encode(Kind.APPEND, {"episodes": {"0": longer}})))
