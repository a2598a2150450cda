"""A one-step student gives what its teacher's chain gives for the same noise."""

import json

import numpy as np
import pytest
import torch
from policy_examples import diffusion, flow, observations

from policies.networks import seeded, standard_normal
from policies.processes.base import build_process
from policies.processes.one_step import OneStep


@pytest.mark.parametrize("make", [diffusion, flow])
def test_a_student_learns_the_map_of_its_teacher(make):
    teacher = make().requires_grad_(False)
    process = OneStep.student(teacher.process)
    student = teacher.under(process)
    windows = {n: np.repeat(v[:, None], 2, 1) for n, v in observations(256).items()}
    features, generator = teacher.encoder(windows), seeded(1)
    noise = standard_normal((256, *teacher.noise_shape), features, seeded(2))

    def apart() -> float:
        with torch.no_grad():
            both = [policy.chunks(features, noise) for policy in (student, teacher)]
        return float((both[0] - both[1]).square().mean().sqrt())

    before = apart()
    optimizer = torch.optim.Adam(process.parameters(), 3e-3)
    for _ in range(150):
        loss = process.distillation_loss(teacher.process, features, generator)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert apart() < 0.5 * before
    assert all(parameter.grad is None for parameter in teacher.parameters())


def test_a_student_is_one_call_with_the_noise_of_its_teacher():
    teacher = diffusion().process
    process = OneStep.student(teacher)
    assert process.noise_shape == teacher.noise_shape
    assert process.steps == 1
    again = build_process(json.loads(json.dumps(process.config)), 20, seeded(3))
    again.load_state_dict(process.state_dict())
    features = torch.randn(4, 20, generator=seeded(4))
    noise = torch.randn(4, *process.noise_shape, generator=seeded(5))
    with torch.no_grad():
        chain = process.sample(features, noise)
        # An untrained student is the network's answer at the teacher's noisiest step.
        time = teacher.first_time[None]
        assert torch.equal(chain[:, 1], teacher.denoiser(noise[:, 0], time, features))
        assert torch.equal(again.sample(features, noise), chain)
