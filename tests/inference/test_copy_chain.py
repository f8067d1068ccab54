"""Copy chains against the enumeration of every path, against each other, and at the ends of the number range."""

import math
import sys
from dataclasses import dataclass, replace

import pytest
import torch
from examples import examples
from hypothesis import assume, given
from hypothesis import strategies as st
from oracles import naive_copy as naive
from oracles.copy_paths import Enumerated, enumerate_paths
from oracles.operators import without_kernels
from oracles.placement import close
from oracles.processes import printed
from samplehold.face.chains import CopyChain
from samplehold.inference.chains.copy import native, op, plain
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

IMPLEMENTATIONS = (naive, plain, op)
TIGHT = {"rtol": 1e-10, "atol": 1e-14}
NONE = -torch.inf


@dataclass(frozen=True)
class Case:
    """Tables of chains whose observations are all possible."""

    log_initial: Tensor | None
    log_fresh: Tensor
    log_held: Tensor
    lengths: Tensor

    @property
    def tables(self) -> tuple[Tensor | None, Tensor, Tensor, Tensor]:
        return self.log_initial, self.log_fresh, self.log_held, self.lengths

    @property
    def chain(self) -> CopyChain:
        return CopyChain(self.log_initial, self.log_fresh, self.log_held, self.lengths)

    def to(self, dtype: torch.dtype) -> "Case":
        initial = None if self.log_initial is None else self.log_initial.to(dtype)
        return Case(initial, self.log_fresh.to(dtype), self.log_held.to(dtype), self.lengths)

    def possible(self) -> bool:
        """Whether some state can be reached at every step of every sequence."""
        begin = torch.zeros_like(self.log_fresh[:, 0]) if self.log_initial is None else self.log_initial.exp()
        reached, alive = begin > 0, [(begin > 0).any(-1) | (self.log_initial is None)]
        for t in range(self.log_fresh.shape[1]):
            reached = (reached & (self.log_held[:, t] > NONE)) | (self.log_fresh[:, t] > NONE)
            alive.append(reached.any(-1) | (t >= self.lengths))
        return bool(torch.stack(alive).all())

    def leaves(self) -> list[Tensor]:
        given = (self.log_fresh, self.log_held, self.log_initial)  # the last may be None
        return [table.clone().requires_grad_() for table in given if table is not None]

    def with_leaves(self, leaves: list[Tensor]) -> "Case":
        return Case(leaves[2] if len(leaves) > 2 else None, leaves[0], leaves[1], self.lengths)


@st.composite
def cases(draw, max_states=3, max_steps=4, n=2, dtype=torch.float64, impossible=True) -> Case:
    """Random chains with one batch axis, with impossible events, ragged lengths, both shapes of `log_held`."""
    states, steps = draw(st.integers(1, max_states)), draw(st.integers(1, max_steps))
    width, with_initial = draw(st.sampled_from((states, 1))), draw(st.booleans())
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    share = draw(st.sampled_from((0.0, 0.2, 0.5))) if impossible else 0.0

    def table(*shape: int) -> Tensor:
        x = 2 * torch.randn(shape, generator=generator, dtype=torch.float64)
        return x.where(torch.rand(shape, generator=generator) >= share, NONE).to(dtype)

    lengths = torch.randint(1, steps + 1, (n,), generator=generator)
    initial = table(n, states) if with_initial else None
    fresh, held = table(n, steps, states), table(n, steps, width)
    case = Case(initial, fresh, held, lengths)
    assume(case.possible())
    return case


def random_case(
    n: int, steps: int, states: int, width: int, initial=True, dtype=torch.float64, seed=0, size=1.0, impossible=0.0
) -> Case:
    generator = torch.Generator().manual_seed(seed)

    def table(*shape: int) -> Tensor:
        x = size * torch.randn(shape, generator=generator, dtype=torch.float64)
        return x.where(torch.rand(shape, generator=generator) >= impossible, NONE).to(dtype)

    lengths = torch.randint(1, steps + 1, (n,), generator=generator)
    fresh, held = table(n, steps, states), table(n, steps, width)
    return Case(table(n, states) if initial else None, fresh, held, lengths)


def enumerate_case(case: Case) -> Enumerated:
    case = case.to(torch.float64)
    return enumerate_paths(case.log_fresh, case.log_held, case.log_initial, case.lengths)


def shares(expected: Enumerated, case: Case) -> tuple[Tensor, Tensor, Tensor]:
    held = expected.held if case.log_held.shape[-1] > 1 else expected.held.sum(-1, keepdim=True)
    return expected.fresh, held, expected.initial


@given(cases(max_steps=5))
def test_every_implementation_equals_the_enumeration_of_paths(dtype, case):
    case = case.to(dtype)
    expected = enumerate_case(case)
    fresh, held, initial = shares(expected, case)
    for implementation in IMPLEMENTATIONS:
        kind = torch.float64 if implementation is naive else dtype
        case = case.to(kind)
        value, failed = implementation.log_normalizer(*case.tables)
        close(value, expected.log_normalizer, kind, **TIGHT)
        assert (failed == -1).all()

        increment, state, redraw, _ = implementation.filter(*case.tables)
        close(increment, expected.log_increment, kind, **TIGHT)
        close(state, expected.filtered_state, kind, **TIGHT)
        close(redraw, expected.filtered_redraw, kind, **TIGHT)

        value, state, redraw, _ = implementation.smooth(*case.tables)
        close(value, expected.log_normalizer, kind, **TIGHT)
        close(state, expected.state, kind, **TIGHT)
        close(redraw, expected.redraw, kind, **TIGHT)

        value, *found, _ = implementation.marginals(*case.tables)
        close(value, expected.log_normalizer, kind, **TIGHT)
        close(found[0], fresh, kind, **TIGHT)
        close(found[1], held, kind, **TIGHT)
        if case.log_initial is not None:
            close(found[2], initial, kind, **TIGHT)


@given(cases())
def test_the_gradient_of_the_log_normalizer_is_the_smoothed_marginals(dtype, case):
    case = case.to(dtype)
    expected = shares(enumerate_case(case), case)
    for implementation in IMPLEMENTATIONS:
        kind = torch.float64 if implementation is naive else dtype
        case = case.to(kind)
        leaves = case.leaves()
        value, _ = implementation.log_normalizer(*case.with_leaves(leaves).tables)
        for gradient, share in zip(torch.autograd.grad(value.sum(), leaves), expected, strict=False):
            close(gradient, share, kind, **TIGHT)


@given(cases())
def test_the_best_path_has_the_greatest_weight_of_all_paths(case):
    expected = enumerate_case(case)
    for implementation in IMPLEMENTATIONS:
        path, redraw, value, _ = implementation.viterbi(*case.tables)
        assert_close(value, expected.log_best, **TIGHT)
        for i, length in enumerate(case.lengths.tolist()):
            found = tuple(path[i, :length].tolist()), tuple(redraw[i, :length].int().tolist())
            assert math.log(expected.paths[i][found]) == pytest.approx(
                float(expected.log_best[i]), rel=1e-10, abs=1e-12
            )
            assert (path[i, length:] == -1).all()
            assert not redraw[i, length:].any()


@given(cases())
def test_entropy_equals_the_enumeration_of_paths(case):
    assert_close(
        case.chain.entropy(),
        enumerate_case(case).entropy,
        rtol=1e-10,
        atol=1e-13,
    )


@examples(10)
@given(cases(max_states=2, max_steps=3, n=1), st.integers(0, 2**31))
@pytest.mark.slow
def test_draws_have_the_frequencies_of_the_posterior(case, seed):
    n = 20_000
    weights = enumerate_case(case).paths[0]
    total = sum(weights.values())
    drawn = case.chain.sample(n, torch.Generator().manual_seed(seed))
    length = int(case.lengths[0])
    found: dict[tuple, int] = {}
    for s, z in zip(drawn.path[:, 0, :length].tolist(), drawn.redraw[:, 0, :length].int().tolist(), strict=True):
        found[tuple(s), tuple(z)] = found.get((tuple(s), tuple(z)), 0) + 1
    assert set(found) <= set(weights)
    assert (drawn.path[:, 0, length:] == -1).all()
    # Bernstein: no count is this far from its mean but with probability 1e-7, of at most 64 counts and 10 chains
    for path, weight in weights.items():
        p = weight / total
        margin = math.log(2e7)
        bound = margin / 3 + math.sqrt(margin**2 / 9 + 2 * margin * n * p * (1 - p))
        assert abs(found.get(path, 0) - n * p) <= bound


@given(cases(), st.integers(0, 2**31))
def test_all_implementations_make_the_same_draws_of_the_same_uniform_numbers(case, seed):
    size = 5, *case.log_fresh.shape[:2], 2
    uniform = torch.rand(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    path, redraw, _ = naive.sample(*case.tables, uniform)
    for implementation in (plain, op):
        other, other_redraw, _ = implementation.sample(*case.tables, uniform)
        assert torch.equal(path, other)
        assert torch.equal(redraw, other_redraw)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("states", "width", "initial"), [(2, 2, True), (17, 1, False), (40, 40, True), (1, 1, False)])
def test_the_implementations_agree_on_longer_sequences(states, width, initial, dtype):
    case = random_case(3, 200, states, width, initial, dtype)
    double = Case(*(t if t is None or t.dtype == torch.int64 else t.double() for t in case.tables))
    exact = {"rtol": 1e-11, "atol": 1e-14}
    loose = exact if dtype == torch.float64 else {"rtol": 5e-6, "atol": 1e-10}
    for name in ("log_normalizer", "filter", "smooth", "marginals"):
        *expected, _ = getattr(naive, name)(*double.tables)
        for implementation, bound in ((plain, exact), (op, loose)):
            *found, _ = getattr(implementation, name)(*case.tables)
            if name == "marginals" and not initial:
                found.pop()
            for ours, theirs in zip(found, expected, strict=False):
                rounding = bound if ours.dtype == torch.float64 else loose
                assert_close(ours.double(), theirs, **rounding)


@pytest.mark.parametrize("block", [64, 1024])  # blocks of one step, or of up to 8, of 5 states in vectors of four
@pytest.mark.parametrize(("n", "steps"), [(2, 37), (1, 1), (1, 2), (1, 3), (1, 37), (1, 400)])
def test_sequences_of_several_blocks_equal_their_step_by_step_twin(n, steps, block, monkeypatch):
    monkeypatch.setattr(native, "BLOCK", block)
    case = random_case(n, steps, 5, 5)
    case = replace(case, lengths=torch.arange(steps, steps - n, -1))
    for name in ("log_normalizer", "filter", "smooth", "marginals"):
        *expected, _ = getattr(plain, name)(*case.tables)
        *found, _ = getattr(op, name)(*case.tables)
        for ours, theirs in zip(found, expected, strict=True):
            assert_close(ours, theirs, rtol=1e-11, atol=1e-16)


@examples(40)
@given(cases(max_states=20, max_steps=40, n=3), st.data())
def test_tables_may_lie_anywhere_in_memory(dtype, case, data):
    """Steps before sequences, states first, and one step or one sequence for all: the same bits as of copies."""
    order = st.sampled_from(((0, 1, 2), (1, 0, 2), (2, 1, 0)))

    def placed(table: Tensor) -> Tensor:
        axes = data.draw(order)
        back = [axes.index(axis) for axis in range(3)]
        return table.to(dtype).permute(axes).contiguous().permute(back)

    shared = data.draw(st.sampled_from((None, 0, 1)))
    fresh, held = placed(case.log_fresh), placed(case.log_held)
    if shared is not None:
        fresh, held = (t.narrow(shared, 0, 1).expand_as(t) for t in (fresh.clamp_min(-3.0), held))
    initial = None if case.log_initial is None else case.log_initial.to(dtype)
    for name in ("evidence", "filter", "smooth", "marginals", "viterbi"):
        found = getattr(op, name)(initial, fresh, held, case.lengths)
        expected = getattr(op, name)(initial, fresh.contiguous(), held.contiguous(), case.lengths)
        for ours, theirs in zip(found, expected, strict=True):
            assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


@pytest.mark.cpu("kernels read memory themselves")
def test_operators_refuse_tables_that_do_not_fit_together():
    fresh, held, start, lengths = torch.zeros(2, 4, 3), torch.zeros(2, 4, 3), torch.zeros(2, 3), torch.tensor([4, 4])
    for tables in (
        (start[:1], fresh, held, lengths),
        (start, fresh, held[:1], lengths),
        (start, fresh, held[:, :3], lengths),
        (None, fresh, held[..., :2], lengths),
        (None, fresh, held, lengths[:1]),
        (None, fresh[:, :0], held[:, :0], lengths),
    ):
        for operator in (op.evidence, op.filter, op.smooth, op.marginals, op.viterbi):
            with pytest.raises(ValueError, match="got tables of"):
                operator(*tables)
    with pytest.raises(TypeError, match=r"got torch\.float32, torch\.float64"):
        op.smooth(None, fresh, held.double(), lengths)
    with pytest.raises(ValueError, match="uniform: got"):
        op.sample(None, fresh, held, lengths, torch.zeros(5, 2, 3, 2, dtype=torch.float64))
    wrong = torch.tensor([-3, 900])  # such lengths are read as the nearest that can be
    assert op.smooth(start, fresh, held, wrong)[1][1].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_probability_of_a_redraw_is_at_most_1(dtype):
    generator = torch.Generator().manual_seed(0)
    fresh = torch.randn(64, 50, 5, generator=generator, dtype=torch.float64).to(dtype)
    chain = CopyChain(torch.full((5,), 0.2, dtype=dtype).log(), fresh, torch.full_like(fresh, -torch.inf))
    for found in (chain.filter(), chain.smooth()):
        assert float(found.redraw.max()) <= 1
        assert_close(found.redraw, torch.ones_like(found.redraw))


def test_batch_axes_broadcast():
    generator = torch.Generator().manual_seed(2)
    fresh, held = torch.randn(3, 1, 4, 2, generator=generator), torch.randn(5, 4, 1, generator=generator)
    initial, lengths = torch.randn(2, generator=generator), torch.tensor([[4], [2], [3]])
    broadcast = CopyChain(initial, fresh, held, lengths)
    assert broadcast.log_normalizer().shape == (3, 5)
    for i in range(3):
        for j in range(5):
            alone = CopyChain(initial, fresh[i, 0], held[j], int(lengths[i]))
            assert_close(broadcast.smooth().state[i, j], alone.smooth().state)
            assert_close(broadcast.log_normalizer()[i, j], alone.log_normalizer())


@pytest.mark.slow
@examples(3)
@given(cases(max_steps=3, n=1, impossible=False))
def test_all_results_have_right_first_and_second_derivatives(case):
    leaves = case.leaves()
    functions = {
        "log_normalizer": lambda chain: chain.log_normalizer(),
        "entropy": lambda chain: chain.entropy(),
        "filter": lambda chain: (chain.filter().log_increment, chain.filter().state, chain.filter().redraw),
        "marginals": lambda chain: (chain.marginals().fresh, chain.marginals().held),
    }
    for function in functions.values():

        def evaluate(*leaves, function=function):
            return function(case.with_leaves(list(leaves)).chain)

        assert gradcheck(evaluate, leaves)
        assert gradgradcheck(evaluate, leaves)


@examples(15)
@given(cases())
def test_impossible_events_are_exact_zeros_with_finite_derivatives_of_every_order(case):
    never = case.log_fresh == NONE, (case.log_held == NONE).expand_as(case.log_fresh)
    for implementation in IMPLEMENTATIONS:
        held = case.log_held.expand_as(never[1])
        _, fresh, held, *_ = implementation.marginals(case.log_initial, case.log_fresh, held, case.lengths)
        assert (fresh[never[0]] == 0).all()
        assert (held[never[1]] == 0).all()
    leaves = case.leaves()
    chain = case.with_leaves(leaves).chain
    weights = torch.linspace(0.5, 1.5, chain.smooth().state.numel(), dtype=torch.float64).view(
        chain.smooth().state.shape
    )
    results = chain.log_normalizer().sum(), chain.entropy().sum(), (chain.smooth().state * weights).sum()
    for result in results:
        first = torch.autograd.grad(result, leaves, create_graph=True)
        for gradient, table in zip(first, leaves, strict=True):
            assert gradient.isfinite().all()
            assert (gradient[table == NONE] == 0).all()
        second = torch.autograd.grad(sum((gradient**2).sum() for gradient in first), leaves)
        assert all(gradient.isfinite().all() for gradient in second)


@examples(3)
@given(cases(max_steps=3, n=1, impossible=False))
def test_derivatives_are_right_where_there_are_no_kernels(case):
    leaves = case.leaves()
    for name in ("evidence", "filter", "marginals"):

        def evaluate(*leaves, name=name):
            found = without_kernels(getattr(op, name))(*case.with_leaves(list(leaves)).tables)[:-1]
            return found[:3]  # the posterior of an initial table that is not there means nothing

        assert gradcheck(evaluate, leaves)
        assert gradgradcheck(evaluate, leaves)


def stationary(steps: int, level: float, dtype: torch.dtype = torch.float64) -> CopyChain:
    """Every observation has likelihood exp(level) under each state, so the posterior is the stationary prior."""
    pi, rho = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64), 0.125
    fresh, held = (rho * pi).log() + level, torch.full((1,), math.log(1 - rho) + level, dtype=torch.float64)
    return CopyChain(pi.log().to(dtype), fresh.expand(steps, 3).to(dtype), held.expand(steps, 1).to(dtype))


@pytest.mark.few(1)
@pytest.mark.parametrize("level", [-1e5, 0.0, 1e5])
def test_a_million_steps_of_extreme_likelihoods_stay_exact(level):
    steps = 1_000_000
    chain = stationary(steps, level)
    slack = steps * 1.5e-11 if level else 1e-9  # what rounding level + log(rho pi) to float64 may add up to
    smoothed = chain.smooth()
    assert abs(float(chain.log_normalizer()) - steps * level) <= slack
    assert abs(float(smoothed.log_normalizer) - steps * level) <= slack
    bound = {"rtol": 0, "atol": 1e-10 if level else 1e-14}
    pi = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).expand(steps, 3)
    assert_close(smoothed.state, pi, **bound)
    assert_close(chain.filter().state, pi, **bound)
    assert_close(smoothed.redraw, torch.full_like(smoothed.redraw, 0.125), **bound)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_sum_of_a_million_terms_is_rounded_once(dtype):
    steps = 1_000_000
    tables = torch.full((steps, 3), -1e5, dtype=dtype), torch.full((steps, 1), -1e5, dtype=dtype)
    expected = steps * (math.log(4) - 1e5)  # each step multiplies the evidence by 1 + 3, times exp(-1e5)
    value = CopyChain(torch.tensor([0.5, 0.25, 0.25]).log().to(dtype), *tables).log_normalizer()
    start = 1e-7 if dtype == torch.float32 else 0.0
    assert float(value) == pytest.approx(expected, rel=2 * torch.finfo(dtype).eps, abs=start)


def log_space(case: Case) -> tuple[Tensor, Tensor]:
    """log p(x) and P(s_t | x), without anything that could underflow."""
    values, states = [], []
    for initial, fresh, held, length in zip(*case.tables, strict=True):
        fresh, held = fresh[:length].double(), held[:length].double()
        alpha, beta = [initial.double()], [torch.zeros_like(fresh[0])]
        for t in range(length):
            alpha.append(torch.logaddexp(held[t] + alpha[-1], fresh[t] + alpha[-1].logsumexp(-1)))
            beta.append(torch.logaddexp(held[-1 - t] + beta[-1], (fresh[-1 - t] + beta[-1]).logsumexp(-1)))
        values.append(alpha[-1].logsumexp(-1))
        states.append((torch.stack(alpha[1:]) + torch.stack(beta[-2::-1])).softmax(-1))
    return torch.stack(values), torch.stack(states)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("spread", [30.0, 300.0, 3e3, 1e5])
def test_weights_of_any_spread_are_right_in_every_implementation(spread, dtype):
    case = random_case(20, 12, 3, 3, dtype=dtype, seed=1)
    case = Case(*(spread * table for table in case.tables[:3]), torch.full((20,), 12))
    value, state = log_space(case)
    rounding = 1e-11 if dtype == torch.float64 else 3e-7
    for implementation in (plain, op):
        found, smoothed, _, _ = implementation.smooth(*case.tables)
        assert_close(found.double(), value, rtol=rounding, atol=0)
        assert_close(smoothed.double(), state, rtol=0, atol=4 * rounding * max(1.0, spread * 1e-2))
        assert_close(implementation.log_normalizer(*case.tables)[0], found, rtol=rounding, atol=0)
        increment, filtered, _, _ = implementation.filter(*case.tables)
        assert_close(increment.sum(-1), value, rtol=rounding, atol=0)
        assert_close(filtered[:, -1], smoothed[:, -1], rtol=0, atol=4 * rounding)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_state_written_off_by_thousands_of_nats_comes_back(dtype):
    # The state never changes: evidence of 3000 nats against it in 30 steps, then 3005 for it in 10.
    steps, down, up = 40, torch.tensor([0.0, -100.0], dtype=dtype), torch.tensor([-300.5, 0.0], dtype=dtype)
    held = torch.cat([down.expand(30, 2), up.expand(10, 2)])
    chain = CopyChain(torch.full((2,), math.log(0.5), dtype=dtype), torch.full((steps, 2), NONE, dtype=dtype), held)
    odds = math.exp(-5)
    expected = torch.tensor([odds / (1 + odds), 1 / (1 + odds)], dtype=dtype).expand(steps, 2)
    assert_close(chain.smooth().state, expected)
    assert_close(chain.filter().state[-1], expected[-1])
    assert torch.equal(chain.viterbi().path, torch.ones(steps, dtype=torch.int64))
    assert float(chain.log_normalizer()) == pytest.approx(-3000 + math.log(0.5 * (1 + odds)), rel=1e-6)
    drawn = chain.sample(2000, torch.Generator().manual_seed(0))
    assert (drawn.path == drawn.path[:, :1]).all()
    assert not drawn.redraw.any()
    assert 0 < int((drawn.path[:, 0] == 0).sum()) < 40  # 13 expected


def test_a_state_that_cannot_be_reached_does_no_harm_however_well_it_fits():
    fresh = torch.tensor([[-1.0, NONE], [-1.0, NONE]]).repeat(500, 1).double()
    held = torch.tensor([-1.0, 0.0]).double().expand(1000, 2)
    chain = CopyChain(None, fresh, held)
    assert_close(chain.smooth().state, torch.tensor([1.0, 0.0]).double().expand(1000, 2), rtol=0, atol=0)
    assert float(chain.log_normalizer()) == pytest.approx(-1 + 999 * (math.log(2) - 1), rel=1e-14)
    assert chain.marginals().fresh.isfinite().all()


def test_inference_mode_changes_nothing():
    case = random_case(3, 20, 4, 1)
    expected = case.chain.smooth().state
    with torch.inference_mode():
        assert torch.equal(
            replace(case, **{name: t.clone() for name, t in vars(case).items() if t is not None}).chain.smooth().state,
            expected,
        )


MEMORY = r"""
import re, torch
from pathlib import Path
from samplehold.inference.chains.copy.chain import CopyChain
generator = torch.Generator().manual_seed(0)
tables = [torch.randn(1, 1_000_000, 8, generator=generator) for _ in range(2)]
CopyChain(None, tables[0][:, :50_000], tables[1][:, :50_000]).smooth()
status = lambda what: int(re.search(what + r":\s+(\d+) kB", Path("/proc/self/status").read_text())[1])
Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from what is in use now
before = status("VmRSS")
smoothed = CopyChain(None, *tables).smooth()
peak = status("VmHWM")
output = sum(t.numel() * t.element_size() for t in (smoothed.state, smoothed.redraw))
print((peak - before) * 1024 / output)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of memory from /proc")
def test_smoothing_a_million_steps_needs_little_memory_beside_input_and_output():
    found = printed(MEMORY)
    assert 0.9 < float(found) < 2.5  # the output itself is 1


def test_bad_arguments_are_named():
    fresh, held, initial = torch.zeros(2, 4, 3), torch.zeros(2, 4, 3), torch.zeros(2, 3)
    for arguments, message in (
        ((None, fresh, held[:, :3]), r"log_held: got shape \[2, 3, 3\], expected \[\*batch, 4, 3\]"),
        ((None, fresh, held[..., :2]), r"log_held: got shape \[2, 4, 2\]"),
        ((None, fresh[0, 0], held), r"log_fresh: got shape \[3\]"),
        ((None, fresh[:, :0], held[:, :0]), r"log_fresh: got shape \[2, 0, 3\]"),
        ((initial[:, :2], fresh, held), r"log_initial: got shape \[2, 2\], expected \[\*batch, 3\]"),
        ((None, fresh, held[[0, 1, 1]]), r"log_fresh, log_held: the batch axes .* do not broadcast"),
        ((initial, fresh, held, [4, 5]), r"lengths: got 5 of sequence 1, but the series has 4 steps"),
        ((initial, fresh, held, [0, 4]), r"lengths: got 0 of sequence 0"),
        ((initial + torch.tensor([[0.0], [math.nan]]), fresh, held), r"log_initial: got \[nan, .* of sequence 1"),
        ((torch.full((3,), NONE), fresh, held), r"log_initial: got \[-inf, -inf, -inf\]"),
    ):
        with pytest.raises(ValueError, match=message):
            CopyChain(*arguments)
    for arguments, message in (
        ((None, fresh, held.double()), r"log_held: got torch.float64 on \S+, but log_fresh is torch.float32"),
        ((None, fresh.half(), held.half()), r"log_fresh: got dtype torch.float16"),
        ((initial, fresh, held, torch.tensor([1.0, 2.0])), r"lengths: got dtype torch.float32, expected integers"),
    ):
        with pytest.raises(TypeError, match=message):
            CopyChain(*arguments)
    with pytest.raises(ValueError, match="n: got 0, expected an integer of at least 1"):
        CopyChain(None, fresh, held).sample(0)
