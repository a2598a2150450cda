"""The success classifier: what it learns, what it keeps on the disk, and what it refuses."""

import json

import numpy as np
import pytest
import torch
from reward_scenes import outcome

from policies.errors import PolicyError
from robot_rl.data.episodes import EpisodeDataset, EpisodeWriter
from robot_rl.data.schema import Field, row_schema
from robot_rl.learning.stages.reward import ClassifierTrainer, ClassifierTraining, score
from robot_rl.rewards.classifier import (
    Calibration,
    ClassifierReward,
    SuccessClassifier,
    TrainedClassifier,
)
from robot_rl.rewards.examples import Examples
from robot_rl.rewards.source import RewardError

HEIGHT, WIDTH = 16, 20
CAMERA = "images/front"
OPTIONS = ClassifierTraining(
    updates=60,
    batch_size=32,
    learning_rate=0.01,
    weight_decay=0.0,
    random_shift=1,
    brightness=0.1,
    frames_per_episode=8,
    validation_share=0.4,
    false_positive_frames=0.01,
    false_positive_episodes=0.02,
    threads=1,
)


def network(frames=1, seed=0):
    return SuccessClassifier(
        {CAMERA: (HEIGHT, WIDTH, 3)},
        frames,
        {"class": "policies.backbones.SmallConvolutional", "channels": [8, 16]},
        hidden=16,
        generator=torch.Generator().manual_seed(seed),
    )


def picture(rng, place):
    """A dark scene with a bright square in some column."""
    image = rng.integers(0, 40, (HEIGHT, WIDTH, 3), np.uint8)
    image[6:10, place : place + 4] = 220
    return image


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    """A square that moves to the right: half of the episodes reach the edge."""
    schema = row_schema("slide", [Field(CAMERA, "uint8", (HEIGHT, WIDTH, 3))], ["x"], 10.0)
    rng, path = np.random.default_rng(0), tmp_path_factory.mktemp("recorded") / "reward.zarr"
    with EpisodeWriter(path, schema) as writer:
        for index in range(20):
            success = index % 2 == 0
            places = [2, 5, 8, 11, 16, 16] if success else [2, 5, 8, 8, 11, 11]
            rows = []
            for step, place in enumerate(places):
                row = {f.name: np.zeros(f.shape, f.dtype) for f in schema.fields}
                row[CAMERA] = picture(rng, place)
                row["success"] = np.bool_(step < 5 and places[step + 1] == 16)
                row["is_last"] = np.bool_(step == 5)
                rows.append(row)
            writer.append(rows, seed=index, success=success, source=0)
    return Examples(EpisodeDataset(path))


def test_a_frames_label_is_the_success_of_the_action_that_led_to_it(recording):
    labels = recording.episode(0).labels
    assert labels.positive.tolist() == [False] * 4 + [True] * 2
    assert labels.negative.tolist() == [True] * 4 + [False] * 2
    assert not recording.episode(1).labels.succeeds


def test_the_split_keeps_episodes_whole_and_both_kinds_in_both_parts(recording):
    training, held_out = recording.split(0.3, np.random.default_rng(0))
    assert sorted([*training, *held_out]) == list(range(20))
    for part, count in ((training, 7), (held_out, 3)):
        assert sum(index % 2 == 0 for index in part) == count
        assert sum(index % 2 == 1 for index in part) == count
    with pytest.raises(RewardError, match="too few episodes that succeed"):
        recording.split(0.01, np.random.default_rng(0))


def test_several_frames_are_consecutive_and_begin_with_the_first(recording):
    episode = recording.episode(0)
    stacked = episode.stacked(np.array([0, 3]), 3)[CAMERA]
    assert stacked.shape == (2, 3, HEIGHT, WIDTH, 3)
    for row, wanted in zip(stacked, ([0, 0, 0], [1, 2, 3]), strict=True):
        np.testing.assert_array_equal(row, episode.images[CAMERA][wanted])


@pytest.mark.parametrize("frames", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_it_learns_what_success_looks_like(recording, frames):
    training, held_out = recording.split(0.4, np.random.default_rng(0))

    def trained():
        torch.set_num_threads(1)
        learner = network(frames)
        ClassifierTrainer(learner, recording, training, OPTIONS, seed=3).train()
        return learner

    learner = trained()
    scored = [score(learner, recording.episode(index)) for index in held_out]
    positive = np.concatenate([s.positives for s in scored])
    negative = np.concatenate([s.negatives for s in scored])
    assert positive.min() > negative.max()
    again = trained().state_dict()
    assert all(torch.equal(again[name], t) for name, t in learner.state_dict().items())


def test_what_is_saved_is_what_is_loaded_and_has_its_own_version(tmp_path):
    one = TrainedClassifier(network().eval(), Calibration(2.0, -1.0, 0.7), "slide")
    one.save(tmp_path)
    same = TrainedClassifier.load(tmp_path)
    assert (same.decision, same.task, same.version) == (one.decision, "slide", one.version)
    images = {CAMERA: np.random.default_rng(0).integers(0, 256, (3, 1, HEIGHT, WIDTH, 3), "u1")}
    np.testing.assert_array_equal(same.logits(images), one.logits(images))
    others = [
        TrainedClassifier(network().eval(), Calibration(2.0, -1.0, 0.8), "slide"),
        TrainedClassifier(network(seed=1).eval(), one.decision, "slide"),
    ]
    assert len({one.version, *(other.version for other in others)}) == 3
    assert one.version >= 1 << 16


@pytest.mark.parametrize("damage", ["absent", "cut", "other", "text"])
def test_a_folder_that_is_no_classifier_is_refused(tmp_path, damage):
    TrainedClassifier(network(), Calibration(), "slide").save(tmp_path)
    weights, text = tmp_path / "classifier.safetensors", tmp_path / "classifier.json"
    if damage == "absent":
        weights.unlink()
    elif damage == "cut":
        weights.write_bytes(weights.read_bytes()[:-10])
    elif damage == "other":
        content = json.loads(text.read_text())
        content["network"]["hidden"] = 8
        text.write_text(json.dumps(content))
    else:
        text.write_text("[]")
    with pytest.raises(RewardError, match=r"cannot be read.*train-reward"):
        ClassifierReward(str(tmp_path), 1, 0.0)


def test_as_a_reward_it_takes_frames_in_a_row_and_refuses_other_images(tmp_path):
    threshold = TrainedClassifier(network(), Calibration(), "slide")
    threshold.save(tmp_path)
    rng = np.random.default_rng(0)
    seen = [{CAMERA: picture(rng, place)} for place in (2, 16)]
    low, high = sorted(
        threshold.logits({CAMERA: np.stack([s[CAMERA] for s in seen])[:, None]}).tolist()
    )
    between = Calibration(threshold=float(Calibration().probability((low + high) / 2)))
    TrainedClassifier(threshold.network, between, "slide").save(tmp_path)
    source = ClassifierReward(str(tmp_path), 2, 0.0)
    bright = max(seen, key=lambda s: threshold.logits({CAMERA: s[CAMERA][None, None]})[0])
    source.reset(seen[0])
    verdicts = [source.judge(bright, outcome()) for _ in range(2)]
    assert [(v.reward, v.terminated) for v in verdicts] == [(0.0, False), (1.0, True)]
    with pytest.raises(RewardError, match="another size"):
        source.reset({CAMERA: np.zeros((8, 8, 3), np.uint8)})
    with pytest.raises(PolicyError, match="another size"):
        threshold.logits({CAMERA: np.zeros((1, 1, 8, 8, 3), np.uint8)})
