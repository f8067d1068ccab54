"""The kernels of small tables of parameters against the plain forms in torch, and what they leave to these."""

import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from samplehold.inference.families import Beta, Dirichlet, Gamma, NormalGamma, NormalWishart
from samplehold.inference.families.family import relative
from samplehold.inference.families.normal import expected_normal, mean_point
from samplehold.inference.families.peak import peak
from torch import Tensor
from torch.testing import assert_close

pytestmark = pytest.mark.cpu("kernels of the CPU")

FUSED = [Beta(), Dirichlet(), Gamma(), NormalGamma(), NormalWishart()]
each_fused = pytest.mark.parametrize("family", FUSED, ids=lambda family: type(family).__name__)


def random_eta(family: object, seed: int, plates: tuple[int, ...], dim: int = 2) -> Tensor:
    """Natural parameters of densities of a spread of the order of 1, in float64."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.rand(*plates, *shape, generator=generator, dtype=torch.float64) + 0.5

    match family:
        case Beta() | Gamma():
            return family.natural(draw(), draw())
        case Dirichlet():
            return draw(dim + 1)
        case NormalGamma():
            return family.natural(draw() - 1, draw(), draw(), draw())
    root = draw(dim, dim) - 1
    return NormalWishart.of_inverse(draw(dim) - 1, draw(), dim + draw(), root @ root.mT + 0.3 * torch.eye(dim))


TINY = NormalWishart().natural(torch.zeros(2), torch.tensor(1e-6), torch.tensor(1.5), torch.eye(2)).double()


@pytest.mark.parametrize("dim", [1, 2, 5])
@pytest.mark.parametrize("plates", [(4,), (3, 4), (2, 3, 4)])
@each_fused
def test_divergence_and_mean_in_one_pass_are_those_of_the_family(family, plates, dim):
    eta, eta0 = random_eta(family, 0, plates=plates, dim=dim), random_eta(family, 1, plates=(4,), dim=dim)
    divergence, mean = family.relative(eta, eta0)
    assert_close(divergence, family.kl(eta, eta0), rtol=1e-11, atol=1e-11)
    assert_close(mean, family.mean(eta), rtol=1e-10, atol=1e-10)  # matrices of condition up to 1e4
    single = family.relative(eta.float(), eta0.float())
    assert all(part.dtype == torch.float32 for part in single)
    assert_close(family.relative(eta, eta)[0], torch.zeros(plates).double(), rtol=0, atol=1e-11)


@each_fused
def test_divergence_and_mean_can_be_differentiated(family):
    eta = random_eta(family, 0, plates=(3,)).requires_grad_()
    eta0 = random_eta(family, 1, plates=(3,))
    divergence, mean = family.relative(eta, eta0)
    (ours,) = torch.autograd.grad(divergence.sum() + mean.sin().sum(), eta)
    (theirs,) = torch.autograd.grad(family.kl(eta, eta0).sum() + family.mean(eta).sin().sum(), eta)
    assert torch.equal(ours, theirs)


def test_digamma_is_exact_to_rounding():
    shape = torch.logspace(-8, 8, 400, dtype=torch.float64)
    eta = Gamma().natural(shape, torch.ones_like(shape))
    found = Gamma().relative(eta, eta)[1][:, 0]
    exact = torch.digamma(shape)
    assert ((found - exact).abs() <= 4e-16 * (1 + 1 / shape + exact.abs())).all()


def test_a_prior_that_no_plate_of_q_lines_up_with_goes_by_the_plain_form():
    eta, eta0 = random_eta(Dirichlet(), 0, plates=(2, 3)), random_eta(Dirichlet(), 1, plates=(2, 1))
    divergence, mean = Dirichlet().relative(eta, eta0)
    assert_close(divergence, Dirichlet().kl(eta, eta0))
    assert_close(mean, Dirichlet().mean(eta))


def test_a_scale_matrix_that_rounding_left_indefinite_has_the_factor_of_the_plain_form():
    inverse = torch.tensor([[1.0, 1.0], [1.0, 1.0 - 1e-16]], dtype=torch.float64)
    one = torch.ones((), dtype=torch.float64)
    eta = NormalWishart.of_inverse(torch.zeros(2, dtype=torch.float64), one, 3 * one, inverse)
    for found, plain in zip(
        NormalWishart().relative(eta, TINY), relative.plain(eta, TINY, NormalWishart()), strict=True
    ):
        assert torch.equal(found, plain)
    assert torch.equal(mean_point(eta)[1], mean_point.plain(eta)[1])


@pytest.mark.parametrize("dim", [1, 2, 5])
def test_expected_densities_and_points_are_those_of_the_plain_forms(dim):
    eta = random_eta(NormalWishart(), 0, plates=(3, 4), dim=dim)
    statistics = NormalWishart().mean(eta)
    for function, table in ((expected_normal, statistics), (mean_point, eta)):
        for ours, plain in zip(function(table), function.plain(table), strict=True):
            assert_close(ours, plain, rtol=1e-10, atol=1e-10)


def message_of(x: Tensor, weights: Tensor) -> Tensor:
    """What weighted rows `[N, D]` say of location and precision."""
    count, first = weights.sum(-1, keepdim=True), weights @ x
    second = torch.einsum("kn,ni,nj->kij", weights, x, x)
    return torch.cat([first, -count / 2, count / 2, -second.flatten(-2) / 2], -1)


@pytest.mark.parametrize("dim", [1, 2, 5])
def test_the_peak_of_a_message_is_that_of_the_plain_form(dim):
    torch.manual_seed(0)
    x, weights = torch.randn(50, dim, dtype=torch.float64), torch.rand(3, 50, dtype=torch.float64)
    floor, message = torch.full((dim,), 1e-6, dtype=torch.float64), message_of(x, weights)
    ours, plain = peak(message, floor), peak.plain(message, floor)
    assert_close(ours.loc, plain.loc, rtol=1e-13, atol=1e-13)
    assert_close(ours.precision, plain.precision, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("case", ["no weight", "a point", "a line", "below the floor", "collinear"])
def test_a_peak_without_a_covariance_of_its_own_is_left_to_the_plain_form(case):
    torch.manual_seed(0)
    x, weights = torch.randn(50, 2, dtype=torch.float64), torch.rand(3, 50, dtype=torch.float64)
    floor = torch.full((2,), 1e-6, dtype=torch.float64)
    if case == "no weight":
        weights[1] = 0.0
    elif case == "a point":
        weights[1] = torch.eye(50)[3]
    elif case == "a line":
        x[:, 1] = x[:, 0]
    elif case == "collinear":  # far above the floor, and singular to rounding
        x[:, 1], floor = x[:, 0] * (1 + 1e-15), floor * 1e-30
    else:
        floor = floor * 1e7
    message = message_of(x, weights)
    ours, plain = peak(message, floor), peak.plain(message, floor)
    for found, expected in zip(ours, plain, strict=True):
        assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@examples(60)
@given(st.integers(0, 10**6), st.integers(1, 7), st.integers(1, 5), st.sampled_from([1.0, 20.0, 1e4]))
def test_kernels_equal_the_plain_forms_at_any_size(seed, plates, dim, size):
    for family in FUSED:
        eta, eta0 = (size * random_eta(family, seed + i, plates=(plates,), dim=dim) for i in range(2))
        expected = relative.plain(eta, eta0, family)
        for ours, plain in zip(relative(eta, eta0, family), expected, strict=True):
            assert_close(ours, plain, rtol=1e-10, atol=1e-10 * max(1.0, float(plain.abs().max())), equal_nan=True)


def test_a_table_of_many_plates_is_that_of_its_plates():
    eta, eta0 = random_eta(NormalWishart(), 0, plates=(50, 60)), random_eta(NormalWishart(), 1, plates=(60,))
    divergence, mean = relative(eta, eta0, NormalWishart())
    for n in (0, 17, 49):
        ours, row = relative(eta[n], eta0, NormalWishart())
        assert torch.equal(divergence[n], ours)
        assert torch.equal(mean[n], row)
    assert relative(eta[:0], eta0, NormalWishart())[0].shape == (0, 60)
