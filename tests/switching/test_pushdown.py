"""`PushdownAutomaton` and the recursion beneath it against every run, against the textbook, and step by step."""

import math

import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from oracles.action_histories import every_run
from oracles.naive_automaton import forward_weights
from oracles.operators import use_plain_torch, without_kernels
from samplehold.face.stacks import PushdownAutomaton
from samplehold.inference.stacks.automaton import native_tape
from samplehold.inference.stacks.automaton import op as inference
from samplehold.inference.stacks.automaton import plain as vectorized
from samplehold.switching.stacks.automaton import Transitions, advance, start
from torch import Tensor

MIXED = r"log_push: got torch\.float32 on {}, but log_initial is torch\.float64"

close = torch.testing.assert_close


def tables(seed: int, T: int, Q: int, G: int, *batch: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """log_initial, log_push, log_replace, log_pop; some transitions impossible."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int, impossible: float = 0.2) -> Tensor:
        table = 2 * torch.randn(*batch, *shape, dtype=torch.float64, generator=generator)
        return table.masked_fill(torch.rand(table.shape, generator=generator) < impossible, -torch.inf)

    return random(Q, G, impossible=0.0), random(T, Q, G, Q, G), random(T, Q, G, Q, G), random(T, Q, G, Q)


SIZES = [(1, 1, 6), (2, 1, 5), (1, 2, 5), (3, 1, 4), (1, 3, 4), (2, 2, 3), (3, 2, 3), (2, 3, 3)]


@pytest.mark.few(3)
@pytest.mark.parametrize(("Q", "G", "T"), SIZES)
def test_every_query_equals_enumeration_of_all_runs(Q, G, T):
    weights = tables(10 * Q + G, T, Q, G)
    expected, automaton = every_run(*weights), PushdownAutomaton(*weights)
    tight = {"rtol": 1e-12, "atol": 1e-12}
    close(float(automaton.log_normalizer()), expected.log_normalizer, **tight)
    close(automaton.marginals(), expected.marginals, **tight)
    close(automaton.top(), expected.top, **tight)
    posterior = automaton.transition_posterior()
    close(posterior.push, expected.push, **tight)
    close(posterior.replace, expected.replace, **tight)
    close(posterior.pop, expected.pop, **tight)
    best = automaton.viterbi()
    found = zip(best.action[0].tolist(), best.state[0].tolist(), best.symbol[0].tolist(), strict=True)
    assert list(found) == expected.best
    close(float(best.log_probability[0]), expected.best_log_weight - expected.log_normalizer, **tight)
    assert best.depth[0].tolist() == [
        sum({0: 1, 1: -1, 2: 0}[a] for a, _, _ in expected.best[:t]) for t in range(1, T + 1)
    ]


@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(1, 3), st.integers(1, 7))
@examples(25)
def test_log_semiring_agrees_with_the_textbook_in_the_real_semiring(seed, Q, G, T):
    weights = tables(seed, T, Q, G)
    initial, push, replace, pop = weights
    K = Q * G
    expected = forward_weights(initial.flatten(), push.reshape(T, K, K), replace.reshape(T, K, K), pop.reshape(T, K, Q))
    state = start(initial)
    for t in range(T):
        state = advance(state, push[t], replace[t], pop[t])
        total = expected[t + 1].sum()
        close(state.log_normalizer.exp(), total, rtol=1e-12, atol=0)
        if float(total) > 0:
            close(state.reading.flatten(), expected[t + 1] / total, rtol=1e-12, atol=1e-15)


@given(st.integers(0, 10**6), st.integers(1, 2), st.integers(1, 3), st.integers(1, 5), st.booleans())
@examples(15)
def test_fused_tables_and_gradients_equal_the_plain_ones(seed, Q, G, T, best):
    K, B = Q * G, 2
    initial, push, replace, pop = tables(seed, T, Q, G, B)
    evidence = tables(seed + 1, T, T + 1, K, B)[1][..., 0, 0].reshape(B, T, T + 1, K)
    bottom = tables(seed + 2, T, Q, G, B)[2]
    weights = [
        initial.reshape(B, K),
        *(x.reshape(B, T, K, K) for x in (push, replace, bottom)),
        pop.reshape(B, T, K, Q),
    ]
    weights = [x.requires_grad_(not best) for x in (*weights, evidence)]
    mine, plain = inference.pushdown(*weights, best), vectorized.pushdown(*weights, best)
    for a, b in zip(mine, plain, strict=True):
        close(a, b, rtol=1e-12, atol=1e-12)
    if not best:
        generator = torch.Generator().manual_seed(seed)
        reached = [x > -torch.inf for x in plain]
        probes = [torch.randn(x.shape, dtype=torch.float64, generator=generator) for x in reached]
        for used in ([3], [0, 1, 2, 3]):  # the weights of all runs, and all tables
            gradients = [
                torch.autograd.grad(
                    sum((x[k] * probes[k])[reached[k]].sum() for k in used),
                    weights,
                    materialize_grads=True,
                    retain_graph=True,
                )
                for x in (mine, plain)
            ]
            for a, b in zip(*gradients, strict=True):
                assert torch.isfinite(a).all()
                close(a, b, rtol=1e-11, atol=1e-12)


@pytest.mark.slow
@pytest.mark.cpu("torch's checks know few devices")
def test_all_results_have_right_derivatives():
    initial, push, replace, pop = (x.clamp_min(-3) for x in tables(0, 4, 2, 2, 2))
    flat = [initial.reshape(2, 4), *(x.reshape(2, 4, 4, 4) for x in (push, replace, replace)), pop.reshape(2, 4, 4, 2)]
    weights = [x.clone().requires_grad_() for x in (*flat, torch.zeros(2, 4, 5, 4, dtype=torch.float64))]
    for operator in (inference.pushdown, without_kernels(inference.pushdown)):
        assert torch.autograd.gradcheck(lambda *w: operator(*w, False)[3][:, -1], weights)  # noqa: B023


def test_posterior_is_the_gradient_and_differentiable_itself():
    initial, push, replace, pop = (x.clamp_min(-4).requires_grad_() for x in tables(3, 3, 2, 2))
    automaton = PushdownAutomaton(initial, push, replace, pop)
    gradients = torch.autograd.grad(automaton.log_normalizer(), [push, replace, pop])
    posterior = automaton.transition_posterior()
    for a, b in zip(gradients, (posterior.push, posterior.replace, posterior.pop), strict=True):
        close(a, b.detach(), rtol=1e-12, atol=1e-14)
    close(sum(x.flatten(1).sum(1) for x in gradients), torch.ones(3, dtype=torch.float64))
    assert torch.autograd.gradcheck(lambda r: PushdownAutomaton(initial, push, r, pop).marginals(), (replace,))
    one = PushdownAutomaton(initial, push[:1], replace[:1], pop[:1]).transition_posterior()
    assert float(one.pop.sum()) == 0.0  # the bottom stays
    close(one.push.sum() + one.replace.sum(), torch.ones((), dtype=torch.float64))


def test_steps_equal_the_batch_and_keep_their_past():
    T, Q, G, B = 6, 2, 2, 3
    initial, push, replace, pop = tables(5, T, Q, G, B)
    automaton = PushdownAutomaton(initial, push, replace, pop)
    state = start(initial, n_steps=2)  # must grow
    states = [state]
    for t in range(T):
        state = advance(state, push[:, t], replace[:, t], pop[:, t])
        states.append(state)
        close(state.reading, automaton.reading()[:, t])
        close(state.pushed.sum((-3, -2, -1)), torch.ones(B, dtype=torch.float64))
    close(state.log_normalizer, automaton.log_normalizer())
    again = advance(states[2], push[:, 0], replace[:, 0], pop[:, 0])  # another future of the same past
    close(
        again.log_normalizer,
        PushdownAutomaton(initial, *(x[:, [0, 1, 0]] for x in (push, replace, pop))).log_normalizer(),
    )
    close(advance(states[5], push[:, 5], replace[:, 5], pop[:, 5]).log_top, state.log_top)


def test_the_bottom_is_the_last_element_of_every_table_and_run():
    T, Q, G = 4, 2, 2
    initial, push, replace, pop = tables(3, T, Q, G)
    automaton = PushdownAutomaton(initial, push, replace, pop)
    state = start(initial)
    for t in range(T):
        state = advance(state, push[t], replace[t], pop[t])
    close(state.pushed.sum((-2, -1)), automaton.top()[-1])  # nothing comes after the last step
    runs = automaton.sample(4000, seed=0)
    counted = torch.nn.functional.one_hot(runs.top, T + 1).double().mean(0)
    close(counted, automaton.top(), rtol=0, atol=5 * 0.5 / math.sqrt(4000))
    assert torch.equal(runs.top == T, runs.depth == 0)


def test_what_a_draw_computed_can_still_be_differentiated():
    weights = [x.requires_grad_() for x in tables(2, 3, 2, 1)]
    automaton = PushdownAutomaton(*weights)
    automaton.sample(2)
    automaton.plot()
    for query in ("log_normalizer", "marginals"):
        ours, theirs = (
            torch.autograd.grad(getattr(x, query)().sin().sum(), weights[2])[0]
            for x in (automaton, PushdownAutomaton(*weights))
        )
        assert torch.equal(ours, theirs)


def run(weights: list[Tensor], start, branch: bool) -> Tensor:
    """A number made from every step, with a second future after step 2."""
    initial, push, replace, pop = weights
    tape, total, kept = start(initial, pop.shape[-1], 2), 0.0, None
    for t in range(push.shape[1]):
        kept = tape if t == 2 else kept
        log_top, tape = tape.advance(push[:, t], replace[:, t], pop[:, t])
        total = total + (log_top.softmax(1) * torch.arange(1.0, t + 3.0, dtype=torch.float64)[:, None]).sum()
    if branch:
        log_top, kept = kept.advance(2 * push[:, 0], replace[:, 0], pop[:, 0])
        log_top, kept = kept.advance(push[:, 1], replace[:, 1], 2 * pop[:, 1])
        total = total + log_top.logsumexp((1, 2)).square().sum()
    return total


@pytest.mark.slow
@pytest.mark.cpu("its kernels")
@pytest.mark.parametrize("branch", [False, True])
def test_gradients_through_the_steps_equal_those_of_plain_torch(branch):
    T, Q, G, B = 5, 2, 2, 2
    initial, push, replace, pop = (x.clamp_min(-4) for x in tables(6, T, Q, G, B))
    flat = initial.reshape(B, 4), push.reshape(B, T, 4, 4), replace.reshape(B, T, 4, 4), pop.reshape(B, T, 4, 2)
    weights = [x.clone().requires_grad_() for x in flat]
    mine, plain = run(weights, native_tape.start, branch), run(weights, vectorized.start, branch)
    close(mine, plain)
    first = torch.autograd.grad(mine, weights, retain_graph=True)
    part = torch.autograd.grad(mine, weights[3], retain_graph=True)  # stops before the start, and leaves nothing behind
    second = torch.autograd.grad(mine, weights)
    for a, b, c in zip(first, second, torch.autograd.grad(plain, weights), strict=True):
        assert torch.equal(a, b)
        close(a, c, rtol=1e-11, atol=1e-12)
    assert torch.equal(part[0], first[3])


@pytest.mark.hardware("a thousand steps of a stand-in take minutes")
def test_a_thousand_steps_of_any_weight_neither_overflow_nor_vanish():
    T = 1000
    ones = torch.zeros(1, 1, dtype=torch.float64), *(torch.zeros(T, *[1] * n, dtype=torch.float64) for n in (4, 4, 3))
    counts = [1]  # runs that never pop the bottom: prefixes of Motzkin paths, by height
    for _ in range(T):
        counts = [sum(counts[max(0, h - 1) : h + 2]) for h in range(len(counts) + 1)]
    exact = math.log(sum(counts))
    close(float(PushdownAutomaton(*ones).log_normalizer()), exact, rtol=1e-13, atol=0)
    shifts = torch.linspace(-800, 700, T, dtype=torch.float64)
    shifted = [x + shifts.reshape(T, *[1] * (x.dim() - 1)) for x in ones[1:]]
    automaton = PushdownAutomaton(ones[0], *shifted)
    close(float(automaton.log_normalizer()), exact + float(shifts.sum()), rtol=1e-12, atol=0)
    posterior = automaton.transition_posterior()
    total = sum(x.flatten(1).sum(1) for x in (posterior.push, posterior.replace, posterior.pop))
    close(total, torch.ones(T, dtype=torch.float64), rtol=1e-10, atol=0)
    wild = tables(1, 300, 1, 2)
    strong = PushdownAutomaton(*(x.clamp_min(-20) * 40 for x in wild))
    assert torch.isfinite(strong.marginals()).all()
    close(strong.marginals().sum((-2, -1)), torch.ones(300, dtype=torch.float64), rtol=1e-9, atol=0)


def test_sampled_runs_have_the_smoothed_frequencies_and_their_own_probability():
    weights = tables(7, 12, 2, 2)
    automaton, n = PushdownAutomaton(*weights), 3000
    runs = automaton.sample(n, torch.Generator().manual_seed(0))
    counted = torch.nn.functional.one_hot(runs.state * 2 + runs.symbol, 4).double().mean(0).reshape(12, 2, 2)
    spread = (automaton.marginals() * (1 - automaton.marginals()) / n).sqrt().clamp_min(1e-3)
    assert float(((counted - automaton.marginals()) / spread).abs().max()) < 4.5
    small = PushdownAutomaton(*tables(8, 2, 1, 2))
    runs = small.sample(20000, torch.Generator().manual_seed(1))
    p = runs.log_probability.exp()
    assert float(small.viterbi().log_probability.exp()) == pytest.approx(float(p.max()))
    for value in p.unique():
        share = float((p == value).double().mean())
        assert share == pytest.approx(float(value) * round(share / float(value)), abs=0.015)


def test_ragged_batches_equal_single_sequences():
    weights, lengths = tables(9, 5, 2, 2, 3), [5, 2, 1]
    batch = PushdownAutomaton(*weights, lengths=lengths)
    for b, n in enumerate(lengths):
        one = PushdownAutomaton(weights[0][b], *(x[b, :n] for x in weights[1:]))
        close(batch.log_normalizer()[b], one.log_normalizer())
        close(batch.marginals()[b, :n], one.marginals())
        close(batch.reading()[b, n:], one.reading()[-1:].expand(5 - n, -1, -1))
        assert torch.equal(batch.viterbi().action[0, b, :n], one.viterbi().action[0])


def test_single_precision_weights_give_single_precision_answers():
    weights = tables(2, 60, 2, 2)
    short, full = PushdownAutomaton(*(x.float() for x in weights)), PushdownAutomaton(*weights)
    close(short.log_normalizer().double(), full.log_normalizer(), rtol=1e-5, atol=0)
    assert short.marginals().dtype == torch.float32
    close(short.marginals().double(), full.marginals(), rtol=0, atol=1e-4)
    posterior = short.transition_posterior()
    assert isinstance(posterior, Transitions)
    assert posterior.pop.dtype == torch.float32


def test_devices_without_kernels_take_the_plain_recursion(monkeypatch):
    weights = tables(4, 5, 2, 1, 2)
    expected = PushdownAutomaton(*weights)
    use_plain_torch(monkeypatch)
    plain = PushdownAutomaton(*weights)
    close(plain.log_normalizer(), expected.log_normalizer())
    close(plain.marginals(), expected.marginals())
    assert torch.equal(plain.viterbi().state, expected.viterbi().state)
    state = start(weights[0])
    for t in range(5):
        state = advance(state, *(x[:, t] for x in weights[1:]))
    close(state.reading, expected.reading()[:, -1])


def test_plot_shows_actions_configurations_and_elements():
    automaton = PushdownAutomaton(*tables(1, 6, 2, 2))
    figure = automaton.plot(steps=list("uvwxyz"))
    action, configuration, top = (torch.as_tensor(x.images[0].get_array().data.T.copy()) for x in figure.axes[:3])
    posterior = automaton.transition_posterior()
    close(action, torch.stack([x.flatten(1).sum(1) for x in (posterior.push, posterior.pop, posterior.replace)], -1))
    close(configuration, automaton.marginals().flatten(1))
    names = [label.get_text() for label in figure.axes[2].get_yticklabels()]
    close(top, automaton.top()[:, [6 if name == "bottom" else "uvwxyz".index(name) for name in names]])
    assert names[0] == "bottom"
    with pytest.raises(ValueError, match=r"sequence: got \[0\], but the batch axes are \[\]"):
        automaton.plot(0)


def test_bad_input_is_named():
    initial, push, replace, pop = tables(0, 3, 2, 2)
    with pytest.raises(
        ValueError, match=r"log_push: got shape \[3, 2, 2, 2\], expected \[3, 2, 2, 2, 2\] for 2 states"
    ):
        PushdownAutomaton(initial, pop, replace, pop)
    with pytest.raises(ValueError, match=r"log_pop: got shape \[3, 1, 2, 2\], expected \[3, 2, 2, 2\]"):
        PushdownAutomaton(initial, push, replace, pop[:, :1])
    with pytest.raises(ValueError, match=r"log_initial: got shape \[2\], expected \[\*batch, Q, G\]"):
        PushdownAutomaton(initial[0], push, replace, pop)
    with pytest.raises(ValueError, match=r"log_replace: holds NaN at \[0, 0, 0, 0, 0\]"):
        PushdownAutomaton(initial, push, torch.full_like(replace, torch.nan), pop)
    with pytest.raises(TypeError, match=MIXED.format(initial.device)):
        PushdownAutomaton(initial, push.float(), replace, pop)
    with pytest.raises(ValueError, match=r"lengths: got 4"):
        PushdownAutomaton(initial, push, replace, pop, lengths=torch.tensor(4))


def test_an_automaton_without_runs_names_the_step_at_which_the_mass_vanished():
    initial, push, replace, pop = tables(0, 4, 1, 1, 2)
    initial, push, replace, pop = (torch.zeros_like(x) for x in (initial, push, replace, pop))
    push[1, 1:], replace[1] = -torch.inf, -torch.inf  # one push at step 0, one pop at step 1, then only the bottom
    automaton = PushdownAutomaton(initial, push, replace, pop)
    for query in (automaton.log_normalizer, automaton.marginals, automaton.viterbi, automaton.reading):
        with pytest.raises(ValueError, match="no run of sequence 1 survives; the last mass vanished at step 2"):
            query()
    nowhere = PushdownAutomaton(torch.full_like(initial, -torch.inf), push, replace, pop)
    with pytest.raises(ValueError, match="vanished before the first step: log_initial is -inf"):
        nowhere.log_normalizer()


def test_steps_name_bad_input_and_the_step_after_which_no_run_is_left():
    initial, push, replace, pop = tables(0, 3, 2, 2)
    state = start(initial)
    with pytest.raises(ValueError, match=r"log_initial: got shape \[2\], expected \[\*batch, Q, G\]"):
        start(initial[0])
    with pytest.raises(ValueError, match=r"log_push: got shape \[2, 2, 2\], expected \[2, 2, 2, 2\]"):
        advance(state, pop[0], replace[0], pop[0])
    with pytest.raises(ValueError, match=r"log_pop: holds NaN at \[0, 0, 0\]"):
        advance(state, push[0], replace[0], torch.full_like(pop[0], torch.nan))
    with pytest.raises(TypeError, match=MIXED.format(initial.device)):
        advance(state, push[0].float(), replace[0], pop[0])
    with pytest.raises(ValueError, match="n: got 0, expected an integer of at least 1"):
        PushdownAutomaton(initial, push, replace, pop).sample(0)
    never = torch.full_like(push[0], -torch.inf)
    gone = advance(advance(state, push[0], replace[0], pop[0]), never, never, torch.full_like(pop[0], -torch.inf))
    with pytest.raises(ValueError, match="no run has weight after step 1"):
        gone.reading  # noqa: B018
