"""Whatever arrives at the server: one clear answer to each, and no harm to other clients."""

import json

import pytest
import zmq
from fuzzing import build

from robot_rl.replay import RowRefused
from robot_rl.replay.protocol import ANSWERS
from robot_rl.wire.endpoint import read_endpoint
from robot_rl.wire.messages import Decoder, Refused

decode = Decoder(*ANSWERS).decode


def test_the_server_answers_and_counts_bad_messages_and_goes_on(
    server, client, schema, make_episode
):
    session = client.open_session(schema)
    place = {"actor": 0, "session": session.session, "owner": session.owner}
    row = schema.pack(make_episode(1)[0])
    at = schema.dtype.fields["is_last"][1]
    not_a_bool = row[:at] + b"\2" + row[at + 1 :]
    opening = {"actor": 0, "owner": "o", "metadata": {}}

    rows = {"actor": 0, "session": 0, "first": 0}

    def other_schema(*fields):
        content = json.loads(schema.to_json())
        content["fields"] = list(fields)
        return json.dumps(content)

    def append(payload, **entries):
        return build("append", {**place, "first": 0, **entries}, payload)

    def annotate(*payload, **entries):
        head = {"actor": 0, "session": 0, "name": "a", "version": 1, **entries}
        return build("annotate", head, *payload)

    def opened(schema_text):
        return build("open", {**opening, "schema": schema_text})

    hostile = [
        ([b"junk"], "WireError", "not a message"),
        ([b""], "WireError", "not a message"),
        (build("acknowledged", {}), "WireError", "kind"),
        (build("append", {}), "WireError", "actor"),
        (build("append", {**place, "first": 0}), "WireError", "payload frames"),
        (append(row[:-1]), "SchemaMismatch", "wrong length"),
        (append(row, first=-1), "WireError", "first"),
        (append(row, first=2**80), "WireError", "first"),
        (append(row, first=3), "SequenceGap", "missing"),
        (append(row, session=9), "SessionTaken", "never opened"),
        (append(row, owner="me"), "SessionTaken", "another writer"),
        (append(b"\xff" * len(row)), "SchemaMismatch", ""),
        (append(not_a_bool), "RowRefused", "flag"),
        (append(row, episodes={"a": {}}), "WireError", "episodes"),
        (append(row, episodes={"0": 1}), "WireError", "episodes"),
        (append(row, gap=256), "WireError", "gap"),
        (opened("{}"), "SchemaMismatch", ""),
        (opened(other_schema()), "SchemaMismatch", ""),
        (opened(other_schema(["a", "O", []])), "SchemaMismatch", "dtype"),
        (opened(other_schema(["a", "f8", [2**40, 2**40]])), "SchemaMismatch", ""),
        (opened(other_schema(["a", "f8", []], ["a", "f8", []])), "SchemaMismatch", ""),
        (opened("x" * 70_000), "WireError", "schema"),
        (build("put_weights", {"name": "p", "version": "1"}, b"x"), "WireError", "version"),
        (build("put_weights", {"name": "", "version": 1}, b"x"), "WireError", "name"),
        (build("put_weights", {"name": "p", "version": 1}), "WireError", "payload frames"),
        (build("get_weights", {"name": "p", "wait": 1e9}), "WireError", "wait"),
        (build("get_weights", {"name": "p", "request": [1] * 999}), "WireError", "request"),
        (build("get_changes", {"open": [0] * 5000}), "WireError", "open"),
        (build("get_changes", {"token": "x" * 100}), "WireError", "token"),
        (build("get_rows", {**rows, "start": -1}), "WireError", "start"),
        (build("get_rows", {**rows, "start": 1000}), "NotEnoughData", "not in the store"),
        (build("get_rows", {**rows, "actor": 7, "start": 0}), "NotEnoughData", "not in the store"),
        (build("get_rows", {**rows, "first": 2, "start": 1}), "NotEnoughData", "not in the store"),
        (annotate(bytes(8)), "WireError", "payload frames"),
        (annotate(bytes(7), bytes(4)), "WireError", "not whole"),
        (annotate(b"", b""), "WireError", "none"),
        (annotate(bytes(8 * 5000), bytes(4 * 5000)), "WireError", "too many"),
        (annotate(bytes(8), bytes(8), dtype="object"), "WireError", "dtype"),
        (annotate(bytes(8), bytes(4), version=2**63), "WireError", "version"),
        (annotate(bytes(8), bytes(5)), "WireError", "not whole"),
        (annotate(bytes(8), b"\xff" * 4), "AnnotationRefused", "not finite"),
        (annotate(b"\xff" * 8, bytes(4)), "AnnotationRefused", "not in the store"),
    ]
    context = zmq.Context()
    with context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(read_endpoint(server.store).address)
        for frames, expected, words in hostile:
            socket.send_multipart(frames)
            assert socket.poll(5000), frames
            answer, _ = decode(socket.recv_multipart())
            assert isinstance(answer, Refused)
            assert answer.error == expected, (frames, answer)
            assert words in answer.message, (frames, answer)
            assert not socket.poll(0), "one answer to each"
    context.term()
    client.append_episode(make_episode(3))
    client.flush(10)
    statistics = client.statistics()
    assert statistics["internal_errors"] == 0
    assert statistics["bad_messages"] == sum(name == "WireError" for _, name, _ in hostile)
    assert statistics["rows"] == 4


def test_metadata_that_the_server_would_refuse_are_refused_before_they_are_queued(
    client, schema, make_episode
):
    client.open_session(schema)
    deep: object = 1
    for _ in range(13):
        deep = [deep]
    for metadata in ({"a": [deep]}, {"a": float("inf")}, {"a": object()}, {"a": "x" * 9000}):
        with pytest.raises(RowRefused, match="episode metadata"):
            client.append(make_episode(1)[0], metadata)
    client.append_episode(make_episode(2), {"a": deep, "b": "[{" * 20})
    client.flush(10)
