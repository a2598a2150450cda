"""A vision-language-action policy around a tiny π0 that the tests make and save."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch
from safetensors.torch import load_file, save_file
from untrained_policy import untrained_residual

from policies import checkpoint
from policies.behaviour import Behaviour, Interface
from policies.checkpoint import StoredBase
from policies.columns import INSTRUCTION, INSTRUCTION_FEATURES
from policies.errors import PolicyError
from policies.networks import seeded
from policies.runner import PolicyRunner
from policies.vla import resized_with_padding
from policies.vla_pi0 import PI0, byte_tokenizer, create, make_model, tiny_config
from robot_rl.learning.algorithms.actor_critic import single_step_encoder
from robot_rl.learning.algorithms.behavior_cloning import CloningOptions, fit

KEYS = {"state/relative": 3, "state/velocity": 2}
CAMERA = "images/front"
ACTIONS = tuple("xyz")
RED, BLUE = "go to the red one", "go to the blue one"
SMALL = {
    "width": 16,
    "layers": 1,
    "heads": 2,
    "state_width": 6,
    "action_width": 4,
    "image_size": 16,
}
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model folder as `save_pretrained` writes it, with its tokeniser."""
    path = tmp_path_factory.mktemp("pi0")
    make_model(tiny_config(**SMALL), seed=3).save_pretrained(path)
    (path / "tokenizer.json").write_bytes(byte_tokenizer())
    return path


def observations(count, seed=0):
    source = np.random.default_rng(seed)
    seen = {name: source.normal(size=(count, w)).astype("f4") for name, w in KEYS.items()}
    seen[CAMERA] = source.integers(0, 256, (count, 16, 16, 3), np.uint8)
    return seen


def policy(folder, mode="full", cameras=("front",), width=3, seed=0, keys=KEYS, **options):
    arrays = observations(50)
    source = np.random.default_rng(1)
    arrays["action"] = source.uniform(-0.8, 0.8, (50, width)).astype("f4")
    arrays["state/many"] = source.normal(size=(50, 5)).astype("f4")
    options = {
        "path": str(folder),
        "tokenizer": None,
        "dtype": "float32",
        "horizon": 5,
        "observation_steps": 1,
        "tuning": {"mode": mode, "rank": 2, "alpha": 2.0},
        "instruction_tokens": 24,
        "cameras": cameras,
        "steps": 3,
        **options,
    }
    return create(arrays, keys, generator=seeded(seed), **options)


def batch(count=6, horizon=5, texts=(RED, BLUE)):
    windows = {name: value[:, None] for name, value in observations(count, 2).items()}
    source = np.random.default_rng(4)
    windows["action"] = source.uniform(-1, 1, (count, horizon, 3)).astype("f4")
    windows["valid"] = np.ones((count, horizon), np.bool_)
    windows[INSTRUCTION] = np.array([[texts[i % len(texts)]] for i in range(count)])
    return windows


def planned(vla, seed=0):
    noise = torch.randn((6, *vla.noise_shape), generator=seeded(seed))
    with torch.inference_mode():
        return vla.plan(batch(), noise).actions


def behaviour(vla, execute_steps=2):
    return Behaviour(vla, Interface("pick", 10.0, ACTIONS), execute_steps)


def trained(vla, updates=1):
    losses, options = [], CloningOptions(warm_up=1, updates=updates)
    averaged = fit(vla, batch, options, seeded(0), lambda _, loss: losses.append(loss))
    return averaged, losses


def differing(before, after):
    return {name for name in after if not torch.equal(before[name], after[name])}


def snapshot(module):
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def test_a_plan_is_that_of_the_model_itself(folder):
    vla = policy(folder, width=3)
    model = vla.backbone.model
    seen, noise = batch(), torch.randn((6, *vla.noise_shape), generator=seeded(0))
    tokens, mask = vla.tokenizer([RED, BLUE] * 3)
    count = (16 // 8) ** 2
    pixels = torch.from_numpy(seen[CAMERA]).permute(0, 1, 4, 2, 3) / 127.5 - 1
    with torch.inference_mode():
        state = torch.nn.functional.pad(vla.encoder(seen), (0, 1))
        expected = model.sample_actions(
            state=state,
            input_ids=torch.cat([tokens.new_full((6, count), 257), tokens], 1),
            pixel_values=pixels,
            attention_mask=torch.cat([mask.new_ones(6, count), mask], 1).long(),
            pixel_attention_mask=torch.ones(6, 1, dtype=torch.bool),
            noise=noise,
            num_steps=3,
        )
        vla.action_dimension = 4  # all columns: a padded one takes another path
        vla.action_normalizer = torch.nn.Identity()
        vla.action_normalizer.denormalize = lambda values: values
        got = vla.plan(seen, noise).actions
    assert torch.allclose(got, expected.clamp(-1, 1), atol=1e-5)
    assert not torch.allclose(got[0], got[1], atol=1e-3)


def test_the_loss_is_that_of_the_model_itself(folder):
    vla = policy(folder, cameras=())
    seen = batch()
    source = seeded(7)
    noise = torch.randn((6, *vla.noise_shape), generator=source)
    time = 0.999 * torch.rand(6, generator=source) ** (1 / 1.5) + 0.001
    action = vla.action_normalizer.normalize(torch.from_numpy(seen["action"]))
    action = torch.nn.functional.pad(action, (0, 1))
    with torch.no_grad():
        tokens, mask = vla.tokenizer([RED, BLUE] * 3)
        prompt = vla.backbone.prompt(tokens, mask, None)
        output = vla.backbone.model(
            state=torch.nn.functional.pad(vla.encoder(seen), (0, 1)),
            noise=noise,
            timestep=time,
            actions=action,
            attention_mask=prompt.mask,
            past_key_values=prompt.cache,
        )
        velocity = output.logits[..., :3]
        expected = (velocity - (noise - action)[..., :3]).square().mean()
        assert torch.allclose(vla.loss(seen, seeded(7)), expected, rtol=1e-5)
        assert torch.allclose(output.loss, (output.logits - (noise - action)).square().mean())


def test_steps_behind_the_end_of_an_episode_are_not_imitated(folder):
    vla = policy(folder)
    seen = batch()
    with torch.no_grad():
        whole = float(vla.loss(seen, seeded(0)))
        seen["valid"][:, 2:] = False
        assert float(vla.loss(seen, seeded(0))) != whole
        seen["valid"][:] = False
        assert float(vla.loss(seen, seeded(0))) == 0.0


def test_cloning_lowers_the_loss_of_what_was_shown(folder):
    vla = policy(folder)
    before = float(vla.loss(batch(), seeded(9)).detach())
    trained(vla, 40)
    assert float(vla.loss(batch(), seeded(9)).detach()) < before


@pytest.mark.parametrize("mode", ["full", "expert", "lora"])
def test_a_mode_trains_its_parameters_and_no_other(folder, mode):
    vla = policy(folder, mode)
    before = snapshot(vla)
    averaged, _ = trained(vla, 2)  # the adapters' second factor begins at zero
    projections = ("embed_action_time.", "action_out_proj.")
    wanted = {
        "full": lambda name: name.startswith("backbone."),
        "expert": lambda name: ".dit." in name or any(p in name for p in projections),
        "lora": lambda name: ".lora_" in name or any(p in name for p in projections),
    }[mode]
    expected = {name for name, _ in vla.named_parameters() if wanted(name)}
    # What the model computes without: the last layer's output of the prompt is not used.
    unused = {n for n in expected if vla.get_parameter(n).grad is None}
    still = expected - differing(before, snapshot(vla))
    assert still <= unused
    assert differing(before, snapshot(vla)) <= expected
    assert len(unused) < len(expected) / 2
    if mode == "lora":
        assert any(".vlm.language_model." in name for name in expected)
        assert not any("vision_tower" in name for name in expected)
    for name, parameter in vla.named_parameters():
        assert (averaged.get_parameter(name) is parameter) == (name not in expected)


def test_adapters_begin_as_the_model_itself(folder):
    assert torch.equal(planned(policy(folder, "lora")), planned(policy(folder, "full")))


@pytest.mark.parametrize(
    ("mode", "dtype"), [("full", "float32"), ("expert", "bfloat16"), ("lora", "bfloat16")]
)
def test_a_checkpoint_acts_bit_identically_and_needs_no_other_file(folder, mode, dtype, tmp_path):
    copied = shutil.copytree(folder, tmp_path / "model")
    vla = policy(copied, mode, dtype=dtype)
    trained(vla)
    checkpoint.save(tmp_path / "policy", behaviour(vla))
    shutil.rmtree(copied)
    state = torch.get_rng_state()
    loaded = checkpoint.load(tmp_path / "policy").policy
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(planned(loaded), planned(vla))
    assert loaded.observation == {**KEYS, CAMERA: 16 * 16 * 3}


def test_what_lora_trains_moves_by_less_than_bfloat16_resolves(folder):
    vla = policy(folder, "lora", dtype="bfloat16")
    before = snapshot(vla)
    averaged, losses = trained(vla, updates=3)
    assert all(torch.isfinite(loss) for loss in losses)
    for parameter in vla.parameters():
        assert parameter.dtype == (torch.float32 if parameter.requires_grad else torch.bfloat16)
    projections = [name for name in before if "action_out_proj" in name]
    for name in projections:
        for moved in (snapshot(vla)[name], snapshot(averaged)[name]):
            assert (moved[:3] != before[name][:3]).float().mean() > 0.9  # the fourth is padding
    assert torch.isfinite(planned(vla)).all()


def test_one_seed_gives_one_policy_and_leaves_the_global_generator(folder):
    state = torch.get_rng_state()
    first, second = (policy(folder, "lora", seed=5) for _ in range(2))
    assert torch.equal(state, torch.get_rng_state())
    assert not differing(snapshot(first), snapshot(second))
    other = policy(folder, "lora", seed=6)
    assert {n.split(".")[-3] for n in differing(snapshot(first), snapshot(other))} == {"lora_A"}


def run(vla, texts, seeds, steps=5):
    runner = PolicyRunner(behaviour(vla, 2), len(texts))
    runner.reset(seeds=seeds, instructions=texts)
    recording = observations(steps * len(texts), 8)
    recording = {n: v.reshape(steps, len(texts), *v.shape[1:]) for n, v in recording.items()}
    acted = [runner.act({n: v[t] for n, v in recording.items()}) for t in range(steps)]
    return acted, recording


@pytest.mark.parametrize("cameras", [(), ("front",)])
def test_chunks_follow_the_instruction_of_their_slot(folder, cameras):
    vla = policy(folder, cameras=cameras)
    acted, recording = run(vla, [RED, BLUE, RED], [1, 1, 2])
    assert [int(a.chunk_index[0]) for a in acted] == [0, 1, 0, 1, 0]
    same = {n: np.repeat(v[0, :1], 3, 0) for n, v in recording.items()}
    texts = [RED, BLUE, RED]
    runner = PolicyRunner(behaviour(vla), 3)
    runner.reset(seeds=[1, 1, 1], instructions=texts)
    action = runner.act(same).action
    assert np.abs(action[0] - action[1]).max() > 1e-4
    for slot, text in enumerate(texts):
        alone = PolicyRunner(behaviour(vla))
        alone.reset(seeds=[1], instructions=[text])
        own = alone.act({name: value[:1] for name, value in same.items()}).action[0]
        np.testing.assert_allclose(action[slot], own, atol=1e-5)


def test_labels_are_what_the_runner_would_have_proposed(folder):
    vla = policy(folder)
    acted, recording = run(vla, [BLUE], [4])
    labels = PolicyRunner(behaviour(vla, 2)).label(
        {n: v[:, 0] for n, v in recording.items()}, 4, BLUE
    )
    np.testing.assert_allclose(labels, np.concatenate([a.base_action for a in acted]), atol=1e-5)


def test_a_new_residual_on_a_vla_is_that_vla(folder):
    vla = policy(folder)
    residual = untrained_residual(single_step_encoder(vla), vla)
    assert behaviour(residual).observation == behaviour(vla).observation
    mine, _ = run(residual, [RED], [1])
    base, _ = run(vla, [RED], [1])
    for one, other in zip(mine, base, strict=True):
        assert np.array_equal(one.action, other.action)  # a new residual is zero


def test_a_residual_on_a_vla_knows_which_instruction_is_meant(folder):
    vla = policy(folder)
    residual = untrained_residual(single_step_encoder(vla), vla)
    first, recording = run(residual, [RED, BLUE, RED], [1, 2, 3])
    told = first[0].features[INSTRUCTION_FEATURES]
    assert np.array_equal(told[0], told[2])
    assert not np.array_equal(told[0], told[1])
    assert set(np.unique(told)) == {-1.0, 1.0}
    with torch.inference_mode():
        seen = {name: value[0] for name, value in recording.items()} | first[0].features
        encoded = residual.encoder(seen)
    assert not torch.equal(encoded[0, -16:], encoded[1, -16:])
    assert np.array_equal(encoded[:, -16:].numpy(), told)


def test_a_large_base_is_referred_to_and_not_repeated(folder, tmp_path):
    vla = policy(folder)
    residual = untrained_residual(single_step_encoder(vla), vla, hidden=[8])
    checkpoint.save(tmp_path / "bc/policy", behaviour(vla))
    base = StoredBase(vla, checkpoint.checksum(tmp_path / "bc/policy"))
    whole, apart = (checkpoint.to_bytes(behaviour(residual), b) for b in (None, base))
    weights = sum(tensor.nbytes for tensor in vla.state_dict().values())
    assert len(whole) - len(apart) > weights
    expected, _ = run(residual, [RED], [1])
    checkpoint.save(tmp_path / "step/policy", behaviour(residual), base, "../../bc/policy")
    received = checkpoint.from_bytes(apart, base=lambda: StoredBase.load(tmp_path / "bc/policy"))
    for loaded in (received, checkpoint.load(tmp_path / "step/policy")):
        acted, _ = run(loaded.policy, [RED], [1])
        assert np.array_equal(acted[-1].action, expected[-1].action)
    alone = checkpoint.from_bytes(checkpoint.to_bytes(behaviour(vla), base), base=lambda: base)
    assert alone.policy is vla
    with pytest.raises(PolicyError, match="stored apart; got: no base; expected: "):
        checkpoint.from_bytes(apart)
    checkpoint.save(tmp_path / "other", behaviour(policy(folder, width=3, steps=4)))
    with pytest.raises(PolicyError, match=r"another base; got: .*checksum .*; expected: .*next: "):
        checkpoint.from_bytes(apart, base=lambda: StoredBase.load(tmp_path / "other"))


def damaged(folder, tmp_path, change):
    copied = Path(shutil.copytree(folder, tmp_path / "model"))
    tensors = load_file(copied / WEIGHTS)
    change(tensors)
    save_file(tensors, copied / WEIGHTS, {"format": "pt"})
    return copied


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("action_out_proj.bias"), "1 missing: action_out_proj.bias"),
        (
            lambda t: t.update({"action_head.bias": torch.zeros(3)}),
            "1 unexpected: action_head.bias",
        ),
        (
            lambda t: t.update({"action_out_proj.bias": torch.zeros(7)}),
            "1 of another shape: action_out_proj.bias",
        ),
    ],
)
def test_weights_that_are_not_the_models_are_refused(folder, tmp_path, change, message):
    with pytest.raises(PolicyError, match=message):
        policy(damaged(folder, tmp_path, change))


def test_folders_that_hold_no_model_are_refused(folder, tmp_path):
    with pytest.raises(PolicyError, match=r"no π0 can be loaded.*next: name it with policy.path"):
        policy(tmp_path)
    with pytest.raises(PolicyError, match=r"no weights; got: policy\.path=null"):
        policy(folder, path=None)
    copied = Path(shutil.copytree(folder, tmp_path / "model"))
    torch.save(load_file(copied / WEIGHTS), copied / "pytorch_model.bin")
    (copied / WEIGHTS).unlink()
    with pytest.raises(PolicyError, match=r"no π0 can be loaded.*safetensors"):
        policy(copied)
    copied = Path(shutil.copytree(folder, tmp_path / "untold"))
    (copied / "tokenizer.json").unlink()
    with pytest.raises(PolicyError, match=r"tokenizer.json cannot be read.*next: .*tokenizer=PATH"):
        policy(copied)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"keys": {**KEYS, "state/many": 5}},
            "state is wider.*got: 10 columns; expected: at most 6",
        ),
        ({"width": 5}, "action is wider.*got: 5 columns; expected: at most 4"),
        ({"dtype": "float8"}, "unknown dtype.*got: float8"),
        ({"mode": "some"}, "unknown tuning mode; got: some"),
        ({"cameras": ("wrist",)}, r"lack the camera 'images/wrist'; got: \['images/front'\]"),
        ({"steps": 0}, "flow steps is out of range; got: 0"),
    ],
)
def test_what_does_not_fit_the_model_is_refused(folder, options, message):
    with pytest.raises(PolicyError, match=message):
        policy(folder, **options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop(INSTRUCTION), "lacks the instruction"),
        (lambda s: s.update({INSTRUCTION: np.array([""] * 6)}), "no instruction; got: ''"),
        (lambda s: s.update({INSTRUCTION: np.array(["x" * 40] * 6)}), "got: 42 tokens; .*=24"),
        (lambda s: s.pop(CAMERA), "lacks the camera 'images/front'"),
        (
            lambda s: s.update({CAMERA: np.zeros((6, 1, 8, 8, 3), np.uint8)}),
            r"another size; got: \(8, 8, 3\); expected: \(16, 16, 3\)",
        ),
        (lambda s: s.pop("state/velocity"), "lacks 'state/velocity'"),
    ],
)
def test_observations_that_do_not_fit_are_refused(folder, change, message):
    vla = policy(folder)
    seen = batch()
    change(seen)
    with pytest.raises(PolicyError, match=message):
        vla.plan(seen, torch.zeros(6, *vla.noise_shape))


def test_an_episode_without_instruction_is_refused(folder):
    runner = PolicyRunner(behaviour(policy(folder)))
    runner.reset(seeds=[0])
    with pytest.raises(PolicyError, match=r"no instruction; got: ''; expected: .*; next: "):
        runner.act(observations(1))
    with pytest.raises(PolicyError, match="one instruction per slot"):
        runner.reset(seeds=[0], instructions=[])


def test_the_published_form_of_a_tokeniser_is_understood(folder, tmp_path):
    """Its image token is one past the embedded ones, and it adds no begin token by itself."""
    config = tiny_config(**SMALL)
    config["vlm_config"]["text_config"]["vocab_size"] = config["vlm_config"]["image_token_id"]
    make_model(config, seed=3).save_pretrained(tmp_path)
    tokenizer = tokenizers.Tokenizer.from_buffer(byte_tokenizer())
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single="$A")
    tokenizer.add_special_tokens(["<image>"])
    assert tokenizer.token_to_id("<image>") == config["vlm_config"]["image_token_id"]
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_str())
    vla = policy(tmp_path)
    ids, _ = vla.tokenizer([RED])
    expected, _ = policy(folder).tokenizer([RED])
    assert torch.equal(ids, expected)
    assert int(ids[0, 0]) == 0
    assert torch.isfinite(planned(vla)).all()
    with pytest.raises(PolicyError, match="token that is no text; got: <image>"):
        vla.tokenizer(["take the <image>"])


def test_a_tokeniser_without_a_begin_token_is_refused(folder, tmp_path):
    model = tokenizers.models.WordLevel({"go": 0, "[UNK]": 1}, unk_token="[UNK]")
    shutil.copytree(folder, tmp_path / "model")
    (tmp_path / "model/tokenizer.json").write_text(tokenizers.Tokenizer(model).to_str())
    with pytest.raises(PolicyError, match="no begin token; expected: <bos>"):
        policy(tmp_path / "model").tokenizer(["go"])


REFERENCE = Path(__file__).parent / "lerobot_pi0.safetensors"
_TABLE = "model.paligemma_with_expert.paligemma.model.language_model.embed_tokens.weight"
_HEAD = "model.paligemma_with_expert.paligemma.lm_head.weight"


@pytest.mark.parametrize("stored", [(_TABLE, _HEAD), (_TABLE,), (_HEAD,)], ids=len)
def test_weights_in_the_layout_of_lerobot_plan_as_lerobot_does(stored, folder, tmp_path):
    """The reference holds random weights, and what LeRobot 0.6.2 plans with them in 3 steps."""
    reference = load_file(REFERENCE)
    weights = {n.removeprefix("weights/"): t for n, t in reference.items() if "/" in n}
    table = weights[_TABLE]
    weights = {name: t for name, t in weights.items() if name not in (_TABLE, _HEAD)}
    # Beside the table a head is what was left of it before the fine-tuning: it is not read.
    weights |= {name: table if name == stored[0] else table + 1.0 for name in stored}
    path = shutil.copytree(folder, tmp_path / "model")
    save_file(weights, path / WEIGHTS, metadata={"format": "pt"})
    backbone = PI0.load(str(path), "float32", 8)
    with torch.inference_mode():
        prompt = backbone.prompt(
            reference["tokens"], reference["masks"].long(), reference["images"][:, None]
        )
        plan, time = reference["noise"], torch.ones(3)
        for _ in range(3):
            plan = plan - backbone.velocity(prompt, reference["state"], plan, time) / 3
            time = time - 1 / 3
    torch.testing.assert_close(plan, reference["out"], rtol=1e-5, atol=1e-4)


# Shape → rows and columns of the picture in 224 × 224, as openpi and LeRobot 0.6.2 place it.
PLACES = {
    (181, 320): (49, 175, 0, 224),
    (360, 641): (49, 174, 0, 224),
    (225, 225): (0, 223, 0, 223),
    (246, 239): (0, 223, 3, 220),
    (100, 37): (0, 224, 71, 153),
    (480, 640): (28, 196, 0, 224),
}


@pytest.mark.parametrize("shape", PLACES)
def test_a_picture_is_placed_as_pi0_was_trained(shape):
    placed = resized_with_padding(torch.ones(1, 3, *shape), 224)[0, 0]
    top, bottom, left, right = PLACES[shape]
    expected = torch.full((224, 224), -1.0)
    expected[top:bottom, left:right] = 1.0
    torch.testing.assert_close(placed, expected)
