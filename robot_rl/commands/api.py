"""Python API for notebooks: policies, episodes, replay and statistics; see docs/api.md.

`robot_rl` exports the public names of this module.
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
    """A policy that acts in one episode at a time, as in `robot-rl evaluate`.

    Attributes:
        task: Name of the task that it was trained on.
        control_rate_hz: Control rate of its actions.
        action_names: One name per action column.
        observation: Name → number of values of each observation it needs, including camera pixels.
    """

    def __init__(self, behaviour: Behaviour) -> None:
        from policies.runner import PolicyRunner  # late import: loads torch

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
        """Start an episode: plans draw noise from the seed (>= 0) and follow the instruction."""
        if not isinstance(seed, int | np.integer) or seed < 0:
            raise PolicyError(
                "the seed of an episode cannot be used", got=seed, expected="a whole number >= 0"
            )
        self._runner.reset(seeds=[seed], instructions=[instruction])
        self._is_reset = True

    def act(self, observation: Observation) -> npt.NDArray[np.float32]:
        """Return the action, float32 (d,) in [-1, 1], for an observation.

        The observation is the environment's dict: numbers (k,) float32, images (H, W, 3) uint8, by
        name. `PolicyError` if `reset` was not called, or the observation is not a dict or lacks an
        entry.
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
        path: A run; `latest`, the latest run in `runs/` with a policy; or a run's checkpoint.
        which: For a run: the `deployed`, `cloned` or `learned` policy.
        env: A robot_rl environment to check the policy against, or None.

    Raises:
        PolicyError: It was made for a task, rate, action or observation that `env` does not have.
        RobotRLError: It does not exist, is damaged, or its class is not in the registry.
    """
    from robot_rl.data.policy_columns import check_fit  # late import: loads torch

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
        path: A dataset, a LeRobot dataset that robot_rl exported, a replay store, or a run. For a
            run: its store or, if it has none, its demonstrations or random actions.

    Yields:
        Episodes: `rows` is a structured array (T + 1,) with one name per field, as in
        `rows["action"]`. `success`, `seed`, `instruction` and `source` are attributes.

    Raises:
        RobotRLError: There is no such path, or it is damaged.
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
    """Return a row of zeros with all fields of a schema."""
    return {f.name: np.zeros(f.shape, f.dtype)[()] for f in schema.fields}


@contextmanager
def serve_replay(folder: str | Path) -> Iterator[str]:
    """Serve a store, new or existing, from a thread of this process while the context lasts.

    Yields the server's address; `StoreError` if the store cannot be opened. A run starts its own
    server; `ReplayClient` takes the folder `RUN/store` as that server's address.
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
    """Draw mini-batches from a store; `sample()` returns one, as `SampleSpec` describes it.

    A store's folder is read in place. With a replay server's address, the rows are first copied to
    the system's temporary folder while the context lasts. All draws use the seed.

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
    """Compare two evaluations on their shared scenes (seeds) with an exact sign test.

    Args:
        first: A file from `robot-rl evaluate` or `train`, such as RUN/evaluations.jsonl; its last
            evaluation counts. Without `second`: RUN/compare.jsonl; its last comparison counts.
        second: The other evaluation file.

    Returns:
        `won` and `lost`, the scenes that only the second or only the first solved; `chance`, the
        probability of a difference this large between equally good policies.

    Raises:
        StatisticsError: A file holds no evaluation, or they share no scene: their tasks, task
            settings, domains, robots or seeds differ.
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
    """Raise `StatisticsError` if a seed is not the same scene in two evaluations."""
    if before.task is None or after.task is None:
        raise StatisticsError(
            "an evaluation by an older version does not say in which scenes it was made",
            hint="make it again: robot-rl evaluate RUN; it is added to RUN/evaluate.jsonl",
        )
    made = [{"task": r.task, "domain": r.domain, **r.scenes} for r in (before, after)]
    unlike = [name for name in {**made[0], **made[1]} if made[0].get(name) != made[1].get(name)]
    if unlike:
        # A different task explains all other differences.
        named = unlike[:1] if unlike[0] == "task" else unlike[:5]
        got, expected = (", ".join(f"{n}={each.get(n)}" for n in named) for each in made[::-1])
        raise StatisticsError(
            "the evaluations were made in different scenes", got=got, expected=expected
        )
