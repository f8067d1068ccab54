r"""The updates of a Gibbs sampler in plain torch, for all chains at once.

Given regimes the latents are a linear Gaussian chain, which `linear_gaussian` draws and smooths. The information of x
after a step about the latents there, given the later regimes, is this chain's `parallel.future`: a likelihood
$\exp(-\frac12 s^\top Z Z^\top s + \eta^\top s)$.
"""

import torch
from torch import Tensor

from ...numerics.cholesky import solve_lower
from ...numerics.logs import log_sum_exp
from ..linear_gaussian import op as linear
from ..linear_gaussian import parallel
from ..linear_gaussian import tables as chains
from ..linear_gaussian.factors import factor_of
from .plain import LOG_2PI, Observed, predict, sights, update
from .tables import Chosen, Tables

Results = tuple[Tensor, ...]


def _repeated(x: Tensor, path: Tensor) -> Tensor:
    """The sequences [B, T, F] that the chains of the paths [B, T] see in turn."""
    return x.repeat(len(path) // max(1, len(x)), 1, 1)


def _inside(path: Tensor, lengths: Tensor) -> Tensor:
    return torch.arange(path.shape[1], device=lengths.device) < lengths[:, None]


def _along(x: Tensor, lengths: Tensor, path: Tensor, tables: Tables, omega: Tensor) -> chains.Tables:
    """The linear Gaussian chains of the latents given regimes, and the sticks that they broke or left."""
    x, inside = _repeated(x, path), _inside(path, lengths)
    initial, state, noise = (
        factor_of(table)[0] for table in (tables.initial_covariance, tables.state_noise, tables.observation_noise)
    )
    first, later = path[:, 0], path[:, 1:] if path.shape[1] > 1 else path
    rows, seen, emission, offset, factor = (
        x,
        ~x.isnan(),
        tables.emission[path],
        tables.emission_offset[path],
        noise[path],
    )
    if tables.recurrence is not None and tables.recurrence_offset is not None:
        weight, to = torch.where(omega > 0, omega, 1.0), torch.nn.functional.pad(path[:, 1:], (0, 1))
        broke = torch.arange(omega.shape[-1], device=path.device) == to.unsqueeze(-1)
        rows = torch.cat([x, torch.where(broke, 0.5, -0.5) / weight], -1)
        seen = torch.cat([seen, omega > 0], -1)
        emission = torch.cat([emission, tables.recurrence.expand(*path.shape, -1, -1)], -2)
        offset = torch.cat([offset, tables.recurrence_offset[path]], -1)
        n, more = x.shape[-1], omega.shape[-1]
        factor = torch.nn.functional.pad(factor, (0, more, 0, more))
        factor[..., n:, n:] = torch.diag_embed(weight.rsqrt())
    seen = seen & inside.unsqueeze(-1)
    return chains.Tables(
        torch.where(seen, rows, 0.0),
        seen,
        lengths,
        tables.transition[later],
        tables.transition_offset[later],
        state[later],
        emission,
        offset,
        factor,
        tables.initial_mean[first],
        initial[first],
        x.new_zeros(tables.n_latent, 0),
    )


def latents(
    x: Tensor, lengths: Tensor, tables: Tables, path: Tensor, omega: Tensor, noise: Tensor, _: Tensor
) -> Results:
    """Draws [B, T, L] of the latents given regimes, their means and covariances, and failed [B]."""
    chain = _along(x, lengths, path, tables, omega)
    _, mean, covariance, _, fault = linear.smooth(*chain)
    drawn, _ = linear.sample(*chain, noise.unsqueeze(0), noise.new_zeros(1, len(path), 0))
    return drawn[0], mean, covariance, torch.where(fault >= 0, fault // 4, -1)


def densities(x: Tensor, lengths: Tensor, tables: Tables, drawn: Tensor, starts: bool, moves: bool) -> Tensor:
    """log p(x_t, s_t | s_t-1, z_t) by regime, [B, T, K]; of s_t alone where regimes start (move) it differently."""
    inside = _inside(drawn, lengths)
    column = drawn[:, :, None, :, None]
    seen = sights(tables, _repeated(x, drawn), inside)
    emission, noise, y, constant = (t if t.dim() == 3 else t.squeeze(2) for t in seen)
    table = _log_density(y.unsqueeze(-1) - emission @ column, noise) - constant
    constant = LOG_2PI / 2 * tables.n_latent
    if starts:
        first = column[:, 0] - tables.initial_mean.unsqueeze(-1)
        table[:, 0] += _log_density(first, tables.initial_covariance) - constant
    if moves:
        moved = tables.transition @ column[:, :-1] + tables.transition_offset.unsqueeze(-1)
        table[:, 1:] += _log_density(column[:, 1:] - moved, tables.state_noise) - constant
    return torch.where(inside.unsqueeze(-1), table, 0.0)


def _log_density(gap: Tensor, covariance: Tensor) -> Tensor:
    """Of gaps [..., K, D, 1], without the constant."""
    chol = torch.linalg.cholesky(covariance)
    white = solve_lower(chol, gap).square().sum((-2, -1))
    return -white / 2 - chol.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def _future(x: Tensor, lengths: Tensor, tables: Tables, path: Tensor) -> Results:
    """The information of x after each step about the latents, eta [B, T, L] and Z [B, T, L, L]; and failed [B]."""
    if path.shape[1] == 1:
        none = x.new_zeros(len(path), 1, tables.n_latent)
        return none, torch.diag_embed(none), torch.full_like(lengths, -1)
    chain = _along(x, lengths, path, tables, x.new_zeros(*path.shape, 0))
    _, steps, singular = parallel.steps_of(chain)
    vector, information = parallel.future(parallel.StepProduct(*(part[1:] for part in steps)))
    failed = torch.where(singular.any(-1), singular.int().argmax(-1) + 1, -1)
    return vector.squeeze(-1), information, failed


def _told(vector: Tensor, information: Tensor, mean: Tensor, covariance: Tensor) -> Tensor:
    """The logarithm of the mean of exp(eta' s - |Z' s|^2 / 2) over normal densities, which may be singular."""
    gain, met = parallel.meet(factor_of(covariance)[0], information)
    unit = torch.eye(met.shape[-2], dtype=met.dtype, device=met.device)
    log_det = torch.linalg.slogdet(unit + met @ met.mT)[1]
    gap = vector - (information @ (information.mT @ mean.unsqueeze(-1))).squeeze(-1)
    shift = (gain @ gap.unsqueeze(-1)).square().sum((-2, -1))
    return ((mean * (vector + gap)).sum(-1) + shift - log_det) / 2


def _children(tables: Tables, sight: Observed, log_prob: Tensor, mean: Tensor, covariance: Tensor) -> Chosen:
    """Beliefs [B, R] that moved into each regime and saw the next observation, [B, R, K]."""
    k = tables.n_regimes
    means = mean.unsqueeze(-2).expand(*mean.shape[:-1], k, -1)
    spread = covariance.unsqueeze(-3).expand(*mean.shape[:-1], k, -1, -1)
    return update(predict(tables, Chosen(log_prob, means, spread)), sight)[0]


def _roots(tables: Tables, sight: Observed, n: int) -> Chosen:
    """The first step of n chains, [n, 1, K]."""
    tables_of = tables.log_initial, tables.initial_mean, tables.initial_covariance
    return update(Chosen(*(table.expand(n, 1, *table.shape) for table in tables_of)), sight)[0]


def collapsed(x: Tensor, lengths: Tensor, tables: Tables, path: Tensor, uniform: Tensor) -> Results:
    """Paths with each regime drawn given all others, its distribution [B, T, K], and failed [B]."""
    vector, information, failed = _future(x, lengths, tables, path)
    inside = _inside(path, lengths)
    seen, drawn, states, wrong = sights(tables, _repeated(x, path), inside), list(path.unbind(1)), [], []
    mean = covariance = x.new_zeros(())
    chain = torch.arange(len(path), device=path.device)
    for t in range(path.shape[1]):
        if t:
            log_prob = tables.log_transition[drawn[t - 1]].unsqueeze(1)
            after = _children(tables, seen.at(t), log_prob, mean.unsqueeze(1), covariance.unsqueeze(1))
        else:
            after = _roots(tables, seen.at(0), len(path))
        weight = after.log_prob + _told(vector[:, t, None, None], information[:, t, None, None], *after[1:])
        if t + 1 < path.shape[1]:
            ahead = tables.log_transition[:, path[:, t + 1]].mT.unsqueeze(1)
            weight = weight + torch.where(inside[:, t + 1, None, None], ahead, 0.0)
        weight = torch.where(after.log_prob.isneginf(), -torch.inf, weight).squeeze(1)
        total = log_sum_exp(weight, -1, keepdim=True)
        wrong.append(~total.isfinite().squeeze(-1) & inside[:, t])
        state = (weight - total).exp()
        states.append(torch.where(inside[:, t, None], state, 0.0))
        possible = tables.n_regimes - 1 - (state > 0).flip(-1).int().argmax(-1)
        place = torch.minimum((state.cumsum(-1) <= uniform[:, t, None]).sum(-1), possible)
        drawn[t] = torch.where(inside[:, t], place, path[:, t])
        mean, covariance = after.mean[chain, 0, place], after.covariance[chain, 0, place]
    return torch.stack(drawn, 1), torch.stack(states, 1), _first(failed, wrong)


def _first(failed: Tensor, wrong: list[Tensor]) -> Tensor:
    """The step at which each chain failed, in the future or forward in time."""
    table = torch.stack(wrong, 1)
    return torch.where((failed < 0) & table.any(1), table.int().argmax(1), failed)


def redrawn(x: Tensor, lengths: Tensor, tables: Tables, path: Tensor, n_particles: int, seeds: Tensor) -> Results:
    """Whole paths drawn by a particle filter that holds on to these, and failed [B]."""
    generator = torch.Generator().manual_seed(int(seeds[0]) if len(seeds) else 0)
    draw = lambda weight, n: torch.multinomial(weight, n, replacement=True, generator=generator)
    vector, information, failed = _future(x, lengths, tables, path)
    inside, k, chain = _inside(path, lengths), tables.n_regimes, torch.arange(len(path), device=path.device)
    seen, regimes, parents, wrong = sights(tables, _repeated(x, path), inside), [], [], []
    mean = covariance = x.new_zeros(())
    for t in range(path.shape[1]):
        if t:
            after = _children(tables, seen.at(t), tables.log_transition[regimes[-1]], mean, covariance)
        else:
            after = _roots(tables, seen.at(0), len(path))
        total = log_sum_exp(after.log_prob, (1, 2))
        wrong.append(~total.isfinite() & inside[:, t])
        weight = (after.log_prob - total[:, None, None]).exp()
        held = path[:, t].clamp_min(0)
        held_tables = (table[chain, :, held] for table in after)
        held_weight, held_mean, held_covariance = held_tables
        past = held_weight + _told(vector[:, t, None], information[:, t, None], held_mean, held_covariance)
        past = torch.where(held_weight.isneginf(), -torch.inf, past).softmax(-1)
        others = draw(_usable(weight.flatten(1)), n_particles - 1)
        place = torch.cat([others, draw(_usable(past), 1) * k + held.unsqueeze(-1)], -1)
        regimes.append(place % k)
        parents.append(place // k)
        mean, covariance = (table.flatten(1, 2)[chain.unsqueeze(-1), place] for table in after[1:])
    drawn = path.clone()
    particle = torch.randint(n_particles, (len(path),), generator=generator, device=path.device)
    for t in reversed(range(path.shape[1])):
        drawn[:, t] = torch.where(inside[:, t], regimes[t][chain, particle], path[:, t])
        particle = torch.where(inside[:, t], parents[t][chain, particle], particle)
    return drawn, _first(failed, wrong)


def _usable(weight: Tensor) -> Tensor:
    """Weights of which one can be drawn, where chains have failed too."""
    fine = weight.isfinite().all(-1, keepdim=True) & (weight.sum(-1, keepdim=True) > 0)
    return torch.where(fine, weight, 1.0)
