"""Rows in which a demonstration's progress falls are found, and are not cloned."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny_runs import TINY, lines

from robot_rl import cli
from robot_rl.config import Settings, compose
from robot_rl.data.episodes import EpisodeDataset, EpisodeWriter
from robot_rl.data.schema import SOURCE_DEMONSTRATION
from robot_rl.errors import RobotRLError
from robot_rl.extras.zoo.curated_clone import HLGauss, falling_segments
from robot_rl.learning.recipe import Recipe
from robot_rl.replay.row_sources import EpisodeRows
from robot_rl.replay.sampler import Sampler
from robot_rl.replay.windows import SampleSpec

DEMONSTRATED = "runs/latest/demonstrations.zarr"
AWAY = 8  # steps by which a demonstration goes back on its way


def gaussian_shares(value, edges, sigma):
    """The share of a Gaussian in each bin, by a sum over many points of its density."""
    points = torch.linspace(float(edges[0]), float(edges[-1]), 200_001, dtype=torch.float64)
    density = torch.exp(-0.5 * ((points - value) / sigma) ** 2)
    bins = torch.bucketize(points, edges.double()) - 1
    shares = torch.zeros(len(edges) - 1, dtype=torch.float64)
    shares.index_add_(0, bins.clamp(0, len(shares) - 1), density)
    return shares / shares.sum()


@pytest.mark.parametrize("value", [0.0, 0.1234, 0.5, 1.0])
def test_hl_gauss_spreads_a_value_as_a_gaussian_with_its_mean(value):
    value_head = HLGauss()
    shares = value_head.encoded(torch.tensor([value]))[0]
    sigma = 0.75 * float(value_head.edges[1] - value_head.edges[0])
    expected = gaussian_shares(value, value_head.edges, sigma)
    torch.testing.assert_close(shares.double(), expected, atol=1e-3, rtol=0)
    assert float(shares @ value_head.support) == pytest.approx(value, abs=1e-4)


def test_a_segment_goes_from_a_top_until_the_fall_is_made_up_for():
    rising = np.linspace(0.2, 0.6, 20)
    progress = np.concatenate([rising, np.linspace(0.6, 0.3, 8), np.linspace(0.3, 1.0, 20)])
    ((top, end),) = falling_segments(progress, fall=0.2, window=20)
    assert top == pytest.approx(20, abs=2)
    assert progress[end] == pytest.approx(0.4, abs=0.05)
    ((_, soon),) = falling_segments(progress, fall=0.2, window=8)
    assert 27 <= soon <= 29
    assert falling_segments(progress, fall=0.5, window=10) == []


@pytest.mark.parametrize("rows", [1, 3, 50])
def test_nothing_falls_in_a_demonstration_that_only_rises(rows):
    assert falling_segments(np.linspace(0.2, 0.9, rows), fall=0.01, window=12) == []


def test_a_batch_holds_no_action_that_is_left_out():
    """Neither where a chunk begins nor further on in it; the sampler gives all others."""
    actions = np.arange(20, dtype=np.float32)[:, None]
    out = np.isin(np.arange(20), [0, 5, 6, 7, 12])
    rows = EpisodeRows({"action": actions}, [10, 20], left_out=out)
    kept = [row for row in range(20) if not out[row] and row not in (9, 19)]
    assert rows.indices.tolist() == kept
    spec = SampleSpec(
        ("action",), 256, demonstration_share=1.0, chunk_fields=("action",), chunk_steps=4
    )
    batch = Sampler(rows, spec, np.random.default_rng(0)).sample()
    assert set(batch["action"].ravel().astype(int)) == set(kept)
    chunks, valid = batch["chunk/action"][..., 0].astype(int), batch["chunk/valid"]
    assert not np.isin(chunks, np.flatnonzero(out))[valid].any()
    assert valid[chunks[:, 0] == 4].sum(1).max() == 1
    assert valid[chunks[:, 0] == 1].sum(1).max() == 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A working directory with a run that has demonstrations."""
    folder = tmp_path_factory.mktemp("recorded")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert cli.main(["collect", *TINY]) == 0
    return folder


@pytest.fixture
def with_detours(folder):
    """Demonstrations of which the second goes back on its way, and where it does so."""
    given = EpisodeDataset(folder / DEMONSTRATED)
    path, detour = folder / "detours.zarr", None
    with EpisodeWriter(path, given.schema) as writer:
        for index, seed in enumerate(given.seeds.tolist()):
            columns = given.episode(index)
            count = len(columns["action"])
            order = list(range(count))
            if index == 1:
                ahead = count - 2
                back = range(ahead - 1, ahead - 1 - AWAY, -1)
                order = [*range(ahead), *back, *range(back[-1], count)]
                detour = ahead, ahead + AWAY
            rows = [{name: column[at] for name, column in columns.items()} for at in order]
            writer.append(rows, seed=seed, success=True, source=SOURCE_DEMONSTRATION)
    return path, detour


@pytest.mark.slow
def test_a_way_back_is_found_and_said(folder, with_detours, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    path, (begin, end) = with_detours
    stage = "recipe.stages.clone"
    words = ("recipe=curated", f"{stage}.updates=300", f"{stage}.fall=0.1", "cloning.updates=5")
    assert cli.main(["pretrain", *TINY, f"dataset={path}", *words]) == 0
    found = lines(folder / "runs/latest/curation.jsonl")
    assert [record["episode"] for record in found] == [0, 1, 2, 3]
    assert [bool(record["left_out"]) for record in found] == [False, True, False, False]
    ((top, bottom),) = found[1]["left_out"]
    assert top == pytest.approx(begin, abs=3)
    assert bottom == pytest.approx(end, abs=4)
    total = sum(record["rows"] for record in found)
    said = f"left out {bottom - top} of {total} rows of 4 demonstrations, in 1 of which"
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("fall=2", "'fall' is out of range"),
        ("updates=0", "'updates' is out of range"),
    ],
)
def test_impossible_settings_are_refused_before_anything_is_made(words, problem):
    config = compose(["recipe=curated", f"recipe.stages.clone.{words}"])
    with pytest.raises(RobotRLError, match=problem):
        Recipe(Settings.of(config))
