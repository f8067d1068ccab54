"""Changes of the basis of the latent space: of a point, and of the density that it is the mode of."""

import pytest
import torch
from samplehold.inference.families import Gaussian, MatrixNormalWishart, NormalWishart, Point
from samplehold.switching.linear.rebasing import _moved_point, basis_of, in_basis
from torch.testing import assert_close

RESTARTS, REGIMES, LATENT, FEATURES = 2, 3, 2, 4
TIGHT = {"rtol": 1e-10, "atol": 1e-10}


def blocks(chains: int):
    """Families and natural parameters by name, as an engine has them with as many chains as regimes, or with one."""
    generator = torch.Generator().manual_seed(chains)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def definite(*shape: int) -> torch.Tensor:
        root = normal(*shape, shape[-1])
        return root @ root.mT + torch.eye(shape[-1], dtype=torch.float64)

    def df(*shape: int) -> torch.Tensor:
        return torch.full(shape, 12.0, dtype=torch.float64)

    inputs, of_state = MatrixNormalWishart(LATENT + 1), NormalWishart()
    sights = (RESTARTS, chains, FEATURES)
    etas = {
        "moves": inputs.natural(
            normal(RESTARTS, chains, LATENT + 1, LATENT),
            definite(RESTARTS, chains, LATENT + 1),
            df(RESTARTS, chains),
            definite(RESTARTS, chains, LATENT),
        ),
        "sights": inputs.natural(
            normal(*sights, LATENT + 1, 1), definite(*sights, LATENT + 1), df(*sights), definite(*sights, 1)
        ),
        "first": of_state.natural(
            normal(RESTARTS, chains, LATENT),
            df(RESTARTS, chains),
            df(RESTARTS, chains),
            definite(RESTARTS, chains, LATENT),
        ),
    }
    families = {"moves": inputs, "sights": inputs, "first": of_state}
    if chains == 1:
        size = LATENT + REGIMES
        etas["recurrence"] = Gaussian().natural(normal(RESTARTS, 1, size), definite(RESTARTS, 1, size))
        families["recurrence"] = Gaussian()
    return families, etas, 0.3 * normal(RESTARTS, chains, LATENT * (LATENT + 1))


@pytest.mark.parametrize(
    ("name", "chains"), [(name, n) for name in ("moves", "sights", "first") for n in (1, REGIMES)] + [("recurrence", 1)]
)
def test_the_mode_moves_with_its_density(name, chains):
    families, etas, steps = blocks(chains)
    family, basis = Point(families[name]), basis_of(steps, LATENT)
    moved = family.statistics(_moved_point(basis, name, family.expected(etas[name])))
    assert_close(moved, family.mean(in_basis(basis, name, family, etas[name])), **TIGHT)
    assert_close(
        family.kl_of(moved, etas[name]), family.kl(in_basis(basis, name, family, etas[name]), etas[name]), **TIGHT
    )


@pytest.mark.parametrize("chains", [1, REGIMES])
def test_divergences_between_two_densities_are_the_same_in_every_basis(chains):
    families, etas, steps = blocks(chains)
    basis = basis_of(steps, LATENT)
    for name, family in families.items():
        other = 1.5 * etas[name]
        here, there = (in_basis(basis, name, family, eta) for eta in (etas[name], other))
        assert_close(family.kl(here, there), family.kl(etas[name], other), **TIGHT)


def test_no_step_changes_nothing():
    families, etas, steps = blocks(1)
    basis = basis_of(torch.zeros_like(steps), LATENT)
    for name, family in families.items():
        assert_close(in_basis(basis, name, family, etas[name]), etas[name], **TIGHT)
