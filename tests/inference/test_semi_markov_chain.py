"""Semi-Markov chains against enumeration of all paths, against Markov chains, and at the extremes."""

from itertools import product

import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from oracles import naive_semi_markov as naive
from oracles.segment_paths import NEVER, enumerate_segments, path_weight, segment_chains, tables_of
from samplehold.face.chains import MarkovChain, SemiMarkovChain
from samplehold.inference.chains.contract import Filtered, Marginals, Sampled, Smoothed, Viterbi
from samplehold.inference.chains.semi_markov import op, plain
from samplehold.inference.chains.semi_markov.chain import equilibrium
from torch import Tensor
from torch.testing import assert_close

TOLERANCE = {torch.float64: {"rtol": 1e-10, "atol": 1e-13}, torch.float32: {"rtol": 1e-5, "atol": 1e-6}}
BOTH = (torch.float64, torch.float32)


def close(actual: Tensor, expected: Tensor) -> None:
    assert_close(actual, expected.to(actual.dtype), **TOLERANCE[actual.dtype])


def sequences(chain: SemiMarkovChain):
    return product(*map(range, chain.batch_shape))


def random_chain(
    batch: tuple[int, ...],
    n_steps: int,
    k: int,
    longest: int,
    *,
    holes: float = 0.0,
    seed: int = 0,
    varies: bool = False,
    **options,
) -> SemiMarkovChain:
    generator = torch.Generator().manual_seed(seed)

    def table(*shape: int) -> Tensor:
        values = torch.randn(shape, generator=generator, dtype=torch.float64)
        values = values.masked_fill(torch.rand(shape, generator=generator) < holes, NEVER)
        values[..., :2] = -0.5
        return values

    transition = table(*batch, *[n_steps - 1] * varies, k, k)
    transition.diagonal(dim1=-2, dim2=-1).fill_(NEVER)
    transition[..., 1, 0] = -0.5  # the first two states take turns
    lengths = torch.randint(1, n_steps + 1, batch, generator=generator)
    duration = table(*batch, k, longest).log_softmax(-1)
    return SemiMarkovChain(table(k), transition, duration, 2 * table(*batch, n_steps, k), lengths, **options)


# -- enumeration -----------------------------------------------------------------------------------------------------


@given(segment_chains(dtypes=BOTH))
def test_posteriors_equal_enumeration(given):
    chain = given.chain()
    total, smoothed, marginals = chain.log_normalizer(), chain.smooth(), chain.marginals()
    begins, entropy, change = chain.segment_probability(), chain.entropy(), chain.change_probability()
    assert (type(smoothed), type(marginals)) == (Smoothed, Marginals)
    for index in sequences(chain):
        expected, n = enumerate_segments(chain, index), int(chain.lengths[index])
        close(total[index], expected.log_normalizer)
        close(smoothed.state[index][:n], expected.state)
        close(begins[index][:n], expected.begins)
        close(smoothed.transition[index], expected.moves.sum(0))
        if chain.varies:
            close(marginals.transition[index][: n - 1], expected.moves)
            assert not marginals.transition[index][n - 1 :].any()
        close(marginals.initial[index], expected.begins[0])
        close(entropy[index], expected.entropy)
        close(change[index][1:n], expected.begins[1:].sum(-1))
        assert not smoothed.state[index][n:].any()
        assert not change[index][n:].any()
        assert not change[index][0]


@given(segment_chains(dtypes=BOTH))
def test_the_filter_equals_enumeration(given):
    chain = given.chain()
    filtered = chain.filter()
    assert type(filtered) is Filtered
    close(filtered.log_increment.sum(-1), filtered.log_normalizer)
    likelihood = chain.log_likelihood.expand(*chain.batch_shape, -1, -1)

    def first_steps(t: int, likelihood: Tensor) -> SemiMarkovChain:
        options = {"log_first_duration": chain.log_first_duration, "censored": chain.censored}
        moves = chain.log_transition[..., : t - 1, :, :] if chain.varies else chain.log_transition
        return SemiMarkovChain(chain.log_initial, moves, chain.log_duration, likelihood[..., :t, :], **options)

    for index in sequences(chain):
        n = int(chain.lengths[index])
        for t in range(1, n + 1):
            expected = enumerate_segments(first_steps(t, likelihood), index, ends=t == n)
            close(filtered.state[index][t - 1], expected.last)
            close(filtered.log_increment[index][:t].sum(), expected.log_normalizer)
            flat = likelihood.clone()
            flat[..., t - 1, :] = 0.0
            expected = enumerate_segments(first_steps(t, flat), index, ends=False)
            before = filtered.log_increment[index][: t - 1].sum()
            close(filtered.predicted[index][t - 1], expected.last * (expected.log_normalizer - before).exp())
        assert not filtered.predicted[index][n:].any()


@given(segment_chains(dtypes=BOTH))
def test_viterbi_finds_the_best_path(given):
    chain = given.chain()
    best = chain.viterbi()
    assert type(best) is Viterbi
    for index in sequences(chain):
        n = int(chain.lengths[index])
        expected = enumerate_segments(chain, index).best
        path = tuple(best.path[index][:n].tolist())
        close(best.log_probability[index], expected)
        close(path_weight(path, tables_of(chain, index), censored=chain.censored), expected)
        assert (best.path[index][n:] == -1).all()


@given(segment_chains())
@examples(20)
def test_the_gradient_of_the_log_normalizer_is_the_posterior_of_each_table(given):
    chain = given.chain()
    names = "log_initial", "log_transition", "log_duration", "log_likelihood", "log_first_duration"
    tables = {name: getattr(chain, name) for name in names if getattr(chain, name) is not None}
    leaves = {name: table.clone().requires_grad_() for name, table in tables.items()}
    other = SemiMarkovChain(**leaves, lengths=chain.lengths, censored=chain.censored)
    other.log_normalizer().sum().backward()
    m = chain.marginals()
    beliefs = m.initial, m.transition, m.duration, m.fresh, m.first_duration
    for name, belief in zip(names, beliefs, strict=True):
        if name in leaves:
            gradient = leaves[name].grad
            assert gradient is not None
            assert belief is not None
            close(gradient, belief.sum_to_size(gradient.shape))
    twins = {name: table.clone().requires_grad_() for name, table in tables.items()}
    naive.log_normalizer(*SemiMarkovChain(**twins, lengths=chain.lengths, censored=chain.censored)._tables())[
        0
    ].sum().backward()
    for name, leaf in twins.items():
        gradient = leaves[name].grad
        assert gradient is not None
        close(gradient, torch.zeros_like(leaf) if leaf.grad is None else leaf.grad)  # no transition in one step


def test_draws_follow_the_posterior_over_paths():
    chain = random_chain((2,), 5, 3, 3, holes=0.2, seed=4)
    n = 20_000
    drawn = chain.sample(n, seed=0)
    assert type(drawn) is Sampled
    for b in range(2):
        expected, length = enumerate_segments(chain, (b,)), int(chain.lengths[b])
        powers = 3 ** torch.arange(length - 1, -1, -1)
        p = (expected.weight - expected.log_normalizer).exp()
        observed = torch.bincount((drawn.path[:, b, :length] * powers).sum(-1), minlength=3**length) / n
        assert (observed[p == 0] == 0).all()
        assert ((observed - p).abs() <= 4.5 * (p * (1 - p) / n).sqrt() + 1e-12).all()
        assert (drawn.path[:, b, length:] == -1).all()


# -- the implementations ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"censored": False}, {"cut": True}, {"varies": True}])
@pytest.mark.parametrize(("batch", "k", "longest"), [((), 2, 4), ((3,), 4, 40), ((2, 2), 9, 2)])
def test_implementations_agree(batch, k, longest, options):
    others = {name: value for name, value in options.items() if name != "cut"}
    chain = random_chain(batch, 30, k, longest, holes=0.2, **others)
    if "cut" in options:
        first = equilibrium(chain.log_duration)
        tables = chain.log_initial, chain.log_transition, chain.log_duration, chain.log_likelihood, chain.lengths
        chain = SemiMarkovChain(*tables, log_first_duration=first)
    tables = chain._tables()
    uniform = torch.rand(3, *batch, 30, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    close(op.filter(*tables)[0], naive.log_normalizer(*tables)[0])
    for name in ("filter", "posterior"):
        for actual, expected in zip(getattr(op, name)(*tables), getattr(plain, name)(*tables), strict=True):
            close(actual, expected) if actual.is_floating_point() else torch.testing.assert_close(actual, expected)
    for name, further in (("viterbi", ()), ("sample", (uniform,))):
        actual, expected = (getattr(module, name)(*tables, *further)[0] for module in (op, plain))
        assert torch.equal(actual, expected)


@given(
    st.integers(0, 10**6), st.integers(0, 3), st.integers(1, 12), st.integers(2, 9), st.integers(1, 14), st.booleans()
)
@examples(40)
def test_kernels_agree_with_the_plain_form_at_all_sizes(seed, batch, n_steps, k, longest, varies):
    chain = random_chain((batch,), n_steps, k, longest, holes=0.2, seed=seed, varies=varies)
    likelihood = chain.log_likelihood.clone()
    likelihood[..., :1] -= 1e3 * (seed % 3)  # a state that is hardly ever possible
    tables = *chain._tables()[:3], likelihood, chain.lengths
    *_, missed = plain.filter(*tables)
    for name in ("filter", "posterior", "viterbi"):
        *found, failed = getattr(op, name)(*tables)
        *expected, _ = getattr(plain, name)(*tables)
        assert torch.equal(failed >= 0, missed >= 0)
        for a, b in zip(found, expected, strict=True):
            assert_close(a[missed < 0], b[missed < 0], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("implementation", [op, plain])
def test_gradcheck_and_gradgradcheck(implementation):
    chain = random_chain((2,), 3, 2, 2, holes=0.0)
    # other impossible entries than the diagonal's would be changed by the check's small steps, which is not possible
    leaves = [x.clone().requires_grad_() for x in (chain.log_initial, chain.log_duration, chain.log_likelihood)]

    def total(initial: Tensor, duration: Tensor, likelihood: Tensor) -> Tensor:
        rows = SemiMarkovChain(initial, chain.log_transition, duration, likelihood, chain.lengths)._tables()
        return implementation.log_normalizer(*rows)[0]

    assert torch.autograd.gradcheck(total, leaves)
    assert torch.autograd.gradgradcheck(total, leaves)


def test_the_posterior_can_be_differentiated():
    chain = random_chain((2,), 4, 3, 3, holes=0.3)
    *given, lengths = chain._tables()
    gradients = []
    for implementation in (op, plain):
        leaves = [table.clone().requires_grad_() for table in given]
        outputs = implementation.posterior(*leaves, lengths)[:-1]
        generator = torch.Generator().manual_seed(1)
        weights = [torch.randn(x.shape, generator=generator, dtype=x.dtype) for x in outputs]
        total = torch.stack([(w * x).sum() for w, x in zip(weights, outputs, strict=True)]).sum()
        gradients.append(torch.autograd.grad(total, leaves))
    for actual, expected in zip(*gradients, strict=True):
        assert actual.isfinite().all()
        close(actual, expected)


# -- Markov chains ---------------------------------------------------------------------------------------------------


def test_geometric_durations_are_a_markov_chain():
    """Longer ones than the series count with their sum, as the last segment is censored."""
    generator = torch.Generator().manual_seed(0)
    stay, k, n_steps = torch.tensor([0.6, 0.8, 0.3], dtype=torch.float64), 3, 60
    other = torch.rand(k, k, generator=generator, dtype=torch.float64).fill_diagonal_(0.0)
    other = other / other.sum(-1, keepdim=True)
    moves = stay.diag() + (1 - stay).unsqueeze(-1) * other
    steps = torch.arange(n_steps)
    duration = (1 - stay).log().unsqueeze(-1) + steps * stay.log().unsqueeze(-1)
    duration = torch.cat([duration, n_steps * stay.log().unsqueeze(-1)], -1)  # n_steps + 1 or longer
    initial = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64).log()
    likelihood = 2 * torch.randn(4, n_steps, k, generator=generator, dtype=torch.float64)
    lengths = torch.tensor([60, 1, 33, 2])
    ours = SemiMarkovChain(initial, other.log(), duration, likelihood, lengths)
    theirs = MarkovChain(initial, moves.log(), likelihood, lengths)
    close(ours.log_normalizer(), theirs.log_normalizer())
    close(ours.filter().state, theirs.filter().state)
    close(ours.smooth().state, theirs.smooth().state)
    close(ours.entropy(), theirs.entropy())
    close(ours.change_probability(), theirs.change_probability())
    assert torch.equal(ours.viterbi().path, theirs.viterbi().path)


def test_a_series_cut_out_of_a_long_one_begins_in_equilibrium():
    """Steps before it have no information: far from the start, `equilibrium` has what is left of a segment."""
    duration = torch.tensor([[0.2, 0.5, 0.3], [0.1, 0.1, 0.8]], dtype=torch.float64).log()
    turns = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64).log()
    mean = duration.exp() @ torch.arange(1.0, 4.0, dtype=torch.float64)
    share = (mean / mean.sum()).log()  # of the time in each state
    likelihood = torch.randn(4, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    before = torch.zeros(400, 2, dtype=torch.float64)
    cut = SemiMarkovChain(share, turns, duration, likelihood, log_first_duration=equilibrium(duration))
    whole = SemiMarkovChain(share, turns, duration, torch.cat([before, likelihood]))
    close(cut.log_normalizer(), whole.log_normalizer())
    close(cut.smooth().state, whole.smooth().state[400:])


# -- extremes --------------------------------------------------------------------------------------------------------


def test_far_offsets_of_the_likelihood_cost_no_digits():
    chain = random_chain((), 500, 3, 12)
    tables = chain.log_initial, chain.log_transition, chain.log_duration
    shift = torch.linspace(-1e5, 1e5, 500, dtype=torch.float64).unsqueeze(-1)
    moved = SemiMarkovChain(*tables, chain.log_likelihood + shift.round(), chain.lengths)
    assert_close(moved.smooth().state, chain.smooth().state, rtol=1e-9, atol=1e-9)
    assert_close(moved.entropy(), chain.entropy(), rtol=1e-9, atol=1e-9)


def test_a_state_far_less_likely_is_not_lost():
    """A certain observation at the end leaves only paths whose other steps are improbable by e^-2000."""
    likelihood = torch.zeros(40, 2, dtype=torch.float64)
    likelihood[:, 1], likelihood[-1, 0] = -50.0, NEVER
    turns = torch.tensor([[NEVER, 0.0], [0.0, NEVER]], dtype=torch.float64)
    forty = torch.full((2, 40), NEVER, dtype=torch.float64)
    forty[:, -1] = 0.0  # every segment lasts 40 steps
    chain = SemiMarkovChain(torch.tensor([0.5, 0.5], dtype=torch.float64).log(), turns, forty, likelihood)
    close(chain.log_normalizer(), torch.tensor(-2000.0, dtype=torch.float64) - torch.tensor(2.0).double().log())
    close(chain.smooth().state[:, 1], torch.ones(40, dtype=torch.float64))


def test_a_sequence_of_one_step():
    chain = random_chain((), 1, 2, 3)
    close(chain.smooth().state[0], (chain.log_initial + chain.log_likelihood[0]).softmax(-1))


def test_durations_that_are_too_short_for_the_series_are_named():
    """Two states, of which the second one is never left, and lasts no longer than three steps."""
    once = torch.tensor([[NEVER, 0.0], [NEVER, NEVER]])
    chain = SemiMarkovChain(torch.zeros(2), once, torch.full((2, 3), 1 / 3).log(), torch.zeros(8, 2))
    with pytest.raises(ValueError, match=r"step 6 is impossible.*no row of segments of 3 steps at most reaches it"):
        chain.smooth()


def test_bad_tables_are_named():
    start, moves, lasts, seen = torch.zeros(2), torch.full((2, 2), NEVER), torch.zeros(2, 3), torch.zeros(5, 2)
    with pytest.raises(ValueError, match="log_transition: state 0 may follow itself"):
        SemiMarkovChain(start, torch.zeros(2, 2), lasts, seen)
    with pytest.raises(ValueError, match=r"log_duration: got shape \[3, 3\]"):
        SemiMarkovChain(start, moves, torch.zeros(3, 3), seen)
    with pytest.raises(ValueError, match=r"log_first_duration: got shape \[2, 4\]"):
        SemiMarkovChain(start, moves, lasts, seen, log_first_duration=torch.zeros(2, 4))
    with pytest.raises(ValueError, match="log_duration: got nan"):
        SemiMarkovChain(start, moves, torch.full((2, 3), torch.nan), seen)
    with pytest.raises(TypeError, match="float64"):
        SemiMarkovChain(start, moves, lasts.double(), seen)
    with pytest.raises(ValueError, match="lengths"):
        SemiMarkovChain(start, moves, lasts, seen, lengths=6)
