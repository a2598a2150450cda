"""Faults in the twin cell: what moves that nobody asked for, what is lost, and how soon it is told.

    python tests/benches twin robot=twin_ur5e_2f85 task=pick_cube bench.minutes=30
    python tests/benches twin robot=twin_ur5e_2f85 task=pick_cube bench.stops=200

With `bench.minutes` a whole `robot-rl train` runs in the cell, with a camera, as on a real robot:
nothing moves before a person's `start`. With `bench.stops` the environment of this process goes
from one random pose to the next instead, without a reset, and is stopped at a random moment, in
motion or at rest. All is measured in the twin's world, from outside of what controls the arm.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from omegaconf import DictConfig
from topics import NAMESPACE, BenchFailed, chosen, own_domain
from training_runs import START_SECONDS, processes, train

from robot_rl.commands.preparation import robot_nodes
from robot_rl.config import compose
from robot_rl.data.schema import SOURCE_DEMONSTRATION
from robot_rl.env.factory import make_session
from robot_rl.env.robot import RobotInterrupted
from robot_rl.processes.waiting import wait_until
from robot_rl.replay.store_reader import StoreReader
from robot_rl.run import FAULTS, LATEST, RunDirectory

if TYPE_CHECKING:
    from twin_cell import Fault, FaultLog, Stop, TwinCell

    from robot_rl.env.session import Session

_CAMERA = (
    "observation.cameras=[{_target_:robot_rl.env.sim.cameras.CameraOptions,"
    "name:wrist,width:64,height:64}]"
)
_NOTICED_SECONDS, _GOES_ON_SECONDS = 60.0, 120.0
_LAST_ACTIONS = 20
_STILL_SECONDS = 0.5  # after a start, before a command begins
_LOOK_SECONDS = (0.7, 2.0)
_REST_SHARE, _MOST_STEPS = 0.25, 150
# Tool positions between which the arm goes to and fro, above the table [m].
_LOW, _HIGH = np.array([0.38, -0.15, 0.2]), np.array([0.55, 0.15, 0.38])


def run(config: DictConfig) -> dict[str, object]:
    """Let things break, at random moments of which `seed` decides, and mend them as a person does.

    Returns:
        `faults`: of each kind `times`, the largest time `noticed_s` from the fault until its line
        was in the run's `faults.jsonl`, the largest difference `dated_s` between that line's time
        and the fault, the way `stopping_mm` until the arm stood, and `unasked_mm` and
        `unasked_deg`, motion from then on until a person's start was followed by a command; of
        `bench.stops` also the largest time `stood_s` from the fault until nothing moved any more;
        `commands` that began before a start. `rows`, and how many `actions` the actor has told of,
        each of which is a row. `restarts_by_hand` that no latched stop asked for. `other_faults`
        that were not the bench's, by kind.

    Raises:
        BenchFailed: The run did not go on, or a row is missing, twice there or another.
    """
    if "twin" not in config.get("nodes", {}):
        got = f"robot={config.choices.robot}"
        raise BenchFailed("only a twin can be broken", got=got, expected="robot=twin_ur5e_2f85")
    words = [f"robot={config.choices.robot}", f"robot.namespace={NAMESPACE}", _CAMERA]
    words += ["robot.attended=true", "demonstrations=1"]
    rng = np.random.default_rng(int(config.seed))
    with own_domain(), tempfile.TemporaryDirectory() as folder:
        measure = _in_a_row if config.bench.stops else _in_a_training
        stops, others, further = measure(config, folder, words, rng)
    return {**_figures(stops), "other_faults": others, **further}


Result = tuple[list["Stop"], Counter[str], dict[str, object]]


def _in_a_training(
    config: DictConfig, folder: str, words: list[str], rng: np.random.Generator
) -> Result:
    from twin_cell import FaultLog, Stop, TwinCell, faults_of  # not before `own_domain`

    cell_config = compose([*chosen(config), *words])
    faults, stops, others = faults_of(cell_config), list[Stop](), Counter[str]()
    with (
        train(config, folder, words) as check,
        closing(TwinCell(cell_config, rng, check)) as cell,
    ):
        log = FaultLog(Path(folder) / LATEST / f"{FAULTS}.jsonl")

        def acts() -> bool:
            return "actor" in processes() and cell.acts_since(time.time_ns() - int(1e9))

        if cell.start(acts, START_SECONDS) is None:
            raise BenchFailed("the actor does not act", got=cell.watch.mode)
        restarts = 0
        ends = time.monotonic() + 60.0 * float(config.bench.minutes)
        while time.monotonic() < ends:
            restarts += _work_on(cell, log, others, rng.exponential(config.bench.fault_every_s))
            stops.append(_break(cell, log, faults[rng.integers(len(faults))], rng))
            restarts += stops[-1].resumed is None
            _tell(len(stops), stops[-1])
        actions = list(cell.actions)
    rows = _check_rows(folder, actions)
    return stops, others, {"restarts_by_hand": restarts, "rows": rows}


def _work_on(cell: TwinCell, log: FaultLog, others: Counter[str], seconds: float) -> int:
    """Let the run work, and attend to it where it stops by itself; returns restarts by hand."""
    restarts, ends = 0, time.monotonic() + seconds
    while (began := time.monotonic()) < ends:
        if wait_until(lambda: log.after(began), ends - began, every_s=0.05):
            record = log.lines[-1][1]
            others[record["kind"]] += 1
            sys.stderr.write(f"by itself: {record['problem'][:160]}\n")
            cell.clear()
            restarts += _start(cell) is None
    return restarts


def _start(cell: TwinCell) -> float | None:
    now = time.time_ns()
    return cell.start(lambda: cell.acts_since(now), _GOES_ON_SECONDS)


def _break(cell: TwinCell, log: FaultLog, fault: Fault, rng: np.random.Generator) -> Stop:
    """One fault, from the moment at which it happens until the run goes on."""
    from twin_cell import Stop, steady

    log.read()
    stop, struck = Stop(fault.service), cell.strike(fault)
    found = wait_until(lambda: log.after(struck), _NOTICED_SECONDS, every_s=0.005)
    if not found:
        stop.problem = "not noticed"
        cell.repair(fault)
        stop.resumed = 0.0
        return stop
    seen, record = found
    stop.noticed, stop.dated, stop.problem = (
        seen - struck,
        steady(record) - struck,
        record["problem"],
    )
    stands = cell.look_at(stop, fault, struck, rng.uniform(*_LOOK_SECONDS))
    cell.repair(fault)
    ready = time.monotonic()
    said = _start(cell)
    began = cell.commanded_since(ready)
    first = cell.commanded_since(stands)
    stop.commands = int(first is not None and first < ready)
    stop.unasked = cell.moved(stands, time.monotonic() if began is None else began)
    stop.resumed = None if said is None else time.monotonic() - said
    return stop


def _in_a_row(
    config: DictConfig, folder: str, words: list[str], rng: np.random.Generator
) -> Result:
    from twin_cell import Stop, TwinCell, faults_of

    config = compose([*chosen(config), *words, f"bench.stops={config.bench.stops}"])
    faults, stops, others = faults_of(config), list[Stop](), Counter[str]()
    with robot_nodes(config, Path(folder)):
        operated = make_session(config)
        with closing(operated), closing(TwinCell(config, rng, lambda: None)) as cell:
            _let_go(operated, cell)
            while len(stops) < config.bench.stops:
                try:
                    fault = faults[rng.integers(len(faults))]
                    stops.append(_stop_once(operated, cell, fault, rng))
                    _tell(len(stops), stops[-1])
                except RobotInterrupted as problem:
                    others[type(problem).__name__] += 1
                    sys.stderr.write(f"by itself: {str(problem)[:160]}\n")
                    cell.clear()
                    _let_go(operated, cell)
    return stops, others, {}


def _let_go(operated: Session, cell: TwinCell) -> None:
    """Say `start` until the robot waits for nothing."""

    def free() -> bool:
        operated.operator.overhear()
        return not operated.operator.waits_for

    if cell.start(free, _GOES_ON_SECONDS) is None:
        raise BenchFailed("the robot may not move", got=operated.operator.waiting())


def _stop_once(operated: Session, cell: TwinCell, fault: Fault, rng: np.random.Generator) -> Stop:
    """One fault on the way to a random pose, or at rest there."""
    from twin_cell import Stop

    _begin(operated, rng)
    goal, rests = rng.uniform(_LOW, _HIGH), rng.random() < _REST_SHARE
    strikes = int(rng.integers(2, 30))
    stop, struck, number = Stop(fault.service), 0.0, 0
    columns = len(operated.schema.action_names)
    try:
        while not operated.operator.waits_for:
            if number == strikes:
                time.sleep(rng.uniform(0.0, 0.09))
                struck = cell.strike(fault)
            way = np.clip((goal - operated.robot.tcp_pose()[:3]) / 0.01, -1.0, 1.0)
            action = np.zeros(columns, np.float32)
            action[:3] = 0.0 if rests and number >= strikes - 2 else way
            action[6:] = 1.0 if number // 20 % 2 else -1.0  # fingers, where there are any
            operated.step(action)
            number += 1
            if number > strikes + _MOST_STEPS:  # fingers that jam nearly open seem to hold
                cell.repair(fault)
                stop.problem = "not noticed"
                return stop
    except RobotInterrupted as problem:
        if not struck:
            raise
        stop.problem = str(problem)
    if not struck:
        raise RobotInterrupted(operated.operator.waiting())
    stop.problem = stop.problem or operated.operator.waiting()
    stop.noticed = time.monotonic() - struck
    stands = cell.look_at(stop, fault, struck, rng.uniform(*_LOOK_SECONDS))
    cell.repair(fault)
    _let_go(operated, cell)
    time.sleep(_STILL_SECONDS)  # a start is no command
    now = time.monotonic()
    stop.unasked, stop.stood = cell.moved(stands, now), cell.stood(struck, now)
    stop.commands = int(cell.commanded_since(stands) is not None)
    return stop


def _begin(operated: Session, rng: np.random.Generator) -> None:
    operated.put_back(int(rng.integers(1 << 31)), in_place=True)


def _check_rows(folder: str, actions: Sequence[tuple[int, Any]]) -> int:
    """Compare the store with the actions that the actor told of; returns the number of rows."""
    run = RunDirectory(Path(folder) / LATEST)
    rows, sequences = [], dict[tuple[int, int], int]()
    with StoreReader(run.store) as reader:
        for episode in reader.episodes():
            place = episode.actor, episode.session
            if episode.first_sequence != sequences.get(place, 0):
                raise BenchFailed(
                    "rows are missing, or twice there",
                    got=f"row {episode.first_sequence} of actor and session {place}",
                    expected=sequences.get(place, 0),
                )
            found = reader.read_episode(episode)
            sequences[place] = episode.first_sequence + len(found)
            if len(found) and found["source"][0] != SOURCE_DEMONSTRATION:
                rows += list(found[~found["is_last"]])
    since = int(rows[0]["stamp_action"]) if rows else 0
    told = [action for at, action in actions if at >= since]
    stored = [row["action"] for row in rows]
    while_it_ended = len(stored) - len(told)  # acted when nobody listened any more
    if not 0 <= while_it_ended <= _LAST_ACTIONS or not np.array_equal(told, stored[: len(told)]):
        raise BenchFailed(
            "the store has other actions than the actor has told of",
            got=f"{len(stored)} rows",
            expected=f"{len(told)} actions, the same ones in the same order",
        )
    return len(stored)


def _tell(number: int, stop: Stop) -> None:
    noticed = "never" if stop.noticed is None else f"{stop.noticed:.3f} s"
    way = f"{stop.stopping[0]:.1f} mm, then {stop.unasked[0]:.2f} mm {stop.unasked[1]:.3f} deg"
    way += f", stood after {stop.stood:.2f} s"
    sys.stderr.write(f"{number} {stop.fault}: {noticed}; {way}; {stop.problem[:120]}\n")


def _figures(stops: Sequence[Stop]) -> dict[str, object]:
    """Worst of each kind of fault, also printed as a table."""
    kinds, figures = sorted({stop.fault for stop in stops}), {}
    for kind in kinds:
        of = [stop for stop in stops if stop.fault == kind]
        noticed = [stop.noticed for stop in of if stop.noticed is not None]
        dated = [abs(stop.dated) for stop in of if stop.dated is not None]
        figures[kind] = {
            "times": len(of),
            "noticed": len(noticed),
            "noticed_s": round(max(noticed, default=0.0), 3),
            "dated_s": round(max(dated, default=0.0), 3),
            "stopping_mm": round(max(stop.stopping[0] for stop in of), 2),
            "unasked_mm": round(max(stop.unasked[0] for stop in of), 3),
            "unasked_deg": round(max(stop.unasked[1] for stop in of), 4),
            "stood_s": round(max(stop.stood for stop in of), 2),
            "commands": sum(stop.commands for stop in of),
        }
    names = list(next(iter(figures.values()), {}))
    say = sys.stdout.write
    say(f"{'fault':18s}" + "".join(f"{name:>13s}" for name in names) + "\n")
    for kind, values in figures.items():
        say(f"{kind:18s}" + "".join(f"{value!s:>13s}" for value in values.values()) + "\n")
    return {"stops": len(stops), "faults": figures}
