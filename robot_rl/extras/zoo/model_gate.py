"""`gate=ope`: off-policy evaluation with a learned dynamics model of chunks, and critics.

As in RL-100 and Uni-O4 (Lei et al. 2024, arXiv 2311.03351): a policy's value is the mean of Q along
the model's rollouts. Do not rely on its verdicts: see docs/recipes.md.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from policies.critics import CriticEnsemble
from policies.diffusion import DiffusionPolicy
from policies.networks import mlp, move_towards, standard_normal
from policies.policy import ChunkPolicy, Policy
from robot_rl.data.episodes import EpisodeDataset
from robot_rl.extras.zoo.implicit_q import expectile_loss
from robot_rl.learning.algorithms.base import AlgorithmError, Batch, check_settings
from robot_rl.learning.algorithms.training import Training, adam, encoded, step
from robot_rl.learning.demonstrations import fill_from_demonstrations
from robot_rl.learning.gate import Candidate, Verdict
from robot_rl.learning.stages.offline import stored_rows
from robot_rl.learning.workbench import Rows, Workbench
from robot_rl.processes.progress_display import WorkProgress
from robot_rl.replay.sampler import Sampler
from robot_rl.replay.windows import CHUNK, SampleSpec


@dataclass(frozen=True)
class ModelSettings:
    """Settings of the model, its critics and the rollouts."""

    members: int  # networks in the ensemble
    elites: int  # networks used for rollouts: the best on unseen rows
    hidden: Sequence[int]  # hidden widths of each network
    updates: int  # number of updates of model and critics
    batch_size: int  # chunks per update; also the number of rollouts, one per chunk's observation
    rate: float  # Adam step size
    expectile: float  # ω of V
    target_rate: float  # Polyak rate of the critics
    chunks: int  # per rollout: enough chunks to reach the reward

    def __post_init__(self) -> None:
        check_settings(self, members=1, elites=(1, self.members), updates=1, chunks=1)
        check_settings(self, batch_size=2, rate=(0, 1), target_rate=(0, 1), expectile=(0.5, 1))


class Estimate(NamedTuple):
    """The model's estimates of a policy per rollout. All policies share the same rollouts."""

    value: Tensor  # (rollouts,) mean of Q until the model ends the episode
    predicted_return: Tensor  # (rollouts,) discounted predicted rewards, only logged


class ModelJudge(Training):
    """A model of executed chunks in the space of a policy's encoded observations, with critics.

    Each network maps features and E actions to the change of the features, the reward of the chunk,
    and the logit of termination. All networks learn from the same batches, but start from different
    weights.

    Raises:
        AlgorithmError: The policy has no generative process, or its encoder is trained, so the
            features of two policies would not be comparable.
    """

    def __init__(
        self,
        base: ChunkPolicy,
        settings: ModelSettings,
        executed_steps: int,
        discount: float,
        seed: int,
    ) -> None:
        super().__init__(seed)
        if not isinstance(base, DiffusionPolicy) or any(True for _ in base.encoder.parameters()):
            raise AlgorithmError(
                "a model of encoded observations needs an encoder that does not learn",
                got=f"{base.kind} with {type(base.encoder).__name__}",
                hint="choose gate=episodes, or a diffusion or flow policy on states",
            )
        self._settings, self._executed = settings, executed_steps
        self._encoder = copy.deepcopy(base.encoder)
        features, width = base.encoder.features, executed_steps * base.action_dimension
        inputs, hidden = features + width, settings.hidden
        self.networks = nn.ModuleList(
            mlp(inputs, hidden, features + 2, self._generator, activation=nn.SiLU)
            for _ in range(settings.members)
        )
        self.critics = CriticEnsemble(inputs, hidden, 2, self._generator)
        self.target_critics = copy.deepcopy(self.critics).requires_grad_(False)
        self.value = CriticEnsemble(features, hidden, 1, self._generator)
        learned = (*self.networks.parameters(), *self.critics.parameters())
        self._optimizer = adam(((*learned, *self.value.parameters()), settings.rate))
        self.beside = [self.networks, self.critics, self.target_critics, self.value, self._encoder]
        self.elites = list(range(settings.elites))
        self.required = SampleSpec(
            tuple(base.encoder.keys),
            batch_size=settings.batch_size,
            n_step=executed_steps,
            discount=discount,
            observation_steps=base.encoder.observation_steps,
            chunk_fields=("action",),
            chunk_steps=executed_steps,
        )
        self._discount = discount**executed_steps

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """Update the model and the critics once (implicit Q-learning)."""
        self.updates += 1
        features, action, following = self._seen(batch)
        joined = torch.cat([features, action.flatten(1)], -1)
        model = self._errors(batch, features, action, following).mean(1).sum()
        reward, discount = self.tensor(batch["reward"]), self.tensor(batch["discount"])
        with torch.no_grad():
            target = reward + discount * self.value(following)[0]
            best = self.target_critics(joined).amin(0)
        critic = (self.critics(joined) - target).square().mean(1).sum()
        error = best - self.value(features)[0]
        value = expectile_loss(error, self._settings.expectile)
        step(self._optimizer, model + critic + value)
        move_towards(self.target_critics, self.critics, self._settings.target_rate)
        return {"model_loss": model.detach(), "critic_loss": critic.detach()}

    def choose_elites(self, batch: Batch) -> None:
        """Select the networks with the lowest error on a batch they have not learned from."""
        with torch.no_grad():
            errors = self._errors(batch, *self._seen(batch)).mean(1)
        self.elites = errors.argsort()[: self._settings.elites].tolist()

    @torch.no_grad()
    def estimate(self, policy: Policy, batch: Batch, seed: int) -> Estimate:
        """Roll a policy out in the model from a batch's observations. `seed` seeds all draws."""
        assert isinstance(policy, DiffusionPolicy)
        draws = torch.Generator().manual_seed(seed)
        x, _, _ = self._seen(batch)
        member = torch.randint(len(self.elites), (len(x),), generator=draws).to(self.device)
        alive, values, lived, rewards = (x.new_ones(len(x)), *x.new_zeros(3, len(x)))
        for number in range(self._settings.chunks):
            noise = standard_normal((len(x), *policy.noise_shape), x, draws)
            action = policy.chunks(x, noise)[:, : self._executed]
            joined = torch.cat([x, action.flatten(1)], -1)
            values += alive * self.target_critics(joined).amin(0)
            lived += alive
            outputs = torch.stack([self.networks[at](joined) for at in self.elites])
            output = outputs[member, torch.arange(len(x), device=self.device)]
            rewards += self._discount**number * alive * output[:, -2]
            alive = alive * (1 - output[:, -1].sigmoid())
            x = x + output[:, :-2]
        return Estimate(values / lived, rewards)

    def _seen(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Return the features, the executed actions and the next features."""
        features, following = encoded(self._encoder, batch)
        return features, self.tensor(batch[f"{CHUNK}action"]), following

    def _errors(self, batch: Batch, features: Tensor, action: Tensor, following: Tensor) -> Tensor:
        """Return the loss of each network on each chunk, (members, B)."""
        joined = torch.cat([features, action.flatten(1)], -1)
        outputs = torch.stack([network(joined) for network in self.networks])
        moved = (outputs[..., :-2] - (following - features)).square().sum(-1)
        rewarded = (outputs[..., -2] - self.tensor(batch["reward"])).square()
        ended = (self.tensor(batch["discount"]) == 0).to(outputs).expand_as(outputs[..., -1])
        logits = outputs[..., -1]
        return (
            moved
            + rewarded
            + functional.binary_cross_entropy_with_logits(logits, ended, reduction="none")
        )


@dataclass(frozen=True)
class ModelGate:
    """Accepts a policy if the model's gain exceeds its standard error, else reverts.

    As published, except that it uses data on which the candidate was not improved.
    """

    model: ModelSettings
    held_out: int

    def __post_init__(self) -> None:
        check_settings(self, held_out=0)

    def judge(self, bench: Workbench, candidate: Candidate) -> Verdict:
        """Fit the model, and roll out both policies from the same observations and noise."""
        return self.judge_each(bench, [candidate])[0]

    def judge_each(self, bench: Workbench, candidates: Sequence[Candidate]) -> list[Verdict]:
        """Like `judge`, for several candidates of a round against the same accepted policy."""
        settings, shown = bench.settings, bench.demonstrations()
        accepted, round_number = candidates[0].accepted, candidates[0].round_number
        base, seed = accepted.policy.base, settings.seed + round_number
        assert base is not None
        annotation = settings.reward["annotation"]
        filled = fill_from_demonstrations(settings.algorithm, annotation, shown)
        gamma = float(filled["schedule"]["discount"])
        model = ModelJudge(base, self.model, accepted.execute_steps, gamma, seed)
        model.to(bench.device)

        def rows(*, held_out: bool) -> Rows:
            of = self.held_out
            chosen = stored_rows(
                shown,
                [EpisodeDataset(bench.run.gathered)],
                accepted,
                model.required,
                lambda number: not of or (number % of == 0) == held_out,
            )
            return Rows(Sampler(chosen, model.required, np.random.default_rng(seed)))

        with closing(rows(held_out=True)) as own, closing(rows(held_out=False)) as others:
            with WorkProgress(self.model.updates, "model updates") as progress:
                progress.phase("fitting a model to judge with")
                for number, batch in enumerate(own.batches(self.model.updates), 1):
                    model.update(batch)
                    progress.update(number)
            for batch in others.batches(1):
                model.choose_elites(batch)
            for batch in own.batches(1):
                old = model.estimate(accepted.policy, batch, seed)
                found = [model.estimate(each.behaviour.policy, batch, seed) for each in candidates]
        return [self._verdict(old, new) for new in found]

    def _verdict(self, old: Estimate, new: Estimate) -> Verdict:
        gain = (new.value - old.value).double()
        mean, error = float(gain.mean()), float(gain.std() / len(gain) ** 0.5)
        figures = {
            "candidate_value": float(new.value.mean()),
            "accepted_value": float(old.value.mean()),
            "gain": mean,
            "standard_error": error,
            "candidate_return": float(new.predicted_return.mean()),
            "accepted_return": float(old.predicted_return.mean()),
            "rollouts": len(gain),
        }
        reason = f"the model's gain is {mean:.3g}, its standard error {error:.3g}"
        return Verdict("accepted" if mean > error else "reverted", reason, figures)
