"""Families where single entries of the points are known, against the densities of the whole and regressions on less."""

import math

import pytest
import torch
from samplehold.inference.families import (
    Dirichlet,
    Family,
    Gaussian,
    Held,
    LocPrecision,
    MatrixNormalWishart,
    NormalWishart,
    Point,
    given,
    given_entries,
)
from samplehold.inference.numerics.cholesky import cholesky_inverse
from torch import Generator, Tensor
from torch.testing import assert_close

from .test_families import random_eta
from .test_restricted import CASES, DIM, in_part, parts, typical

N = math.nan
DRAWS = 20_000


def tensor(rows) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def regression(loc, precision) -> LocPrecision:
    return LocPrecision(tensor(loc), tensor(precision))


FREE = [[N, N], [N, N]]
APART = [[N, 0], [0, N]]
KNOWN = [[2.0, 0.5], [0.5, 1.0]]
POINTS = {
    "probabilities": (Dirichlet(), tensor([[0.2, N, N, N], [N, 0.1, N, 0.3], [N, N, N, N]])),
    "a known row": (Dirichlet(), tensor([[0.2, 0.3, 0.4, 0.1], [N, 0.1, N, 0.3], [0.0, 0.5, N, N]])),
    "coordinates": (Gaussian(), tensor([[1.0, N, N], [N, -1.0, 2.0], [N, N, N]])),
    "inputs": (MatrixNormalWishart(3), regression([[[1.0, 2.0], [N, N], [N, N]]] * 3, [FREE] * 3)),
    "no coefficient": (MatrixNormalWishart(2), regression([[[1.0, 2.0], [0.0, -1.0]]] * 3, [FREE] * 3)),
    "a known noise": (
        MatrixNormalWishart(2),
        regression([[[1.0, N], [N, N]], [[N, N], [2.0, 1.0]], [[N, 0.0], [N, N]]], [KNOWN] * 3),
    ),
    "columns apart": (
        MatrixNormalWishart(2),
        regression([[[1.0, N], [N, N]], [[0.0, N], [N, 1.0]], [[N, N], [N, N]]], [APART, APART, FREE]),
    ),
    "a known and a free noise": (
        MatrixNormalWishart(2),
        regression([[[1.0, N], [N, N]]] * 3, [[[N, 0], [0, 2.0]]] * 3),
    ),
    "coordinates of a location": (NormalWishart(), regression([[1.0, N], [N, N], [N, 0.0]], [APART, FREE, APART])),
}
each = pytest.mark.parametrize(("family", "point"), POINTS.values(), ids=POINTS)


def dim_of(point) -> int:
    table = point if isinstance(point, Tensor) else point.precision
    return table.shape[-1] if isinstance(point, Tensor) or table.dim() == 3 else DIM


# families, what is known of their points, and the families of what is free, of entries and of whole parts
RESTRICTED = {name: (family, point, given_entries) for name, (family, point) in POINTS.items()}
RESTRICTED |= {
    f"{known} of {type(family).__name__}": (family, in_part(typical(family, known), known), given)
    for family, known in CASES
}
every = pytest.mark.parametrize(("family", "point", "restrict"), RESTRICTED.values(), ids=RESTRICTED)


@every
@pytest.mark.parametrize("lead", [(), (2,)])
def test_the_mean_is_the_gradient_of_the_log_normalizer(family, point, restrict, lead):
    restricted = restrict(family, point)
    eta = random_eta(family, 52, plates=(*lead, 3), dim=dim_of(point)).requires_grad_()
    value = restricted.log_normalizer(eta)
    assert value.shape == (*lead, 3)
    (gradient,) = torch.autograd.grad(value.sum(), eta)
    assert_close(restricted.mean(eta.detach()), gradient, rtol=1e-11, atol=1e-11)


@every
def test_the_divergence_is_the_difference_of_normalizers_and_the_expected_log_ratio(family, point, restrict):
    restricted = restrict(family, point)
    eta, eta0 = (random_eta(family, seed, plates=(3,), dim=dim_of(point), size=4.0) for seed in (53, 54))
    kl = restricted.kl(eta, eta0)
    assert_close(kl, Family.kl(restricted, eta, eta0), rtol=1e-9, atol=1e-9)
    assert (restricted.kl(eta, eta).abs() <= 1e-12).all()
    draws = restricted.sample(eta, DRAWS, Generator().manual_seed(3))
    ratio = (restricted.statistics(draws).nan_to_num(neginf=-69.0) * (eta - eta0)).sum(-1)
    ratio = ratio - restricted.log_normalizer(eta) + restricted.log_normalizer(eta0)
    assert ((ratio.mean(0) - kl).abs() <= 5 * ratio.std(0) / math.sqrt(DRAWS) + 1e-10).all()


@every
def test_draws_keep_what_is_known_and_have_the_means(family, point, restrict):
    restricted = restrict(family, point)
    eta = random_eta(family, 55, plates=(2, 3), dim=dim_of(point), size=4.0)
    draws = restricted.sample(eta, DRAWS, Generator().manual_seed(4))
    statistics = restricted.statistics(draws).nan_to_num(neginf=-69.0)
    assert statistics.shape == (DRAWS, *eta.shape)
    error = statistics.std(0) / math.sqrt(DRAWS)
    assert ((statistics.mean(0) - restricted.mean(eta)).abs() <= 5 * error + 1e-10).all()
    for drawn in (draws, restricted.expected(eta), restricted.peak(eta)):
        for value, known in zip(parts(drawn), parts(point), strict=True):
            assert_close(value, torch.where(known.isnan(), value, known), rtol=1e-12, atol=1e-12)


@each
def test_the_peak_is_where_the_density_is_greatest(family, point):
    restricted = given_entries(family, point)
    eta = random_eta(family, 56, plates=(3,), dim=dim_of(point), size=4.0)
    draws = restricted.sample(eta, 200, Generator().manual_seed(5))

    def height(at) -> Tensor:
        return (restricted.tilted(eta) * restricted.statistics(at).nan_to_num(neginf=-69.0)).sum(-1)

    assert (height(restricted.peak(eta)) >= height(draws) - 1e-9).all()
    assert_close(parts(Point(restricted).expected(eta)), parts(restricted.peak(eta)), rtol=0, atol=0)


def test_with_a_known_coefficient_the_regression_is_one_on_the_other_inputs():
    generator = Generator().manual_seed(0)
    inputs, outputs = (torch.randn(30, n, generator=generator, dtype=torch.float64) for n in (3, 2))
    known = tensor([[0.7, -0.2], [N, N], [N, N]])
    moments = [inputs.mT @ outputs, -inputs.mT @ inputs / 2, tensor([30 / 2]), -outputs.mT @ outputs / 2]
    message = torch.cat([moment.flatten() for moment in moments])
    found = given_entries(MatrixNormalWishart(3), LocPrecision(known[None], torch.full((1, 2, 2), N).double()))
    peak = Point(found, flat=True).expected(Point(found, flat=True).nothing(message[None]) + message)
    rest = outputs - inputs[:, :1] @ known[:1]
    expected = torch.linalg.lstsq(inputs[:, 1:], rest).solution
    residual = rest - inputs[:, 1:] @ expected
    assert_close(peak.loc[0, 1:], expected, rtol=1e-10, atol=1e-10)
    assert_close(cholesky_inverse(torch.linalg.cholesky(peak.precision[0])), residual.mT @ residual / 30)


def test_all_entries_known_or_free_are_the_simple_families():
    family, point = MatrixNormalWishart(1), regression([[[1.0]]], [[[2.0]]])
    assert isinstance(given_entries(family, point), Held)
    eta = random_eta(family, 1, plates=(1,), dim=1)
    free = given_entries(family, regression([[[N]]], [[[N]]]))
    assert_close(free.mean(eta), family.mean(eta), rtol=1e-12, atol=1e-12)
    assert_close(free.log_normalizer(eta), family.log_normalizer(eta), rtol=1e-12, atol=1e-12)


def test_columns_of_a_free_noise_know_the_same_inputs():
    with pytest.raises(ValueError, match="different inputs are known"):
        given_entries(MatrixNormalWishart(2), regression([[[1.0, N], [N, N]]], [FREE]))
