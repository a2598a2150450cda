"""Critics against networks evaluated one by one."""

from itertools import pairwise

import pytest
import torch
from algorithm_examples import make
from torch import nn

from policies.critics import CriticEnsemble, prefers
from policies.networks import seeded


def ensemble(heads=4, inputs=5, hidden=(16, 8), seed=0):
    critics = CriticEnsemble(inputs, hidden, heads, seeded(seed))
    with torch.no_grad():
        for bias in critics.network.biases:
            bias.normal_(generator=seeded(seed + 1))
    return critics


def one_by_one(critics, head):
    """An ordinary MLP with LayerNorm and the weights of one head."""
    widths = [
        critics.network.weights[0].shape[1],
        *[weight.shape[2] for weight in critics.network.weights],
    ]
    layers = []
    for index, (fan_in, fan_out) in enumerate(pairwise(widths)):
        linear = nn.Linear(fan_in, fan_out)
        with torch.no_grad():
            linear.weight.copy_(critics.network.weights[index][head].T)
            linear.bias.copy_(critics.network.biases[index][head, 0])
        layers.append(linear)
        if index < len(widths) - 2:
            layers += [nn.LayerNorm(fan_out), nn.ReLU()]
    return nn.Sequential(*layers)


@pytest.mark.parametrize(("heads", "hidden"), [(1, (8,)), (4, (16, 8)), (10, (6, 6, 6))])
def test_an_ensemble_is_its_heads_evaluated_one_by_one(heads, hidden):
    critics = ensemble(heads, hidden=hidden)
    features = torch.randn(7, 5, generator=seeded(2), requires_grad=True)
    values = critics(features)
    singles = torch.stack([one_by_one(critics, head)(features)[:, 0] for head in range(heads)])
    assert values.shape == (heads, 7)
    torch.testing.assert_close(values, singles)
    mine = torch.autograd.grad(values.sum(), features)[0]
    theirs = torch.autograd.grad(singles.sum(), features)[0]
    torch.testing.assert_close(mine, theirs)


def test_heads_are_drawn_independently_and_from_the_seed():
    critics = CriticEnsemble(5, (16, 8), 4, seeded(0))
    values = critics(torch.randn(7, 5, generator=seeded(2)))
    assert len({tuple(row) for row in values.tolist()}) == 4
    again = CriticEnsemble(5, (16, 8), 4, seeded(0))
    for one, other in zip(critics.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_loss_of_one_head_moves_no_other():
    critics = ensemble()
    critics(torch.randn(7, 5, generator=seeded(2)))[1].square().sum().backward()
    for parameter in critics.parameters():
        assert parameter.grad[1].abs().sum() > 0
        assert parameter.grad[[0, 2, 3]].abs().sum() == 0


def critics_of(**settings):
    changes = [(f"settings.{n}", v) for n, v in {"critic_heads": 4, **settings}.items()]
    return make("rlpd", changes=changes).critics


def test_a_subset_is_random_and_has_no_head_twice():
    critics, generator = critics_of(target_heads=2), seeded(0)
    counts = {(i, j): 0 for i in range(4) for j in range(i)}
    for _ in range(200):
        drawn = critics.target_heads(generator)
        counts[max(drawn).item(), min(drawn).item()] += 1
    assert min(counts.values()) > 100 / len(counts)
    inputs = torch.randn(7, critics.network.config["inputs"], generator=seeded(2))
    assert torch.equal(critics.target(inputs, drawn), critics.target(inputs)[drawn])
    for every in (0, 4):
        assert critics_of(target_heads=every).target_heads(generator) is None


def test_what_has_the_greater_mean_of_the_heads_is_preferred():
    gains = torch.tensor([[1.0, 0.1, -0.3], [0.3, -0.1, -0.5], [0.0, 0.0, 0.0]]).T
    assert prefers(gains, torch.zeros(3, 3)).tolist() == [True, False, False]


def test_critics_learn_the_mean_of_noisy_returns():
    critics = CriticEnsemble(1, (32,), 2, seeded(0))
    inputs = torch.tensor([[-1.0], [1.0]]).repeat(64, 1)
    assert float(critics(inputs).abs().max()) < 0.6  # nothing looks good yet
    optimizer, generator = torch.optim.Adam(critics.parameters(), 0.01), seeded(1)
    for _ in range(400):
        hit = torch.rand(128, generator=generator) < torch.tensor([0.2, 0.7]).repeat(64)
        loss = (critics(inputs) - hit.float()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        assert all(parameter.grad.abs().sum() > 0 for parameter in critics.parameters())
        optimizer.step()
    torch.testing.assert_close(
        critics(inputs[:2]), torch.tensor([[0.2, 0.7]] * 2), atol=0.1, rtol=0
    )
