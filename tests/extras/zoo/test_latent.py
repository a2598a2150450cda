"""What rows keep of plans whose noise an actor has chosen."""

import numpy as np
import torch
from policy_examples import ACTIONS, behaviour, diffusion, observations
from zoo_policies import latent

from policies.improved import FallbackPolicy
from policies.runner import PolicyRunner
from robot_rl.data.policy_columns import stored_schema
from robot_rl.data.schema import Field, row_schema

EXECUTE, LATENT = 4, "plan/latent"


def at(recording, step):
    return {name: value[step : step + 1] for name, value in recording.items()}


def test_rows_carry_the_latent_where_a_plan_begins():
    policy = FallbackPolicy(latent(), diffusion())
    exploring = behaviour(policy, EXECUTE).exploring("sample")
    runner = PolicyRunner(exploring)
    runner.reset(seeds=[0])
    recording = observations(2 * EXECUTE)
    acted = [runner.act(at(recording, step)) for step in range(2 * EXECUTE)]
    latents = np.concatenate([each.features[LATENT] for each in acted])
    assert (np.abs(latents).max(1) > 0).tolist() == [each.chunk_index[0] == 0 for each in acted]
    assert np.abs(latents).max() <= 1.5
    steered = policy.policy
    seen = {name: value[None, [0, 0]] for name, value in recording.items()}
    with torch.no_grad():
        features = steered.encoder(seen)
        chunk = steered.chunks(features, torch.from_numpy(latents[:1]))[0].numpy()
    executed = np.concatenate([each.action for each in acted[:EXECUTE]])
    np.testing.assert_allclose(executed, chunk[:EXECUTE], atol=1e-5)


def test_rows_of_the_clone_alone_have_a_latent_of_zero():
    """So that all rows of a run have the same columns, demonstrations too."""
    parts = latent(), diffusion()
    steering = behaviour(FallbackPolicy(*parts), EXECUTE)
    held_back = behaviour(FallbackPolicy(*parts, enabled=False), EXECUTE)
    for acting, chooses in (
        (steering.exploring("base"), False),
        (steering.exploring("sample"), True),
        (steering, True),
        (held_back, False),
    ):
        runner = PolicyRunner(acting)
        runner.reset(seeds=[0])
        acted = runner.act(at(observations(2), 0))
        assert acted.features[LATENT].any() == chooses
        assert not runner.conclude(at(observations(2), 1)).features[LATENT].any()
    schema = row_schema("reach", [Field("state/relative", "float32", (3,))], ACTIONS, 10.0)
    stored = stored_schema(schema, steering)
    columns = steering.features({}, ["", ""])
    field = next(field for field in stored.fields if field.name == LATENT)
    assert columns[LATENT].shape == (2, *field.shape)
    assert stored.recorded == schema
