"""A store that has reached its size limit, and the way out that its error names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from store_writing import Recording

from robot_rl.data.schema import Field, RowSchema, row_schema
from robot_rl.replay import Capacity, StoreFull, StoreReader, StoreWriter, environment
from robot_rl.replay.records import WeightsRecord

MAP_SIZE = 4 << 20
CAPACITY = Capacity(bytes=MAP_SIZE * 8 // 10)
OpenWriter = Callable[..., StoreWriter]


@pytest.fixture(params=["tiny rows", "rows with images"])
def schema(request: pytest.FixtureRequest) -> RowSchema:
    fields = [Field("state/x", "float32", (3,))]
    if request.param == "rows with images":
        fields.append(Field("images/front", "uint8", (40, 40, 3)))
    return row_schema("reach", fields, ["dx", "dy"], 10.0)


@pytest.fixture
def open_writer(tmp_path: Path) -> Iterator[OpenWriter]:
    """Return a function that opens the store, closing the writer before."""
    writers: list[StoreWriter] = []

    def start(capacity: Capacity | None = None, map_size: int = MAP_SIZE) -> StoreWriter:
        if writers:
            writers.pop().close()
        capacity = capacity or Capacity()
        writers.append(StoreWriter(tmp_path / "store", map_size_bytes=map_size, capacity=capacity))
        return writers[-1]

    yield start
    for writer in writers:
        writer.close()


@pytest.fixture(params=["by this version", "by one without slack"])
def filled(
    request: pytest.FixtureRequest,
    open_writer: OpenWriter,
    schema: RowSchema,
    make_episode: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> int:
    """Fill the store without a capacity; return the number of its rows."""
    with monkeypatch.context() as patch:
        if request.param == "by one without slack":
            patch.setattr(environment, "_map_size", lambda path, limit: MAP_SIZE)
            writer = open_writer(map_size=1 << 30)
        else:
            writer = open_writer()
    recording = Recording(writer, schema, actor=1)
    for size in (400, 20):  # the second time up to the last page
        rows = make_episode(size, schema=schema)

        def fill(rows: list[Any] = rows) -> None:
            while True:
                recording.put(rows)

        with pytest.raises(StoreFull, match=r"size limit.*capacity_bytes of at most 0\.8 of it"):
            fill()
    return int(writer.statistics()["tables"]["reach"]["rows"])


def rows_in(store: Path) -> list[int]:
    reader = StoreReader(store)
    found = [len(reader.read_episode("reach", e)) for e in reader.episodes("reach")]
    reader.close()
    return found


def test_a_full_store_goes_on_with_the_capacity_that_its_error_names(
    filled: int, open_writer: OpenWriter, schema: RowSchema, make_episode: Any
) -> None:
    writer = open_writer(CAPACITY)
    recording = Recording(writer, schema, actor=2)
    for number in range(40):
        recording.put(make_episode(9, schema=schema))
        writer.put_weights(WeightsRecord("policy", number, bytes(200_000), {}))
    totals = writer.statistics()["tables"]["reach"]
    assert totals["evicted"]["rows"] > 0
    assert totals["rows"] + totals["evicted"]["rows"] == filled + 40 * 10
    assert sum(rows_in(writer.path)) == totals["rows"]
    assert rows_in(writer.path)[-40:] == [10] * 40


def test_weights_find_room_in_a_full_store_with_a_capacity(
    filled: int, open_writer: OpenWriter
) -> None:
    writer = open_writer(CAPACITY)
    record = WeightsRecord("policy", 1, bytes(300_000), {})
    writer.put_weights(record)
    assert writer.weights("policy") == record
    assert writer.statistics()["tables"]["reach"]["rows"] < filled


def test_what_is_in_the_store_stays_within_the_limit(filled: int, tmp_path: Path) -> None:
    file = (tmp_path / "store" / "data.mdb").stat().st_size
    assert MAP_SIZE * 0.8 < file < MAP_SIZE * 1.1
