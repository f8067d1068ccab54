"""Markov chains against enumeration of all paths, against other libraries, and at the extremes."""

import math
from collections.abc import Iterator
from dataclasses import FrozenInstanceError
from itertools import pairwise, product

import numpy as np
import pyro.distributions as dist
import pytest
import torch
from examples import examples
from hmmlearn.hmm import CategoricalHMM
from hypothesis import given
from hypothesis import strategies as st
from oracles import naive_markov as naive
from oracles.markov_paths import Answers, Tables, enumerate_paths, expand, path_weights, tables
from samplehold.face.chains import MarkovChain
from samplehold.inference.chains import parts
from samplehold.inference.chains.markov import native, op, plain
from torch import Tensor

INF = float("inf")
TOLERANCE = {torch.float64: {"rtol": 1e-10, "atol": 1e-14}, torch.float32: {"rtol": 1e-5, "atol": 1e-6}}


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected.to(actual.dtype), **TOLERANCE[actual.dtype])


def chain_of(given: Tables) -> tuple[MarkovChain, Answers]:
    chain = MarkovChain(given.log_initial, given.log_transition, given.log_likelihood, given.lengths)
    return chain, enumerate_paths(given.log_initial, given.log_transition, given.log_likelihood, chain.lengths)


def random_chain(
    batch: tuple[int, ...],
    n_steps: int,
    n_states: int,
    *,
    varies: bool = False,
    holes: float = 0.0,
    ragged: bool = False,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> MarkovChain:
    """A chain of any size; state 0 is always possible."""
    generator = torch.Generator().manual_seed(seed)

    def table(*shape: int) -> Tensor:
        values = torch.randn(shape, generator=generator, dtype=dtype)
        values[..., 1:] = values[..., 1:].masked_fill(torch.rand(shape, generator=generator)[..., 1:] < holes, -INF)
        return values

    moves = (*batch, n_steps - 1) if varies else ()
    lengths = torch.randint(1, n_steps + 1, batch, generator=generator) if ragged else None
    return MarkovChain(
        table(n_states), table(*moves, n_states, n_states), 2 * table(*batch, n_steps, n_states), lengths
    )


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


# -- enumeration -----------------------------------------------------------------------------------------------------


@given(tables(dtypes=(torch.float64, torch.float32)))
def test_filter_equals_enumeration(given):
    chain, expected = chain_of(given)
    filtered = chain.filter()
    close(filtered.log_normalizer, expected.log_normalizer)
    close(filtered.log_increment, expected.log_increment)
    close(filtered.state, expected.filtered)
    assert (filtered.state[expected.filtered == 0] == 0).all()


@given(tables(dtypes=(torch.float64, torch.float32)))
def test_smoothing_and_marginals_equal_enumeration(given):
    chain, expected = chain_of(given)
    smoothed, marginals = chain.smooth(), chain.marginals()
    close(chain.log_normalizer(), expected.log_normalizer)
    close(smoothed.log_normalizer, expected.log_normalizer)
    close(smoothed.state, expected.smoothed)
    close(smoothed.transition, expected.pairs.sum(-3))
    assert (smoothed.state[expected.smoothed == 0] == 0).all()
    assert (smoothed.transition[expected.pairs.sum(-3) == 0] == 0).all()
    close(marginals.log_normalizer, expected.log_normalizer)
    close(marginals.initial, expected.smoothed[..., 0, :])
    close(marginals.fresh, expected.smoothed)
    close(marginals.transition, expected.pairs if chain.varies else expected.pairs.sum(-3))


@given(tables(dtypes=(torch.float64, torch.float32)))
def test_gradient_of_the_log_normalizer_is_the_posterior_of_each_table(given):
    chain, expected = chain_of(given)
    leaves = [
        table.clone().requires_grad_() for table in (chain.log_initial, chain.log_transition, chain.log_likelihood)
    ]
    weight = torch.rand(chain.batch_shape, generator=torch.Generator().manual_seed(1), dtype=chain.log_likelihood.dtype)
    MarkovChain(*leaves, given.lengths).log_normalizer().backward(weight)
    pairs = expected.pairs if chain.varies else expected.pairs.sum(-3)
    beliefs = expected.smoothed[..., 0, :], pairs, expected.smoothed
    for leaf, belief in zip(leaves, beliefs, strict=True):
        weighted = belief * weight.reshape(*weight.shape, *[1] * (belief.dim() - weight.dim()))
        assert leaf.grad is not None
        close(leaf.grad, weighted.sum_to_size(leaf.shape))


@given(tables(dtypes=(torch.float64, torch.float32)))
def test_entropy_equals_enumeration(given):
    chain, expected = chain_of(given)
    close(chain.entropy(), expected.entropy)


@given(tables(dtypes=(torch.float64, torch.float32)))
def test_viterbi_finds_the_best_path(given):
    chain, expected = chain_of(given)
    best = chain.viterbi()
    close(best.log_probability, expected.best)
    close(best.log_probability, weight_of(chain, best.path))
    assert torch.equal(best.path >= 0, torch.arange(chain.n_steps) < chain.lengths.unsqueeze(-1))


def weight_of(chain: MarkovChain, path: Tensor) -> Tensor:
    """log P(path, x), read off the tables step by step."""
    initial, transition, likelihood = expand(
        chain.log_initial, chain.log_transition, chain.log_likelihood, tuple(chain.batch_shape)
    )
    weights = torch.zeros(chain.batch_shape, dtype=torch.float64)
    for index in product(*map(range, chain.batch_shape)):
        steps = path[index][: int(chain.lengths[index])].tolist()
        terms = [initial[index][steps[0]], *(likelihood[index][t, s] for t, s in enumerate(steps))]
        terms += [transition[index][t, old, new] for t, (old, new) in enumerate(pairwise(steps))]
        weights[index] = torch.stack(terms).sum()
    return weights


def test_draws_follow_the_posterior_over_paths():
    chain = random_chain((2,), 4, 3, holes=0.3, seed=4)
    n = 20_000
    drawn = chain.sample(n, torch.Generator().manual_seed(0)).path
    initial, transition, likelihood = expand(chain.log_initial, chain.log_transition, chain.log_likelihood, (2,))
    powers = 3 ** torch.arange(3, -1, -1)
    for b in range(2):
        _, weight = path_weights(initial[b], transition[b], likelihood[b])
        expected = weight.softmax(0)
        observed = torch.bincount((drawn[:, b] * powers).sum(-1), minlength=81) / n
        deviation = (expected * (1 - expected) / n).sqrt()
        assert (observed[expected == 0] == 0).all()
        assert ((observed - expected).abs() <= 4.5 * deviation + 1e-12).all()


@given(tables())
@examples(20)
def test_draws_are_possible_and_end_with_the_sequence(given):
    chain, _ = chain_of(given)
    for path in chain.sample(3, torch.Generator().manual_seed(0)).path:
        assert torch.equal(path >= 0, torch.arange(chain.n_steps) < chain.lengths.unsqueeze(-1))
        assert weight_of(chain, path).isfinite().all()


# -- the three implementations ---------------------------------------------------------------------------------------

# one vector, several, whole ones and not; one sequence, groups of four and what is left of them
SIZES = [((), 1), ((3,), 4), ((9,), 8), ((2, 3), 9), ((5,), 33), ((8,), 70)]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("varies", [False, True])
@pytest.mark.parametrize(("batch", "n_states"), SIZES)
def test_implementations_agree(batch, n_states, varies, dtype):
    chain = random_chain(batch, 6, n_states, varies=varies, holes=0.2, ragged=True, dtype=dtype)
    *given, lengths = chain._tables()
    uniform = torch.rand(3, *batch, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for name in ("filter", "posterior"):
        expected = getattr(naive, name)(*given, lengths)[:-1]
        for implementation in (op, plain):
            for actual, table in zip(getattr(implementation, name)(*given, lengths)[:-1], expected, strict=True):
                close(actual, table)
    for implementation in (op, plain):
        for name, further in (("viterbi", ()), ("sample", (uniform,))):
            both = (getattr(module, name)(*given, lengths, *further)[0] for module in (implementation, naive))
            assert torch.equal(*both)


@given(
    batch=st.sampled_from([(), (1,), (4,), (9,), (2, 5)]),
    n_steps=st.integers(1, 40),
    n_states=st.integers(1, 40),
    varies=st.booleans(),
    holes=st.sampled_from([0.0, 0.3]),
    low=st.sampled_from([-1e300, -1e4, -100.0]),
    seed=st.integers(0, 99),
)
@examples(60)
def test_operators_equal_their_plain_forms(batch, n_steps, n_states, varies, holes, low, seed):
    """Also where some likelihoods are so low that digits could be lost."""
    chain = random_chain(batch, n_steps, n_states, varies=varies and n_steps > 2, holes=holes, ragged=True, seed=seed)
    *given, lengths = chain._tables()
    generator = torch.Generator().manual_seed(seed)
    rare = torch.rand(given[2].shape, generator=generator) < 0.1
    rare[..., 0] = False
    given[2] = given[2].masked_fill(rare, low)
    uniform = torch.rand(2, *batch, n_steps, generator=generator, dtype=torch.float64)
    for name in ("filter", "posterior"):
        for actual, table in zip(
            getattr(op, name)(*given, lengths), getattr(plain, name)(*given, lengths), strict=True
        ):
            torch.testing.assert_close(actual, table, rtol=1e-10, atol=1e-12)
    for name, further in (("viterbi", ()), ("sample", (uniform,))):
        both = (getattr(module, name)(*given, lengths, *further)[0] for module in (op, plain))
        assert torch.equal(*both)


@pytest.mark.parametrize("varies", [False, True])
@pytest.mark.parametrize(("batch", "n_states"), SIZES[:5])
def test_gradients_of_the_implementations_agree(batch, n_states, varies):
    chain = random_chain(batch, 5, n_states, varies=varies, holes=0.2, ragged=True)
    *given, lengths = chain._tables()
    for name in ("log_normalizer", "filter", "posterior"):
        expected = gradients(getattr(naive, name), given, lengths)
        for implementation in (op, plain):
            for actual, table in zip(gradients(getattr(implementation, name), given, lengths), expected, strict=True):
                assert table.isfinite().all()
                close(actual, table)


def gradients(function, given: list[Tensor], lengths: Tensor) -> tuple[Tensor, ...]:
    """Of a fixed random combination of all outputs."""
    leaves = [table.detach().clone().requires_grad_() for table in given]
    outputs = function(*leaves, lengths)
    generator = torch.Generator().manual_seed(2)
    total = sum((torch.randn(o.shape, generator=generator, dtype=o.dtype) * o).sum() for o in outputs[:-1])
    assert isinstance(total, Tensor)
    return torch.autograd.grad(total, leaves)


@pytest.mark.parametrize("varies", [False, True])
def test_long_ragged_batches_agree(varies):
    chain = random_chain((7,), 300, 5, varies=varies, ragged=True)
    for name in ("filter", "posterior"):
        expected = getattr(plain, name)(*chain._tables())[:-1]
        for actual, table in zip(getattr(op, name)(*chain._tables())[:-1], expected, strict=True):
            torch.testing.assert_close(actual, table, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("n_states", "n_steps"), [*product((1, 4, 9, 33), (1, 2, 3, 33)), (3, 3000), (20, 2501)])
def test_a_sequence_that_is_walked_from_both_ends_agrees_with_the_other_implementations(n_states, n_steps, dtype):
    """Alone in its group, of lengths around a block of steps and around the sums that move to float64."""
    tables = random_chain((), n_steps, n_states, holes=0.1 if n_steps < 9 else 0.0, dtype=dtype)._tables()
    expected = plain.posterior(*(table.double() for table in tables[:3]), tables[3])[:-1]
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 1e-10, "atol": 1e-12}
    for actual, table in zip(op.posterior(*tables)[:-1], expected, strict=True):
        torch.testing.assert_close(actual.double(), table, **tolerance)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("n_states", [1, 2, 3, 5, 8, 12, 13, 25])
def test_sequences_of_unequal_lengths_that_are_swept_together_are_those_alone(n_states, dtype):
    """Idle members of a group, which end early, begin late, or are missing, with tables of their own."""
    for lengths in ([1, 2, 3], [40, 1, 33, 17, 16], [100, 99, 7, 64, 50, 3, 2, 1, 31, 100, 1]):
        initial, table, likelihood, _ = random_chain((len(lengths),), max(lengths), n_states, dtype=dtype)._tables()
        given = initial, table, likelihood, torch.tensor(lengths)
        expected = plain.posterior(*(x.double() for x in given[:3]), given[3])
        filtered = plain.filter(*(x.double() for x in given[:3]), given[3])
        tolerance = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 1e-10, "atol": 1e-12}
        for actual, table in zip((*op.posterior(*given), *op.filter(*given)), (*expected, *filtered), strict=True):
            torch.testing.assert_close(actual.double(), table.double(), **tolerance)


def by_parts(monkeypatch, most: int, margin: int) -> list[bool]:
    """Sequences are cut into so many parts, with margins of a few steps; whether that was of use is added to what is
    returned."""
    agreed, usual = [], native._in_parts
    for name, value in (("PARTS", most), ("STEPS", 1), ("SECONDS", 1e-9), ("LONG", 1e-9), ("MARGIN", margin)):
        monkeypatch.setattr(parts, name, value)
    monkeypatch.setattr(native, "_in_parts", lambda *given: agreed.append(usual(*given)) or agreed[-1])
    return agreed


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("n", "n_steps", "n_states"), [(1, 4001, 5), (2, 4000, 9), (2, 3001, 20)])
@pytest.mark.cpu("threads of its kernels")
def test_parts_of_a_long_sequence_are_the_whole(n, n_steps, n_states, dtype, threads, monkeypatch):
    tables = list(random_chain((n,), n_steps, n_states, dtype=dtype)._tables())
    tables[3][-1] = n_steps - 7
    expected = plain.posterior(*(table.double() for table in tables[:3]), tables[3])[:-1]
    agreed, results = by_parts(monkeypatch, 4, 20), []
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 1e-10, "atol": 1e-12}
    for n_threads in (1, 3):
        torch.set_num_threads(n_threads)
        results.append(op.posterior(*tables)[:-1])
        for actual, table, first in zip(results[-1], expected, results[0], strict=True):
            torch.testing.assert_close(actual.double(), table, **tolerance)
            assert torch.equal(actual, first)
    assert agreed == [True] * 2


@pytest.mark.cpu("threads of its kernels")
@pytest.mark.slow
def test_a_sequence_that_forgets_slowly_is_cut_into_fewer_parts(threads, monkeypatch):
    chain, runs, usual = random_chain((), 2000, 3), [], parts.between
    monkeypatch.setattr(parts, "between", lambda lengths, n: runs.append(n) or usual(lengths, n))
    agreed = by_parts(monkeypatch, 16, 20)
    expected = plain.posterior(*chain._tables())
    for actual, table in zip(op.posterior(*chain._tables()), expected, strict=True):
        torch.testing.assert_close(actual, table, rtol=1e-10, atol=1e-12)
    assert agreed == [True]
    assert runs[0] < 16


@pytest.mark.cpu("threads of its kernels")
def test_a_part_that_loses_digits_is_computed_in_logarithms(monkeypatch):
    *tables, likelihood, lengths = random_chain((), 2000, 3)._tables()
    likelihood[700, 1:] = -INF
    likelihood[701] = torch.tensor([-1000.0, 0.0, 0.0])
    tables[1] = tables[1].clone()
    tables[1][0, 0, 1:] = -800.0
    agreed = by_parts(monkeypatch, 4, 20)
    given = *tables, likelihood, lengths
    for actual, table in zip(op.posterior(*given), plain.posterior(*given), strict=True):
        torch.testing.assert_close(actual, table, rtol=1e-10, atol=1e-12)
    assert agreed == [False]


@pytest.mark.cpu("threads of its kernels")
def test_a_batch_without_sequences_has_no_parts(monkeypatch):
    by_parts(monkeypatch, 4, 20)
    assert random_chain((0,), 2000, 3).smooth().state.shape == (0, 2000, 3)


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["what lies far back", "all that is possible"])
@pytest.mark.cpu("threads of its kernels")
def test_a_sequence_whose_parts_do_not_agree_is_walked_from_end_to_end(lost, threads, monkeypatch):
    log_initial, log_transition, log_likelihood, lengths = random_chain((), 2000, 3)._tables()
    if lost == "what lies far back":  # a state is nearly never left, and nothing but the ends says which
        log_transition = log_transition + 30 * torch.eye(3, dtype=torch.float64)
        log_likelihood[1:-1] = 0
    else:  # a cycle, whose phase the first step alone knows, and the other phases are ruled out at the last one
        log_transition = torch.full((1, 3, 3), -INF, dtype=torch.float64)
        log_transition[0, torch.arange(3), torch.tensor([1, 2, 0])] = 0.0
        log_initial = torch.tensor([0.0, -INF, -INF], dtype=torch.float64)
        log_likelihood[-1, torch.arange(3) != 1999 % 3] = -INF
    given = log_initial, log_transition, log_likelihood, lengths
    for n_threads in (1, 2):
        torch.set_num_threads(n_threads)
        agreed = by_parts(monkeypatch, 2, 20)
        for actual, table in zip(op.posterior(*given), plain.posterior(*given), strict=True):
            torch.testing.assert_close(actual, table, rtol=1e-10, atol=1e-12)
        assert agreed == [False]


@pytest.mark.few(2)
@pytest.mark.parametrize("implementation", [op, plain])
@pytest.mark.parametrize("varies", [False, True])
def test_gradcheck_and_gradgradcheck(implementation, varies):
    chain = random_chain((2,), 3, 2, varies=varies, ragged=True)
    *given, lengths = chain._tables()
    leaves = [table.clone().requires_grad_() for table in given]
    for name in ("log_normalizer", "filter", "posterior"):
        function = getattr(implementation, name)
        assert torch.autograd.gradcheck(lambda *leaves: function(*leaves, lengths)[:-1], leaves)  # noqa: B023
    function = implementation.log_normalizer
    assert torch.autograd.gradgradcheck(lambda *leaves: function(*leaves, lengths)[:-1], leaves)


@pytest.mark.parametrize("implementation", [op, plain])
def test_second_derivatives_are_finite_where_events_are_impossible(implementation):
    chain = random_chain((2,), 5, 4, holes=0.5, seed=1)
    *given, lengths = chain._tables()
    leaves = [table.clone().requires_grad_() for table in given]
    first = torch.autograd.grad(implementation.log_normalizer(*leaves, lengths)[0].sum(), leaves, create_graph=True)
    squares = torch.stack([grad.square().sum() for grad in first]).sum()
    second = torch.autograd.grad(squares, leaves)
    expected = naive_second_derivatives(given, lengths)
    for actual, table in zip(second, expected, strict=True):
        assert actual.isfinite().all()
        close(actual, table)


def naive_second_derivatives(given: list[Tensor], lengths: Tensor) -> tuple[Tensor, ...]:
    leaves = [table.clone().requires_grad_() for table in given]
    first = torch.autograd.grad(naive.log_normalizer(*leaves, lengths)[0].sum(), leaves, create_graph=True)
    return torch.autograd.grad(torch.stack([grad.square().sum() for grad in first]).sum(), leaves)


# -- other libraries -------------------------------------------------------------------------------------------------


def test_pyro_applies_a_transition_before_the_first_observation():
    chain = random_chain((3,), 6, 4)
    initial, transition = chain.log_initial.log_softmax(-1), chain.log_transition.log_softmax(-1)
    symbols = torch.randint(5, (3, 6), generator=torch.Generator().manual_seed(0))
    emission = torch.randn(4, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64).log_softmax(-1)
    theirs = dist.DiscreteHMM(initial, transition, dist.Categorical(logits=emission), duration=6)
    likelihood = emission.T[symbols]
    moved = (initial.unsqueeze(-1) + transition).logsumexp(-2)
    close(MarkovChain(moved, transition, likelihood).log_normalizer(), theirs.log_prob(symbols))
    assert not torch.allclose(MarkovChain(initial, transition, likelihood).log_normalizer(), theirs.log_prob(symbols))


def test_posteriors_equal_those_of_hmmlearn():
    chain = random_chain((), 200, 5)
    initial, transition = chain.log_initial.log_softmax(-1), chain.log_transition.log_softmax(-1)
    emission = torch.randn(5, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64).log_softmax(-1)
    symbols = torch.randint(7, (200,), generator=torch.Generator().manual_seed(2))
    theirs = CategoricalHMM(5, n_features=7)
    theirs.startprob_, theirs.transmat_, theirs.emissionprob_ = (
        table.exp().numpy() for table in (initial, transition, emission)
    )
    score, posterior = theirs.score_samples(symbols.unsqueeze(-1).numpy())
    chain = MarkovChain(initial, transition, emission.T[symbols])
    assert math.isclose(float(chain.log_normalizer()), score, rel_tol=1e-12)
    torch.testing.assert_close(chain.smooth().state, torch.from_numpy(posterior), rtol=1e-10, atol=1e-12)
    best, path = theirs.decode(symbols.unsqueeze(-1).numpy())
    assert math.isclose(float(chain.viterbi().log_probability), best, rel_tol=1e-12)
    assert chain.viterbi().path.tolist() == path.tolist()


# -- extremes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_million_improbable_steps_are_exact(dtype):
    generator = torch.Generator().manual_seed(0)
    weights = torch.tensor([0.25, 0.75], dtype=dtype).log()
    likelihood = torch.randn(1_000_000, 2, generator=generator, dtype=dtype) - 1e5
    chain = MarkovChain(weights, weights.expand(2, 2), likelihood)  # independent steps
    given, mass = likelihood.numpy().astype(np.float64), weights.numpy().astype(np.float64)
    top = given.max(-1, keepdims=True)
    shifted = np.exp(given - top + mass)
    exact = math.fsum(top[:, 0]) + math.fsum(np.log(shifted.sum(-1)))
    smoothed = chain.smooth()
    eps = torch.finfo(dtype).eps
    assert abs(float(smoothed.log_normalizer) - exact) <= 2 * eps * abs(exact)
    assert abs(float(chain.filter().log_normalizer) - exact) <= 2 * eps * abs(exact)
    state = shifted / shifted.sum(-1, keepdims=True)
    assert np.abs(smoothed.state.numpy() - state).max() < 16 * eps
    counts = state[:-1].T @ state[1:]
    np.testing.assert_allclose(smoothed.transition.numpy(), counts, rtol=2e-12 if eps < 1e-10 else 2e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_entropy_of_improbable_steps_does_not_cancel(dtype):
    generator = torch.Generator().manual_seed(0)
    weights = torch.tensor([0.25, 0.75], dtype=dtype).log()
    likelihood = torch.randn(10_000, 2, generator=generator, dtype=dtype) - 1e5
    share = (likelihood.double() + weights.double()).softmax(-1)
    expected = -(share * share.log()).sum()
    actual = MarkovChain(weights, weights.expand(2, 2), likelihood).entropy()
    assert abs(float(actual) - float(expected)) <= 16 * max(torch.finfo(dtype).eps, 1e-13) * float(expected)


@pytest.mark.parametrize("varies", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_belief_that_underflows_comes_back(dtype, varies):
    """Two regimes without a way between them: first the one is likelier by far, in the end the other."""
    gap = torch.cat([torch.full((300,), 5.0), torch.full((300,), -5.01)]).to(dtype)
    likelihood = torch.stack([gap, torch.zeros_like(gap)], -1)
    initial = torch.zeros(2, dtype=dtype)
    moves = torch.eye(2, dtype=dtype).log()
    chain = MarkovChain(initial, moves.expand(599, 2, 2) if varies else moves, likelihood)
    odds = gap.double().cumsum(0)
    close(chain.filter().state[:, 0], odds.sigmoid())
    close(chain.filter().log_normalizer, torch.nn.functional.softplus(odds[-1]))
    close(chain.log_normalizer(), torch.nn.functional.softplus(odds[-1]))
    close(chain.smooth().state[:, 0], odds[-1].sigmoid().expand(600))
    close(chain.smooth().transition.diagonal(), 599 * torch.stack([odds[-1].sigmoid(), (-odds[-1]).sigmoid()]))
    share = chain.sample(2000, torch.Generator().manual_seed(0)).path.double().mean()
    assert abs(float(share) - float((-odds[-1]).sigmoid())) < 4.5 * 0.5 / math.sqrt(2000)


def test_likelihoods_that_rule_each_other_out_are_only_improbable():
    likelihood = torch.tensor([[0.0, -1e5], [-1e5, 0.0]], dtype=torch.float64)
    chain = MarkovChain(torch.zeros(2, dtype=torch.float64), torch.eye(2, dtype=torch.float64).log(), likelihood)
    assert float(chain.log_normalizer()) == -1e5 + math.log(2)
    assert chain.smooth().state.tolist() == [[0.5, 0.5], [0.5, 0.5]]
    assert chain.filter().state.tolist() == [[1.0, 0.0], [0.5, 0.5]]


@pytest.mark.parametrize("offset", [-1e4, 1e4])
def test_constant_factors_of_the_tables_only_shift_the_evidence(offset):
    chain = random_chain((2,), 6, 3)
    moved = MarkovChain(chain.log_initial + offset, chain.log_transition + offset, chain.log_likelihood + offset)
    close(moved.log_normalizer() - 12 * offset, chain.log_normalizer())
    torch.testing.assert_close(moved.smooth().state, chain.smooth().state, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(moved.entropy(), chain.entropy(), rtol=1e-9, atol=1e-12)


def test_shared_tables_are_not_expanded():
    chain = random_chain((50,), 4, 40, ragged=True)
    repeated = chain.log_transition.expand(50, 3, 40, 40)
    for moves in (chain._moves(), repeated):
        (initial, transition, _), of, *_ = native.read(
            chain.log_initial, moves, chain.log_likelihood, chain.lengths
        ).kept
        assert transition.data_ptr() == chain.log_transition.data_ptr()
        assert transition.numel() == 1600
        assert initial.data_ptr() == chain.log_initial.data_ptr()
        assert of == (None, None, None)


# -- what is handed in -----------------------------------------------------------------------------------------------


def good() -> list[Tensor]:
    return [torch.zeros(3), torch.zeros(3, 3), torch.zeros(2, 5, 3)]


@pytest.mark.parametrize(
    ("place", "table", "message"),
    [
        (0, torch.zeros(4), r"log_initial: got shape \[4\], expected \[\*batch, 3\]"),
        (1, torch.zeros(3, 4), r"log_transition: got shape \[3, 4\], expected \[\*batch, 3, 3\]"),
        (1, torch.zeros(1, 3, 3, 3), r"log_transition: got shape \[1, 3, 3, 3\].*\[\*batch, 4, 3, 3\]"),
        (1, torch.zeros(1, 1, 4, 3, 3), r"log_transition: got shape \[1, 1, 4, 3, 3\]"),
        (1, torch.zeros(7, 3, 3), r"batch axes log_initial \[\], log_transition \[7\], log_likelihood \[2\]"),
        (2, torch.zeros(3), r"log_likelihood: got shape \[3\], expected \[\*batch, T, K\]"),
        (2, torch.zeros(2, 0, 3), r"log_likelihood: got shape \[2, 0, 3\]"),
        (0, torch.full((3,), -INF), r"log_initial: got \[-inf, -inf, -inf\]"),
        (0, torch.tensor([0.0, math.nan, 0.0]), "log_initial: got"),
        (1, torch.tensor([[0.0, INF, 0.0]] * 3), r"log_transition: got inf at \[0, 1\]"),
        (1, torch.full((3, 3), math.nan), r"log_transition: got nan at \[0, 0\]"),
    ],
)
def test_tables_that_do_not_fit_are_named(place, table, message):
    given = good()
    given[place] = table
    with pytest.raises(ValueError, match=message):
        MarkovChain(*given)


def test_wrong_kinds_are_named():
    initial, transition, likelihood = good()
    with pytest.raises(TypeError, match=r"log_transition: got torch\.float64"):
        MarkovChain(initial, transition.double(), likelihood)
    with pytest.raises(TypeError, match=r"log_initial: got dtype torch\.int64"):
        MarkovChain(initial.long(), transition, likelihood)
    with pytest.raises(ValueError, match="lengths: got 6 of sequence 1"):
        MarkovChain(initial, transition, likelihood, [5, 6])
    with pytest.raises(TypeError, match=r"lengths: got dtype torch\.float32"):
        MarkovChain(initial, transition, likelihood, torch.tensor([5.0, 5.0]))
    with pytest.raises(ValueError, match="n: got 0, expected an integer of at least 1"):
        MarkovChain(initial, transition, likelihood).sample(0)


CALLS = ["log_normalizer", "filter", "smooth", "marginals", "viterbi", "entropy"]


def test_a_state_that_cannot_be_reached_makes_its_observation_impossible():
    left_to_right = torch.tensor([[0.0, 0.0], [-INF, 0.0]])
    likelihood = torch.tensor([[-INF, 0.0], [0.0, 0.0], [0.0, -INF]])
    chain = MarkovChain(torch.zeros(2), left_to_right, likelihood)
    for name in CALLS:
        with pytest.raises(ValueError, match="the observation at step 2 is impossible"):
            getattr(chain, name)()


def test_records_are_frozen_and_tables_unchanged():
    given = good()
    chain = MarkovChain(*given)
    smoothed = chain.smooth()
    with pytest.raises(FrozenInstanceError):
        smoothed.state = given[2]
    assert all((table == 0).all() for table in given)


def test_the_scale_of_the_moves_does_not_matter_to_the_probability_of_a_change():
    torch.manual_seed(0)
    initial, moves, seen = torch.zeros(3), torch.randn(3, 3), torch.randn(5, 3)
    expected = MarkovChain(initial, moves, seen).change_probability()
    for scale in (300.0, -300.0):
        torch.testing.assert_close(MarkovChain(initial, moves + scale, seen).change_probability(), expected)


def test_the_probability_of_a_change_has_a_gradient_beyond_the_end_and_beside_what_cannot_be():
    generator = torch.Generator().manual_seed(0)
    moves = torch.randn(2, 2, generator=generator, dtype=torch.float64)
    seen = torch.randn(2, 4, 2, generator=generator, dtype=torch.float64)
    impossible = seen.clone()
    impossible[0, 1, 1] = -torch.inf

    def changes(moves: Tensor, seen: Tensor) -> Tensor:
        chain = MarkovChain(torch.zeros(2, dtype=torch.float64), moves, seen, torch.tensor([4, 2]))
        return chain.change_probability()

    assert torch.autograd.gradcheck(changes, (moves.clone().requires_grad_(), seen.clone().requires_grad_()))
    for table in torch.autograd.grad(
        changes(moves.requires_grad_(), impossible.requires_grad_()).sum(), (moves, impossible)
    ):
        assert bool(table.isfinite().all())
