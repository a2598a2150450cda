"""Benches that developers run: `python tests/benches NAME`, with overrides as `robot-rl train` has.

They kill, freeze and disturb what runs, or need many minutes. What a user measures on a machine is
`robot-rl bench`. The last line is one JSON object here too.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

from robot_rl.config import compose
from robot_rl.errors import RobotRLError
from robot_rl.processes.machine import describe_machine

PREFIX = "bench_"


def main(words: list[str]) -> None:
    here = Path(__file__).parent
    sys.path.append(str(here.parent))  # for what the tests share
    names = sorted(path.stem.removeprefix(PREFIX) for path in here.glob(f"{PREFIX}*.py"))
    if not words or words[0] not in names:
        sys.exit(f"give one of {', '.join(names)}")
    config, machine = compose(words[1:]), describe_machine()
    try:
        result = importlib.import_module(f"{PREFIX}{words[0]}").run(config)
    except RobotRLError as error:
        sys.exit(f"{words[0]}: {error}")
    sys.stdout.write(json.dumps({"bench": words[0], **result, "machine": machine}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
