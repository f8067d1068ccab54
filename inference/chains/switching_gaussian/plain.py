r"""Filters and smoothers of switching linear models that keep few normal densities, in plain torch.

The exact belief after t steps is a mixture of $K^t$ normal densities, one for each path of regimes. The generalised
pseudo-Bayesian filter of order n keeps those of the last n - 1 regimes: each step makes $K^n$ of them, exactly, from
which those that share the last n - 1 regimes are replaced by one with the same weight, mean and covariance:

$$w = \sum_i w_i, \quad m = \sum_i \tfrac{w_i}w m_i, \quad P = \sum_i \tfrac{w_i}w (P_i + (m_i - m)(m_i - m)^\top)$$

With n = 1 a single density is kept for all regimes, beside their probabilities (Bar-Shalom & Li 1993, *Estimation and
tracking*, 11.6; Shumway & Stoffer 1991, *Dynamic linear models with switching*); n = 2 is the filter of Kim 1994,
*Dynamic linear models with Markov-switching*. Nothing is replaced before step n: with n > T all is exact.

Histories of n regimes are numbered with the oldest as the first digit to the base K. At the start they are filled up
with regime 0, and those that cannot be have no weight.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ...numerics.cholesky import solve_lower, solve_upper
from ...numerics.logs import log_sum_exp
from ...numerics.threads import sum_of_steps
from ..linear_gaussian.plain import LOG_2PI
from .tables import Chosen, Tables, choose

KEPT = 1 << 20  # weights of histories that are kept before their steps are summed up


class Belief(NamedTuple):
    """Of N sequences: C = K^max(n-1, 1) histories, of which each has its normal density, or all have one (n = 1)."""

    log_weight: Tensor  # [N, C]
    mean: Tensor  # [N, C or 1, L]
    covariance: Tensor  # [N, C or 1, L, L]


class Filtered(NamedTuple):
    """By step and at the end; 0 beyond the end of a sequence."""

    log_increment: Tensor  # [N, T]
    state: Tensor  # [N, T, K], P(z_t | x_1..t)
    lagged: Tensor  # [N, T, K], P(z_t | x_1..t+n-1), of the last n - 1 steps given all
    mean: Tensor  # [N, T, L]
    covariance: Tensor  # [N, T, L, L]
    belief: Belief  # after the last step of each sequence
    failed: Tensor  # [N], the first step whose observation has no density, or -1


class Smoothed(NamedTuple):
    log_normalizer: Tensor  # [N]
    state: Tensor  # [N, T, K]
    pairs: Tensor  # [N, T-1, K, K]
    mean: Tensor  # [N, T, L]
    covariance: Tensor  # [N, T, L, L]
    failed: Tensor  # [N]
    cross: Tensor | None = None  # [N, T-1, L, L], Cov[s_t+1, s_t]; None from kernels


def merge(log_weight: Tensor, mean: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One normal density for [*b, M] of them; without weight 0."""
    total = log_sum_exp(log_weight, -1)
    share = (log_weight - torch.where(total.isneginf(), 0.0, total).unsqueeze(-1)).exp().unsqueeze(-2)
    centre = share @ mean
    gap = mean - centre
    spread = (share @ covariance.flatten(-2)).view(*share.shape[:-2], *covariance.shape[-2:])
    return total, centre.squeeze(-2), spread + (gap * share.mT).mT @ gap


def start(tables: Tables, n_sequences: int, order: int) -> Chosen:
    """The state before the first observation, as a choice of histories [N, C]: all weight is on regime 0 before."""
    k, n = tables.n_regimes, tables.n_latent
    histories = k ** (order - 1)
    log_prob = torch.nn.functional.pad(tables.log_initial.unsqueeze(0), (0, 0, 0, histories - 1), value=-torch.inf)
    shape = n_sequences, histories, k
    return Chosen(
        log_prob.expand(shape),
        tables.initial_mean.expand(*shape, n),
        tables.initial_covariance.expand(*shape, n, n),
    )


def move(tables: Tables, belief: Belief, order: int) -> Chosen:
    """What the next regime is, and the latents that it meets, by histories [N, K^(n-1)]."""
    n_histories = belief.log_weight.shape[-1]
    last = torch.arange(n_histories, device=belief.mean.device) % tables.n_regimes
    mean = belief.mean.expand(-1, n_histories, -1)
    covariance = belief.covariance.expand(-1, n_histories, -1, -1)
    chosen = choose(tables, last, mean, covariance)
    log_prob = belief.log_weight.unsqueeze(-1) + chosen.log_prob
    if order > 1:
        return chosen._replace(log_prob=log_prob)
    merged = merge(log_prob.mT, chosen.mean.transpose(1, 2), chosen.covariance.transpose(1, 2))
    return Chosen(*(table.unsqueeze(1) for table in merged))


def predict(tables: Tables, chosen: Chosen) -> Chosen:
    """The latents after their move under each regime [*b, K]."""
    a = tables.transition
    mean = (a @ chosen.mean.unsqueeze(-1)).squeeze(-1) + tables.transition_offset
    return Chosen(chosen.log_prob, mean, a @ chosen.covariance @ a.mT + tables.state_noise)


class Observed(NamedTuple):
    """What all steps see, with a missing feature replaced by noise that happened to be 0."""

    emission: Tensor  # [K, F, L], or [N, T, 1, K, F, L] where features are missing
    noise: Tensor  # [K, F, F], or [N, T, 1, K, F, F]
    y: Tensor  # [N, T, 1, K, F], x - d
    constant: Tensor  # [N, T, 1, 1]

    def at(self, t: int) -> "Observed":
        return Observed(*(table if table.dim() == 3 else table[:, t] for table in self))


def sights(tables: Tables, x: Tensor, inside: Tensor) -> Observed:
    """Of x [N, T, F] at the steps inside [N, T]."""
    emission, noise, seen = tables.emission, tables.observation_noise, ~x.isnan() & inside.unsqueeze(-1)
    if not bool(seen.all()):
        row = seen[:, :, None, None, :, None]
        emission = torch.where(row, emission, 0.0)
        noise = torch.where(row & row.mT, noise, torch.diag_embed((~seen).to(x))[:, :, None, None])
    y = torch.where(seen.unsqueeze(-2), x.unsqueeze(-2) - tables.emission_offset, 0.0)
    return Observed(emission, noise, y.unsqueeze(2), LOG_2PI / 2 * seen.sum(-1).to(x)[..., None, None])


def update(before: Chosen, sight: Observed) -> tuple[Chosen, Tensor]:
    """Weights, means and covariances with one observation, and whether [N, ...] it has no density."""
    emission, noise, y, constant = sight
    shown = emission @ before.covariance
    chol, info = torch.linalg.cholesky_ex(shown @ emission.mT + noise)
    failed = info != 0
    chol = torch.where(failed[..., None, None], torch.eye(y.shape[-1], dtype=y.dtype, device=y.device), chol)
    gap = y.unsqueeze(-1) - emission @ before.mean.unsqueeze(-1)
    half, white = solve_lower(chol, torch.cat([shown, gap], -1)).split([shown.shape[-1], 1], -1)
    log_det = chol.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    log_density = -white.square().sum((-2, -1)) / 2 - log_det - constant
    gain = solve_upper(chol, half).mT
    rest = torch.eye(gain.shape[-2], dtype=y.dtype, device=y.device) - gain @ emission
    covariance = rest @ before.covariance @ rest.mT + gain @ noise @ gain.mT
    mean = before.mean + (half.mT @ white).squeeze(-1)
    bad = failed & ~before.log_prob.isneginf()
    return Chosen(before.log_prob + log_density, mean, (covariance + covariance.mT) / 2), bad


def keep(after: Chosen, order: int) -> Belief:
    """The belief from normalised histories [N, K^(n-1), K]."""
    log_weight, mean, covariance = (table.flatten(1, 2) for table in after)
    if order == 1:
        _, *moments = merge(log_weight, mean, covariance)
        return Belief(log_weight, *(table.unsqueeze(1) for table in moments))
    k = after.log_prob.shape[-1]
    split = (table.unflatten(1, (k, -1)).transpose(1, 2) for table in (log_weight, mean, covariance))
    return Belief(*merge(*split))


class Step(NamedTuple):
    """What a step makes of the belief before it."""

    chosen: Chosen  # [N, K^(n-1), K], before the latents move; at the start those that the model begins with
    predicted: Chosen  # after that
    log_prob: Tensor  # [N, K^(n-1), K] given x_t, normalised
    log_increment: Tensor  # [N]
    belief: Belief  # that is kept
    bad: Tensor  # [N, K^(n-1), K], whether x_t has no density


def steps(tables: Tables, x: Tensor, inside: Tensor, order: int, belief: Belief | None) -> Iterator[Step]:
    """Of x [N, T, F], NaN missing; from the model's start, or from a belief about the step before."""
    seen, equal_lengths = sights(tables, x, inside), bool(inside.all())
    for t in range(x.shape[1]):
        if belief is None:
            chosen = predicted = start(tables, len(x), order)
        else:
            chosen = move(tables, belief, order)
            predicted = predict(tables, chosen)
        after, bad = update(predicted, seen.at(t))
        total = log_sum_exp(after.log_prob, (1, 2))
        after = after._replace(log_prob=after.log_prob - total[:, None, None])
        kept = keep(after, order)
        belief = kept if belief is None or equal_lengths else _where(inside[:, t], kept, belief)
        yield Step(chosen, predicted, after.log_prob, total, belief, bad)


def _where(active: Tensor, new: Belief, old: Belief) -> Belief:
    pairs = zip(new, old, strict=True)
    return Belief(*(torch.where(active.view(-1, *[1] * (a.dim() - 1)), a, b) for a, b in pairs))


def _stack(tables: Iterable[tuple[Tensor, ...]]) -> Iterator[Tensor]:
    """Fields of records, with an axis of steps after that of sequences."""
    return (torch.stack(rows, 1) for rows in zip(*tables, strict=True))


def _zeroed(inside: Tensor, table: Tensor) -> Tensor:
    """[N, T, ...], 0 beyond the end."""
    return torch.where(inside.view(*inside.shape, *[1] * (table.dim() - 2)), table, 0.0)


def _failed(inside: Tensor, increment: Tensor, bad: Tensor) -> Tensor:
    """The first step of each sequence without density, or -1."""
    wrong = inside & (bad.flatten(2).any(-1) | ~increment.isfinite())
    return torch.where(wrong.any(1), wrong.int().argmax(1), -1)


def evidence(tables: Tables, x: Tensor, inside: Tensor, order: int) -> Tensor:
    """log p(x) of each sequence [N] from the model's start, -inf where a step has no density."""
    total, impossible = x.new_zeros(len(x)), torch.zeros_like(inside[:, 0])
    for t, step in enumerate(steps(tables, x, inside, order, None)):
        total = total + torch.where(inside[:, t], step.log_increment, 0.0)
        impossible = impossible | (step.bad.flatten(1).any(-1) & inside[:, t])
    return torch.where(impossible | ~total.isfinite(), -torch.inf, total)


def evidences(tables: Sequence[Tables], x: Tensor, inside: Tensor, order: int) -> Tensor:
    """The same of R models at once, [R, N]."""
    fields = {name: [getattr(one, name) for one in tables] for name in Tables._fields}
    stacked = {name: torch.stack(parts) for name, parts in fields.items() if parts[0] is not None}
    return torch.func.vmap(lambda some: evidence(Tables(**some), x, inside, order))(stacked)


def filter(tables: Tables, x: Tensor, lengths: Tensor, order: int, belief: Belief | None) -> Filtered:
    """All steps; see `steps`."""
    n_sequences, n_steps, _ = x.shape
    k, inside = tables.n_regimes, torch.arange(n_steps, device=lengths.device) < lengths[:, None]
    lagged, parts, done = x.new_zeros(n_sequences, n_steps, k), [], []
    for t, step in enumerate(steps(tables, x, inside, order, belief)):
        belief = step.belief
        done.append(step)
        if t + 1 == n_steps or len(done) * step.log_prob.numel() > KEPT:
            log_prob, increment, bad = (
                torch.stack(rows, 1) for rows in zip(*((s.log_prob, s.log_increment, s.bad) for s in done), strict=True)
            )
            share = log_prob.exp()
            _, mean, covariance = merge(*_densities(_stack(s.belief for s in done)))
            parts.append((increment, share.sum(2), mean, covariance, bad.flatten(2).any(-1)))
            _write_lagged(lagged, share.reshape(n_sequences, len(done), *[k] * order), t + 1 - len(done), lengths)
            done = []
    assert belief is not None
    increment, state, mean, covariance, bad = (torch.cat(tables, 1) for tables in zip(*parts, strict=True))
    failed = _failed(inside, increment, bad.unsqueeze(-1))
    increment, state, mean, covariance = (_zeroed(inside, table) for table in (increment, state, mean, covariance))
    return Filtered(increment, state, lagged, mean, covariance, belief, failed)


def _densities(belief: Iterable[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Log-weights and moments of all densities of a belief; where all have one, of that."""
    log_weight, mean, covariance = belief
    return (log_weight if mean.shape[-2] == log_weight.shape[-1] else torch.zeros_like(mean[..., 0])), mean, covariance


def _write_lagged(lagged: Tensor, digits: Tensor, begin: int, lengths: Tensor) -> None:
    """P(z_t | x_1..t+n-1), from P(z_t-n+1, ..., z_t | x_1..t) [N, S, K, ..., K] of S steps from `begin` on."""
    order, n = digits.dim() - 2, digits.shape[1]
    step = torch.arange(begin, begin + n, device=lengths.device)
    for age in range(order):  # the digit of step t - age
        inside = step < lengths[:, None] if age == order - 1 else step == lengths[:, None] - 1
        others = [a + 2 for a in range(order) if a != order - 1 - age]
        shares = digits.sum(others) if others else digits
        first = max(0, age - begin)
        if first < n:
            at = slice(begin + first - age, begin + n - age)
            lagged[:, at] = torch.where(inside[:, first:, None], shares[:, first:], lagged[:, at])


def smooth(tables: Tables, x: Tensor, lengths: Tensor, order: int = 2) -> Smoothed:
    r"""Kim's smoother on the filter of order n >= 2, back from the last step. For n = 2,

    $$P(z_t, z_{t+1} \mid x) \approx P(z_{t+1} \mid x) \frac{P(z_t, z_{t+1} \mid x_{1:t})}{P(z_{t+1} \mid x_{1:t})}$$

    Given both regimes, the latents follow by a step of Rauch, Tung & Striebel from the moments of $s_{t+1}$ given
    $z_{t+1}$. This neglects the information of $z_t$ about $s_{t+1}$ (Kim & Nelson 1999, *State-space models with
    regime switching*, 5.3). With a higher order the last n - 1 regimes replace $z_{t+1}$, and that of
    step t - n + 2 replaces $z_t$; with n > T nothing is neglected. Such a step inverts the transition. If the
    transition contracts and adds no noise, the neglected part grows.
    """
    n_sequences, n_steps, _ = x.shape
    inside = torch.arange(n_steps, device=lengths.device) < lengths[:, None]
    passed = list(steps(tables, x, inside, order, None))
    increment, bad = (torch.stack([getattr(s, name) for s in passed], 1) for name in ("log_increment", "bad"))
    filtered, smoothed, pairs, crosses = Belief(*_stack(s.belief for s in passed)), [passed[-1].belief], [], []
    k = tables.n_regimes
    if n_steps > 1:
        back, equal_lengths = _backward(tables, passed[1:]), bool(inside.all())
        for t in reversed(range(n_steps - 1)):
            joint, cross, earlier = _back(Backward(*(table[:, t] for table in back)), smoothed[-1], k)
            pairs.append(joint)
            crosses.append(cross)
            here = Belief(*(table[:, t] for table in filtered))
            smoothed.append(earlier if equal_lengths else _where(inside[:, t + 1], earlier, here))
    log_weight, mean, covariance = _stack(reversed(smoothed))
    _, centre, spread = merge(log_weight, mean, covariance)
    state = log_weight.exp().unflatten(-1, (-1, k)).sum(-2)
    state, centre, spread = (_zeroed(inside, table) for table in (state, centre, spread))
    n = centre.shape[-1]
    transition = torch.stack(pairs[::-1], 1) if pairs else x.new_zeros(n_sequences, 0, k, k)
    cross = torch.stack(crosses[::-1], 1) if crosses else x.new_zeros(n_sequences, 0, n, n)
    total, failed = sum_of_steps(_zeroed(inside, increment)), _failed(inside, increment, bad)
    later = inside[:, 1:]
    return Smoothed(total, state, _zeroed(later, transition), centre, spread, failed, _zeroed(later, cross))


class Backward(NamedTuple):
    """Steps back, by the oldest regime, those after it, and the new one: the probability of the oldest given the others
    and x_1..t, the gain, and the latents before and after the move."""

    log_share: Tensor  # [N, T-1, K, K^(n-2), K]
    gain: Tensor  # [N, T-1, K, K^(n-2), K, L, L]
    mean: Tensor  # [N, T-1, K, K^(n-2), K, L]
    covariance: Tensor  # [N, T-1, K, K^(n-2), K, L, L]
    predicted_mean: Tensor
    predicted_covariance: Tensor


def _backward(tables: Tables, later: list[Step]) -> Backward:
    apart = (tables.n_regimes, -1)
    log_prob, mean, covariance = (table.unflatten(2, apart) for table in _stack(step.chosen for step in later))
    _, predicted_mean, predicted_covariance = _stack(step.predicted for step in later)
    share = torch.where(log_prob.isneginf(), -torch.inf, log_prob - log_sum_exp(log_prob, 2, keepdim=True))
    some = torch.where(predicted_covariance.isfinite(), predicted_covariance, 0.0)  # without density all is refused
    inverse = torch.linalg.pinv(some, hermitian=True).unflatten(2, apart)
    gain = covariance @ tables.transition.mT @ inverse
    predicted = predicted_mean.unflatten(2, apart), predicted_covariance.unflatten(2, apart)
    return Backward(share, gain, mean, covariance, *predicted)


def _back(step: Backward, smoothed: Belief, k: int) -> tuple[Tensor, Tensor, Belief]:
    """P(z_t, z_t+1 | x) [N, K, K], Cov[s_t+1, s_t | x], and the belief about step t, from that about the next."""
    weight, after, spread = (table.unflatten(1, (-1, k)).unsqueeze(1) for table in smoothed)
    joint = step.log_share + weight
    mean = step.mean + (step.gain @ (after - step.predicted_mean).unsqueeze(-1)).squeeze(-1)
    covariance = step.covariance + step.gain @ (spread - step.predicted_covariance) @ step.gain.mT
    earlier = Belief(*(table.flatten(1, 2) for table in merge(joint, mean, covariance)))
    share = joint.exp()
    centre = torch.einsum("nork,norkl->nl", share, mean), torch.einsum("nork,nrkl->nl", share, after.squeeze(1))
    gap = mean - centre[0][:, None, None, None], (after - centre[1][:, None, None, None]).expand_as(mean)
    cross = torch.einsum(
        "nork,norklm->nlm", share, (spread @ step.gain.mT) + gap[1].unsqueeze(-1) * gap[0].unsqueeze(-2)
    )
    return share.flatten(1, 2).unflatten(1, (-1, k)).sum(1), cross, earlier
