"""For notebooks: policies, episodes, replay and statistics; see docs/api.md.

The public names here are also those of `robot_rl` itself.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from policies.errors import PolicyError
from policies.places import add_folder as add_folder
from robot_rl.commands.inspection import Kind, first_episodes_of, look
from robot_rl.data.episodes import Episode as Episode
from robot_rl.data.episodes import NotADataset
from robot_rl.data.intervals import StatisticsError, clopper_pearson
from robot_rl.data.intervals import interval_over_runs as interval_over_runs
from robot_rl.data.schema import Field as Field
from robot_rl.data.schema import Observation, Row
from robot_rl.data.schema import RowSchema as RowSchema
from robot_rl.data.schema import row_schema as row_schema
from robot_rl.data.transfer import DatasetEpisodes, Selection
from robot_rl.errors import RobotRLError as RobotRLError
from robot_rl.errors import did_you_mean
from robot_rl.evaluation.ledger import open_policy
from robot_rl.evaluation.statistics import Comparison, EvaluationResult
from robot_rl.plugins import format_of, resolve
from robot_rl.processes.signals import StopEvent
from robot_rl.replay.catalogue import is_store
from robot_rl.replay.client import ReplayClient as ReplayClient
from robot_rl.replay.replica import Replica
from robot_rl.replay.row_sources import StoreRows
from robot_rl.replay.sampler import Sampler
from robot_rl.replay.server import ReplayServer
from robot_rl.replay.store_reader import StoreEpisodes
from robot_rl.replay.windows import SampleSpec as SampleSpec
from robot_rl.run import LATEST, POLICIES, RunDirectory, read_json_lines

if TYPE_CHECKING:
    import gymnasium

    from policies.behaviour import Behaviour

exact_interval = clopper_pearson


class LoadedPolicy:
    """A policy that acts in one episode at a time, as `robot-rl evaluate` lets it act.

    Attributes:
        task: Name of the task that it was trained on.
        control_rate_hz: Steps per second at which its actions are meant.
        action_names: One name per action column.
        observation: Name → number of values of all that it must see, a camera's pixels included.
    """

    def __init__(self, behaviour: Behaviour) -> None:
        from policies.runner import PolicyRunner  # late: loads torch

        self._is_reset = False
        self.task = behaviour.interface.task
        self.control_rate_hz = behaviour.interface.control_rate_hz
        self.action_names = behaviour.interface.action_names
        self.observation = behaviour.observation
        self._runner = PolicyRunner(behaviour.exploring("mean"))

    def __repr__(self) -> str:
        sees = ", ".join(self.observation)
        return (
            f"<LoadedPolicy {self._runner.behaviour.policy.kind!r} for {self.task!r}:"
            f" {self.control_rate_hz:g} Hz, {len(self.action_names)} action columns, sees {sees}>"
        )

    def reset(self, seed: int = 0, instruction: str = "") -> None:
        """Begin an episode: its plans draw noise from the seed >= 0 and follow the instruction."""
        if not isinstance(seed, int | np.integer) or seed < 0:
            raise PolicyError(
                "the seed of an episode cannot be used", got=seed, expected="a whole number >= 0"
            )
        self._runner.reset(seeds=[seed], instructions=[instruction])
        self._is_reset = True

    def act(self, observation: Observation) -> npt.NDArray[np.float32]:
        """Choose the action, float32 (d,) in [-1, 1], for what is seen now.

        The observation is the environment's: by name numbers (k,) float32, images (H, W, 3) uint8.
        `PolicyError` where there was no `reset`, or the observation is no dict or lacks something.
        """
        if not self._is_reset:
            raise PolicyError("no episode has begun", hint="call reset(seed=...) before act")
        if not isinstance(observation, Mapping):
            raise PolicyError(
                "an observation gives each array a name",
                got=type(observation).__name__,
                expected=f"a dict with {', '.join(self.observation)}",
            )
        batch = {name: np.asarray(value)[None] for name, value in observation.items()}
        action: npt.NDArray[np.float32] = self._runner.act(batch).action[0]
        return action


def load_policy(
    path: str | Path = LATEST,
    which: str = "deployed",
    *,
    env: gymnasium.Env[Any, Any] | None = None,
) -> LoadedPolicy:
    """Load a policy.

    Args:
        path: A run; `latest`, the newest below `runs/` that has a policy; or a run's checkpoint.
        which: Of a run: the `deployed`, the `cloned` or the `learned` one.
        env: An environment of robot_rl that it is checked against, unless None.

    Raises:
        PolicyError: It was made for another task, rate, action or observation than `env` has.
        RobotRLError: There is none, it is damaged, or its class is not in the registry.
    """
    from robot_rl.data.policy_columns import check_fit  # late: loads torch

    if which not in POLICIES:
        raise RobotRLError(
            "a run has no such policy",
            got=which,
            expected=", ".join(POLICIES),
            hint=did_you_mean(which, POLICIES),
        )
    behaviour, _ = open_policy(path, which)
    if env is not None:
        schema = getattr(env.unwrapped, "schema", None)
        if schema is None:
            raise RobotRLError(
                "the observations and actions of this environment are not known",
                got=env.unwrapped,
                expected="an environment of robot_rl",
                hint="leave env out, and give act a dict with the names in policy.observation",
            )
        check_fit(behaviour, schema)
    return LoadedPolicy(behaviour)


def read_episodes(path: str | Path) -> Iterator[Episode]:
    """Read whole episodes, one at a time, also while a run writes them.

    Args:
        path: A dataset, a LeRobot dataset that robot_rl exported, a replay store, or a run: its
            store or, where it has none, its demonstrations or random actions.

    Yields:
        Episodes: `rows` is a structured array (T + 1,) whose names are the fields, as in
        `rows["action"]`; `success`, `seed`, `instruction` and `source` are beside it.

    Raises:
        RobotRLError: There is nothing of the kind, or it is damaged.
    """
    kind, place = look(Path(path))
    if kind is Kind.RUN:
        run = RunDirectory(place)
        stored = is_store(run.store)
        kind, place = (Kind.STORE, run.store) if stored else (Kind.DATASET, first_episodes_of(run))
    if kind is Kind.STORE:
        yield from StoreEpisodes(place, Selection()).episodes()
        return
    if kind is Kind.POLICY:
        raise NotADataset("a policy holds no episodes", got=str(place))
    if (found := format_of(place)) is not None:
        yield from resolve(found[1].open)(place).episodes()
    else:
        yield from DatasetEpisodes(place, Selection()).episodes()


def blank_row(schema: RowSchema) -> Row:
    """A row of zeros to fill in: all fields of a schema."""
    return {f.name: np.zeros(f.shape, f.dtype)[()] for f in schema.fields}


@contextmanager
def serve_replay(folder: str | Path) -> Iterator[str]:
    """Serve a store, new or old, from a thread of this process, as long as the context lasts.

    Gives the server's address; `StoreError` where it cannot be opened. A run starts its own server,
    whose address for `ReplayClient` is the folder `RUN/store`.
    """
    server, stop = ReplayServer(Path(folder)), StopEvent()
    thread = threading.Thread(target=server.run, args=(stop,), name="replay server")
    thread.start()
    try:
        yield server.address
    finally:
        stop.set()
        thread.join()


@contextmanager
def open_sampler(
    address: str | Path, spec: SampleSpec, *, seed: int = 0, keys: Path | None = None
) -> Iterator[Sampler]:
    """Draw mini-batches from a store; `sample()` gives one, as `SampleSpec` describes it.

    The folder of a store is read as it is. From the address of a replay server its rows are copied
    to the system's temporary folder first, as long as the context lasts. The seed is that of all
    draws.

    Raises:
        RobotRLError: No such field, no rows, or no answer.
    """
    rng = np.random.default_rng(seed)
    with ExitStack() as opened:
        if isinstance(address, Path):
            rows = StoreRows(address)
        else:
            folder = Path(opened.enter_context(TemporaryDirectory(prefix="replica-")))
            client = opened.enter_context(ReplayClient(address, keys=keys))
            replica = opened.enter_context(closing(Replica(folder, client)))
            rows = StoreRows(folder, replica.pull)
        yield opened.enter_context(closing(Sampler(rows, spec, rng)))


def compare_results(first: str | Path, second: str | Path | None = None) -> Comparison:
    """Compare two evaluations on the scenes, that is seeds, that they share: an exact sign test.

    Args:
        first: A file that `robot-rl evaluate` or `train` wrote, such as RUN/evaluations.jsonl: its
            last evaluation counts. Or, alone, RUN/compare.jsonl: its last comparison.
        second: Another.

    Returns:
        `won` and `lost`, the scenes that the second, or the first, alone has solved; `chance` of
        a difference as large between equally good policies.

    Raises:
        StatisticsError: A file holds no evaluation, or they share no scene: their tasks, settings
            of the task, domains, robots or seeds are others.
    """
    if second is None:
        return Comparison.from_json(_last_record(Path(first)))
    results = [EvaluationResult.from_json(_last_record(Path(path))) for path in (first, second)]
    _check_scenes(*results)
    comparison = results[1].beside(results[0])
    if comparison is None:
        seeds = " and ".join(f"{r.first_seed} … {r.first_seed + r.episodes - 1}" for r in results)
        raise StatisticsError(
            "the evaluations share no scene",
            got=f"seeds {seeds}",
            expected="two evaluations of the same scenes",
        )
    return comparison


def _last_record(path: Path) -> dict[str, Any]:
    records = read_json_lines(path)
    if not records:
        raise StatisticsError(
            f"there is no evaluation in {path}",
            expected="JSON lines that robot-rl evaluate or train wrote",
            hint="take RUN/evaluations.jsonl",
        )
    return records[-1]


def _check_scenes(before: EvaluationResult, after: EvaluationResult) -> None:
    """Raise `StatisticsError` where a seed is not the same scene in two evaluations."""
    if before.task is None or after.task is None:
        raise StatisticsError(
            "an evaluation by an older version does not say in which scenes it was made",
            hint="make it again: robot-rl evaluate RUN; it is added to RUN/evaluate.jsonl",
        )
    made = [{"task": r.task, "domain": r.domain, **r.scenes} for r in (before, after)]
    unlike = [name for name in {**made[0], **made[1]} if made[0].get(name) != made[1].get(name)]
    if unlike:
        # Another task explains all settings that differ.
        named = unlike[:1] if unlike[0] == "task" else unlike[:5]
        got, expected = (", ".join(f"{n}={each.get(n)}" for n in named) for each in made[::-1])
        raise StatisticsError(
            "the evaluations were made in different scenes", got=got, expected=expected
        )
