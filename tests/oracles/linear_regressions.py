"""Learning of linear models by definition: one dense normal posterior of a path, then regressions on its moments."""

import math
from typing import NamedTuple

import torch
from oracles import naive_gaussian_paths as paths
from oracles import naive_linear_gaussian as naive
from samplehold.inference.families import MatrixNormalWishartParameters, NormalWishartParameters
from samplehold.switching.parameters import Parameters
from torch import Tensor

ONE = torch.tensor(1.0, dtype=torch.float64)


class Moments(NamedTuple):
    """Of one sequence: E s_t, and E s_t s_u'."""

    mean: Tensor  # [T, L]
    second: Tensor  # [T, L, T, L]


def posterior(values: Parameters, x: Tensor) -> Moments:
    """The path of a sequence given parameters."""
    n, n_latent = len(x), len(values["initial_mean"])
    noise = values["observation_noise"]

    def each(name: str, times: int) -> Tensor:
        return values[name].expand(times, *values[name].shape)

    found = naive.posterior(
        naive.Sequence(
            x,
            each("transition", n - 1),
            each("transition_offset", n - 1),
            each("state_noise", n - 1),
            each("emission", n),
            each("emission_offset", n),
            (noise if noise.ndim == 2 else torch.diag(noise)).expand(n, -1, -1),
            values["initial_mean"],
            values["initial_covariance"],
            torch.zeros(n_latent, 0, dtype=x.dtype),
        ),
        n,
    )
    return _moments(found.mean, found.covariance)


def _moments(mean: Tensor, covariance: Tensor) -> Moments:
    return Moments(mean, covariance + mean[:, :, None, None] * mean)


class Regression(NamedTuple):
    """Sums over steps: of u u', u y' and y y' with inputs u = (s, 1), and their number."""

    inputs: Tensor
    cross: Tensor
    outputs: Tensor
    number: Tensor


def _inputs(moments: Moments, t: int) -> Tensor:
    own, mean = moments.second[t, :, t], moments.mean[t]
    top = torch.cat([own, mean.unsqueeze(-1)], -1)
    return torch.cat([top, torch.cat([mean, torch.ones(1, dtype=mean.dtype)]).unsqueeze(0)])


def moves(all_moments: list[Moments]) -> Regression:
    found = []
    for moments in all_moments:
        for t in range(len(moments.mean) - 1):
            cross = torch.cat([moments.second[t, :, t + 1], moments.mean[t + 1].unsqueeze(0)])
            found.append((_inputs(moments, t), cross, moments.second[t + 1, :, t + 1], ONE))
    return Regression(*(torch.stack(parts).sum(0) for parts in zip(*found, strict=True)))


class Expected(NamedTuple):
    """Under a q of coefficients M [L + 1, D] and a precision, or at a point."""

    first: Tensor  # E M Lambda
    second: Tensor  # E M Lambda M'
    log_volume: Tensor  # E log |Lambda|
    precision: Tensor  # E Lambda


def at_point(loc: Tensor, covariance: Tensor) -> Expected:
    """Of coefficients [D, L + 1]."""
    precision = torch.linalg.inv(covariance)
    first = loc.mT @ precision
    return Expected(first, first @ loc, torch.logdet(precision), precision)


def sights(
    all_moments: list[Moments], series: list[Tensor], features: list[int], known: Expected | None = None
) -> Regression:
    """Of some features, at the steps that have all of them; or of those that have any, the rest as `known` says."""
    found = []
    for moments, x in zip(all_moments, series, strict=True):
        for t, row in enumerate(x[:, features]):
            missing, u = row.isnan(), torch.cat([moments.mean[t], torch.ones(1, dtype=x.dtype)])
            if missing.all() or (missing.any() and known is None):
                continue
            inputs, constant = _inputs(moments, t), torch.where(missing, 0.0, row)  # y = slope u + constant + noise
            slope, noise = torch.zeros(len(row), len(u)).double(), torch.zeros(len(row), len(row)).double()
            if known is not None and missing.any():
                cov = torch.linalg.inv(known.precision[missing][:, missing])
                slope[missing] = cov @ known.first[:, missing].mT
                constant[missing] = -cov @ known.precision[missing][:, ~missing] @ row[~missing]
                noise[torch.outer(missing, missing)] = cov.flatten()
            crossed = torch.outer(slope @ u, constant)
            outputs = slope @ inputs @ slope.mT + crossed + crossed.mT + torch.outer(constant, constant) + noise
            found.append((inputs, inputs @ slope.mT + torch.outer(u, constant), outputs, ONE))
    return Regression(*(torch.stack(parts).sum(0) for parts in zip(*found, strict=True)))


def peak(sums: Regression) -> tuple[Tensor, Tensor]:
    """Coefficients [D, L + 1] and covariance of the greatest likelihood."""
    loc = torch.linalg.solve(sums.inputs, sums.cross)
    return loc.mT, (sums.outputs - sums.cross.mT @ loc) / sums.number


def message(sums: Regression) -> Tensor:
    """What the sums add to the natural parameters of a matrix-normal-Wishart."""
    parts = sums.cross.flatten(), -sums.inputs.flatten() / 2, sums.number[None] / 2, -sums.outputs.flatten() / 2
    return torch.cat(parts)


def em_step(values: Parameters, series: list[Tensor], known: Expected | None = None) -> Parameters:
    """Parameters of the greatest expected log-likelihood; `known` fills in missing features, or else the values do."""
    found = [posterior(values, x) for x in series]
    noise_of_x = values["observation_noise"]
    full = noise_of_x.ndim == 2
    of_moves, noise = peak(moves(found))
    n_features = series[0].shape[-1]
    if full:
        if known is None:
            known = at_point(torch.cat([values["emission"], values["emission_offset"].unsqueeze(-1)], -1), noise_of_x)
        of_sights, spread = peak(sights(found, series, list(range(n_features)), known))
    else:
        each = [peak(sights(found, series, [feature])) for feature in range(n_features)]
        of_sights, spread = torch.cat([loc for loc, _ in each]), torch.cat([s.flatten() for _, s in each])
    first = torch.stack([moments.mean[0] for moments in found]).mean(0)
    second = torch.stack([moments.second[0, :, 0] for moments in found]).mean(0)
    return {
        "transition": of_moves[:, :-1],
        "transition_offset": of_moves[:, -1],
        "state_noise": noise,
        "emission": of_sights[:, :-1],
        "emission_offset": of_sights[:, -1],
        "observation_noise": spread,
        "initial_mean": first,
        "initial_covariance": second - torch.outer(first, first),
    }


def first_message(all_moments: list[Moments]) -> Tensor:
    """What first states add to the natural parameters of a normal-Wishart."""
    found = []
    for moments in all_moments:
        half = torch.tensor([0.5]).double()
        found.append(torch.cat([moments.mean[0], -half, half, -moments.second[0, :, 0].flatten() / 2]))
    return torch.stack(found).sum(0)


def expected(q: MatrixNormalWishartParameters) -> Expected:
    dim, precision = q.loc.shape[-1], q.df * q.scale_matrix
    second = q.loc @ precision @ q.loc.mT + dim * torch.linalg.inv(q.weight)
    return Expected(q.loc @ precision, second, expected_log_volume(q.df, q.scale_matrix), precision)


def expected_log_volume(df: Tensor, scale_matrix: Tensor) -> Tensor:
    dim = len(scale_matrix)
    return torch.digamma((df - torch.arange(dim)) / 2).sum() + dim * math.log(2.0) + torch.logdet(scale_matrix)


def best_path(
    moves: MatrixNormalWishartParameters,
    sights: MatrixNormalWishartParameters,
    first: NormalWishartParameters,
    x: Tensor,
) -> tuple[Tensor, Moments]:
    """The log of the integral of exp E log p(x, s) over paths, and the moments of that density."""
    of_moves, of_sights, mean = expected(moves), expected(sights), first.loc
    precision, kappa = first.df * first.scale_matrix, first.kappa
    log_volume = expected_log_volume(first.df, first.scale_matrix)
    n, n_latent = len(x), len(mean)
    linear, square = torch.zeros(n, n_latent).double(), torch.zeros(n, n_latent, n_latent).double()
    cross = torch.zeros(n - 1, n_latent, n_latent).double()
    linear[0], square[0] = precision @ mean, -precision / 2
    log_2pi = math.log(2 * math.pi)
    constant = (log_volume - n_latent / kappa - mean @ precision @ mean - n_latent * log_2pi) / 2
    for t in range(n - 1):
        linear[t + 1] += of_moves.first[-1]
        linear[t] -= of_moves.second[:-1, -1]
        square[t] -= of_moves.second[:-1, :-1] / 2
        square[t + 1] -= of_moves.precision / 2
        cross[t] += of_moves.first[:-1].mT
        constant = constant + (of_moves.log_volume - of_moves.second[-1, -1] - n_latent * log_2pi) / 2
    for t, row in enumerate(x):
        missing = row.isnan()
        if missing.all():
            continue
        # a normal density of x_t, of which the missing features are integrated out
        precision, first, y = of_sights.precision, of_sights.first, row[~missing]
        # the linear term of y_m is onto_u u - onto_y y
        onto_u, onto_y = first[:, missing].mT, precision[missing][:, ~missing]
        cov = torch.linalg.inv(precision[missing][:, missing])
        second = of_sights.second - onto_u.mT @ cov @ onto_u
        along = first[:, ~missing] @ y - onto_u.mT @ cov @ onto_y @ y
        outer = y @ precision[~missing][:, ~missing] @ y - y @ onto_y.mT @ cov @ onto_y @ y
        linear[t] += along[:-1] - second[:-1, -1]
        square[t] -= second[:-1, :-1] / 2
        rest = of_sights.log_volume + torch.logdet(cov) - second[-1, -1] - outer
        constant = constant + along[-1] + (rest - len(y) * log_2pi) / 2
    found = paths.posterior(linear, square, cross)
    return constant + found.log_normalizer, _moments(found.mean, found.covariance)
