r"""A finite Markov chain under observation as in a textbook: one sequence, one step and one vector at a time.

The scaled recursions of Rabiner 1989, *A tutorial on hidden Markov models*, sections III and V.A, in float64:

$$\alpha_t = l_t \odot (A^\top \alpha_{t-1}) / c_t, \qquad \beta_{t-1} = A (l_t \odot \beta_t) / c_t, \qquad
P(s_t \mid x) = \alpha_t \odot \beta_t$$

Every function takes the tables of `plain`, gives what its namesake there gives, and can be differentiated.
In probabilities, a chain that stays for long where it hardly can be underflows, and its observations look impossible.
"""

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor


class _Sequence(NamedTuple):
    index: tuple[int, ...]
    initial: Tensor  # [K]
    transitions: list[Tensor]  # [K, K] into each step but the first
    likelihoods: list[Tensor]  # [K] each, divided by the largest
    shift: Tensor  # [t], the logarithm of that largest one


def _sequences(
    log_initial: Tensor, log_transition: Tensor, log_likelihood: Tensor, lengths: Tensor
) -> Iterator[_Sequence]:
    n_tables, n_states = log_transition.shape[-3:-1]
    initial = log_initial.double().expand(*lengths.shape, -1)
    transition = log_transition.double().expand(*lengths.shape, -1, -1, -1)
    likelihood = log_likelihood.double().expand(*lengths.shape, -1, n_states)
    for index in product(*map(range, lengths.shape)):
        given = likelihood[index][: int(lengths[index])]
        shift = given.detach().amax(-1)
        tables = [transition[index][t if n_tables > 1 else 0].exp() for t in range(len(given) - 1)]
        yield _Sequence(index, initial[index].exp(), tables, list((given - shift.unsqueeze(-1)).exp()), shift)


def _forward(sequence: _Sequence, failed: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """The scaled alphas and their scales; notes the first impossible step in `failed`."""
    alphas, scales = [], []
    for t, likelihood in enumerate(sequence.likelihoods):
        predicted = sequence.initial if t == 0 else alphas[-1] @ sequence.transitions[t - 1]
        scales.append((predicted * likelihood).sum())
        if not 0 < scales[-1] < float("inf") and failed[sequence.index] < 0:
            failed[sequence.index] = t
        alphas.append(predicted * likelihood / scales[-1])
    return alphas, scales


def _filled(rows: list[Tensor], n_steps: int, filler: float = 0) -> Tensor:
    """Rows stacked, and rows of `filler` up to `n_steps`."""
    return torch.stack([*rows, *[torch.full_like(rows[0], filler)] * (n_steps - len(rows))])


def _batched(results: list[Tensor], like: Tensor, lengths: Tensor) -> Tensor:
    return torch.stack(results).reshape((*lengths.shape, *results[0].shape)).to(like.dtype)


def log_normalizer(
    log_initial: Tensor, log_transition: Tensor, log_likelihood: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor]:
    """log p(x_1..T), [*B]; failed."""
    total, *_, failed = filter(log_initial, log_transition, log_likelihood, lengths)
    return total, failed


def filter(
    log_initial: Tensor, log_transition: Tensor, log_likelihood: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """log p(x_1..T) [*B], P(s_t | x_1..t) [*B, T, K] and log p(x_t | x_1..t-1) [*B, T]; failed."""
    totals, states, increments, failed = [], [], [], torch.full(lengths.shape, -1)
    for sequence in _sequences(log_initial, log_transition, log_likelihood, lengths):
        alphas, scales = _forward(sequence, failed)
        steps = [scale.log() + shift for scale, shift in zip(scales, sequence.shift, strict=True)]
        totals.append(torch.stack(steps).sum())
        states.append(_filled(alphas, log_likelihood.shape[-2]))
        increments.append(_filled(steps, log_likelihood.shape[-2]))
    total, state, increment = (_batched(rows, log_likelihood, lengths) for rows in (totals, states, increments))
    return total, state, increment, failed


def posterior(
    log_initial: Tensor, log_transition: Tensor, log_likelihood: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """log p(x_1..T) [*B], P(s_t | x) [*B, T, K] and P(s_t, s_t+1 | x) [*B, S, K, K] by step or summed; failed."""
    n_steps, n_tables = log_likelihood.shape[-2], log_transition.shape[-3]
    totals, states, transitions, failed = [], [], [], torch.full(lengths.shape, -1)
    for sequence in _sequences(log_initial, log_transition, log_likelihood, lengths):
        alphas, scales = _forward(sequence, failed)
        beta = torch.ones_like(alphas[-1])
        smoothed, pairs = [alphas[-1]], [torch.zeros_like(alphas[-1].outer(beta))]
        for t in reversed(range(1, len(alphas))):
            weight = sequence.likelihoods[t] * beta / scales[t]
            pairs.insert(0, alphas[t - 1].unsqueeze(-1) * sequence.transitions[t - 1] * weight)
            beta = sequence.transitions[t - 1] @ weight
            smoothed.insert(0, alphas[t - 1] * beta)
        totals.append(torch.stack(scales).log().sum() + sequence.shift.sum())
        states.append(_filled(smoothed, n_steps))
        stepwise = _filled(pairs, n_steps)[: n_steps - 1]
        transitions.append(stepwise if n_tables == n_steps - 1 else stepwise.sum(0, keepdim=True))
    total, state, transition = (_batched(rows, log_likelihood, lengths) for rows in (totals, states, transitions))
    return total, state, transition, failed


def viterbi(
    log_initial: Tensor, log_transition: Tensor, log_likelihood: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor]:
    """The most probable path [*B, T], -1 beyond a sequence's length; failed."""
    paths, failed = [], torch.full(lengths.shape, -1)
    for sequence in _sequences(log_initial, log_transition, log_likelihood, lengths):
        _forward(sequence, failed)
        best, origins = sequence.initial.log() + sequence.likelihoods[0].log(), []
        for transition, likelihood in zip(sequence.transitions, sequence.likelihoods[1:], strict=True):
            best, origin = (best.unsqueeze(-1) + transition.log()).max(0)
            best = best + likelihood.log()
            origins.append(origin)
        path = [best.argmax()]
        for origin in reversed(origins):
            path.insert(0, origin[path[0]])
        paths.append(_filled(path, log_likelihood.shape[-2], -1))
    return torch.stack(paths).reshape(*lengths.shape, -1), failed


def sample(
    log_initial: Tensor, log_transition: Tensor, log_likelihood: Tensor, lengths: Tensor, uniform: Tensor
) -> tuple[Tensor, Tensor]:
    """Paths [n, *B, T] drawn from the posterior by inverting its distribution at `uniform` [n, *B, T]; failed."""
    paths, failed = torch.full(uniform.shape, -1), torch.full(lengths.shape, -1)
    for sequence in _sequences(log_initial, log_transition, log_likelihood, lengths):
        alphas, _ = _forward(sequence, failed)
        for draw in range(len(uniform)):
            at = (draw, *sequence.index)
            following = _invert(alphas[-1], uniform[at][len(alphas) - 1])
            paths[at][len(alphas) - 1] = following
            for t in reversed(range(len(alphas) - 1)):
                following = _invert(alphas[t] * sequence.transitions[t][:, following], uniform[at][t])
                paths[at][t] = following
    return paths, failed


def _invert(mass: Tensor, uniform: Tensor) -> int:
    """The first state up to which more than a share `uniform` of the mass lies."""
    cumulative = mass.cumsum(0)
    return int((cumulative <= uniform * cumulative[-1]).sum())
