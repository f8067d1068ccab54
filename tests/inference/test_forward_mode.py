"""Derivatives along a direction, forward: by `torch.autograd.forward_ad` and `torch.func.jvp`."""

from collections.abc import Callable

import pytest
import samplehold as sh
import torch
from samplehold.inference.chains.gaussian_paths import op as gaussian_paths
from samplehold.inference.families import Dirichlet, NormalWishart
from samplehold.inference.gaussian.op import multivariate_normal_log_density
from samplehold.inference.numerics.cholesky import cholesky, log_det
from samplehold.inference.numerics.logs import log_probability
from torch.autograd import forward_ad
from torch.testing import assert_close

pytestmark = pytest.mark.cpu("kernels there take no tangents")


def table(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)), dtype=torch.float64)


def definite(root: torch.Tensor) -> torch.Tensor:
    return root @ root.mT + torch.eye(root.shape[-1], dtype=root.dtype)


def gated(network: torch.nn.Module) -> Callable[..., torch.Tensor]:
    network = network.double()
    return lambda x: network(x)[0]


def of_paths(linear: torch.Tensor, root: torch.Tensor, cross: torch.Tensor) -> torch.Tensor:
    """All moments below each other, the normalizer first."""
    lengths = torch.full(linear.shape[:1], linear.shape[1])
    *found, _ = gaussian_paths.moments(linear, -4 * definite(root), 0.1 * cross, lengths)
    return torch.cat([part.flatten() for part in found])


CASES = {
    "linear scan": (sh.linear_scan, table(2, 5, 3).sigmoid(), table(2, 5, 3)),
    "lerp scan": (sh.lerp_scan, table(2, 5, 3).sigmoid(), table(2, 5, 3)),
    "minGRU": (gated(sh.MinGRU(3, 4)), table(2, 6, 3)),
    "minLSTM": (gated(sh.MinLSTM(3, 4)), table(2, 6, 3)),
    "Markov chain": (lambda *t: sh.chains.MarkovChain(*t).log_normalizer(), table(3), table(3, 3), table(2, 7, 3)),
    "its posterior": (lambda *t: sh.chains.MarkovChain(*t).smooth().state, table(3), table(3, 3), table(7, 3)),
    "copy chain": (
        lambda *t: sh.chains.CopyChain(*t).log_normalizer(), table(3), table(2, 7, 3), table(2, 7, 3, seed=1),
    ),
    "factored chain": (
        lambda *t: sh.chains.FactoredCopyChain(*t).log_normalizer(),
        table(7), table(7, seed=1), table(3, seed=2), table(7, 3),
    ),
    "normal density": (
        lambda x, loc, root: multivariate_normal_log_density(x, loc, cholesky(definite(root))),
        table(5, 2), table(3, 2), table(3, 2, 2),
    ),
    "Gaussian paths": (of_paths, table(2, 4, 3), table(2, 4, 3, 3), table(2, 3, 3, 3)),
    "determinant": (lambda root: log_det(cholesky(definite(root))), table(4, 3, 3)),
    "probability": (log_probability, table(4).sigmoid()),
    "Dirichlet": (lambda eta: Dirichlet().mean(eta.exp()), table(5, 3)),
    "normal-Wishart": (
        lambda loc, root: NormalWishart().mean(
            NormalWishart.of_inverse(loc, loc[..., 0].exp(), loc[..., 1].exp() + 2, definite(root))
        ),
        table(4, 2), table(4, 2, 2),
    ),
}  # fmt: skip


@pytest.mark.few(4)
@pytest.mark.parametrize("case", CASES)
def test_forward_derivatives_are_those_of_the_backward_pass(case):
    function, *inputs = CASES[case]
    value = function(*inputs)
    weight, directions = table(*value.shape, seed=2), [table(*x.shape, seed=3) for x in inputs]
    for chosen in [*([i] for i in range(len(inputs))), range(len(inputs))]:
        leaves = [x.clone().requires_grad_(i in chosen) for i, x in enumerate(inputs)]
        backward = torch.autograd.grad((weight * function(*leaves)).sum(), [leaves[i] for i in chosen])
        expected = sum((d * directions[i]).sum() for i, d in zip(chosen, backward, strict=True))
        moving = [directions[i] if i in chosen else torch.zeros_like(x) for i, x in enumerate(inputs)]
        assert_close(
            (weight * torch.func.jvp(function, tuple(inputs), tuple(moving))[1]).sum(), expected, rtol=1e-9, atol=1e-12
        )
        with forward_ad.dual_level():
            given = [forward_ad.make_dual(x, directions[i]) if i in chosen else x for i, x in enumerate(inputs)]
            found, tangent = forward_ad.unpack_dual(function(*given))
        assert_close(found, value, rtol=1e-12, atol=1e-12)
        assert_close((weight * tangent).sum(), expected, rtol=1e-9, atol=1e-12)


def test_what_has_no_forward_derivative_says_so():
    unit = torch.eye(2, dtype=torch.float64)
    with forward_ad.dual_level():
        noise = forward_ad.make_dual(unit, unit)
        with pytest.raises(NotImplementedError, match="jvp"):
            sh.chains.LinearGaussianChain(table(9, 2), unit, noise, unit, unit, unit[0], unit).log_normalizer()
