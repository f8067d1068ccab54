r"""Markov chains by the textbook's recursions: one sequence, one step and one vector at a time.

The scaled recursions of Rabiner 1989, *A tutorial on hidden Markov models*, sections III and V.A, in float64:

$$\alpha_t = l_t \odot (A^\top \alpha_{t-1}) / c_t, \qquad \beta_{t-1} = A (l_t \odot \beta_t) / c_t, \qquad
P(s_t \mid x) = \alpha_t \odot \beta_t$$

Every function has the arguments and results of its namesake in `plain`, and is differentiable. Probabilities may
underflow if a chain stays in improbable states for long; its observations then look impossible.
"""

from collections.abc import Callable
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

Results = tuple[Tensor, ...]


class _Sequence(NamedTuple):
    initial: Tensor  # [K]
    transitions: list[Tensor]  # [K, K] into each step but the first
    likelihoods: list[Tensor]  # [K] each, divided by the largest
    shift: Tensor  # [t], the logarithm of the largest
    n_steps: int  # T, of which t belong to the sequence
    summed: bool  # whether one table of transitions serves all steps

    def filled(self, rows: list[Tensor], filler: float = 0) -> Tensor:
        """Rows stacked, and rows of `filler` up to the number of steps."""
        return torch.stack([*rows, *[torch.full_like(rows[0], filler)] * (self.n_steps - len(rows))])


def _each(
    one: Callable[..., Results], log_initial: Tensor, log_transition: Tensor, log_likelihood: Tensor, lengths: Tensor
) -> Results:
    """The results of all sequences, with their batch axes; `one` gets a sequence and its index in the batch."""
    n_tables, n_states = log_transition.shape[-3:-1]
    initial = log_initial.double().expand(*lengths.shape, -1)
    transition = log_transition.double().expand(*lengths.shape, -1, -1, -1)
    likelihood = log_likelihood.double().expand(*lengths.shape, -1, n_states)
    results = []
    for index in product(*map(range, lengths.shape)):
        observed = likelihood[index][: int(lengths[index])]
        shift = observed.detach().amax(-1)
        tables = [transition[index][t if n_tables > 1 else 0].exp() for t in range(len(observed) - 1)]
        scaled, n_steps = list((observed - shift.unsqueeze(-1)).exp()), likelihood.shape[-2]
        sequence = _Sequence(initial[index].exp(), tables, scaled, shift, n_steps, n_tables != n_steps - 1)
        results.append(one(sequence, index))
    stacked = (torch.stack(rows).reshape((*lengths.shape, *rows[0].shape)) for rows in zip(*results, strict=True))
    return tuple(rows.to(log_likelihood.dtype) if rows.is_floating_point() else rows for rows in stacked)


def _forward(sequence: _Sequence) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """The scaled alphas, their scales, and the first impossible step or -1."""
    alphas, scales, failed = [], [], -1
    for t, likelihood in enumerate(sequence.likelihoods):
        predicted = sequence.initial if t == 0 else alphas[-1] @ sequence.transitions[t - 1]
        scales.append((predicted * likelihood).sum())
        if not 0 < scales[-1] < float("inf") and failed < 0:
            failed = t
        alphas.append(predicted * likelihood / scales[-1])
    return alphas, scales, torch.tensor(failed)


def log_normalizer(*tables: Tensor) -> Results:
    """log p(x_1..T), [*B]; failed."""
    total, *_, failed = filter(*tables)
    return total, failed


def filter(*tables: Tensor) -> Results:
    """log p(x_1..T) [*B], P(s_t | x_1..t) [*B, T, K] and log p(x_t | x_1..t-1) [*B, T]; failed."""

    def one(sequence: _Sequence, index: tuple[int, ...]) -> Results:
        alphas, scales, failed = _forward(sequence)
        steps = [scale.log() + shift for scale, shift in zip(scales, sequence.shift, strict=True)]
        return torch.stack(steps).sum(), sequence.filled(alphas), sequence.filled(steps), failed

    return _each(one, *tables)


def posterior(*tables: Tensor) -> Results:
    """log p(x_1..T) [*B], P(s_t | x) [*B, T, K] and P(s_t, s_t+1 | x) [*B, S, K, K] by step or summed; failed."""

    def one(sequence: _Sequence, index: tuple[int, ...]) -> Results:
        alphas, scales, failed = _forward(sequence)
        beta = torch.ones_like(alphas[-1])
        smoothed, pairs = [alphas[-1]], [torch.zeros_like(alphas[-1].outer(beta))]
        for t in reversed(range(1, len(alphas))):
            weight = sequence.likelihoods[t] * beta / scales[t]
            pairs.insert(0, alphas[t - 1].unsqueeze(-1) * sequence.transitions[t - 1] * weight)
            beta = sequence.transitions[t - 1] @ weight
            smoothed.insert(0, alphas[t - 1] * beta)
        total = torch.stack(scales).log().sum() + sequence.shift.sum()
        moves = sequence.filled(pairs)[: sequence.n_steps - 1]
        return total, sequence.filled(smoothed), moves.sum(0, True) if sequence.summed else moves, failed

    return _each(one, *tables)


def viterbi(*tables: Tensor) -> Results:
    """The most probable path [*B, T], -1 after a sequence's end; failed."""

    def one(sequence: _Sequence, index: tuple[int, ...]) -> Results:
        best, origins = sequence.initial.log() + sequence.likelihoods[0].log(), []
        for transition, likelihood in zip(sequence.transitions, sequence.likelihoods[1:], strict=True):
            best, origin = (best.unsqueeze(-1) + transition.log()).max(0)
            best = best + likelihood.log()
            origins.append(origin)
        path = [best.argmax()]
        for origin in reversed(origins):
            path.insert(0, origin[path[0]])
        return sequence.filled(path, -1), _forward(sequence)[-1]

    return _each(one, *tables)


def sample(*tables_and_uniform: Tensor) -> Results:
    """Paths [n, *B, T] drawn from the posterior by inverting its distribution at uniform numbers [n, *B, T]; failed."""
    *tables, uniform = tables_and_uniform
    path = torch.full(uniform.shape, -1)

    def one(sequence: _Sequence, index: tuple[int, ...]) -> Results:
        alphas, _, failed = _forward(sequence)
        for draw in range(len(uniform)):
            at, following = (draw, *index), None
            for t in reversed(range(len(alphas))):
                mass = alphas[t] if following is None else alphas[t] * sequence.transitions[t][:, following]
                cumulative = mass.cumsum(0)  # the first state at which its share exceeds `uniform`
                following = path[at][t] = int((cumulative <= uniform[at][t] * cumulative[-1]).sum())
        return (failed,)

    return path, *_each(one, *tables)
