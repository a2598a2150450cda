"""The losses of the actor-critic algorithms, as functions of values and log-densities."""

from __future__ import annotations

from torch import Tensor


def td_loss(values: Tensor, targets: Tensor) -> Tensor:
    """Squared soft Bellman residual (SAC, Haarnoja et al. 2018, arXiv 1812.05905, eq. 5).

    Summed over heads, so that each has its own step size.

    Args:
        values: Q-values (E, B).
        targets: y (B,), without gradient.
    """
    return (values - targets).square().mean(1).sum()


def choice_loss(values: Tensor, targets: Tensor, chosen: Tensor) -> Tensor:
    """Squared error of the choices that were made (double DQN, van Hasselt et al. 2016).

    Args:
        values: Q-values (B, n) of n choices.
        targets: y (B,), without gradient.
        chosen: Mask (B, n); several choices of a row may amount to the same.
    """
    return ((values - targets[:, None]).square() * chosen).sum(1).mean()


def actor_loss(values: Tensor, log_prob: Tensor, temperature: Tensor) -> Tensor:
    """SAC's actor objective (eq. 7) with the mean of all heads (RLPD, Ball et al. 2023).

    Args:
        values: Q-values (E, B) of the actor's action.
        log_prob: Log-density (B,) of that action.
        temperature: Scalar α, without gradient.
    """
    return (temperature * log_prob - values.mean(0)).mean()


def temperature_loss(log_temperature: Tensor, log_prob: Tensor, target_entropy: float) -> Tensor:
    """SAC's dual step (Haarnoja et al. 2018, eq. 18) in the logarithm of the temperature."""
    return -(log_temperature * (log_prob.detach() + target_entropy).mean())


def imitation_loss(actions: Tensor, demonstrated: Tensor, is_demonstration: Tensor) -> Tensor:
    """Mean squared distance to the demonstrated actions (Nair et al. 2018, arXiv 1709.10089).

    Over demonstration rows only.

    Args:
        actions: The actor's actions (B, d).
        demonstrated: The stored actions (B, d).
        is_demonstration: Mask (B,).
    """
    errors = (actions - demonstrated).square().sum(-1)
    return (errors * is_demonstration).sum() / is_demonstration.sum().clamp(min=1)
