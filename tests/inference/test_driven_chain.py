"""Markov chains whose rows depend on inputs, against enumeration of all paths, and chains with tables of all steps."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles.markov_paths import enumerate_paths
from samplehold import kernels
from samplehold.face.chains import MarkovChain
from samplehold.inference.chains.markov import op, plain, plain_rows
from samplehold.inference.chains.markov.driven import DrivenMarkovChain
from samplehold.inference.numerics.products import with_ones
from torch import Tensor
from torch.testing import assert_close

INF = torch.inf
MODES = pytest.mark.parametrize("mode", ["plain", "native"])


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def rows_of(r: int, b: int, t: int, k: int, c: int, *, holes: bool = False, dtype: torch.dtype = torch.float64):
    """Tables of r restarts and b sequences, and lengths [r, b], the first of which is t."""
    base = numbers(r, 1, k, k, seed=1, dtype=dtype)
    if holes:
        base[..., 0, 1:] = -INF
        base[..., -1, 0] = -INF
    weights, inputs = numbers(r, 1, k, k, c, seed=2, dtype=dtype), numbers(b, t - 1, c, seed=3, dtype=dtype)
    tables = numbers(r, 1, k, dtype=dtype), base, weights, inputs, 2 * numbers(r, b, t, k, seed=4, dtype=dtype)
    lengths = torch.tensor([max(1, t - 3 * n) for n in range(b)]).expand(r, b)
    return tables, lengths


def by_hand(base: Tensor, weights: Tensor, inputs: Tensor) -> Tensor:
    """The tables of all moves of one sequence."""
    logits = base + torch.einsum("ijc,tc->tij", weights, inputs)
    return logits - logits.logsumexp(-1, keepdim=True)


@MODES
@pytest.mark.parametrize(
    ("t", "k", "c", "holes"), [(1, 2, 1, False), (2, 3, 2, False), (4, 3, 2, True), (5, 2, 0, False)]
)
def test_inference_is_the_enumeration_of_all_paths(mode, t, k, c, holes):
    tables, lengths = rows_of(2, 2, t, k, c, holes=holes)
    with kernels(mode):
        chain = DrivenMarkovChain(*tables, lengths=lengths)
        sums, filtered, evidence = chain.sums(), chain.filter(), chain.log_normalizer()
    initial, base, weights, inputs, likelihood = tables
    for r in range(2):
        moves = torch.stack([by_hand(base[r, 0], weights[r, 0], inputs[n]) for n in range(2)])
        exact = enumerate_paths(initial[r, 0], moves, likelihood[r], lengths[r])
        design = with_ones(inputs)
        assert_close(evidence[r], exact.log_normalizer, rtol=1e-12, atol=1e-13)
        assert_close(filtered.state[r], exact.filtered, rtol=1e-10, atol=1e-14)
        assert_close(filtered.log_increment[r], exact.log_increment, rtol=1e-10, atol=1e-13)
        assert_close(sums.fresh[r], exact.smoothed, rtol=1e-10, atol=1e-14)
        assert_close(sums.moves[r], torch.einsum("btij,btd->bijd", exact.pairs, design), rtol=1e-10, atol=1e-13)
        assert_close(sums.leaving[r], exact.pairs.sum(-1), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("size", [(2, 3, 200, 4, 1), (1, 2, 130, 12, 3), (1, 5, 130, 12, 1), (1, 4, 65, 3, 0)])
def test_kernels_agree_with_chains_with_a_table_for_every_step(size, dtype):
    tables, lengths = rows_of(*size, dtype=dtype)
    leaves = [table.requires_grad_(n != 3) for n, table in enumerate(tables)]
    chain = DrivenMarkovChain(*leaves, lengths=lengths)
    with kernels("native"):
        sums, filtered = chain.sums(), chain.filter()
        slopes = torch.autograd.grad(chain.log_normalizer().sum(), [leaves[n] for n in (0, 1, 2, 4)])
    wide = [table.detach().double().requires_grad_() for table in tables]
    exact = MarkovChain(wide[0], plain_rows.log_rows(*wide[1:4]), wide[4], lengths)
    loose = {"rtol": 1e-10, "atol": 1e-12} if dtype is torch.float64 else {"rtol": 1e-5, "atol": 1e-4}
    with kernels("plain"):
        smoothed = exact.smooth()
        expected = torch.autograd.grad(exact.log_normalizer().sum(), [wide[n] for n in (0, 1, 2, 4)])
        beliefs = exact.filter().state
    assert sums.fresh.dtype == dtype
    pairs = [(sums.log_normalizer, smoothed.log_normalizer), (sums.fresh, smoothed.state), (filtered.state, beliefs)]
    for ours, theirs in [*pairs, (sums.moves[..., 0], smoothed.transition), *zip(slopes, expected, strict=True)]:
        assert_close(ours, theirs.to(dtype), **loose)


def test_sequences_that_lose_digits_are_computed_in_logarithms():
    tables, lengths = rows_of(1, 3, 70, 3, 1)
    tables[4][0, 1, 40, :] = torch.tensor([0.0, -1e4, -1e4])
    tables[4][0, 1, 41, :] = torch.tensor([-1e4, -1e4, 0.0])
    tables[1][..., 0, 2] = -800.0
    with kernels("native"):
        ours = op.rows_posterior(*tables, lengths)
    exact = plain_rows.smoothed(plain.posterior, *tables, lengths)
    for a, b in zip(ours, exact, strict=True):
        assert_close(a, b, rtol=1e-9, atol=1e-12)


@MODES
@pytest.mark.parametrize("bad", [-INF, torch.nan])
def test_an_impossible_observation_is_named(mode, bad):
    tables, lengths = rows_of(1, 2, 20, 3, 1)
    tables[4][0, 1, 7, : 3 if bad == -INF else 1] = bad
    for method in ("log_normalizer", "filter", "smooth"):
        with kernels(mode), pytest.raises(ValueError, match=r"step 7 of sequence \(0, 1\)"):
            getattr(DrivenMarkovChain(*tables, lengths=lengths), method)()


@pytest.mark.parametrize("sequences", [0.5, 1, 2, 5])
def test_tables_of_many_sequences_are_made_by_and_by(sequences, monkeypatch):
    tables, lengths = rows_of(5, 3, 30, 3, 1)
    whole = plain_rows.posterior(*tables, lengths)
    monkeypatch.setattr(plain_rows, "MOST", sequences * 3 * 30 * 9)
    for ours, theirs in zip(plain_rows.posterior(*tables, lengths), whole, strict=True):
        assert_close(ours, theirs, rtol=1e-12, atol=1e-13)


@MODES
def test_the_sums_of_rows_are_those_of_a_loop(mode):
    base, changes, leaving = numbers(2, 2, 3), numbers(2, 2, 3, 2, seed=1), numbers(2, 300, 2, seed=2).abs()
    base[0, 0, 1] = -INF
    design = with_ones(numbers(300, 1, seed=3))
    with kernels(mode):
        used, products = op.row_sums(base, changes, design, leaving)
    probs = torch.softmax(base + torch.einsum("nd,rijd->nrij", design, changes), -1)
    once = torch.einsum("rni,nrij,na,nb->rijab", leaving, probs, design, design)
    twice = torch.einsum("rni,nrij,nrik,na,nb->rijakb", leaving, probs, probs, design, design)
    assert_close(used, once, rtol=1e-12, atol=1e-12)
    assert_close(products, twice, rtol=1e-12, atol=1e-12)


@st.composite
def some_rows(draw) -> tuple[Tensor, ...]:
    """Tables and lengths of a few sequences, with holes, missing steps and values far from those of others."""
    k, c, t = draw(st.integers(1, 6)), draw(st.integers(0, 3)), draw(st.integers(1, 40))
    batch, seed = draw(st.sampled_from([(), (1,), (3,), (9,), (2, 5)])), draw(st.integers(0, 2**16))
    base, likelihood = (
        2 * numbers(*batch[:1], *[1] * len(batch[1:]), k, k, seed=seed),
        numbers(*batch, t, k, seed=seed + 1),
    )
    if draw(st.booleans()):
        base[..., 0, 1:] = -INF
    likelihood *= draw(st.sampled_from([1.0, 3.0, 1e3]))
    likelihood[..., :: draw(st.integers(1, 5)), :] = draw(st.sampled_from([0.0, -1e4, -1e300]))
    weights, inputs = numbers(k, k, c, seed=seed + 2), numbers(*batch[-1:], t - 1, c, seed=seed + 3)
    lengths = torch.randint(1, t + 1, batch, generator=torch.Generator().manual_seed(seed))
    return numbers(k, seed=seed + 4), base, weights, inputs, likelihood, lengths


@given(some_rows())
def test_operators_have_the_values_of_their_plain_forms(tables):
    for operator in (op.rows_filter, op.rows_posterior):
        for ours, exact in zip(operator(*tables), operator.plain(*tables), strict=True):
            assert_close(ours, exact, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("steps", [3000, 20_000])
def test_tables_of_long_sequences_are_made_again(steps):
    """Those of one sequence of 3000 steps are kept."""
    tables, lengths = rows_of(1, 1, steps, 5, 1)
    for ours, exact in zip(op.rows_posterior(*tables, lengths), plain_rows.posterior(*tables, lengths), strict=True):
        assert_close(ours, exact, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("k", "d", "n"), [(1, 1, 1), (2, 3, 7), (5, 4, 129), (3, 5, 300), (4, 6, 128)])
def test_sums_of_rows_of_all_sizes_are_those_of_the_plain_form(k, d, n):
    given = numbers(2, 2, k), numbers(2, 2, k, d, seed=1), numbers(n, d, seed=3), numbers(2, n, 2, seed=2).abs()
    for ours, exact in zip(op.row_sums(*given), plain_rows.row_sums(*given), strict=True):
        assert_close(ours, exact, rtol=1e-12, atol=1e-12)
