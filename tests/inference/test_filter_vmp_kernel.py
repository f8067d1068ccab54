"""The step-by-step mean field filter: three implementations, its fixed point, its bound, and where it is exact."""

import math

import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from oracles import naive_stepwise as naive
from oracles.placement import close
from samplehold.face.chains import CopyChain
from samplehold.inference.message_passing.stepwise import op, plain
from samplehold.inference.message_passing.stepwise.op import filter_steps
from torch.testing import assert_close

pytestmark = pytest.mark.cpu("kernels of the CPU")

FORMS = ("mean_field", "conditional")


def random_tables(seed, sequences=3, steps=4, states=3, impossible=False, wide=True, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return 2 * torch.randn(*shape, generator=generator, dtype=torch.float64)

    redrawn, held = draw(sequences, steps, states), draw(sequences, steps, states if wide else 1)
    state, initial = draw(sequences, states).log_softmax(-1), draw(sequences, states).log_softmax(-1)
    odds = draw(sequences, steps)
    if impossible:

        def punch(table):
            return table.masked_fill(torch.rand(table.shape, generator=generator, dtype=torch.float64) < 0.3, -math.inf)

        redrawn, held = punch(redrawn), punch(held)
        state, initial = (torch.cat([t[:, :1], punch(t[:, 1:])], -1).log_softmax(-1) for t in (state, initial))
        signs = torch.randint(-4, 5, odds.shape, generator=generator)
        odds = torch.where(signs == 4, math.inf, torch.where(signs == -4, -math.inf, odds))
    return [table.to(dtype) for table in (redrawn, held, state, odds, initial)]


@examples(20)
@given(st.integers(0, 10**6), st.integers(1, 5), st.booleans(), st.booleans(), st.booleans(), st.booleans())
def test_kernel_naive_and_vectorized_agree(dtype, seed, states, impossible, wide, independent, input_gate):
    tables = random_tables(seed, 4, 5, states, impossible, wide, dtype)
    gate = torch.rand(4, 5, generator=torch.Generator().manual_seed(seed), dtype=dtype) if input_gate else None
    how = torch.tensor([5, 1, 3, 5]), 3, independent
    arguments = (*tables, gate, *how)
    expected = naive.filter(*(table if table is None else table.double() for table in (*tables, gate)), *how)
    fine = expected[-1] < 0
    for implementation in (op, plain):
        found = implementation.filter(*arguments)
        assert torch.equal(found[-1], expected[-1])  # the step at which each sequence failed
        for a, b in zip(found[:-1], expected[:-1], strict=True):
            close(a[fine], b[fine], dtype, rtol=1e-10, atol=1e-12)
    if not impossible:
        assert fine.all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("power", [10, 103, 115, 500, 955])
def test_weights_of_any_size_beside_ordinary_ones(power, dtype):
    size = 2.0 ** min(power, 115 if dtype == torch.float32 else power)
    for seed in range(20):
        redrawn, held, state, odds, initial = random_tables(seed, 3, 4, 2, dtype=dtype)
        generator = torch.Generator().manual_seed(seed)
        large = [torch.rand(table.shape, generator=generator) < 0.4 for table in (redrawn, held)]
        redrawn, held = (
            torch.where(some, (table.sign().double() * size).to(dtype), table)
            for some, table in zip(large, (redrawn, held), strict=True)
        )
        arguments = (redrawn, held, state, odds, initial, None, torch.tensor([4, 4, 4]), 3, False)
        expected = naive.filter(*(table.double() for table in arguments[:5]), *arguments[5:])
        for implementation in (op, plain):
            found = implementation.filter(*arguments)
            for a, b in zip(found[:2], expected[:2], strict=True):
                limit = 2e-5 if dtype == torch.float32 else 1e-10
                assert_close(a.double(), b, rtol=0, atol=limit)


@pytest.mark.parametrize("form", FORMS)
def test_gradient_equals_finite_differences(form):
    tables = [table.requires_grad_() for table in random_tables(3, 1, 2, 2)]

    def outputs(*tables):
        found = filter_steps(*tables[:4], log_initial=tables[4].log_softmax(-1), sweeps=2, form=form)
        return found.state, found.redraw, found.bound

    assert torch.autograd.gradcheck(outputs, tables)


def test_gradient_is_finite_where_events_are_impossible():
    tables = [table.requires_grad_() for table in random_tables(11, 4, 5, 3, impossible=True)]
    found = op.filter(*tables, None, torch.full((4,), 5), 3, False)
    fine = found[-1] < 0
    assert fine.any()
    (found[0] * torch.arange(3.0))[fine].sum().backward()
    assert all(table.grad is not None and table.grad.isfinite().all() for table in tables)


@pytest.mark.parametrize("form", FORMS)
def test_many_sweeps_end_in_the_fixed_point_of_both_updates(form):
    redrawn, held, state, odds, initial = random_tables(5, 6, 1, 4)
    found = filter_steps(redrawn, held, state, odds, initial, sweeps=500, form=form)
    assert found.change.max() < 1e-12
    rho = odds.sigmoid()
    drawn, kept = state.unsqueeze(1), initial.unsqueeze(1)
    if form == "conditional":
        drawn = kept = (rho.unsqueeze(-1) * drawn.exp() + (1 - rho.unsqueeze(-1)) * kept.exp()).log()
    j1, j0, q = drawn + redrawn, kept + held, found.redraw.unsqueeze(-1)
    assert_close(found.state, torch.softmax(q * j1 + (1 - q) * j0, -1), rtol=1e-10, atol=1e-12)
    assert_close(found.redraw, torch.sigmoid(odds + (found.state * (j1 - j0)).sum(-1)), rtol=1e-10, atol=1e-12)


def test_bound_rises_with_every_sweep_to_the_least_divergence_from_the_exact_step():
    redrawn, held, state, odds, initial = random_tables(8, 20, 1, 3)
    exact = CopyChain(
        initial,
        redrawn + state.unsqueeze(1) + torch.nn.functional.logsigmoid(odds).unsqueeze(-1),
        held + torch.nn.functional.logsigmoid(-odds).unsqueeze(-1),
    ).marginals()
    bounds = []
    for sweeps in (1, 2, 3, 10):
        found = filter_steps(redrawn, held, state, odds, initial, sweeps=sweeps)
        bounds.append(found.bound[:, 0])
        # the gap to the evidence is the divergence of Q(z)Q(s) from the enumerated posterior of (z, s)
        joint = torch.stack([exact.fresh, exact.held], -1).squeeze(1)
        q = torch.stack([found.redraw, 1 - found.redraw], -1) * found.state.squeeze(1).unsqueeze(-1)[:, :, [0, 0]]
        divergence = (q * (q / joint).log()).sum((-2, -1))
        assert_close(exact.log_normalizer - found.bound[:, 0], divergence, rtol=1e-10, atol=1e-11)
    rises = torch.stack(bounds).diff(dim=0)
    assert (rises > -1e-12).all()
    assert rises[0].max() > 1e-3


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", ["one_state", "always_redraw", "never_redraw"])
def test_exact_where_one_of_gate_and_state_is_certain(form, case):
    redrawn, held, state, odds, initial = random_tables(2, 3, 6, 1 if case == "one_state" else 3)
    if case != "one_state":
        odds = torch.full_like(odds, math.inf if case == "always_redraw" else -math.inf)
    chain = CopyChain(
        initial,
        redrawn + state.unsqueeze(1) + torch.nn.functional.logsigmoid(odds).unsqueeze(-1),
        held + torch.nn.functional.logsigmoid(-odds).unsqueeze(-1),
    ).filter()
    found = filter_steps(redrawn, held, state, odds, initial, sweeps=2, form=form)
    assert_close(found.state, chain.state, rtol=1e-12, atol=1e-14)
    assert_close(found.redraw, chain.redraw, rtol=1e-12, atol=1e-14)
    assert_close(found.bound, chain.log_increment, rtol=1e-12, atol=1e-12)


def test_a_step_that_fits_only_a_redraw_has_gate_one():
    redrawn, held, state, odds, initial = random_tables(4, 1, 3, 2)
    held[0, 1] = -math.inf
    found = filter_steps(redrawn, held, state, odds, initial)
    assert found.redraw[0, 1] == 1
    assert_close(found.state[0, 1], torch.softmax(state[0] + redrawn[0, 1], -1))


def test_states_that_no_gate_shares_leave_the_likelier_gate():
    redrawn, held = torch.tensor([[0.0, -math.inf]]), torch.tensor([[-math.inf, 0.0]])
    state, initial = torch.tensor([0.5, 0.5]).log(), torch.tensor([0.1, 0.9]).log()
    for odds, gate in ((0.0, 0.0), (1.0, 1.0)):  # weights 0.5 rho against 0.9 (1 - rho)
        found = filter_steps(redrawn, held, state, torch.tensor([odds]), initial)
        assert found.redraw.item() == gate
        assert_close(found.state, torch.tensor([[gate, 1 - gate]]))


def test_batches_broadcast_and_float32_agrees():
    redrawn, held, state, odds, initial = random_tables(6, 5, 30, 4)
    whole = filter_steps(redrawn.reshape(5, 1, 30, 4).expand(5, 2, 30, 4), held[0], state[0], odds[0], initial[0])
    one = filter_steps(redrawn[3], held[0], state[0], odds[0], initial[0])
    assert whole.state.shape == (5, 2, 30, 4)
    assert_close(whole.state[3, 1], one.state, rtol=0, atol=0)
    single = [table.float() for table in (redrawn[3], held[0], state[0], odds[0], initial[0])]
    assert_close(filter_steps(*single).state, one.state.float(), rtol=1e-4, atol=1e-5)


def test_bad_arguments_are_named():
    redrawn, held, state, odds, initial = random_tables(1, 2, 4, 3)
    with pytest.raises(ValueError, match=r"sweeps: got 0"):
        filter_steps(redrawn, held, state, odds, sweeps=0)
    with pytest.raises(ValueError, match=r"form: got 'other'"):
        filter_steps(redrawn, held, state, odds, form="other")
    with pytest.raises(ValueError, match=r"gate: got 1.5"):
        filter_steps(redrawn, held, state, odds, gate=torch.full_like(odds, 1.5))
    with pytest.raises(ValueError, match=r"log_state: got shape \[2, 2\]"):
        filter_steps(redrawn, held, state[:, :2], odds)
    with pytest.raises(TypeError, match="log_held"):
        filter_steps(redrawn, held.float(), state, odds)
    redrawn[1, 2], held[1, 2] = -math.inf, -math.inf
    with pytest.raises(ValueError, match=r"step 2 of sequence 1 is impossible"):
        filter_steps(redrawn, held, state, odds, initial)
