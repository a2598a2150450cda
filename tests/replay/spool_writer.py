"""An actor that only appends, to be killed: each row says by its numbers which it is."""

import os
import sys
import time
from pathlib import Path

import numpy as np

from robot_rl.data.schema import Field, Row, RowSchema, row_schema
from robot_rl.replay.client import ReplayClient

STEPS = 12
ROWS = STEPS + 1
SPOOL_BYTES = 16 << 20
RESEND_SECONDS = 0.1
ACTOR = 1


def camera_schema() -> RowSchema:
    fields = [Field("state/x", "float32", (3,)), Field("images/front", "uint8", (128, 128, 3))]
    return row_schema("reach", fields, ["dx", "dy"], 10.0)


def numbered_row(schema: RowSchema, session: int, sequence: int) -> Row:
    """The row of a session; it has as many steps as it takes, T = 12 in each episode."""
    step = sequence % ROWS
    row: Row = {f.name: np.zeros(f.shape, f.dtype) for f in schema.fields}
    random = np.random.default_rng([session, sequence])
    row["images/front"] = random.integers(0, 256, (128, 128, 3), np.uint8)
    row["state/x"][:] = (session, sequence, step)
    row["source"] = np.uint8(1)
    row["episode_step"] = np.int32(step)
    row["truncated"] = np.bool_(step == STEPS - 1)
    row["is_last"] = np.bool_(step == STEPS)
    return row


def metadata(session: int, sequence: int) -> dict[str, object] | None:
    return {"task": "reach", "seed": session} if sequence % ROWS == 0 else None


def open_client(store: Path, spool: Path) -> ReplayClient:
    return ReplayClient(
        store, spool_path=spool, spool_bytes=SPOOL_BYTES, resend_seconds=RESEND_SECONDS
    )


def main(store: str, spool: str) -> None:
    """Append until killed; tell of each row once `append` has returned."""
    schema = camera_schema()
    with open_client(Path(store), Path(spool)) as client:
        session = client.open_session(schema, ACTOR).session
        os.write(1, f"{session} open\n".encode())
        sequence = 0
        while True:
            while sequence % ROWS == 0 and not client.has_room(ROWS):
                time.sleep(0.002)
            row = numbered_row(schema, session, sequence)
            client.append(row, metadata(session, sequence))
            os.write(1, f"{session} {sequence}\n".encode())
            sequence += 1


if __name__ == "__main__":
    main(*sys.argv[1:])
