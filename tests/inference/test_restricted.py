"""Families where a part of the point is known, against the joint density divided by the marginal of that part."""

import math

import pytest
import torch
from oracles import conjugate
from samplehold.inference.families import (
    Dirichlet,
    Gamma,
    Gaussian,
    LocPrecision,
    MatrixNormalWishart,
    NormalGamma,
    NormalWishart,
    Wishart,
    given,
)
from torch import Generator, Tensor
from torch import distributions as dist
from torch.testing import assert_close

from .test_families import assert_within_error, random_eta, random_usual

DIM = 3
CASES = [(family, known) for family in (NormalGamma(), NormalWishart()) for known in ("loc", "precision")] + [
    (Gaussian(), "coordinates")
]
each = pytest.mark.parametrize(
    ("family", "known"), CASES, ids=lambda case: case if isinstance(case, str) else type(case).__name__
)


def parts(point) -> list[Tensor]:
    return [point] if isinstance(point, Tensor) else [point.loc, point.precision]


def in_part(point, known: str):
    """The same point, NaN where it is not known."""
    if known == "coordinates":
        return torch.where(torch.tensor([True, False, True]), point, torch.nan)
    nowhere = torch.tensor(math.nan, dtype=torch.float64)
    return LocPrecision(point.loc, nowhere) if known == "loc" else LocPrecision(nowhere, point.precision)


def typical(family, known: str, plates: tuple[int, ...] = (3,)):
    """A point of the family, of which a part is to be known."""
    plates = () if known == "coordinates" else plates
    eta = random_eta(family, 50, plates=plates, dim=DIM, size=2.0)
    drawn = family.sample(eta, 1, Generator().manual_seed(1))
    return drawn[0] if isinstance(drawn, Tensor) else LocPrecision(drawn.loc[0], drawn.precision[0])


def with_free(drawn, point, known: str):
    """Draws with the known part in its place."""
    if known == "coordinates":
        return torch.where(torch.tensor([True, False, True]), point, drawn)
    if known == "loc":
        return LocPrecision(point.loc.expand_as(drawn.loc), drawn.precision)
    return LocPrecision(drawn.loc, point.precision.expand_as(drawn.precision))


def log_marginal(family, usual: dict[str, Tensor], known: str, point) -> Tensor:
    """Log density of the known part by itself, as the textbooks have it."""
    if known == "coordinates":
        some = torch.tensor([0, 2])
        covariance = torch.linalg.inv(usual["precision"])[..., some[:, None], some]
        return dist.MultivariateNormal(usual["loc"][..., some], covariance).log_prob(point[..., some])
    if isinstance(family, NormalGamma):
        if known == "precision":
            return dist.Gamma(usual["shape"], usual["rate"]).log_prob(point.precision)
        scale = (usual["rate"] / (usual["shape"] * usual["kappa"])).sqrt()
        return dist.StudentT(2 * usual["shape"], usual["loc"], scale).log_prob(point.loc)
    if known == "precision":
        wishart = dist.Wishart(usual["df"], covariance_matrix=usual["scale_matrix"], validate_args=False)
        return wishart.log_prob(point.precision)
    freedom = usual["df"] - DIM + 1  # a multivariate t, Murphy 2007, equation 258
    shape = usual["scale_matrix"] * (usual["kappa"] * freedom)[..., None, None]  # its inverse scale
    gap = (point.loc - usual["loc"])[..., None]
    distance = (gap.mT @ shape @ gap)[..., 0, 0]
    constant = torch.lgamma((freedom + DIM) / 2) - torch.lgamma(freedom / 2) - DIM / 2 * (freedom * math.pi).log()
    return constant + torch.logdet(shape) / 2 - (freedom + DIM) / 2 * torch.log1p(distance / freedom)


@each
def test_the_density_is_that_of_what_is_free_given_what_is_known(family, known):
    point = typical(family, known)
    usual = random_usual(family, 51, plates=(3,), dim=DIM)
    joint = family.natural(**usual)
    draws = with_free(family.sample(joint, 20, Generator().manual_seed(2)), point, known)
    expected = conjugate.log_density(type(family).__name__, usual, draws) - log_marginal(family, usual, known, point)
    assert_close(given(family, in_part(point, known)).log_prob(draws, joint), expected, rtol=1e-10, atol=1e-10)


@each
def test_the_entropy_is_the_expected_negative_log_density_and_the_mean_that_of_draws(family, known):
    restricted = given(family, in_part(typical(family, known), known))
    eta = random_eta(family, 53, plates=(2, 3), dim=DIM, size=3.0)
    draws, mean = restricted.sample(eta, 20_000, Generator().manual_seed(3)), restricted.expected(eta)
    assert_within_error(-restricted.log_prob(draws, eta), restricted.entropy(eta))
    drawn, expected = (parts(q)[1 if known == "loc" else 0] for q in (draws, mean))
    free = slice(1, 2) if known == "coordinates" else ...
    assert_within_error(drawn[..., free], expected[..., free])


@each
def test_the_mode_is_where_the_density_is_greatest(family, known):
    restricted = given(family, in_part(typical(family, known), known))
    eta = random_eta(family, 56, dim=DIM, size=4.0)
    mode, draws = restricted.mode(eta), restricted.sample(eta, 200, Generator().manual_seed(5))
    assert (restricted.log_prob(mode, eta) >= restricted.log_prob(draws, eta)).all()
    for scale in (0.999, 1.001):
        moved = scale * mode if known == "coordinates" else LocPrecision(scale * mode.loc, scale * mode.precision)
        moved = with_free(moved, typical(family, known), known)
        assert (restricted.log_prob(mode, eta) > restricted.log_prob(moved, eta)).all()


@each
def test_improper_parameters_are_those_of_what_is_free(family, known):
    restricted = given(family, in_part(typical(family, known), known))
    eta = random_eta(family, 57, dim=DIM)
    restricted.check(eta)
    with pytest.raises(ValueError, match=r"of (Gamma|Wishart|Gaussian): got"):
        restricted.check(-eta)


@each
def test_float32_stays_float32_and_agrees(family, known):
    point = in_part(typical(family, known), known)
    narrow = point.float() if isinstance(point, Tensor) else LocPrecision(point.loc.float(), point.precision.float())
    usual = random_usual(family, 58, dim=DIM)
    eta = family.natural(**{name: value.float() for name, value in usual.items()})
    restricted, exact = given(family, narrow), given(family, point)
    for value, expected in (
        (restricted.mean(eta), exact.mean(family.natural(**usual))),
        (restricted.kl(eta, 1.1 * eta), exact.kl(family.natural(**usual), 1.1 * family.natural(**usual))),
    ):
        assert value.dtype == torch.float32
        assert_close(value.double(), expected, rtol=1e-3, atol=1e-3)


def test_with_all_of_the_point_known_nothing_is_left_to_say():
    point = typical(NormalWishart(), "loc")
    held, eta = given(NormalWishart(), point), random_eta(NormalWishart(), 59, dim=DIM).requires_grad_()
    (gradient,) = torch.autograd.grad(held.log_normalizer(eta).sum(), eta)
    assert_close(gradient, NormalWishart().statistics(point), rtol=1e-12, atol=0)
    assert not held.kl(eta, 2 * eta).any()
    assert_close(held.sample(eta, 2).loc, point.loc.expand(2, 3, DIM), rtol=0, atol=0)
    sure = torch.tensor([1.0, 0.0])
    assert_close(given(Dirichlet(), sure).sample(torch.ones(2), 3), sure.expand(3, 2), rtol=0, atol=0)
    assert bool(given(Dirichlet(), sure).mean(torch.ones(2)).isfinite().all())


def test_a_family_without_such_parts_is_refused():
    nowhere = torch.full((2, 1), math.nan, dtype=torch.float64)
    point = LocPrecision(nowhere, torch.eye(1, dtype=torch.float64))
    with pytest.raises(TypeError, match="MatrixNormalWishart cannot have only some known entries; give all"):
        given(MatrixNormalWishart(2), point)


def test_a_wishart_of_one_dimension_is_a_gamma():
    eta, eta0 = random_eta(Gamma(), 60), random_eta(Gamma(), 61)
    for method in ("log_normalizer", "mean", "entropy"):
        assert_close(getattr(Wishart(), method)(eta), getattr(Gamma(), method)(eta), rtol=1e-12, atol=1e-13)
    assert_close(Wishart().kl(eta, eta0), Gamma().kl(eta, eta0), rtol=1e-11, atol=1e-12)
