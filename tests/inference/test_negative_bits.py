"""Tensors with the negative bit of torch, such as the imaginary part of a conjugate, are tables like others."""

import pytest
import samplehold as sh
import torch
from samplehold.inference.numerics.cholesky import cholesky
from torch import Tensor
from torch.testing import assert_close


def negative(table: Tensor) -> Tensor:
    """The same numbers behind the negative bit."""
    same = torch.complex(torch.zeros_like(table), -table).conj().imag
    assert same.is_neg()
    return same


def tables(*shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes]


OTHER = torch.eye(2, dtype=torch.float64).log().flip(0)
ONE = torch.eye(2, dtype=torch.float64)
CHAINS = {
    "copy": (sh.chains.CopyChain, tables((2,), (9, 2), (9, 2))),
    "copy, one column": (sh.chains.CopyChain, tables((2,), (9, 2), (9, 1))),
    "factored copy": (sh.chains.FactoredCopyChain, tables((1,), (1,), (2,), (9, 2))),
    "Markov": (sh.chains.MarkovChain, tables((2,), (2, 2), (9, 2))),
    "Markov, by step": (sh.chains.MarkovChain, tables((2,), (8, 2, 2), (9, 2))),
    "semi-Markov": (sh.chains.SemiMarkovChain, [*tables((2,)), OTHER, *tables((2, 3), (9, 2))]),
    "linear Gaussian": (sh.chains.LinearGaussianChain, [*tables((9, 2)), ONE / 2, ONE, ONE, ONE]),
}


@pytest.mark.parametrize("name", [*CHAINS, pytest.param("Markov", marks=pytest.mark.slow)])
def test_chains_take_them(name):
    make, given = CHAINS[name]
    plain, same = make(*given), make(*map(negative, given))
    for verb in ("log_normalizer", "filter", "smooth", "viterbi", "marginals", "entropy"):
        if hasattr(plain, verb):
            expected, found = getattr(plain, verb)(), getattr(same, verb)()
            expected, found = (x if isinstance(x, Tensor) else list(vars(x).values()) for x in (expected, found))
            pairs = [(expected, found)] if isinstance(expected, Tensor) else zip(expected, found, strict=True)
            for one, other in pairs:
                if isinstance(one, Tensor):
                    assert_close(other, one, rtol=1e-12, atol=1e-12)
    assert_close(vars(same.sample(3, seed=0)), vars(plain.sample(3, seed=0)))


def test_so_do_networks_stacks_and_factors():
    torch.manual_seed(0)
    for network in (sh.LSTM(2, 3).double(), sh.MinGRU(2, 3).double(), sh.GRU(2, 3).double(), sh.Elman(2, 3).double()):
        x = torch.randn(2, 5, 2).double()
        assert_close(network(negative(x))[0], network(x)[0])
    matrix = ONE + 0.3
    assert_close(cholesky(negative(matrix)), cholesky(matrix))
    for model in (sh.SwitchingSSM(sh.Copy(2), sh.Normal(2)), sh.LinearSSM(2, 2)):
        x = torch.randn(12, 2, generator=torch.Generator().manual_seed(1)).double()
        made = model.fit(x, restarts=1, max_steps=2, progress=False).model
        assert_close(made.log_evidence(negative(x)), made.log_evidence(x))
