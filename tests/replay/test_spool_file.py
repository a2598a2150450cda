"""The spool's file: rows come back as they were, whatever moment the file is found in."""

import os
import shutil
import subprocess
import sys
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from robot_rl.data.schema import Field, row_schema
from robot_rl.replay import SpoolError
from robot_rl.replay.protocol import Open, Opened
from robot_rl.replay.row_file import RowFile
from robot_rl.replay.spool import EPISODES, Spool, check_size, size_for

SCHEMA = row_schema("reach", [Field("state/x", "float32", (200,))], ["dx"], 10.0)
ROW = SCHEMA.dtype.itemsize
SIZE = size_for(4, ROW)
OPENING = Open(schema=SCHEMA.to_json(), actor=2, owner="token")


def session(number=3, next_sequence=0):
    return Opened(
        actor=2,
        session=number,
        owner="token",
        store="store",
        next_sequence=next_sequence,
        in_episode=False,
        ended=False,
    )


def row():
    return os.urandom(ROW)


def contents(spool, start=None, rows=10**6, size=10**9):
    """Return rows, each with the metadata of the episode that it begins."""
    start = start or spool.first
    count, frames, episodes = spool.rows_from(start, rows, size) if spool.row_bytes else (0, [], {})
    data = b"".join(frames)
    assert len(data) == count * ROW
    parts = [data[at : at + ROW] for at in range(0, len(data), ROW)]
    return [(part, episodes.get(start + n, b"")) for n, part in enumerate(parts)]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "spool" / "actor-1.rows"


@pytest.fixture
def open_spool(opened):
    """Open a spool; all are closed at the end."""

    def make(path, size=SIZE, begin=None):
        spool = opened(Spool(path, size))
        if begin:
            spool.begin(OPENING, begin)
        return spool

    return make


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.booleans()),
        st.tuples(st.just("acknowledge"), st.integers(0, 5)),
        st.tuples(st.just("kill"), st.just(0)),
    ),
    max_size=60,
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(operations=OPERATIONS, on_disk=st.booleans(), begin=st.integers(0, 10))
def test_a_spool_behaves_as_a_list(tmp_path, operations, on_disk, begin):
    path, copy = tmp_path / "model.rows", tmp_path / "copy.rows"
    path.unlink(missing_ok=True)
    spool = Spool(path if on_disk else None, SIZE)
    spool.begin(OPENING, session(next_sequence=begin))
    slots = 0
    while spool.has_room(slots + 1, begins=True):
        slots += 1
    assert 4 <= slots <= 4 + (1 << 17) // ROW  # what the description does not take is for rows
    model, first = [], begin
    for number, (operation, amount) in enumerate(operations):
        if operation == "push":
            content, episode = row(), b"%d" % number * 3 if amount else b""
            assert spool.has_room(1, begins=amount) == (len(model) < slots)
            if len(model) < slots:
                assert spool.push(content, episode) == first + len(model)
                model.append((content, episode))
        elif operation == "acknowledge":
            count = min(amount, len(model))
            assert spool.acknowledge(first + count) == (count > 0)
            del model[:count]
            first += count
        elif on_disk:
            shutil.copy(path, copy)  # what a kill -9 at this instant would leave
            spool.close()
            copy.rename(path)
            spool = Spool(path, SIZE)
            assert spool.left == (session(next_sequence=begin) if model else None)
            if not model:
                spool.begin(OPENING, session(next_sequence=first))
                begin = first
        assert (spool.first, spool.end) == (first, first + len(model))
        assert contents(spool) == model
        assert contents(spool, first + 1, 2) == model[1:3]
        assert contents(spool, first + 1, 9, 2 * ROW) == model[1:3]
    spool.acknowledge(spool.end)
    spool.close()
    assert not path.exists()


def test_the_rows_can_be_looked_at_as_an_array(path, open_spool):
    spool = open_spool(path, begin=session())
    content = row()
    spool.push(content, b"")
    header = RowFile.open(path).header_bytes
    rows = np.memmap(path, SCHEMA.dtype, "r", header)
    assert rows[0].tobytes() == content


@pytest.mark.parametrize("lap", [0, 1, 2, 3])
def test_a_kill_at_any_point_of_an_append_loses_at_most_that_row(tmp_path, path, open_spool, lap):
    spool = open_spool(path, begin=session())
    rows = [(row(), b'{"seed": 1}')]
    spool.push(rows[0][0], rows[0][1])
    for _ in range(50 * lap):  # so that the last row comes to lie elsewhere
        rows.append((row(), b""))
        spool.push(rows[-1][0], rows[-1][1])
        spool.acknowledge(spool.end - 1)
        del rows[:-1]
    before = np.frombuffer(path.read_bytes(), np.uint8)
    spool.push(row(), b'{"seed": 2}')
    after = np.frombuffer(path.read_bytes(), np.uint8)
    changed = np.flatnonzero(before != after)
    changed = changed[changed >= 64]  # the counters come last
    assert len(changed) > ROW // 2
    for copied in (0, 1, 15, 30, len(changed) // 2, len(changed)):
        left = before.copy()
        left[changed[:copied]] = after[changed[:copied]]
        (tmp_path / f"{copied}.rows").write_bytes(left.tobytes())
        found = open_spool(tmp_path / f"{copied}.rows")
        assert contents(found) == rows
        assert (found.first, found.end) == (spool.first, spool.end - 1)
        assert found.left == session()
    (tmp_path / "whole.rows").write_bytes(after.tobytes())
    assert len(contents(open_spool(tmp_path / "whole.rows"))) == len(rows) + 1


@pytest.mark.parametrize("emptied", [False, True])
def test_an_append_that_fails_counts_for_nothing(tmp_path, path, open_spool, emptied):
    spool = open_spool(path, begin=session())
    content = row()
    spool.push(content, b"")
    if emptied:
        spool.acknowledge(1)
    with pytest.raises(ValueError, match="memoryview"):
        spool.push(content[:-1], b"")
    shutil.copy(path, tmp_path / "left.rows")
    left = open_spool(tmp_path / "left.rows")
    assert contents(left) == contents(spool) == [(content, b"")][emptied:]


def test_a_spool_that_is_emptied_again_and_again_uses_the_begin_of_its_rows(path, open_spool):
    spool = open_spool(path, begin=session())
    for number in range(300):
        spool.push(b"%4d" % number + bytes(ROW - 4), b"")
        spool.acknowledge(spool.end)
    header = RowFile.open(path).header_bytes
    assert path.read_bytes()[header : header + 4] == b" 299"
    assert not any(path.read_bytes()[header + ROW :])


def test_a_kill_while_a_session_begins_leaves_an_empty_spool(path, open_spool, tmp_path):
    spool = open_spool(path, begin=session())
    spool.push(row(), b"")
    spool.acknowledge(1)
    before = path.read_bytes()
    spool.begin(OPENING, session(4))
    after = path.read_bytes()
    # The magic goes first and comes last, so that what is between is a file to be made.
    for left in (bytes(8) + before[8:], bytes(8) + after[8:], bytes(8) + after[8:99] + bytes(SIZE)):
        (tmp_path / "left.rows").write_bytes(left)
        found = open_spool(tmp_path / "left.rows")
        assert (found.left, found.first, found.end) == (None, 0, 0)
        found.close()


def test_a_kill_while_the_file_is_made_leaves_one_that_is_made_again(path, open_spool, tmp_path):
    open_spool(path, begin=session())
    whole = path.read_bytes()
    for left in (b"", bytes(100), bytes(SIZE), bytes(8) + whole[8:24] + bytes(SIZE - 24)):
        (tmp_path / "new.rows").write_bytes(left)
        found = open_spool(tmp_path / "new.rows", begin=session())
        content = row()
        found.push(content, b"")
        assert contents(found) == [(content, b"")]
        found.acknowledge(1)
        found.close()


def damage_row(content):
    at = content.index(b"marked row") + 3
    return content[:at] + b"?" + content[at + 1 :]


def counter(number, value):
    at = 32 + 8 * number
    return lambda content: content[:at] + value.to_bytes(8, "little") + content[at + 8 :]


DAMAGE = {
    "another kind of file": (lambda content: b"PNG..." * 20000, "another kind of file"),
    "a short text": (lambda content: b"notes of today", "another kind of file"),
    "another version": (lambda content: content[:8] + b"\7" + content[9:], "version 7"),
    "cut": (lambda content: content[:-1000], "another length than it was made with"),
    "longer": (lambda content: content + bytes(10), "another length than it was made with"),
    "session": (lambda content: content.replace(b"token", b"Token"), "changed or cut"),
    "row": (damage_row, "row 1 has another checksum; 1 rows before it are whole"),
    "metadata": (lambda content: content.replace(b"episode 1", b"episode 2"), "the metadata"),
    "end too far": (counter(1, 1 << 40), "rows 0 to"),
    "first behind end": (counter(0, 511), "rows 511 to 3"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_file_is_refused_by_name_and_left_as_it_is(path, open_spool, tmp_path, kind):
    damage, message = DAMAGE[kind]
    spool = open_spool(path, begin=session())
    for text in (b"first row", b"marked row", b"last row"):
        spool.push(text.ljust(ROW, b"\0"), b"episode 1" if text == b"first row" else b"")
    damaged = tmp_path / "damaged.rows"
    content = damage(path.read_bytes())
    damaged.write_bytes(content)
    with pytest.raises(SpoolError, match=rf"damaged\.rows.*{message}.*move it away"):
        Spool(damaged, SIZE)
    assert damaged.read_bytes() == content
    damaged.rename(tmp_path / "aside")
    assert open_spool(damaged).left is None


def test_another_size_counts_once_the_rows_are_gone(path, open_spool):
    spool = open_spool(path, size=2 * SIZE, begin=session())
    content = row()
    spool.push(content, b"")
    spool.close()
    large = path.stat().st_size
    smaller = open_spool(path, size=SIZE)
    assert contents(smaller) == [(content, b"")]
    smaller.acknowledge(1)
    smaller.begin(OPENING, session())
    assert path.stat().st_size < large


def test_room_for_an_episode_is_room_for_its_rows(path, open_spool):
    spool = open_spool(path, size=size_for(5, ROW), begin=session())
    assert spool.has_room(5, begins=True)
    with pytest.raises(SpoolError, match=r"got: 100000 bytes.*replay\.spool_bytes="):
        check_size(100_000, rows=1, row_bytes=ROW)
    large = open_spool(None, size=size_for(2 * EPISODES, ROW), begin=session())
    for number in range(EPISODES):
        assert large.has_room(1, begins=True)
        large.push(row(), b"%d" % number)
    assert large.has_room(1, begins=False)  # the episode that has begun can be finished
    assert not large.has_room(1, begins=True)


def test_the_file_has_its_blocks_from_the_start(path, open_spool):
    open_spool(path, size=4 << 20, begin=session())
    assert path.stat().st_blocks * 512 >= path.stat().st_size > 3 << 20
    assert path.stat().st_mode & 0o077 == 0  # it holds the session's token


def test_a_second_process_is_refused(path, open_spool):
    spool = open_spool(path, begin=session())
    code = (
        "import sys; from pathlib import Path; from robot_rl.replay.spool import Spool\n"
        "from robot_rl.replay import SpoolError\n"
        f"try: Spool(Path(sys.argv[1]), {SIZE})\n"
        "except SpoolError as error: print(error)\n"
        "else: print('opened')"
    )

    def other_process():
        command = [sys.executable, "-c", code, str(path)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert f"another process uses the spool {path}" in other_process()
    with pytest.raises(SpoolError):
        Spool(path, SIZE)
    content = row()
    spool.push(content, b"")
    # Somebody who still looks at a row does not keep the lock.
    view = spool.rows_from(0, 1, ROW)[1][0]
    spool.close()
    assert other_process() == "opened\n"
    assert bytes(view) == content


def test_a_folder_that_cannot_be_written_is_one_clear_error(path):
    path.parent.write_text("a file where the folder should be")
    with pytest.raises(SpoolError, match=r"spool/actor-1\.rows cannot be opened"):
        Spool(path, SIZE)


def test_a_full_disk_is_found_at_the_start_and_not_in_the_loop(small_disk):
    disk = small_disk("8m")
    path = disk / "actor-1.rows"
    large = Spool(path, 16 << 20)
    with pytest.raises(SpoolError, match=r"actor-1\.rows cannot be made.*No space left.*16777216"):
        large.begin(OPENING, session())
    large.close()
    spool = Spool(path, 4 << 20)
    spool.begin(OPENING, session())
    with (disk / "filling").open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    while spool.has_room(1, begins=False):  # a page without a block would end us with SIGBUS
        spool.push(row(), b"")
    assert spool.end > 900
    spool.close()
    found = Spool(path, 4 << 20)
    assert found.end == spool.end
    found.close()
