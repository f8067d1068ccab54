"""Markov chains by the kernels for GPUs: the textbook's answers, in probabilities or by logarithms as tables need."""

from typing import Any

import pytest
import torch
from examples import slow
from oracles import log_paths
from oracles import naive_markov as naive
from oracles.gpu import compile_for_gpu, gpu_kernels
from samplehold.face.chains import MarkovChain
from samplehold.inference.chains.markov import op, plain, plain_rows
from torch import Tensor
from torch.testing import assert_close

from .test_markov_chain import random_chain

pytestmark = pytest.mark.hardware("Triton interprets or compiles")

INF = float("inf")
OPERATORS = "filter", "posterior", "viterbi"


def tables(batch: tuple[int, ...], steps: int, states: int, varies: bool = False, **options: Any) -> list[Tensor]:
    """Of ragged chains; state 0 is always possible."""
    chain = random_chain(batch, steps, states, varies=varies, ragged=True, seed=states, **options)
    start, *others = chain._tables()
    return [start.expand(*batch, states).clone(), *others]


def compare(given: list[Tensor], uniform: Tensor) -> None:
    limit = {"rtol": 1e-10, "atol": 1e-14} if given[0].dtype == torch.float64 else {"rtol": 1e-5, "atol": 1e-6}
    with gpu_kernels():
        found = [getattr(op, name)(*given) for name in OPERATORS]
        found.append(op.sample(*given, uniform))
    expected = [getattr(naive, name)(*given) for name in OPERATORS]
    expected.append(naive.sample(*given, uniform))
    for ours, theirs in zip(found, expected, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert_close(a, b, **limit)


@pytest.mark.parametrize("varies", [False, True])
@pytest.mark.parametrize(
    ("batch", "steps", "states"), [((), 1, 1), slow((3,), 6, 4), slow((2, 9), 3, 2), slow((), 5, 35)]
)
def test_kernels_equal_the_textbook(batch, steps, states, varies):
    given = tables(batch, steps, states, varies, holes=0.2)
    compare(given, torch.rand(2, *batch, steps, generator=torch.Generator().manual_seed(0), dtype=torch.float64))


@pytest.mark.slow
@pytest.mark.parametrize("varies", [False, True])
def test_single_precision(varies):
    given = tables((3,), 5, 3, varies, dtype=torch.float32)
    compare(given, torch.rand(2, 3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64))


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "size"), [(torch.float64, 1e12), (torch.float32, 300.0)])
def test_weights_far_apart_beside_sequences_of_ordinary_ones(dtype, size):
    """States that probabilities would lose come back; what follows is right to the rounding of the weights' size."""
    n, steps, states = 5, 5, 3
    generator = torch.Generator().manual_seed(0)
    scale = torch.where(torch.rand(n, steps, states, generator=generator) < 0.4, size, 1.0)
    likelihood = torch.randn(n, steps, states, generator=generator, dtype=torch.float64) * scale
    likelihood[0] = torch.randn(steps, states, generator=generator)
    moves = torch.randn(n, 1, states, states, generator=generator, dtype=torch.float64)
    moves[2:, :, 0, 0], moves[1:, :, 1:, 0] = -0.9 * size, -INF  # it hardly stays there, and never comes back
    start = torch.randn(n, states, generator=generator, dtype=torch.float64)
    likelihood[1:3, -1, 1:] = -INF
    given = [table.to(dtype) for table in (start, moves, likelihood)]
    lengths = torch.full((n,), steps)
    with gpu_kernels():
        filtered, smoothed = op.filter(*given, lengths), op.posterior(*given, lengths)
        best, _ = op.viterbi(*given, lengths)
    exact = plain.posterior(*(table.double() for table in given), lengths)
    rounding = 64 * torch.finfo(torch.float64).eps * size * steps
    share, limit = (3e-6, 2e-4) if dtype == torch.float32 else (1e-12, max(1e-10, rounding))
    assert torch.equal(smoothed[-1], torch.full((n,), -1))
    assert_close(smoothed[2].double(), exact[2], rtol=0, atol=steps * limit)
    for b in range(n):
        evidence, state = log_paths.markov(given[0][b], given[1][b, 0], given[2][b])
        for total in (filtered[0][b], smoothed[0][b]):
            assert abs(float(total) - float(evidence)) <= share * (abs(float(evidence)) + steps) + rounding
        assert float((smoothed[1][b].double() - state).abs().max()) <= limit
    assert torch.equal(best, plain.viterbi(*given, lengths)[0])


@pytest.mark.slow
@pytest.mark.parametrize("varies", [False, True])
def test_the_first_step_that_is_impossible_or_no_number_is_named(varies):
    start, moves, likelihood, _ = tables((6,), 4, 3, varies)
    likelihood[0, 2] = -INF
    likelihood[1, 1, 1], likelihood[2, 3, 0] = torch.nan, INF
    start[3] = -INF
    likelihood[4, :2, 1:], moves[..., 0, 0] = -INF, -INF  # two steps in a state that cannot last
    likelihood[5, 3] = -INF
    given = [start, moves, likelihood, torch.tensor([4, 4, 4, 4, 4, 3])]
    with gpu_kernels():
        found = [getattr(op, name)(*given)[-1] for name in OPERATORS]
        found.append(op.sample(*given, torch.rand(1, 6, 4, dtype=torch.float64))[-1])
    for failed in found:
        assert failed.tolist() == [2, 1, 3, 0, 1, -1]


@pytest.mark.slow
def test_the_gradient_of_the_evidence_is_the_posterior_of_each_table():
    *given, lengths = tables((2,), 4, 3)
    leaves = [table.requires_grad_() for table in given]
    with gpu_kernels():
        found = torch.autograd.grad(op.log_normalizer(*leaves, lengths)[0].sum(), leaves)
    expected = torch.autograd.grad(naive.log_normalizer(*leaves, lengths)[0].sum(), leaves)
    for ours, theirs in zip(found, expected, strict=True):
        assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("batch", [(0,), (2, 0)])
def test_no_sequences_start_no_program(batch):
    start, moves, likelihood, lengths = tables(batch, 3, 2)
    with gpu_kernels() as launches:
        total, state, pairs, _ = op.posterior(start, moves, likelihood, lengths)
        path, _ = op.viterbi(start, moves, likelihood, lengths)
    assert not launches
    assert (total.shape, state.shape, pairs.shape) == (batch, (*batch, 3, 2), (*batch, 1, 2, 2))
    assert path.shape == (*batch, 3)


@pytest.mark.slow
def test_kernels_compile_for_a_gpu_without_spilling_registers():
    with gpu_kernels() as launches:
        op.posterior(*tables((1,), 2, 4, dtype=torch.float32))
        op.viterbi(*tables((1,), 2, 3))
        op.sample(*tables((1,), 2, 3), torch.rand(1, 1, 2, dtype=torch.float64))
    for kernel in compile_for_gpu(launches):
        assert (kernel["local"], kernel["stack"]) == (0, 0), kernel


def test_rows_that_depend_on_inputs_are_those_of_the_plain_form():
    generator = torch.Generator().manual_seed(0)
    sizes = (2, 1, 3), (2, 1, 3, 3), (2, 1, 3, 3, 1), (2, 7, 1), (2, 2, 8, 3)
    tables = [torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes]
    lengths = torch.tensor([[8, 5]]).expand(2, 2)
    with gpu_kernels():
        ours = [*op.rows_posterior(*tables, lengths), *op.rows_filter(*tables, lengths)]
    theirs = [*plain_rows.posterior(*tables, lengths), *plain_rows.filter(*tables, lengths)]
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.few(1)
@pytest.mark.parametrize("verb", ["viterbi", "filter", "smooth", "marginals", "entropy"])
def test_an_impossible_sequence_is_refused_whatever_the_kernels_leave_of_it(verb, monkeypatch):
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)  # no index is that large
    start, moves, likelihood, lengths = tables((2,), 5, 3)
    likelihood[1, 2] = -INF
    chain = MarkovChain(start, moves[0], likelihood, lengths.fill_(5))
    torch.use_deterministic_algorithms(True)
    try:
        with gpu_kernels(), pytest.raises(ValueError, match="step 2 of sequence 1 is impossible"):
            getattr(chain, verb)()
    finally:
        torch.use_deterministic_algorithms(False)
