"""Who gives the transitions of `tests/replay/transition_cases.py`: we, and other projects."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

sys.path.append(str(Path(__file__).parents[1] / "replay"))

from transition_cases import CASES, Case, NotOffered, OpenMemory, fault
from transition_memories import our_dataset, our_store
from transition_peers import PEERS, PeerAbsent, opened

_WIDTH, _ERROR = 14, "error: "


def run(config: DictConfig) -> dict[str, Any]:
    """Print a table of who passes what, and what is wrong where somebody fails.

    Peers come from the environment or from folders in `ROBOT_RL_PEERS`; one that is absent is left
    out with the reason. A dash stands for what a memory does not offer.

    Returns:
        `memories`: their versions, or why one is left out; `faults`: by memory and case what is
        wrong, "" for a pass, None for what is not offered.
    """
    memories: dict[str, str] = {"our store": "", "our datasets": ""}
    faults: dict[str, dict[str, str | None]] = {}
    faults["our store"] = _judged(our_store)
    faults["our datasets"] = _judged(our_dataset)
    for peer in PEERS:
        try:
            memories[peer.name] = peer.version()
        except PeerAbsent as absent:
            memories[peer.name] = f"absent: {absent}"
        else:
            faults[peer.name] = _judged(partial(opened, peer))
    sys.stdout.write("\n".join(_table(faults)) + "\n")
    return {"memories": memories, "faults": faults}


def _judged(open_memory: OpenMemory) -> dict[str, str | None]:
    return {case.name: _verdict(case, open_memory) for case in CASES}


def _verdict(case: Case, open_memory: OpenMemory) -> str | None:
    try:
        return fault(case, open_memory)
    except NotOffered:
        return None
    except Exception as error:
        return f"{_ERROR}{type(error).__name__}: {error}"


def _table(faults: dict[str, dict[str, str | None]]) -> Iterator[str]:
    wide = max(len(case.name) for case in CASES)
    words = {None: "-", "": "passes"}
    yield " " * wide + "".join(name.rjust(_WIDTH) for name in faults)
    for case in CASES:
        row = [found[case.name] for found in faults.values()]
        verdicts = [words.get(v, "error" if str(v).startswith(_ERROR) else "FAILS") for v in row]
        yield case.name.ljust(wide) + "".join(word.rjust(_WIDTH) for word in verdicts)
    for name, found in faults.items():
        yield from (f"{name}: {case}: {what}" for case, what in found.items() if what)
