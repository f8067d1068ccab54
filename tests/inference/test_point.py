"""A point in the place of a density: modes, prior densities, and expectation-maximisation on the engine."""

import torch
from samplehold.inference.families import Beta, Dirichlet, Gamma, NormalGamma, Point
from samplehold.inference.message_passing import VMP, Block, Factor
from torch.testing import assert_close

TOSSES = torch.tensor([1.0, 0.0, 1.0, 1.0], dtype=torch.float64)


def likelihood(coin):
    return TOSSES * coin[0] + (1 - TOSSES) * coin[1]


def test_the_point_is_the_mode_and_its_part_of_the_bound_the_log_prior_there():
    for family, eta, eta0 in (
        (Beta(), [5.0, 3.0], [2.0, 2.0]),
        (Dirichlet(), [5.0, 3.0, 2.0], [1.5, 1.5, 1.0]),
        (Gamma(), [5.0, -2.0], [2.0, -1.0]),
        (NormalGamma(), [3.0, -1.5, 4.0, -5.0], [0.5, -0.5, 2.0, -2.0]),
    ):
        eta, eta0 = (torch.tensor(table, dtype=torch.float64) for table in (eta, eta0))
        point, mode = Point(family), family.mode(eta)
        assert_close(point.mean(eta), family.statistics(mode), rtol=1e-12, atol=1e-12)
        assert_close(-point.kl(eta, eta0), family.log_prob(mode, eta0), rtol=1e-12, atol=1e-12)
        assert float(Point(family, flat=True).kl(eta, eta0)) == 0.0


def test_one_update_is_the_m_step():
    prior = torch.tensor([2.0, 3.0], dtype=torch.float64)
    coin = Block("coin", Point(Beta()), prior=prior)
    vmp = VMP([coin], [Factor(likelihood, ("coin",))])
    vmp.step()
    assert_close(vmp.stats("coin")[0].exp(), torch.tensor((3 + 2 - 1) / (4 + 5 - 2), dtype=torch.float64))
    p = vmp.stats("coin")[0].exp()
    expected = 3 * p.log() + (1 - p).log() + torch.distributions.Beta(*prior).log_prob(p)
    assert_close(vmp.elbo(), expected, rtol=1e-12, atol=0)


def test_without_a_prior_it_is_the_maximum_of_the_likelihood_and_stays_finite_at_the_edge():
    family = Point(Beta(), flat=True)
    nothing = family.nothing(torch.zeros(2, dtype=torch.float64))
    coin = Block("coin", family, prior=nothing)
    vmp = VMP([coin], [Factor(likelihood, ("coin",))])
    vmp.step()
    assert_close(vmp.stats("coin").exp(), torch.tensor([0.75, 0.25], dtype=torch.float64))
    heads = VMP([coin], [Factor(lambda coin: 4 * coin[0], ("coin",))])
    heads.step()
    assert bool(heads.stats("coin").isfinite().all())
    assert_close(family.expected(nothing), torch.tensor(0.5, dtype=torch.float64))  # nothing known: in the middle
