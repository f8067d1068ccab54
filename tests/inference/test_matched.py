"""Members of families by their expected statistics."""

import pytest
import scipy.optimize
import torch
from samplehold.inference.families import Beta, Dirichlet, Gamma, NormalGamma, NormalWishart, SharedPrecision, matched

MATRIX = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
MEMBERS = {
    "dirichlet": (Dirichlet(), torch.tensor([[0.2, 3.0, 40.0], [1.0, 1.0, 1.0]])),
    "beta": (Beta(), torch.tensor([[200.0, 3.0], [0.2, 0.1]])),
    "gamma": (Gamma(), torch.tensor([[0.1, -2.0], [1e4, -5.0]])),
    "normal": (NormalGamma(), torch.tensor([[0.5, -0.5, 0.7, -1.5], [-12.0, -2.0, 80.0, -40.0]])),
    "wishart": (
        NormalWishart(),
        NormalWishart.of_inverse(torch.ones(1, 2), torch.tensor([3.0]), torch.tensor([1.5]), MATRIX),
    ),
}


@pytest.mark.parametrize("kind", MEMBERS)
def test_a_member_is_found_from_its_expected_statistics(kind):
    family, eta = MEMBERS[kind]
    eta = eta.double()
    start = torch.ones_like(eta) if kind in ("dirichlet", "beta") else eta
    torch.testing.assert_close(matched(family, family.mean(eta), start), eta, rtol=1e-8, atol=1e-8)


def test_a_dirichlet_is_the_optimum_that_scipy_finds():
    mean = torch.tensor([-1.4, -0.9, -2.5], dtype=torch.float64)
    family = Dirichlet()

    def fall(logs):
        eta = torch.from_numpy(logs).exp()
        return -float(family.dot(eta, mean) - family.log_normalizer(eta))

    best = scipy.optimize.minimize(fall, torch.zeros(3).double().numpy(), tol=1e-12)
    here = matched(family, mean, torch.ones(3, dtype=torch.float64))
    torch.testing.assert_close(here, torch.from_numpy(best.x).exp(), rtol=1e-4, atol=0)


def test_members_that_hardly_differ_have_a_bounded_concentration():
    probs = torch.tensor([0.2, 0.8], dtype=torch.float64)
    eta = matched(Dirichlet(), probs.log(), torch.ones(2, dtype=torch.float64))
    torch.testing.assert_close(eta / eta.sum(), probs, rtol=1e-3, atol=0)
    assert bool(eta.isfinite().all())


def test_a_family_without_a_rule_is_named():
    with pytest.raises(TypeError, match="SharedPrecision has no population"):
        matched(SharedPrecision(), torch.ones(6), torch.ones(6))
