"""What a replay memory must give for what has happened, as data: for our own and for others'.

An episode is a word and each of its letters a step: p of the policy, o of an operator who has taken
over, d of a demonstration. It ends with "." where it terminated, with "|" where its time was over,
with "~" where the actor was killed, and with nothing while it goes on. Between words, "*" is when
memories save themselves that do so now and then, and "!" is the kill and the restart of the memory.

Observation j (from 0) of episode e (from 1) is the number 10 e + j. It is also the action that the
policy wants there, and what its base proposes; an operator does the negative of it. The reward of
step j is j + 1 and γ is 0.1, so that a return reads as its steps: 2.3 is the 2nd and the 3rd.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import numpy as np

GAMMA = 0.1
PARDO = "Pardo et al. 2018, Time Limits in RL"
GYMNASIUM = "Gymnasium, Handling Time Limits"
SHARED = "stable-baselines3 issue 934, cleanrl issue 460"
STACKS = "dopamine issue 213"
HIL_SERL = "Luo et al. 2024, HIL-SERL"
SUTTON = "Sutton and Barto, eq. 7.1"
CHUNKS = "Li et al. 2025, Q-chunking"
RESIDUAL = "Yuan et al. 2024, Policy Decorator"
ACT = "Zhao et al. 2023, ACT"


class Step(NamedTuple):
    """What happened at one step, in numbers."""

    seen: int
    done: int
    by: str
    reward: float
    terminated: bool
    truncated: bool
    following: int


class Asked(NamedTuple):
    """What is asked of a memory; a number is 0 where the thing is not wanted."""

    n_step: int = 1
    chunk: int = 0  # steps of a chunk
    history: int = 0  # observations at each state
    returns: bool = False
    capacity: int = 0  # steps
    of_operator: bool = False  # only what is drawn of operators, beside what the policy did
    base: bool = False  # proposals of a base policy
    queue: int = 0  # a policy acts that plans so many actions and executes them one by one


class Case(NamedTuple):
    """One case."""

    name: str  # what must be so
    source: str  # who says so
    happened: str  # episodes, in words
    columns: str  # names of what is compared
    windows: Mapping[int, tuple[Any, ...]]  # that, by the number of s; None does not matter
    asked: Asked = Asked()
    may_lack: tuple[int, ...] = ()  # numbers of which nothing need be drawn
    nothing_else: bool = False  # whether these are all that there is, each once


class NotOffered(Exception):
    """A memory has not what is asked for."""


class Memory(Protocol):
    """A replay memory with all that stands before it, from the actor's loop on."""

    def episode(self, steps: list[Step], killed: bool) -> None:
        """Let an episode happen; `killed` is the actor after its last step."""

    def save(self) -> None:
        """Do what is done now and then."""

    def restart(self) -> None:
        """Kill what holds the memory, and start it again."""

    def size(self) -> int:
        """Steps that can be drawn."""

    def draw(self) -> Iterator[dict[str, Any]]:
        """All that can be drawn, many times, by the columns of `Case` and with the number "s"."""


OpenMemory = Callable[[Asked], AbstractContextManager[Memory]]


def steps_of(word: str, episode: int) -> list[Step]:
    """The steps of a word."""
    letters, end = word.rstrip(".|~"), word[-1]
    steps = []
    for j, by in enumerate(letters):
        seen, last = 10 * episode + j, j == len(letters) - 1
        done = -seen if by == "o" else seen
        ended = (last and end == ".", last and end == "|")
        steps.append(Step(seen, done, by, j + 1.0, *ended, seen + 1))
    return steps


def fault(case: Case, open_memory: OpenMemory) -> str:
    """Let a case happen to a memory and return what is wrong then; "" is a pass.

    Raises:
        NotOffered: The memory has not what is asked for.
    """
    with open_memory(case.asked) as memory:
        episode = 0
        for word in case.happened.split():
            if word == "*":
                memory.save()
            elif word == "!":
                memory.restart()
            else:
                episode += 1
                memory.episode(steps_of(word, episode), word.endswith("~"))
        return "; ".join(_faults(case, memory))


def _faults(case: Case, memory: Memory) -> Iterable[str]:
    size, all_steps = memory.size(), len(case.windows)
    if case.nothing_else and not all_steps - len(case.may_lack) <= size <= all_steps:
        yield f"{size} steps in place of {all_steps}"
    drawn: dict[int, dict[str, Any]] = {}
    wrong: dict[str, None] = {}
    for window in memory.draw() if size else ():
        number = window["s"]
        drawn[number] = window
        if number not in case.windows:
            if case.nothing_else:
                wrong[f"{number} is drawn"] = None
            continue
        expected = dict(zip(case.columns.split(), case.windows[number], strict=True))
        for name, value in expected.items():
            if value is not None and not np.allclose(window[name], value, rtol=1e-5, atol=1e-7):
                wrong[f"{name} of {number} is {window[name]}, not {value}"] = None
    lost = sorted(set(case.windows) - set(drawn) - set(case.may_lack))
    if lost:
        yield f"{', '.join(map(str, lost))} never drawn"
    yield from sorted(wrong)


# fmt: off
CASES = [
    Case("a step is its observation, action, reward and next observation",
         SUTTON, "pppp| pp|", "image action reward discount next next_image",
         {10: (10, 10, 1, 0.1, 11, 11), 11: (11, 11, 2, 0.1, 12, 12),
          12: (12, 12, 3, 0.1, 13, 13)}),
    Case("after termination there is no value",
         PARDO, "ppp. pp. pp|", "reward discount",
         {11: (2, 0.1), 12: (3, 0), 20: (1, 0.1), 21: (2, 0)}),
    Case("after a time limit the value goes on",
         PARDO, "ppp| pp| pp|", "reward discount",
         {11: (2, 0.1), 12: (3, 0.1), 20: (1, 0.1), 21: (2, 0.1)}),
    Case("s' at a time limit is the episode's own last observation",
         f"{GYMNASIUM}; {SHARED}", "ppp| pp| pp|", "next next_image",
         {12: (13, 13), 21: (22, 22)}),
    Case("s after a time limit is the new episode's first observation",
         STACKS, "ppp| pp| pp|", "image action next next_image",
         {20: (20, 20, 21, 21), 30: (30, 30, 31, 31)}),
    # The newest step may wait for the next one, here and below.
    Case("each step is drawn, and nothing that nobody did",
         "lerobot pull request 918", "ppp| pp. ppp| p|", "action",
         {n: (n,) for n in (10, 11, 12, 20, 21, 30, 31, 32, 40)},
         may_lack=(40,), nothing_else=True),
    Case("a full memory mixes nothing old into what is new",
         "cleanrl issue 460", "p" * 9 + ". " + "p" * 6 + "|", "image action next next_image",
         {n: (n, n, n + 1, n + 1) for n in (*range(15, 18), *range(20, 26))},
         Asked(capacity=8), may_lack=(15, 16, 17, 20, 21, 25)),
    Case("a history stays within its episode",
         STACKS, "ppp| pp| pp|", "image next_image",
         {10: ([10, 10, 10], [10, 10, 11]), 11: ([10, 10, 11], [10, 11, 12]),
          12: ([10, 11, 12], [11, 12, 13]), 20: ([20, 20, 20], [20, 20, 21]),
          21: ([20, 20, 21], [20, 21, 22])},
         Asked(history=3)),
    Case("an intervention is stored as executed, with what followed",
         HIL_SERL, "ppoopp| pp|", "image action next next_image",
         {11: (11, 11, 12, 12), 12: (12, -12, 13, 13), 13: (13, -13, 14, 14),
          14: (14, 14, 15, 15)}),
    Case("operators' steps, drawn for themselves, keep their s and s'",
         HIL_SERL, "pooppoo| pop| pp|", "image action next next_image",
         {n: (n, -n, n + 1, n + 1) for n in (11, 12, 15, 16, 21)},
         Asked(of_operator=True), may_lack=(21,), nothing_else=True),
    Case("an n-step return ends with its episode, and γ counts its steps",
         SUTTON, "pppp| ppp. pp|", "reward discount next",
         {10: (1.23, 1e-3, 13), 11: (2.34, 1e-3, 14), 12: (3.4, 1e-2, 14), 13: (4, 1e-1, 14),
          20: (1.23, 0, None), 21: (2.3, 0, None), 22: (3, 0, None)},
         Asked(n_step=3)),
    Case("an n-step return of the policy ends at a take-over",
         "ours: a rescue is no return of the policy", "ppooppp| pp|", "reward discount next",
         {10: (1.2, 1e-2, 12), 11: (2, 1e-1, 12), 12: (3.45, 1e-3, 15), 13: (4.56, 1e-3, 16),
          15: (6.7, 1e-2, 17)},
         Asked(n_step=3)),
    Case("a chunk repeats its episode's last action and masks it",
         ACT, "ppp. ppp| pp|", "chunk valid",
         {10: ([10, 11, 12, 12], [1, 1, 1, 0]), 12: ([12] * 4, [1, 0, 0, 0]),
          21: ([21, 22, 22, 22], [1, 1, 0, 0])},
         Asked(chunk=4)),
    Case("a chunk of the policy ends at a take-over",
         "ours: an operator's action was not planned", "ppoopp| pp|", "chunk valid",
         {10: ([10, 11, 11, 11], [1, 1, 0, 0]), 11: ([11] * 4, [1, 0, 0, 0]),
          12: ([-12, -13, 14, 15], [1, 1, 1, 1]), 14: ([14, 15, 15, 15], [1, 1, 0, 0])},
         Asked(chunk=4)),
    Case("a chunk is discounted by γ to the power of its steps",
         CHUNKS, "pppppp| pppp. pp|", "reward discount next valid",
         {10: (1.234, 1e-4, 14, [1, 1, 1, 1]), 12: (3.456, 1e-4, 16, [1, 1, 1, 1]),
          13: (4.56, 1e-3, 16, [1, 1, 1, 0]), 15: (6, 1e-1, 16, [1, 0, 0, 0]),
          21: (2.34, 0, 24, [1, 1, 1, 0])},
         Asked(n_step=4, chunk=4)),
    Case("the base's proposal is there at s and s' of demonstrations",
         RESIDUAL, "ddd. dd| pp|", "base next_base",
         {10: (10, 11), 11: (11, 12), 12: (12, 13), 20: (20, 21), 21: (21, 22)},
         Asked(base=True)),
    Case("a base's chunk from s' on goes to the last observation",
         CHUNKS, "ddd| pp|", "base_chunk valid next_base_chunk next_valid",
         {10: ([10, 11, 12, 12], [1, 1, 1, 0], [12, 13, 13, 13], [1, 1, 0, 0]),
          11: ([11, 12, 12, 12], [1, 1, 0, 0], [13] * 4, [1, 0, 0, 0]),
          12: ([12] * 4, [1, 0, 0, 0], [13] * 4, [1, 0, 0, 0])},
         Asked(n_step=2, chunk=4, base=True)),
    Case("a return goes to the end or a take-over, and says if more may follow",
         "Sutton and Barto, eq. 3.8; ours for take-overs", "poop. pp| ppp", "return return_valid",
         {10: (1, 0), 11: (2.34, 1), 12: (3.4, 1), 13: (4, 1), 20: (1.2, 0), 21: (2, 0)},
         Asked(returns=True), nothing_else=True),
    Case("queued actions are dropped at a take-over and at a reset",
         # Step 13 is planned anew, as an operator drove at 12; so is 14.
         "ours: the plan was for a state that was left", "ppoopppppp| pp| p|", "place_in_chunk",
         {10: (0,), 11: (1,), 13: (0,), 14: (0,), 15: (1,), 17: (3,), 18: (0,), 20: (0,),
          21: (1,)},
         Asked(queue=4)),
    Case("a killed actor loses its step in flight and nothing else",
         "ours", "pp. pppp~ pp. pp. p.", "action discount next next_image",
         {**{n: (n, 0.1, n + 1, n + 1) for n in (10, 20, 21, 22, 23, 30, 40)},
          **{n: (n, 0, None, None) for n in (11, 31, 41, 50)}},
         may_lack=(23, 50), nothing_else=True),
    Case("a killed memory has lost nothing and doubled nothing",
         "ours", "ppp. * pp. ! pp. p.", "action reward",
         {n: (n, n % 10 + 1) for n in (10, 11, 12, 20, 21, 30, 31, 40)},
         may_lack=(40,), nothing_else=True),
]
# fmt: on
