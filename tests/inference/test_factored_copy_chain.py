"""Factored copy chains against the chain that their tables multiply out to, which is tested against enumeration."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracles.placement import close, tolerances
from samplehold.face.chains import FactoredCopyChain
from samplehold.inference.chains.copy import native
from samplehold.inference.chains.copy import plain as general
from samplehold.inference.chains.factored_copy import op, plain
from samplehold.inference.chains.factored_copy.plain import multiplied_out
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

TIGHT = {"rtol": 1e-10, "atol": 1e-12}


def tables(
    seed: int, n: int, steps: int, states: int, gates: int, scale: float = 1.0, ragged: bool = True
) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = (n, gates), (n, gates), (n, states), (n, steps, states)
    found = [scale * torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
    lengths = torch.randint(1, steps + 1, (n,), generator=generator) if ragged else torch.full((n,), steps)
    return [*found, lengths]


@st.composite
def arguments(draw) -> list[Tensor]:
    n, steps, states = draw(st.integers(1, 9)), draw(st.integers(1, 60)), draw(st.integers(1, 20))
    gates, scale = draw(st.sampled_from((1, steps))), draw(st.sampled_from((0.1, 1.0, 30.0, 400.0)))
    found = tables(draw(st.integers(0, 2**31)), n, steps, states, gates, scale)
    impossible = torch.rand(states, generator=torch.Generator().manual_seed(steps)) < draw(st.sampled_from((0.0, 0.4)))
    found[2] = found[2].where(~impossible | (torch.arange(states) == 0), -torch.inf)
    return found


def expected(*given: Tensor) -> dict[str, Tensor]:
    """By the recursions of `copy.plain` in logarithms."""
    *factors, lengths = given
    fresh, held = multiplied_out(*factors)
    steps = None, fresh, held.expand_as(fresh), lengths
    value, drawn, kept, _, _ = general.marginals(*steps)
    increment, filtered, redraw, _ = general.filter(*steps)
    return {
        "value": value, "state": drawn + kept, "redraw": drawn.sum(-1), "held": kept.sum(-1), "drawn": drawn.sum(-2),
        "increment": increment, "filtered": filtered, "filtered redraw": redraw,
    }  # fmt: skip


def found(*given: Tensor) -> dict[str, Tensor]:
    value, state, redraw, held, drawn, failed = op.posterior(*given)
    total, filtered, increment, filtered_redraw, failed_too = op.filter(*given)
    assert int(failed.max()) == int(failed_too.max()) == -1
    close(total, value, given[0].dtype, **TIGHT)
    return {
        "value": value, "state": state, "redraw": redraw, "held": held, "drawn": drawn,
        "increment": increment, "filtered": filtered, "filtered redraw": filtered_redraw,
    }  # fmt: skip


@pytest.fixture(params=["whole", "in blocks"])
def kernels(request, monkeypatch):
    """Sequences in one block, and in blocks of few steps."""
    if request.param == "in blocks":
        monkeypatch.setattr(native, "BLOCK", 64)


@given(arguments())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_kernels_equal_the_chain_multiplied_out(kernels, dtype, given):
    *factors, lengths = given
    factors = [table.to(dtype) for table in factors]
    wide = [table.double() for table in factors]
    for ours, theirs in zip(found(*factors, lengths).values(), expected(*wide, lengths).values(), strict=True):
        size = max(1.0, float(theirs.abs().amax()))
        close(ours, theirs, dtype, size, rtol=1e-10, atol=1e-12 * size)


@pytest.mark.parametrize("steps", [1, 2, 3, 40, 41])
@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("states", [3, 11])
def test_results_do_not_depend_on_who_works_on_a_sequence(steps, n, states, monkeypatch):
    given = tables(0, n, steps, states, steps, ragged=n > 1)
    once = found(*given)
    for work in (1 << 16, 1):
        monkeypatch.setattr(native, "MIN_WORK", work)
        for threads in (1, 2):
            torch.set_num_threads(threads)
            try:
                again = found(*given)
            finally:
                torch.set_num_threads(1)
            for ours, theirs in zip(again.values(), once.values(), strict=True):
                assert_close(ours, theirs, rtol=0, atol=0)


@pytest.mark.few(5)
@pytest.mark.parametrize("gates", ["constant", "by step"])
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize(("steps", "states"), [(513, 3), (1000, 3), (1024, 3), (2001, 11)])
def test_blocks_of_a_long_sequence(steps, states, n, gates, dtype, monkeypatch):
    monkeypatch.setattr(native, "BLOCK", 1024)
    *given, lengths = tables(3, n, steps, states, steps if gates == "by step" else 1, ragged=False)
    lengths[-1] = steps - 9
    given = [table.to(dtype) for table in given]
    theirs = expected(*(table.double() for table in given), lengths)
    ours = found(*given, lengths)
    for name, values in theirs.items():
        size = max(1.0, float(values.abs().amax()))
        assert_close(ours[name].double(), values, **tolerances(dtype, size))


def test_a_chain_that_hardly_forgets_is_exact(kernels):
    *given, lengths = tables(4, 1, 800, 3, 1, ragged=False)
    given[0] = given[0] - 30.0  # nearly no redraws, and observations that say nothing but at both ends
    given[3][:, 1:-1] = 0.0
    for (name, ours), theirs in zip(found(*given, lengths).items(), expected(*given, lengths).values(), strict=True):
        assert_close(ours, theirs, **TIGHT, msg=lambda text, name=name: f"{name}: {text}")


def test_sequences_do_not_see_each_other():
    """Whatever the neighbours hold, the numbers are the same to the last bit."""
    *factors, lengths = tables(10, 41, 60, 3, 60)
    once = found(*factors, lengths)
    order = torch.randperm(41, generator=torch.Generator().manual_seed(0))
    again = found(*(table[order] for table in factors), lengths[order])
    for name, values in once.items():
        assert_close(again[name], values[order], rtol=0, atol=0)
    bad = factors[3].clone()
    bad[5, int(lengths[5]) - 1] = -torch.inf
    *results, failed = op.posterior(*factors[:3], bad, lengths)
    assert (failed >= 0).nonzero().tolist() == [[5]]
    others = torch.arange(41) != 5
    assert_close(results[1][others], once["state"][others], rtol=0, atol=0)


@pytest.mark.parametrize("gates", [1, 6])
def test_derivatives_are_the_marginals_and_right_to_second_order(gates):
    *leaves, lengths = tables(3, 2, 6, 3, gates)
    leaves = [table.requires_grad_() for table in leaves]
    chain = FactoredCopyChain(*leaves, lengths)
    gradients = torch.autograd.grad(chain.log_normalizer().sum(), leaves)
    marginals = chain.marginals()
    used = *marginals.gates.unbind(-1), marginals.drawn, marginals.fresh
    for gradient, table in zip(gradients, used, strict=True):
        assert_close(gradient, table, **TIGHT)
    assert gradcheck(lambda *t: op.log_normalizer(*t, lengths)[0], leaves)
    assert gradgradcheck(lambda *t: op.log_normalizer(*t, lengths)[0], leaves)


def test_tables_that_all_share_are_not_copied_for_each():
    *factors, _ = tables(5, 1, 8, 3, 8)
    redraw, hold, state, likelihood = factors
    batch = FactoredCopyChain(redraw[0], hold[0], state.expand(4, 3) + torch.arange(4.0)[:, None], likelihood[0])
    alone = FactoredCopyChain(redraw[0], hold[0], state[0] + 2, likelihood[0])
    assert batch.smooth().state.shape == (4, 8, 3)
    assert_close(batch.smooth().state[2], alone.smooth().state, **TIGHT)
    assert_close(batch.log_normalizer()[2], alone.log_normalizer(), **TIGHT)


def test_holding_for_certain_and_never_is_exact(kernels):
    """Gates of 0 and -inf: a state that is never left, and one that is always drawn anew."""
    *_, state, likelihood, _ = tables(6, 1, 9, 4, 1)
    zero, never = torch.zeros(1, 1, dtype=torch.float64), torch.full((1, 1), -torch.inf, dtype=torch.float64)
    held = FactoredCopyChain(never, zero, state, likelihood).smooth()
    assert_close(held.state[0, 0], (state + likelihood.sum(1))[0].softmax(-1), **TIGHT)
    assert_close(held.redraw[0], torch.tensor([1.0, *[0.0] * 8], dtype=torch.float64), rtol=0, atol=0)
    drawn = FactoredCopyChain(zero, never, state, likelihood).smooth()
    assert_close(drawn.state, (state.unsqueeze(-2) + likelihood).softmax(-1), **TIGHT)
    assert_close(drawn.redraw, torch.ones_like(drawn.redraw), **TIGHT)


def test_small_probabilities_of_a_hold_are_as_exact_as_large_ones(kernels):
    redraw = torch.tensor([1e-13], dtype=torch.float64)
    *_, state, likelihood, lengths = tables(7, 3, 20, 3, 1, ragged=False)
    for log_redraw, log_hold in ((redraw.log(), (-redraw).log1p()), ((-redraw).log1p(), redraw.log())):
        given = log_redraw.expand(3, 1), log_hold.expand(3, 1), state, likelihood, lengths
        for ours, theirs in zip(found(*given).values(), expected(*given).values(), strict=True):
            assert_close(ours, theirs, rtol=1e-9, atol=1e-25)


def test_impossible_and_bad_numbers_are_named():
    good = [torch.zeros(1), torch.zeros(1), torch.zeros(2), torch.zeros(4, 2)]
    likelihood = torch.zeros(4, 2)
    likelihood[2] = -torch.inf
    with pytest.raises(ValueError, match="observation at step 2 is impossible"):
        FactoredCopyChain(*good[:3], likelihood).smooth()
    likelihood[1, 0] = torch.nan
    with pytest.raises(ValueError, match="log_likelihood: holds NaN at step 1"):
        FactoredCopyChain(*good[:3], likelihood).filter()
    with pytest.raises(ValueError, match="log_state: holds NaN"):
        FactoredCopyChain(*good[:2], torch.tensor([0.0, torch.nan]), good[3]).log_normalizer()
    with pytest.raises(ValueError, match="log_redraw"):
        FactoredCopyChain(torch.zeros(3), *good[1:])
    with pytest.raises(TypeError, match="log_hold"):
        FactoredCopyChain(good[0], torch.zeros(1).double(), *good[2:])


def test_plain_and_kernels_agree_on_failed_steps(kernels):
    *given, lengths = tables(9, 3, 5, 2, 5, ragged=False)
    given[3][1, 3] = -torch.inf
    for operator, twin in ((op.filter, plain.filter), (op.posterior, plain.posterior)):
        assert operator(*given, lengths)[-1].tolist() == twin(*given, lengths)[-1].tolist() == [-1, 3, -1]
