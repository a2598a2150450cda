"""The ring file: rows come back as they were, whatever moment the file is found in."""

import os
import shutil
import subprocess
import sys
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from robot_rl.replay import OpenSession, SpoolDamaged, SpoolError, SpoolInUse, SpoolTooSmall
from robot_rl.replay.ring import RingSpool, size_for
from robot_rl.replay.ring_file import HEADER_BYTES
from robot_rl.replay.spool import MemorySpool
from robot_rl.wire.messages import MAXIMUM_EPISODE_METADATA

ROW = 1000
SIZE = size_for(4, ROW)
ROOM = SIZE - HEADER_BYTES
RECORD = 20


def session(number=3, next_sequence=0):
    header = {"table": "reach", "schema": "{}", "metadata": {"simulated": True}}
    return OpenSession(1, 2, number, "token", next_sequence, False, False, header)


def contents(spool):
    return rows_of(spool, spool.rows_from(spool.first, 10**6, 10**9))


def rows_of(spool, stretches):
    """Take stretches apart into rows, each with the metadata of the episode that it begins."""
    rows = []
    for data, count, episode in stretches:
        stride = (len(data) + spool.gap) // count
        for index in range(count):
            row = bytes(data[index * stride : (index + 1) * stride - spool.gap])
            if index == count - 1:
                row = bytes(data[index * stride :])
            rows.append((row, episode if index == count - 1 else b""))
    return rows


@pytest.fixture
def path(tmp_path):
    return tmp_path / "spool" / "actor-1.ring"


@pytest.fixture
def open_ring():
    """Open a ring; all are closed at the end."""
    opened = []

    def make(path, size=SIZE, begin=None):
        opened.append(RingSpool(path, size))
        if begin:
            opened[-1].begin(begin)
        return opened[-1]

    yield make
    for ring in opened:
        ring.close()


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.integers(1, 3000), st.integers(0, 1500)),
        st.tuples(st.just("acknowledge"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("kill"), st.just(0), st.just(0)),
    ),
    max_size=60,
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(operations=OPERATIONS, on_disk=st.booleans(), begin=st.integers(0, 10))
def test_a_spool_behaves_as_a_list(tmp_path, operations, on_disk, begin):
    path, copy = tmp_path / "model.ring", tmp_path / "copy.ring"
    path.unlink(missing_ok=True)
    spool = RingSpool(path, SIZE) if on_disk else MemorySpool(1000, ROOM)
    spool.begin(session(next_sequence=begin))
    model, first, overhead = [], begin, RECORD if on_disk else 0
    for number, (operation, amount, metadata) in enumerate(operations):
        if operation == "push":
            row, episode = os.urandom(amount), b"%d" % number * (metadata // 2)
            size = len(row) + len(episode)
            used = sum(overhead + len(r) + len(e) for r, e in model)
            assert spool.has_room(1, size) == (used + overhead + size <= ROOM)
            if spool.has_room(1, size):
                assert spool.push([row[:7], row[7:]], episode) == first + len(model)
                model.append((row, episode))
        elif operation == "acknowledge":
            count = min(amount, len(model))
            assert spool.acknowledge(first + count) == (count > 0)
            del model[:count]
            first += count
        elif on_disk:
            shutil.copy(path, copy)  # what a kill -9 at this instant would leave
            spool.close()
            copy.rename(path)
            spool = RingSpool(path, SIZE)
            assert spool.left == (session(next_sequence=begin) if model else None)
            if not model:
                spool.begin(session(next_sequence=first))
                begin = first
        assert (spool.first, spool.end) == (first, first + len(model))
        assert contents(spool) == model
        assert rows_of(spool, spool.rows_from(first + 1, 2, 10**9)) == model[1:3]
        size = sum(len(row) for row, _ in model[1:3])
        assert rows_of(spool, spool.rows_from(first + 1, 2, size)) == model[1:3]
    spool.acknowledge(spool.end)
    spool.close()
    assert not path.exists()


@pytest.mark.parametrize("lap", [0, 1, 2, 3])
def test_a_kill_at_any_point_of_an_append_loses_at_most_that_row(tmp_path, path, open_ring, lap):
    ring = open_ring(path, begin=session())
    rows = [(os.urandom(2500), b'{"seed": 1}')]
    ring.push([rows[0][0]], rows[0][1])
    for _ in range(3 * lap):  # so that the last row comes to lie elsewhere, also around the end
        rows.append((os.urandom(2500), b""))
        ring.push([rows[-1][0]], rows[-1][1])
        ring.acknowledge(ring.end - 1)
        del rows[:-1]
    before = path.read_bytes()
    ring.push([os.urandom(2500)], b'{"seed": 2}')
    after = path.read_bytes()
    changed = [i for i in range(HEADER_BYTES, SIZE) if before[i] != after[i]]
    assert len(changed) > 2000
    for copied in (0, 1, 15, 30, len(changed) // 2, len(changed)):
        left = bytearray(before)
        for place in changed[:copied]:
            left[place] = after[place]
        (tmp_path / f"{copied}.ring").write_bytes(left)
        found = open_ring(tmp_path / f"{copied}.ring")
        assert contents(found) == rows
        assert (found.first, found.end) == (ring.first, ring.end - 1)
        assert found.left == session()
    (tmp_path / "whole.ring").write_bytes(after)
    assert len(contents(open_ring(tmp_path / "whole.ring"))) == len(rows) + 1


@pytest.mark.parametrize("emptied", [False, True])
def test_an_append_that_fails_while_it_copies_counts_for_nothing(
    tmp_path, path, open_ring, emptied
):
    ring = open_ring(path, begin=session())
    ring.push([b"row"], b"")
    if emptied:
        ring.acknowledge(1)
    with pytest.raises(ValueError, match="memoryview"):
        ring.push([memoryview(bytes(ROW)).cast("H")], b"")  # fails after the record's head is there
    shutil.copy(path, tmp_path / "left.ring")
    assert (
        contents(open_ring(tmp_path / "left.ring")) == contents(ring) == [(b"row", b"")][emptied:]
    )


def test_a_spool_that_is_emptied_again_and_again_uses_the_begin_of_its_file(
    tmp_path, path, open_ring
):
    ring = open_ring(path, begin=session())
    for number in range(2 * ROOM // ROW):
        ring.push([b"%4d" % number * (ROW // 4)], b"")
        shutil.copy(path, tmp_path / "left.ring")
        found = open_ring(tmp_path / "left.ring")
        assert contents(found) == [(b"%4d" % number * (ROW // 4), b"")]
        found.acknowledge(found.end)
        found.close()
        ring.acknowledge(ring.end)
    assert not any(path.read_bytes()[HEADER_BYTES + RECORD + ROW :])


def test_a_kill_while_a_session_begins_leaves_an_empty_spool(path, open_ring, tmp_path):
    ring = open_ring(path, begin=session())
    ring.push([b"row"], b"")
    ring.acknowledge(1)
    before = path.read_bytes()
    ring.begin(session(4))
    after = path.read_bytes()
    for cut in range(0, 400, 7):
        (tmp_path / f"{cut}.ring").write_bytes(after[:cut] + before[cut:])
        found = open_ring(tmp_path / f"{cut}.ring")
        assert (found.left, found.first, found.end) == (None, 0, 0)


def test_a_kill_while_the_file_is_made_leaves_one_that_is_made_again(path, open_ring, tmp_path):
    open_ring(path, begin=session())
    whole = path.read_bytes()
    for left in (b"", bytes(100), bytes(SIZE), bytes(8) + whole[8:24] + bytes(SIZE - 24)):
        (tmp_path / "new.ring").write_bytes(left)
        found = open_ring(tmp_path / "new.ring", begin=session())
        found.push([b"row"], b"")
        assert contents(found) == [(b"row", b"")]
        found.acknowledge(1)
        found.close()


def damage_row(content):
    at = content.index(b"marked row") + 3
    return content[:at] + b"?" + content[at + 1 :]


DAMAGE = {
    "another kind of file": (lambda content: b"PNG..." * 20000, "another kind of file"),
    "a short text": (lambda content: b"notes of today", "14 bytes, less than a header"),
    "another version": (lambda content: content[:8] + b"\7" + content[9:], "version 7"),
    "cut": (lambda content: content[:-1000], f"{SIZE - 1000} bytes"),
    "longer": (lambda content: content + bytes(10), f"{SIZE + 10} bytes"),
    "session": (lambda content: content.replace(b"token", b"Token"), "session in its header"),
    "row": (damage_row, "row 1 has another checksum; 1 rows before it are whole"),
    "head too far": (lambda c: c[:48] + b"\xff\xff\7\0\0\0\0\0" + c[56:], "bytes in use"),
    "head too near": (lambda c: c[:48] + b"\7\0\0\0\0\0\0\0" + c[56:], "cut short"),
    "tail behind head": (lambda c: c[:40] + b"\xff\1\0\0\0\0\0\0" + c[48:], "tail 511"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_file_is_refused_by_name_and_left_as_it_is(path, open_ring, tmp_path, kind):
    damage, message = DAMAGE[kind]
    ring = open_ring(path, begin=session())
    for text in (b"first row", b"marked row", b"last row"):
        ring.push([text], b"")
    damaged = tmp_path / "damaged.ring"
    content = damage(path.read_bytes())
    damaged.write_bytes(content)
    with pytest.raises(SpoolDamaged, match=rf"damaged\.ring.*{message}.*move it away"):
        RingSpool(damaged, SIZE)
    assert damaged.read_bytes() == content
    damaged.rename(tmp_path / "aside")
    assert open_ring(damaged).left is None


def test_another_size_counts_once_the_rows_are_gone(path, open_ring):
    ring = open_ring(path, size=2 * SIZE, begin=session())
    ring.push([b"row"], b"")
    ring.close()
    smaller = open_ring(path, size=SIZE)
    assert contents(smaller) == [(b"row", b"")]
    assert smaller.has_room(1, ROOM)
    smaller.acknowledge(1)
    smaller.begin(session())
    assert not smaller.has_room(1, ROOM)
    assert smaller.has_room(1, ROOM - RECORD)
    assert path.stat().st_size == SIZE
    smaller.push([bytes(ROOM - RECORD)], b"")
    smaller.close()
    assert contents(open_ring(path)) == [(bytes(ROOM - RECORD), b"")]


def test_room_for_an_episode_is_room_for_its_rows(path, open_ring):
    ring = open_ring(path, size=size_for(5, ROW), begin=session())
    assert ring.has_room(5, 5 * ROW + MAXIMUM_EPISODE_METADATA)
    assert not ring.has_room(6, 6 * ROW + MAXIMUM_EPISODE_METADATA)
    for index in range(5):
        metadata = b"x" * MAXIMUM_EPISODE_METADATA if index == 0 else b""
        assert ring.has_room(1, ROW + len(metadata))
        ring.push([bytes(ROW)], metadata)
    assert not ring.has_room(1, 1)
    with pytest.raises(SpoolTooSmall, match=rf"got: {HEADER_BYTES} bytes.*replay\.spool_bytes="):
        RingSpool(path.with_name("small"), HEADER_BYTES)


def test_the_file_has_its_blocks_from_the_start(path, open_ring):
    open_ring(path, size=1 << 20)
    assert path.stat().st_blocks * 512 >= 1 << 20
    assert path.stat().st_mode & 0o077 == 0  # it holds the session's token


def test_a_second_process_is_refused(path, open_ring):
    ring = open_ring(path, begin=session())
    code = (
        "import sys; from pathlib import Path; from robot_rl.replay.ring import RingSpool\n"
        "from robot_rl.replay import SpoolInUse\n"
        f"try: RingSpool(Path(sys.argv[1]), {SIZE})\n"
        "except SpoolInUse as error: print(error)\n"
        "else: print('opened')"
    )

    def other_process():
        command = [sys.executable, "-c", code, str(path)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert f"another process uses the spool {path}" in other_process()
    with pytest.raises(SpoolInUse):
        RingSpool(path, SIZE)
    ring.push([b"row"], b"")
    view = ring.rows_from(0, 1, ROW)[
        0
    ].data  # somebody who still looks at a row does not keep the lock
    ring.close()
    assert other_process() == "opened\n"
    assert bytes(view) == b"row"


def test_a_folder_that_cannot_be_written_is_one_clear_error(path):
    path.parent.write_text("a file where the folder should be")
    with pytest.raises(SpoolError, match=r"spool/actor-1\.ring cannot be opened"):
        RingSpool(path, SIZE)


def test_a_full_disk_is_found_at_the_start_and_not_in_the_loop(small_disk):
    disk = small_disk("2m")
    path = disk / "actor-1.ring"
    with pytest.raises(SpoolError, match=r"no room.*actor-1\.ring.*got: \d+ bytes free.*4194304"):
        RingSpool(path, 4 << 20)
    ring = RingSpool(path, 1 << 20)
    ring.begin(session())
    with (disk / "filling").open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))
    while ring.has_room(1, ROW):  # a page without a block would end this process with SIGBUS
        ring.push([os.urandom(ROW)], b"")
    assert ring.end > 900
    ring.close()
    found = RingSpool(path, 1 << 20)
    assert found.end == ring.end
    found.close()
