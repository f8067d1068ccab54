"""Exponential families against torch.distributions, automatic and finite differences, quadrature and sampling."""

import math
import re
from itertools import product
from typing import Any

import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from oracles import conjugate
from samplehold.inference.families import (
    Bernoulli,
    Beta,
    Categorical,
    CopyPaths,
    CopyTables,
    Dirichlet,
    Family,
    Gamma,
    Gaussian,
    LocPrecision,
    MarkovPaths,
    MarkovTables,
    MatrixNormalWishart,
    NormalGamma,
    NormalWishart,
    SharedPrecision,
    Wishart,
    given_entries,
)
from scipy import integrate
from torch import Generator, Tensor
from torch.testing import assert_close

NORMAL = [NormalGamma(), NormalWishart(), MatrixNormalWishart(3), SharedPrecision(2), Wishart()]
FAMILIES = [Beta(), Dirichlet(), Gamma(), *NORMAL, Bernoulli(), Categorical(), Gaussian()]
CONTINUOUS = [Beta(), Dirichlet(), Gamma(), *NORMAL, Gaussian()]
each_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: type(family).__name__)
each_continuous = pytest.mark.parametrize("family", CONTINUOUS, ids=lambda family: type(family).__name__)


def random_usual(family: Any, seed: int, plates: tuple[int, ...] = (3,), dim: int = 2, size: float = 1.0) -> dict:
    """Usual parameters of the order of `size`, in float64."""
    generator = Generator().manual_seed(seed)

    def positive(*shape: int) -> Tensor:
        return size * (0.5 + 2 * torch.rand((*plates, *shape), generator=generator, dtype=torch.float64))

    def normal(*shape: int) -> Tensor:
        return torch.randn((*plates, *shape), generator=generator, dtype=torch.float64)

    def matrix(dim: int = dim) -> Tensor:
        root = normal(dim, dim)
        return root @ root.mT + 0.3 * torch.eye(dim, dtype=torch.float64)

    match type(family).__name__:
        case "Beta":
            return {"a": positive(), "b": positive()}
        case "Dirichlet":
            return {"concentration": positive(4)}
        case "Gamma":
            return {"shape": positive(), "rate": positive()}
        case "NormalGamma":
            return {"loc": normal(), "kappa": positive(), "shape": positive(), "rate": positive()}
        case "NormalWishart":
            return {"loc": normal(dim), "kappa": positive(), "df": dim + positive(), "scale_matrix": matrix()}
        case "Wishart":
            return {"df": dim + positive(), "scale_matrix": matrix()}
        case "MatrixNormalWishart":
            k = family.n_inputs
            return {"loc": normal(k, dim), "weight": size * matrix(k), "df": dim + positive(), "scale_matrix": matrix()}
        case "SharedPrecision":
            return {"loc": normal(3, dim), "kappa": positive(3), "df": dim + positive(), "scale_matrix": matrix()}
        case "Bernoulli":
            return {"probs": torch.sigmoid(normal())}
        case "Categorical":
            return {"probs": torch.softmax(normal(4), -1)}
        case "Gaussian":
            return {"loc": normal(dim), "precision": matrix()}
    raise KeyError(family)


def random_eta(family: Any, seed: int, **kwargs: Any) -> Tensor:
    return family.natural(**random_usual(family, seed, **kwargs))


def assert_within_error(draws: Tensor, expected: Tensor) -> None:
    """The mean of n independent draws lies within five standard errors."""
    error = draws.std(0) / math.sqrt(len(draws))
    assert (error > 0).all()
    assert ((draws.mean(0) - expected).abs() <= 5 * error).all()


@each_family
@pytest.mark.parametrize("plates", [(), (3,), (2, 3)])
def test_mean_is_the_gradient_of_the_log_normalizer(family, plates):
    eta = random_eta(family, 0, plates=plates).requires_grad_()
    (gradient,) = torch.autograd.grad(family.log_normalizer(eta).sum(), eta)
    assert_close(family.mean(eta.detach()), gradient, rtol=1e-11, atol=1e-13)


@each_family
def test_gradients_are_finite_differences(family):
    eta = random_eta(family, 1, plates=(2,)).requires_grad_()
    assert torch.autograd.gradcheck(family.log_normalizer, eta, atol=1e-7, rtol=1e-6)
    assert torch.autograd.gradcheck(family.mean, eta, atol=1e-6, rtol=1e-5)
    eta0 = random_eta(family, 2, plates=(2,)).requires_grad_()
    assert torch.autograd.gradcheck(family.kl, (eta, eta0), atol=1e-6, rtol=1e-5)


@each_family
@given(seed=st.integers(0, 10**6))
@examples(10)
def test_natural_and_usual_parameters_are_inverse_maps(family, seed):
    usual = random_usual(family, seed)
    eta = family.natural(**usual)
    back = vars(family.usual(eta))
    assert back.keys() == usual.keys()
    for name, value in usual.items():
        assert_close(back[name], value, rtol=1e-11, atol=1e-12)
    if not isinstance(family, Categorical):  # whose eta is free up to a constant
        assert_close(family.natural(**back), eta, rtol=1e-11, atol=1e-12)


@each_family
def test_log_prob_is_that_of_torch_distributions(family):
    usual = random_usual(family, 3)
    eta = family.natural(**usual)
    draws = family.sample(eta, 20, Generator().manual_seed(0))
    assert_close(
        family.log_prob(draws, eta), conjugate.log_density(type(family).__name__, usual, draws), rtol=1e-9, atol=1e-9
    )


@each_family
def test_entropy_is_the_expected_negative_log_density(family):
    usual = random_usual(family, 4)
    eta = family.natural(**usual)
    if family not in NORMAL:
        assert_close(family.entropy(eta), conjugate.entropy(type(family).__name__, usual), rtol=1e-10, atol=1e-10)
    draws = family.sample(eta, 20_000, Generator().manual_seed(1))
    assert_within_error(-family.log_prob(draws, eta), family.entropy(eta))


@each_family
def test_sampled_statistics_have_the_expected_mean(family):
    eta = random_eta(family, 5, size=2.0)
    draws = family.statistics(family.sample(eta, 20_000, Generator().manual_seed(2)))
    assert draws.shape == (20_000, *eta.shape)
    assert_within_error(draws.flatten(1), family.mean(eta).flatten())


def test_samples_have_the_textbook_moments():
    generator = Generator().manual_seed(3)
    a, b = torch.tensor(0.3, dtype=torch.float64), torch.tensor(1.7, dtype=torch.float64)
    assert_within_error(Beta().sample(Beta().natural(a, b), 40_000, generator), a / (a + b))
    assert_within_error(Gamma().sample(Gamma().natural(a, b), 40_000, generator), a / b)
    usual = random_usual(NormalWishart(), 6, plates=(), dim=3, size=4.0)
    draws = NormalWishart().sample(NormalWishart().natural(**usual), 40_000, generator)
    assert_within_error(draws.precision, usual["df"] * usual["scale_matrix"])
    assert_within_error(draws.loc, usual["loc"])
    covariance = torch.linalg.inv(usual["scale_matrix"]) / (usual["df"] - 4)  # of an inverse Wishart, D = 3
    outer = (draws.loc - usual["loc"])[:, :, None] * (draws.loc - usual["loc"])[:, None, :]
    assert_within_error(outer, covariance / usual["kappa"])


def test_samples_follow_the_generator_alone():
    for family in FAMILIES:
        eta = random_eta(family, 7)
        first, again, other = (family.sample(eta, 50, Generator().manual_seed(seed)) for seed in (4, 4, 5))
        assert_close(family.statistics(first), family.statistics(again), rtol=0, atol=0)
        assert not torch.equal(family.statistics(first), family.statistics(other))


def test_a_draw_is_differentiable_in_its_parameters():
    """d E[l] / d shape = 1 / rate for a gamma variable, by the pathwise gradient of the draws."""
    shape = torch.full((20_000,), 0.6, dtype=torch.float64, requires_grad=True)
    rate = torch.full((20_000,), 1.5, dtype=torch.float64)
    draws = Gamma().sample(Gamma().natural(shape, rate), 1, Generator().manual_seed(6))
    (gradient,) = torch.autograd.grad(draws.sum(), shape)
    assert_within_error(gradient, torch.tensor(1 / 1.5, dtype=torch.float64))


@each_family
@given(seed=st.integers(0, 10**6), size=st.sampled_from([0.1, 1.0, 30.0]))
@examples(10)
def test_kl_is_the_difference_of_normalizers_and_never_negative(family, seed, size):
    eta, eta0 = random_eta(family, seed, size=size), random_eta(family, seed + 1, plates=())
    kl = family.kl(eta, eta0)
    assert kl.shape == (3,)
    assert_close(kl, Family.kl(family, eta, eta0), rtol=1e-10, atol=1e-11)
    assert (kl > 0).all()
    assert (family.kl(eta, eta).abs() <= 1e-13).all()


@each_family
def test_kl_is_the_expected_log_ratio(family):
    eta, eta0 = random_eta(family, 8), random_eta(family, 9)
    draws = family.sample(eta, 20_000, Generator().manual_seed(7))
    assert_within_error(family.log_prob(draws, eta) - family.log_prob(draws, eta0), family.kl(eta, eta0))


@pytest.mark.parametrize(("family", "upper"), [(Beta(), 1.0), (Gamma(), math.inf)])
def test_kl_and_entropy_by_quadrature(family, upper):
    eta, eta0 = random_eta(family, 10, plates=(), size=1.5), random_eta(family, 11, plates=())

    def expectation(function):
        def integrand(x):
            point = torch.tensor(x, dtype=torch.float64)
            return float(family.log_prob(point, eta).exp() * function(point))

        return integrate.quad(integrand, 0.0, upper, epsabs=1e-11, epsrel=1e-11, limit=200)[0]

    assert expectation(torch.ones_like) == pytest.approx(1.0, abs=1e-9)
    ratio = expectation(lambda x: family.log_prob(x, eta) - family.log_prob(x, eta0))
    assert float(family.kl(eta, eta0)) == pytest.approx(ratio, abs=1e-8)
    assert float(family.entropy(eta)) == pytest.approx(expectation(lambda x: -family.log_prob(x, eta)), abs=1e-8)


@pytest.mark.parametrize(
    "family", [Beta(), Dirichlet(), Gamma(), NormalGamma()], ids=lambda family: type(family).__name__
)
def test_kl_of_near_neighbours_keeps_its_digits_where_normalizers_have_lost_theirs(family):
    """A difference of log gamma functions of 1e8 has a rounding error of 4e-7, and these divergences are near 1e-8."""
    eta = random_eta(family, 12, plates=(), size=1e8)
    step = eta * 1e-8 * torch.linspace(0.5, 1.5, len(eta), dtype=eta.dtype)
    metric = torch.autograd.functional.jvp(family.mean, eta, step)[1]
    for found in (family.kl(eta, eta + step), family.relative(eta[None], eta + step)[0][0]):
        assert_close(found, (metric * step).sum() / 2, rtol=1e-4, atol=1e-16)


@each_continuous
def test_kl_of_concentrated_neighbours_is_half_their_squared_distance(family):
    """In the metric A''. With weights of 1e7 the normalizers are of order 1e8, their rounding of order 1e-8."""
    eta = random_eta(family, 12, plates=(), size=1e7)
    step = eta * 1e-3
    metric = torch.autograd.functional.jvp(family.mean, eta, step)[1]
    assert_close(family.kl(eta, eta + step), (metric * step).sum() / 2, rtol=2e-3, atol=1e-7)
    assert (metric * step).sum() > 2e-7


@each_continuous
def test_the_mode_is_where_the_gradient_vanishes(family):
    eta = random_eta(family, 13, size=4.0)
    mode = family.mode(eta)
    parts = [mode] if isinstance(mode, Tensor) else [mode.loc, mode.precision]
    parts = [part.clone().requires_grad_() for part in parts]
    point = parts[0] if isinstance(mode, Tensor) else LocPrecision(*parts)
    for gradient in torch.autograd.grad(family.log_prob(point, eta).sum(), parts):
        if isinstance(family, Dirichlet):  # on the simplex only differences along it count
            gradient = gradient - gradient.mean(-1, keepdim=True)
        assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-10)
    draws = family.sample(eta, 200, Generator().manual_seed(8))
    assert (family.log_prob(mode, eta) >= family.log_prob(draws, eta)).all()


def test_modes_are_the_textbook_ones():
    one = torch.tensor(1.0, dtype=torch.float64)
    assert_close(Beta().mode(Beta().natural(3 * one, 2 * one)), one * 2 / 3)
    assert_close(
        Dirichlet().mode(torch.stack([one, 2 * one, 4 * one])), torch.tensor([0.0, 0.25, 0.75], dtype=one.dtype)
    )
    assert_close(Dirichlet().mode(one[None]), one[None])
    assert_close(Gamma().mode(Gamma().natural(3 * one, 4 * one)), one / 2)
    assert_close(NormalGamma().mode(NormalGamma().natural(5 * one, one, 3 * one, 2 * one)).precision, 1.25 * one)
    scale = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=one.dtype)
    mode = NormalWishart().mode(NormalWishart().natural(torch.stack([one, one]), one, 5 * one, scale))
    assert_close(mode.precision, 3 * scale)
    assert_close(Bernoulli().mode(Bernoulli().natural(one * 0.7)), one)
    assert_close(Categorical().mode(torch.tensor([0.1, 0.6, 0.3]).log()), torch.tensor([0.0, 1.0, 0.0]))


def test_a_normal_wishart_of_one_dimension_is_a_normal_gamma():
    narrow, wide = NormalGamma(), NormalWishart()
    usual = random_usual(narrow, 14)
    eta, eta0 = narrow.natural(**usual), random_eta(narrow, 15)
    same = wide.natural(
        usual["loc"][:, None], usual["kappa"], 2 * usual["shape"], 1 / (2 * usual["rate"])[:, None, None]
    )
    assert_close(same, eta, rtol=1e-12, atol=1e-13)
    assert_close(wide.log_normalizer(eta), narrow.log_normalizer(eta), rtol=1e-12, atol=1e-13)
    assert_close(wide.mean(eta), narrow.mean(eta), rtol=1e-12, atol=1e-13)
    assert_close(wide.kl(eta, eta0), narrow.kl(eta, eta0), rtol=1e-11, atol=1e-12)
    assert_close(wide.entropy(eta), narrow.entropy(eta), rtol=1e-12, atol=1e-12)


def test_a_shared_precision_of_one_location_is_a_normal_wishart():
    shared, alone = SharedPrecision(2), NormalWishart()
    usual, other = random_usual(alone, 14), random_usual(alone, 15)
    eta, eta0 = alone.natural(**usual), alone.natural(**other)
    one = {"loc": usual["loc"].unsqueeze(-2), "kappa": usual["kappa"].unsqueeze(-1)}
    assert_close(shared.natural(**(usual | one)), eta, rtol=1e-12, atol=1e-13)
    assert_close(shared.log_normalizer(eta), alone.log_normalizer(eta), rtol=1e-12, atol=1e-13)
    assert_close(shared.mean(eta), alone.mean(eta), rtol=1e-12, atol=1e-13)
    assert_close(shared.kl(eta, eta0), alone.kl(eta, eta0), rtol=1e-11, atol=1e-12)
    by = random_usual(alone, 16)["loc"]
    assert_close(shared.moved(eta, by.unsqueeze(-2)), alone.moved(eta, by), rtol=1e-12, atol=1e-12)


def test_messages_to_each_location_are_joined_to_one_of_the_shared_precision():
    """<joined m, t> is the sum of <m_k, t_k>, and the mean of the residuals' message is that of the whole."""
    shared = SharedPrecision(2)
    eta, messages = random_eta(shared, 20), random_eta(NormalWishart(), 21, plates=(3, 3))
    statistics = shared.mean(eta)
    by_location = (messages * shared.each(statistics)).sum((-2, -1))
    assert_close(shared.dot(shared.joined(messages), statistics), by_location, rtol=1e-12, atol=1e-12)
    loc, pooled = shared.within(eta)
    assert_close(shared.expected(eta).loc, loc, rtol=1e-12, atol=1e-12)
    assert_close(shared.expected(eta).precision, NormalWishart().expected(pooled).precision, rtol=1e-10, atol=1e-10)
    order = torch.tensor([2, 0, 1])
    assert_close(shared.expected(shared.reordered(eta, order)).loc, loc[:, order], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("known", ["loc", "precision", "last location"])
def test_known_parts_of_a_shared_precision_are_those_of_its_regression(known):
    """With the first location NaN for all others that are free."""
    shared, regression = SharedPrecision(2), MatrixNormalWishart(3)
    usual, (eta, eta0) = random_usual(shared, 22), (random_eta(shared, seed) for seed in (22, 23))
    point = shared.expected(eta0)
    free = torch.full_like(point.loc[:, :1], torch.nan)
    loc = {"loc": point.loc, "precision": free, "last location": torch.cat([free, point.loc[:, 2:]], 1)}[known]
    precision = point.precision if known == "precision" else torch.full_like(point.precision, torch.nan)
    restricted = SharedPrecision(2, LocPrecision(loc, precision))
    whole_loc = {"loc": loc, "precision": free.expand(3, 3, 2)}.get(known, torch.cat([free, loc], 1))
    whole = given_entries(regression, LocPrecision(whole_loc, precision))
    weight = torch.diag_embed(usual["kappa"])
    regression_eta = regression.natural(usual["loc"], weight, usual["df"], usual["scale_matrix"])
    assert_close(vars(restricted.expected(eta)), vars(whole.expected(regression_eta)), rtol=1e-11, atol=1e-11)
    assert_close(restricted.log_normalizer(eta), whole.log_normalizer(regression_eta), rtol=1e-11, atol=1e-11)
    leaf = eta.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(restricted.log_normalizer(leaf).sum(), leaf)
    assert_close(restricted.mean(eta), gradient, rtol=1e-10, atol=1e-11)
    assert_close(restricted.kl(eta, eta0), Family.kl(restricted, eta, eta0), rtol=1e-9, atol=1e-10)


def test_a_beta_is_a_dirichlet_of_two():
    eta, eta0 = random_eta(Beta(), 16), random_eta(Beta(), 17)
    assert_close(Beta().mean(eta), Dirichlet().mean(eta))
    assert_close(Beta().kl(eta, eta0), Dirichlet().kl(eta, eta0))


@pytest.mark.parametrize("size", [1e-9, 1e-4, 1e4, 1e9])
@pytest.mark.parametrize("family", CONTINUOUS[:-1], ids=lambda family: type(family).__name__)
def test_tiny_and_huge_weights_stay_finite(family, size):
    eta, eta0 = random_eta(family, 18, size=size), random_eta(family, 19)
    family.check(eta)
    assert family.log_normalizer(eta).isfinite().all()
    assert family.mean(eta).isfinite().all()
    assert family.entropy(eta).isfinite().all()
    assert (family.kl(eta, eta0) > 0).all()
    assert (family.kl(eta0, eta) > 0).all()
    assert_close(family.kl(eta, eta0), Family.kl(family, eta, eta0), rtol=1e-5, atol=1e-6)
    draws = family.sample(eta, 100, Generator().manual_seed(9))
    for part in [draws] if isinstance(draws, Tensor) else [draws.precision]:
        assert not part.isnan().any()
    usual, back = random_usual(family, 18, size=size), vars(family.usual(eta))
    weight = next(name for name in ("concentration", "shape", "df", "a") if name in usual)
    assert_close(back[weight], usual[weight], rtol=1e-12, atol=0)


def test_draws_of_a_tiny_concentration_are_nearly_one_hot():
    eta = torch.full((4,), 1e-9, dtype=torch.float64)
    draws = Dirichlet().sample(eta, 4000, Generator().manual_seed(10))
    assert (draws.max(-1).values > 1 - 1e-12).all()
    counts = draws.round().sum(0)
    assert ((counts - 1000).abs() < 5 * math.sqrt(4000 * 3 / 16)).all()


def test_impossible_states_add_nothing():
    minus_inf = -math.inf
    eta = torch.tensor([0.2, minus_inf, -0.5], dtype=torch.float64, requires_grad=True)
    eta0 = torch.tensor([0.0, minus_inf, 0.7], dtype=torch.float64)
    kept = torch.tensor([True, False, True])
    family = Categorical()
    family.check(eta)
    assert_close(family.kl(eta, eta0), family.kl(eta[kept], eta0[kept]))
    assert_close(family.entropy(eta), family.entropy(eta[kept]))
    (gradient,) = torch.autograd.grad(family.kl(eta, eta0) + family.entropy(eta), eta)
    assert gradient.isfinite().all()
    assert gradient[1] == 0
    assert family.kl(eta0, torch.tensor([minus_inf, 0.0, 0.0], dtype=torch.float64)) == math.inf
    certain = torch.tensor([[math.inf], [minus_inf]], dtype=torch.float64)
    assert_close(
        Bernoulli().entropy(torch.tensor([[800.0], [minus_inf]], dtype=torch.float64)), torch.zeros(2).double()
    )
    assert_close(Bernoulli().kl(certain, torch.zeros(1).double()), torch.full((2,), math.log(2)).double())


@each_family
def test_float32_stays_float32_and_agrees(family):
    usual = random_usual(family, 20)
    exact = family.natural(**usual)
    eta = family.natural(**{name: value.float() for name, value in usual.items()})
    point = family.sample(eta, 3, Generator().manual_seed(11))
    for value, expected in (
        (eta, exact),
        (family.mean(eta), family.mean(exact)),
        (family.log_normalizer(eta), family.log_normalizer(exact)),
        (family.kl(eta, eta * 1.1), family.kl(exact, exact * 1.1)),
        (family.entropy(eta), family.entropy(exact)),
    ):
        assert value.dtype == torch.float32
        assert_close(value.double(), expected, rtol=2e-4, atol=2e-4)
    assert family.log_prob(point, eta).dtype == torch.float32


IMPROPER = [
    (Beta(), [1.0, 0.0], "concentration of Beta: got 0 at [1]"),
    (Beta(), [1.0, math.nan], "concentration of Beta: got nan"),
    (
        Dirichlet(),
        [1.0, -2.0, 1.0],
        "concentration of Dirichlet: got -2 at [1], expected a finite number above 0",
    ),
    (Gamma(), [0.0, -1.0], "shape of Gamma: got 0"),
    (Gamma(), [1.0, 0.5], "rate of Gamma: got -0.5"),
    (SharedPrecision(), [0.0, -0.5, 1.0], "SharedPrecision: got 3 natural parameters"),
    (NormalGamma(), [0.0, 0.0, 1.0, -1.0], "kappa of NormalGamma: got 0"),
    (NormalGamma(), [0.0, -0.5, 0.0, -1.0], "shape of NormalGamma: got 0"),
    (NormalGamma(), [0.0, -0.5, 1.0, 0.0], "rate of NormalGamma: got 0"),
    (NormalWishart(), [0, 0, -0.5, 0.5, -1, 0, 0, -1], "df of NormalWishart: got 1, expected above D - 1 = 1"),
    (
        NormalWishart(),
        [0, 0, -0.5, 2.0, -1, 0, 0, 1],
        "scale_matrix of NormalWishart: got -2, expected positive definite",
    ),
    (Wishart(), [0.5, -1, 0, 0, -1], "df of Wishart: got 1, expected above D - 1 = 1"),
    (Wishart(), [2.0, -1, 0, 0, 1], "scale_matrix of Wishart: got -2, expected positive definite"),
    (Wishart(), [0.0] * 4, "Wishart: got 4 natural parameters"),
    (NormalWishart(), [0.0] * 7, "NormalWishart: got 7 natural parameters"),
    (Bernoulli(), [math.nan], "logit of Bernoulli: got nan"),
    (Categorical(), [-math.inf, -math.inf], "log weights of Categorical: got -inf"),
    (Categorical(), [0.0, math.nan], "log weights of Categorical: got nan"),
    (Gaussian(), [0, 0, -1, 0, 0, 0], "precision of Gaussian: got 0, expected positive definite"),
    (Gaussian(), [0.0] * 5, "Gaussian: got 5 natural parameters"),
]


@pytest.mark.parametrize(("family", "eta", "message"), IMPROPER)
def test_check_names_what_is_improper(family, eta, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        family.check(torch.tensor(eta, dtype=torch.float64))


def test_check_names_the_place():
    shape = torch.ones(2, 3, dtype=torch.float64)
    shape[1, 2] = -4
    with pytest.raises(ValueError, match=r"shape of Gamma: got -4 at \[1, 2\]"):
        Gamma().check(Gamma().natural(shape, torch.ones(2, 3, dtype=torch.float64)))


@each_family
def test_check_accepts_what_is_proper(family):
    family.check(random_eta(family, 21))
    family.check(random_eta(family, 22, plates=()).float())


@pytest.mark.parametrize(
    ("family", "usual", "name"),
    [
        (Beta(), {"a": 1.0, "b": 1.0}, "concentration"),
        (Beta(), {"a": 0.5, "b": 3.0}, "concentration"),
        (Gamma(), {"shape": 0.9, "rate": 1.0}, "shape"),
        (NormalGamma(), {"loc": 0.0, "kappa": 1.0, "shape": 0.5, "rate": 1.0}, "shape"),
    ],
)
def test_a_density_without_a_peak_has_no_mode(family, usual, name):
    eta = family.natural(**{key: torch.tensor(value, dtype=torch.float64) for key, value in usual.items()})
    with pytest.raises(ValueError, match=f"{name} of {type(family).__name__}: .* for a mode; take the mean instead"):
        family.mode(eta)


# The chains as families of paths, against a sum over every path.


def every_path(family: CopyPaths | MarkovPaths, eta: CopyTables | MarkovTables) -> tuple[list, Tensor]:
    """The statistics of every path of one sequence, and the log weights of the paths."""
    paths = []
    n_steps, n_states = (eta.fresh if isinstance(eta, CopyTables) else eta.likelihood).shape[-2:]
    used = {name: torch.zeros_like(table) for name, table in eta._asdict().items()}
    if isinstance(eta, MarkovTables):
        for states in product(range(n_states), repeat=n_steps):
            counts = {name: table.clone() for name, table in used.items()}
            counts["initial"][states[0]] += 1
            for t, state in enumerate(states):
                counts["likelihood"][t, state] += 1
                if t:
                    counts["transition"][states[t - 1], state] += 1
            paths.append(MarkovTables(**counts))
    else:
        later = [[None, *range(n_states)]] * (n_steps - 1)  # None holds, a number is drawn afresh
        for steps in product(range(n_states), *later):
            counts = {name: table.clone() for name, table in used.items()}
            for t, drawn in enumerate(steps):
                state = state if drawn is None else drawn
                counts["held" if drawn is None else "fresh"][t, state] += 1
            paths.append(CopyTables(**counts))
    weights = torch.stack([family.dot(eta, path) + family.log_base(path) for path in paths])
    return paths, weights


def random_tables(kind: str, seed: int, n_steps: int = 3, n_states: int = 2) -> CopyTables | MarkovTables:
    generator = Generator().manual_seed(seed)
    square, by_step, once = (n_states, n_states), (n_steps, n_states), (n_states,)
    shapes = (by_step, by_step) if kind == "copy" else (once, square, by_step)
    tables = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    return CopyTables(*tables) if kind == "copy" else MarkovTables(*tables)


@pytest.mark.parametrize("kind", ["copy", "markov"])
@given(seed=st.integers(0, 10**6), impossible=st.booleans())
@examples(10)
def test_paths_equal_enumeration(kind, seed, impossible):
    eta, eta0 = random_tables(kind, seed), random_tables(kind, seed + 1)
    base = type(eta)(*(torch.zeros_like(table) for table in eta))
    if impossible:
        base[1][1, 0] = -math.inf
    family = (CopyPaths if kind == "copy" else MarkovPaths)(base=base)
    paths, weights = every_path(family, eta)
    log_probs = weights.log_softmax(0)
    log_probs0 = every_path(family, eta0)[1].log_softmax(0)
    possible = log_probs > -math.inf
    assert_close(family.log_normalizer(eta), weights.logsumexp(0), rtol=1e-11, atol=1e-11)
    for i, mean in enumerate(family.mean(eta)):
        expected = sum(p * path[i] for p, path in zip(log_probs.exp(), paths, strict=True))
        assert_close(mean, expected, rtol=1e-10, atol=1e-12)
    entropy = -(log_probs.exp() * log_probs)[possible].sum()
    assert_close(family.entropy(eta), entropy, rtol=1e-10, atol=1e-10)
    kl = (log_probs.exp() * (log_probs - log_probs0))[possible].sum()
    assert_close(family.kl(eta, eta0), kl, rtol=1e-10, atol=1e-11)


def test_paths_need_finite_tables_of_one_batch():
    with pytest.raises(
        ValueError, match=r"likelihood: got a weight that is not finite; give finite weights, .* -inf in `base`"
    ):
        MarkovPaths().check(MarkovTables(torch.zeros(2), torch.zeros(2, 2), torch.full((3, 2), -math.inf)))
    with pytest.raises(ValueError, match=r"transition: the tables have shapes .* give each all batch axes"):
        MarkovPaths().check(MarkovTables(torch.zeros(4, 2), torch.zeros(2, 2), torch.zeros(4, 3, 2)))
    CopyPaths().check(CopyTables(torch.zeros(4, 3, 2), torch.zeros(4, 3, 1)))


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 1e-5), (torch.float64, 1e-13)])
def test_divergences_from_very_weak_priors_keep_their_digits(dtype, rtol):
    family = NormalGamma()
    usual = {"loc": torch.tensor(1.0, dtype=dtype), "shape": torch.tensor(3.0, dtype=dtype)}
    usual["rate"] = torch.tensor(2.0, dtype=dtype)
    for weak in (1e-3, 1e-8, 1e-14):
        sure, vague = (family.natural(kappa=torch.tensor(kappa, dtype=dtype), **usual) for kappa in (80.0, weak))
        expected = 0.5 * (weak / 80 - 1 - math.log(weak / 80))  # of the locations alone
        assert_close(float(family.kl(sure, vague)), expected, rtol=rtol, atol=0)
