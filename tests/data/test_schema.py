"""The row: packed and unpacked without change, and every refusal names the field."""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from robot_rl.data.schema import ACTION_FIELDS, Field, RowSchema, SchemaMismatch, row_schema

SCHEMA = row_schema(
    "peg_insert",
    [
        Field("images/wrist", "uint8", (4, 3, 3)),
        Field("state/tcp_pose", "float32", (7,)),
        Field("state/gripper", "float64"),
    ],
    ("x", "y"),
    10.0,
)


def zero_row(schema=SCHEMA):
    return {f.name: np.zeros(f.shape, f.dtype) for f in schema.fields}


def values_of(column):
    dtype = np.dtype(column.dtype)
    if column.name in ACTION_FIELDS:
        return arrays(dtype, column.shape, elements=st.floats(-1, 1, width=32))
    if dtype.kind == "f":
        width = 8 * dtype.itemsize
        numbers = st.floats(allow_nan=False, allow_infinity=False, width=width)
        return arrays(dtype, column.shape, elements=numbers)
    return arrays(dtype, column.shape)


@st.composite
def schemas(draw):
    dtypes = st.sampled_from(["float16", "float32", "float64", "uint8", "int16", "int64", "bool"])
    names = draw(st.lists(st.from_regex(r"(state|images)/[a-z]{1,4}", fullmatch=True), unique=True))
    shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
    fields = [Field(name, draw(dtypes), draw(shapes)) for name in names]
    actions = [f"a{index}" for index in range(draw(st.integers(1, 3)))]
    return row_schema("task", fields, actions, draw(st.floats(1.0, 100.0)))


@given(schemas(), st.data())
@settings(max_examples=15)
def test_what_is_packed_is_unpacked(schema, data):
    rows = [{f.name: data.draw(values_of(f)) for f in schema.fields} for _ in range(2)]
    packed = [schema.pack(row) for row in rows]
    assert [len(one) for one in packed] == [schema.dtype.itemsize] * 2
    records = schema.unpack(b"".join(packed))
    for row, record in zip(rows, records, strict=True):
        for name, value in row.items():
            np.testing.assert_array_equal(record[name], value)
            assert record[name].dtype == value.dtype


@given(schemas())
def test_json_keeps_the_schema(schema):
    again = RowSchema.from_json(schema.to_json())
    assert again == schema
    assert again.dtype == schema.dtype
    schema.compare(again)


def test_the_fixed_fields_are_those_of_every_row():
    dtypes = {f.name: (f.dtype, f.shape) for f in SCHEMA.fields}
    for name in ("action", "policy_action", "base_action", "last_command"):
        assert dtypes[name] == ("float32", (2,))
    assert dtypes["reward"] == ("float32", ())
    for name in ("terminated", "truncated", "is_last", "success", "intervened", "clamped"):
        assert dtypes[name] == ("bool", ())
    for name in ("stamp_observation", "stamp_action", "policy_version"):
        assert dtypes[name] == ("int64", ())
    assert SCHEMA.fields[-1].name == "images/wrist"  # a reader can leave the images out
    states = ("state/gripper", "state/tcp_pose")
    assert SCHEMA.observation_names == ("last_command", *states, "images/wrist")
    assert SCHEMA.action_dimension == 2


def test_values_that_lose_nothing_are_converted():
    row = zero_row()
    row |= {
        "action": [0.5, -1],
        "reward": 1,
        "terminated": True,
        "episode_step": 12,
        "state/tcp_pose": np.arange(7.0),
        "stamp_action": np.int32(5),
        "policy_action": np.array([0.25, 0.5], ">f4"),
    }
    record = SCHEMA.unpack(SCHEMA.pack(row))[0]
    np.testing.assert_array_equal(record["action"], [0.5, -1])
    np.testing.assert_array_equal(record["policy_action"], [0.25, 0.5])
    np.testing.assert_array_equal(record["state/tcp_pose"], np.arange(7))
    assert (record["reward"], record["terminated"]) == (1.0, True)
    assert (record["episode_step"], record["stamp_action"]) == (12, 5)


def test_strided_values_keep_their_order():
    image = np.arange(36, dtype=np.uint8).reshape(3, 3, 4).transpose(2, 0, 1)
    wide = np.arange(14, dtype=np.float32)
    packed = SCHEMA.pack(zero_row() | {"images/wrist": image, "state/tcp_pose": wide[::-2]})
    record = SCHEMA.unpack(packed)[0]
    np.testing.assert_array_equal(record["images/wrist"], image)
    np.testing.assert_array_equal(record["state/tcp_pose"], wide[::-2])


POSE = np.zeros(7, np.float32)


@pytest.mark.parametrize(
    ("name", "value", "parts"),
    [
        ("state/tcp_pose", np.zeros(6, np.float32), ["another shape", "got: (6,)", "(7,)"]),
        ("state/tcp_pose", np.zeros(7, np.complex64), ["another dtype", "got: complex64"]),
        ("state/tcp_pose", np.array(["0"] * 7), ["another dtype", "float32"]),
        ("state/tcp_pose", [[1.0], [1.0, 2.0]], ["no array", "float32 (7,)"]),
        ("state/tcp_pose", None, ["another shape", "(7,)"]),
        ("state/tcp_pose", POSE + np.nan, ["not finite", "got: [nan", "finite numbers"]),
        ("state/tcp_pose", POSE - np.inf, ["not finite", "got: [-inf", "finite numbers"]),
        ("state/tcp_pose", np.full(7, 1e300), ["too large", "got: [1.e+300", "float32"]),
        ("state/gripper", np.float64(np.nan), ["not finite", "got: nan", "finite numbers"]),
        ("reward", np.float32(np.nan), ["not finite", "got: nan", "finite numbers"]),
        ("reward", float("nan"), ["not finite", "got: nan", "finite numbers"]),
        ("reward", np.zeros(1, np.float32), ["another shape", "got: (1,)", "()"]),
        ("terminated", np.float32(1.0), ["another dtype", "got: float32", "bool"]),
        ("chunk_index", 40_000, ["too large", "got: 40000", "int16"]),
        ("source", -1, ["another dtype", "got: int64", "uint8"]),
        ("images/wrist", np.zeros((3, 4, 3), np.uint8), ["another shape", "(3, 4, 3)"]),
        ("action", np.array([0.0, 1.1], np.float32), ["out of range", "got: [", "[-1, 1]"]),
        ("action", np.array([0.0, 1.0 + 1e-12]), ["out of range", "got: [", "[-1, 1]"]),
        ("action", np.array([np.nan, 0.0], np.float32), ["not finite", "got: [nan", "finite"]),
        ("base_action", np.array([-2.0, 0.0], np.float32), ["out of range", "[-1, 1]"]),
        ("policy_action", np.array([-9, 0]), ["out of range", "[-1, 1]"]),
        ("last_command", np.array([0.0, 1.5]), ["out of range", "[-1, 1]"]),
    ],
)
def test_a_value_that_does_not_fit_is_refused(name, value, parts):
    with pytest.raises(SchemaMismatch) as refusal:
        SCHEMA.pack(zero_row() | {name: value})
    for part in [repr(name), "got:", "expected:", *parts]:
        assert part in str(refusal.value)


def test_missing_and_unknown_fields_are_named():
    row = zero_row()
    del row["reward"]
    with pytest.raises(SchemaMismatch, match="lacks the field 'reward'; got: ") as missing:
        SCHEMA.pack(row)
    assert "expected:" in str(missing.value)
    with pytest.raises(
        SchemaMismatch, match=r"does not know; got: \['rewards'\]; expected: .*reward"
    ):
        SCHEMA.pack(row | {"rewards": np.float32(0)})


@pytest.mark.parametrize("cut", [0, 1, -1])
def test_a_cut_row_is_refused(cut):
    size = SCHEMA.dtype.itemsize
    data = SCHEMA.pack(zero_row())[:cut] if cut <= 0 else bytes(size + cut)
    with pytest.raises(SchemaMismatch, match=f"got: {len(data)} bytes; expected: .*{size} bytes"):
        SCHEMA.unpack(data)


def test_unpacking_copies_nothing():
    buffer = bytearray(SCHEMA.pack(zero_row()))
    record = SCHEMA.unpack(memoryview(buffer))
    buffer[:4] = np.float32(3.0).tobytes()  # the reward is the first column
    assert record["reward"][0] == 3.0


@pytest.mark.parametrize(
    ("other", "parts"),
    [
        ({"task": "reach"}, ["task differs", "got: reach", "expected: peg_insert"]),
        ({"control_rate_hz": 20.0}, ["control_rate_hz", "got: 20.0", "expected: 10.0"]),
        ({"action_names": ("x", "z")}, ["action_names", "got: ('x', 'z')", "expected: ('x', 'y')"]),
    ],
)
def test_another_schema_is_refused_by_what_differs(other, parts):
    with pytest.raises(SchemaMismatch) as refusal:
        SCHEMA.compare(dataclasses.replace(SCHEMA, **other), what="the demonstrations")
    for part in ["the demonstrations:", *parts]:
        assert part in str(refusal.value)


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        (SCHEMA.fields[:-1], ["'images/wrist'", "got: absent", "expected: uint8 (4, 3, 3)"]),
        (
            (*SCHEMA.fields, Field("state/new", "float32")),
            ["'state/new'", "got: float32 ()", "expected: absent"],
        ),
        (
            (*SCHEMA.fields[:-1], Field("images/wrist", "uint8", (8, 3, 3))),
            ["'images/wrist'", "got: uint8 (8, 3, 3)", "expected: uint8 (4, 3, 3)"],
        ),
    ],
)
def test_another_field_is_refused_by_its_name(fields, parts):
    with pytest.raises(SchemaMismatch) as refusal:
        SCHEMA.compare(dataclasses.replace(SCHEMA, fields=fields))
    for part in parts:
        assert part in str(refusal.value)


def changed(**changes):
    return json.dumps(json.loads(SCHEMA.to_json()) | changes)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "cannot be read"),
        ("[]", "cannot be read"),
        ('{"version": 1}', "task"),
        (SCHEMA.to_json()[:-20], "cannot be read"),
        (changed(fields=[["a", "float99", []]]), "float99"),
        (changed(fields=[["a", "object", []]]), "object"),
        (changed(fields=[["a", "9" * 5000, []]]), "cannot have the dtype 9999"),
        (changed(fields=[["a", "(2,)f4", []]]), "cannot have the dtype"),
        (changed(fields=[["a", ["f4"], []]]), "cannot be read"),
        (changed(fields=[["a", "float32"]]), "cannot be read"),
        (changed(fields=[["", "float32", []]]), "a column cannot have the name ''"),
        (changed(fields=[["a\ud800", "float32", []]]), "a column cannot have the name"),
        (changed(fields=[["a", "float32", []]] * 2), "cannot be read"),
        (changed(fields=[["a", "float32", [2**40, 2**40]]]), "cannot be read"),
        (changed(fields=[["a", "float32", [1e999]]]), "cannot be read"),
        (changed(control_rate_hz=float("nan")), "control_rate_hz is nan"),
        ("[" * 100_000, "cannot be read"),
        (changed(version=99), "version differs; got: 99; expected: 3; next: "),
    ],
)
def test_json_that_is_no_schema_is_refused(text, named):
    with pytest.raises(SchemaMismatch, match=named):
        RowSchema.from_json(text)


def test_packed_rows_are_checked_together_as_each_alone():
    rows = [SCHEMA.pack(zero_row()) for _ in range(3)]
    SCHEMA.check(SCHEMA.unpack(memoryview(b"".join(rows))))
    large = zero_row() | {"state/gripper": np.float64(1e300)}  # its square is not finite
    SCHEMA.check(SCHEMA.unpack(b"".join([*rows, SCHEMA.pack(large)])))
    for name, value in (("state/gripper", np.nan), ("reward", -np.inf), ("action", 1.5)):
        for place in range(3):
            content = np.frombuffer(b"".join(rows), SCHEMA.dtype).copy()
            content[name][place] = value
            for packed in (content.tobytes(), content[place].tobytes()):
                with pytest.raises(SchemaMismatch, match=name):
                    SCHEMA.check(SCHEMA.unpack(packed))


def test_a_schema_of_many_numbers_is_checked_alike():
    schema = row_schema("wide", [Field("state/x", "float32", (1000,))], ("x",), 10.0)
    row = schema.pack(zero_row(schema))
    content = np.frombuffer(row, schema.dtype).copy()
    content["state/x"][0, 999] = np.inf
    with pytest.raises(SchemaMismatch, match="state/x"):
        schema.check(schema.unpack(content.tobytes()))
