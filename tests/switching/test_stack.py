"""`StackMixture` against every one of its histories, against samples, and against its Pyro program."""

import math
import re
from dataclasses import replace

import pyro
import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from oracles.action_histories import every_history, play
from oracles.placement import close as close_in
from pyro.infer import Predictive, TraceEnum_ELBO, config_enumerate
from samplehold.face.stacks import StackMixture, stack_program
from torch import Tensor

close = torch.testing.assert_close


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def mixture(seed: int, T: int, D: int = 0, on_empty: str = "noop", V: int = 2, **options) -> StackMixture:
    initial = normal(seed + 2, D, V) if D else None
    return StackMixture(normal(seed, T, 3).log_softmax(-1), normal(seed + 1, T, V), initial, on_empty, **options)


def check_all(mix: StackMixture, dtype: torch.dtype) -> None:
    """Every query of the mixture in a dtype equals what the histories say of the same numbers."""
    tables = (mix.log_action, mix.values, mix.initial, mix.log_evidence)
    log_action, values, initial, evidence = (None if table is None else table.to(dtype) for table in tables)
    mix = StackMixture(log_action, values, initial, mix.on_empty)
    mix = mix if evidence is None else mix.condition(evidence)
    doubled = (None if table is None else table.double() for table in (log_action, values, initial, evidence))
    log_action, values, initial, evidence = doubled
    expected = every_history(log_action, values, initial, mix.on_empty, evidence)

    def same(found: Tensor, table: Tensor) -> None:
        close_in(found, table, dtype, rtol=1e-12, atol=1e-12)

    assert mix.log_normalizer().dtype == dtype
    same(mix.log_normalizer(), torch.tensor(expected.log_normalizer, dtype=torch.float64))
    same(mix.action_posterior(), expected.action)
    same(mix.top(), expected.top)
    same(mix.depth_distribution(), expected.depth)
    same(mix.superposition(expected.cells.shape[1]), expected.cells)
    same(mix.superposition(2), torch.nn.functional.pad(expected.cells, (0, 0, 0, 1))[:, :2])
    best = mix.viterbi()
    assert best.action[0].tolist() == expected.best
    weight = expected.best_log_weight - expected.log_normalizer
    same(best.log_probability[0], torch.tensor(weight, dtype=torch.float64))


@pytest.mark.few(5)
@pytest.mark.parametrize("on_empty", ["noop", "forbid"])
@pytest.mark.parametrize(("T", "D"), [*((T, D) for T in range(1, 8) for D in (0, 2)), (8, 1)])
def test_every_query_equals_enumeration(T, D, on_empty, dtype):
    check_all(mixture(7 * T + D, T, D, on_empty), dtype)


@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(0, 2), st.sampled_from(["noop", "forbid"]))
@examples(20)
def test_conditioned_mixture_equals_enumeration(dtype, seed, T, D, on_empty):
    mix = mixture(seed, T, D, on_empty)
    evidence = 2 * normal(seed + 3, T, T + D + 1)
    evidence[T - 1, 0] = -torch.inf  # element 0 is not on top at the end
    weights = normal(seed + 4, T, 3)  # which are no probabilities
    mix = StackMixture(weights, mix.values, mix.initial, on_empty)
    check_all(mix.condition(evidence / 2).condition(evidence / 2), dtype)


def test_own_enumeration_is_that_of_the_oracle():
    mix = mixture(3, 4, D=1, on_empty="forbid").condition(normal(5, 4, 6))
    histories = mix.enumerate()
    expected = every_history(mix.log_action, mix.values, mix.initial, mix.on_empty, mix.log_evidence)
    assert histories.action.shape == (81, 4)
    close(histories.log_probability.exp().sum(), torch.ones((), dtype=torch.float64))
    close((histories.log_probability.exp()[:, None, None, None] * histories.cells(5)).sum(0), expected.cells)
    table = torch.cat([mix.values, mix.initial, torch.zeros(1, 2, dtype=torch.float64)])
    for actions, elements, cells in zip(histories.action, histories.elements(5), histories.cells(5), strict=True):
        stacks = [stack + [5] * (5 - len(stack)) for stack in play(tuple(actions.tolist()), 1)]
        assert elements.tolist() == stacks
        assert torch.equal(cells, table[torch.tensor(stacks)])


def test_popping_several_cells_equals_enumeration(dtype):
    mix = StackMixture(normal(0, 5, 5).log_softmax(-1), normal(1, 5, 2), normal(2, 2, 2))
    check_all(mix, dtype)
    with pytest.raises(ValueError, match=r"log_action: got 5 actions, but evidence couples"):
        mix.condition(torch.zeros(5, 8, dtype=torch.float64))


def test_batches_and_lengths_equal_single_sequences():
    log_action, values, initial = normal(0, 2, 3, 6, 3), normal(1, 2, 3, 6, 2), normal(2, 2, 3, 1, 2)
    evidence = normal(3, 2, 3, 6, 8)
    lengths = torch.tensor([[6, 4, 1], [2, 5, 6]])
    for on_empty in ("noop", "forbid"):
        plain = StackMixture(log_action, values, initial, on_empty, lengths=lengths)
        for batch, seen in ((plain, None), (plain.condition(evidence), evidence)):
            for index in ((0, 1), (1, 0), (1, 2)):
                n = int(lengths[index])
                kept = [*range(n), 6, 7]  # elements: the pushes that happen, the initial cell, empty
                one = StackMixture(log_action[index][:n], values[index][:n], initial[index], on_empty)
                one = one if seen is None else one.condition(seen[index][:n][:, kept])
                close(batch.log_normalizer()[index], one.log_normalizer())
                close(batch.action_posterior()[index][:n], one.action_posterior())
                close(batch.top()[index][:n][:, kept], one.top())
                close(batch.superposition(3)[index][:n], one.superposition(3))
                close(batch.superposition(3)[index][n:], one.superposition(3)[-1:].expand(6 - n, -1, -1))
                close(batch.depth_distribution()[index][-1, : n + 2], one.depth_distribution()[-1])
                assert torch.equal(batch.viterbi().action[(0, *index)][:n], one.viterbi().action[0])


@pytest.mark.slow
def test_samples_of_a_long_mixture_agree_with_its_superposition():
    mix = mixture(1, 200, V=3)
    n = 2000
    histories = mix.sample(n, torch.Generator().manual_seed(0))
    assert histories.cells(3).shape == (n, 200, 3, 3)
    cells = histories.cells(3)
    error = (cells.mean(0) - mix.superposition(3)) / (cells.std(0) / math.sqrt(n)).clamp_min(1e-3)
    assert float(error.abs().max()) < 5.0  # 1800 comparisons
    assert 0.9 < float(error.square().mean()) < 1.1
    depths = torch.nn.functional.one_hot(histories.depth, 201).double().mean(0)
    close(depths, mix.depth_distribution(), rtol=0, atol=5 * 0.5 / math.sqrt(n))


@pytest.mark.parametrize("on_empty", ["noop", "forbid"])
def test_samples_of_a_long_conditioned_mixture_agree_with_its_posterior(on_empty):
    mix = mixture(2, 25, D=1, on_empty=on_empty).condition(3 * normal(9, 25, 27))
    n = 2000
    histories = mix.sample(n, torch.Generator().manual_seed(0))
    for counted, expected in (
        (torch.nn.functional.one_hot(histories.action, 3), mix.action_posterior()),
        (torch.nn.functional.one_hot(histories.top, 27), mix.top()),
        (torch.nn.functional.one_hot(histories.depth, 27), mix.depth_distribution()),
    ):
        spread = (expected * (1 - expected) / n).sqrt().clamp_min(1e-3)
        assert float(((counted.double().mean(0) - expected) / spread).abs().max()) < 5.0
    close(histories.cells(4).mean(0), mix.superposition(4), rtol=0, atol=0.25)
    assert float(histories.log_probability.max()) <= float(mix.viterbi().log_probability) + 1e-12


def test_gradients_are_posteriors_and_can_be_differentiated_again():
    mix = mixture(4, 3, D=1, on_empty="forbid")
    log_action, evidence = mix.log_action.requires_grad_(), normal(6, 3, 5).requires_grad_()
    conditioned = replace(mix, log_action=log_action).condition(evidence)
    gradients = torch.autograd.grad(conditioned.log_normalizer(), [log_action, evidence])
    close(gradients[0], conditioned.action_posterior().detach())
    close(gradients[1], conditioned.top().detach())

    def query(name):
        return lambda a, e: getattr(replace(mix, log_action=a).condition(e), name)()

    for name in ("log_normalizer", "action_posterior", "top", "depth_distribution"):
        assert torch.autograd.gradcheck(query(name), (log_action, evidence))
    uncoupled = mixture(8, 3).log_action.requires_grad_()
    assert torch.autograd.gradcheck(lambda a: StackMixture(a, mix.values).superposition(3), (uncoupled,))


def test_what_a_draw_or_a_figure_computed_can_still_be_differentiated():
    log_action, evidence = normal(0, 4, 3).requires_grad_(), normal(1, 4, 5)
    fresh, used = (StackMixture(log_action, normal(2, 4, 2)).condition(evidence) for _ in range(2))
    used.sample(2)
    used.plot()
    for query in ("log_normalizer", "top", "depth_distribution"):
        totals = (getattr(x, query)().sin().sum() for x in (used, fresh))
        ours, theirs = (torch.autograd.grad(total, log_action, retain_graph=True)[0] for total in totals)
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("on_empty", ["noop", "forbid"])
def test_a_seed_repeats_a_draw_and_a_generator_goes_on(on_empty):
    mix = mixture(1, 30, on_empty=on_empty)
    first = mix.sample(4, seed=7).action
    assert torch.equal(first, mix.sample(4, 7).action)
    generator = torch.Generator().manual_seed(7)
    assert torch.equal(first, mix.sample(4, generator).action)
    assert not torch.equal(first, mix.sample(4, generator).action)


def motzkin(n: int) -> int:
    """Paths of n steps up, down, level that start and end at 0 and never go below."""
    m = [1, 1]
    for k in range(2, n + 1):
        m.append(((2 * k + 1) * m[k - 1] + (3 * k - 3) * m[k - 2]) // (k + 2))
    return m[n]


def test_a_thousand_steps_of_any_weight_neither_overflow_nor_vanish():
    T = 1000
    mix = StackMixture(torch.full((T, 3), 700.0, dtype=torch.float64), torch.zeros(T, 1).double(), on_empty="forbid")
    evidence = torch.zeros(T, T + 1, dtype=torch.float64)
    evidence[-1, :-1] = -torch.inf  # empty at the end
    exact = 700.0 * T + math.log(motzkin(T))
    close(float(mix.condition(evidence).log_normalizer()), exact, rtol=1e-13, atol=0)
    climb = torch.tensor([[0.0, -600.0, -1200.0]], dtype=torch.float64).expand(T, 3)  # a pop costs e^600 a push
    close(float(replace(mix, log_action=climb).condition(evidence).log_normalizer()), -600.0 * T / 2 + math.log(
        math.comb(T, T // 2) // (T // 2 + 1)), rtol=1e-12, atol=0)  # fmt: skip


def test_forbidding_pops_of_the_empty_stack_is_conditioning_on_never_doing_it():
    mix = mixture(5, 6)
    histories = mix.enumerate()
    before = torch.cat([torch.zeros_like(histories.depth[:, :1]), histories.depth[:, :-1]], 1)
    legal = ~((histories.action == 1) & (before == 0)).any(1)
    p = histories.log_probability.exp() * legal
    forbidden = replace(mix, on_empty="forbid")
    close(forbidden.log_normalizer(), p.sum().log())
    close(forbidden.superposition(6), (p[:, None, None, None] * histories.cells(6)).sum(0) / p.sum())


def test_reads_are_evidence_and_nan_is_none():
    mix = mixture(6, 4, D=1)
    reads = normal(7, 4, 2)
    reads[1, 0] = torch.nan
    table = mix.read_likelihood(reads, 0.5)
    normals = torch.distributions.Normal(torch.cat([mix.values, mix.initial, torch.zeros(1, 2).double()]), 0.5)
    close(table[2], normals.log_prob(reads[2]).sum(-1))
    close(table[1], normals.log_prob(reads[1].nan_to_num())[:, 1])


@pytest.mark.parametrize("on_empty", ["noop", "forbid"])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_pyro_enumeration_of_the_program_gives_the_evidence_and_its_gradient(batch, on_empty):
    log_action = normal(0, *batch, 4, 3).requires_grad_()
    lengths = None if not batch else [4, 3]
    mix = StackMixture(log_action, normal(1, *batch, 4, 2), normal(2, *batch, 1, 2), on_empty, lengths=lengths)
    reads = normal(3, *batch, 4, 2)
    reads[..., 1, :] = reads[..., 2, 0] = torch.nan
    elbo = TraceEnum_ELBO(max_plate_nesting=len(batch))
    loss = elbo.differentiable_loss(config_enumerate(stack_program), lambda *_, **__: None, mix, reads, scale=0.7)
    evidence = mix.condition(mix.read_likelihood(reads, 0.7)).log_normalizer().sum()
    close(-loss, evidence, rtol=1e-12, atol=1e-12)
    ours, theirs = (torch.autograd.grad(x, log_action)[0] for x in (evidence, -loss))
    close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_predictive_draws_actions_stacks_and_reads_that_fit_together():
    mix = mixture(8, 5, D=1)
    with torch.random.fork_rng():
        pyro.set_rng_seed(0)
        draws = Predictive(stack_program, num_samples=50)(mix, scale=0.01)
    actions = torch.stack([draws[f"a_{t}"] for t in range(1, 6)], -1)
    cells = mix._weighed(actions).cells(6)
    for t in range(5):
        close(draws[f"stack_{t + 1}"], cells[:, t])
        close(draws[f"x_{t + 1}"], cells[:, t, 0], rtol=0, atol=0.06)


def test_capacity_that_suffices_changes_nothing_and_one_that_does_not_is_refused_with_the_mass():
    log_action, values = normal(0, 6, 3).log_softmax(-1), normal(1, 6, 2)
    log_action[2:] = torch.tensor([0.0, 0.6, 0.4]).double().log()  # pushes at the first two steps only
    small, full = (StackMixture(log_action, values, capacity=c) for c in (2, None))
    close(small.superposition(2), full.superposition(2))
    close(small.top(), full.top())
    lost = float((log_action[:2, 0]).sum().exp())
    with pytest.raises(ValueError, match=r"capacity: got 1, but histories that hold ([0-9.e-]+) of the mass") as error:
        StackMixture(log_action, values, capacity=1)
    assert math.isclose(float(re.search(r"hold ([0-9.e-]+) of", str(error.value))[1]), lost, rel_tol=1e-2)
    forbid = StackMixture(log_action, values, on_empty="forbid").enumerate()
    over = float(forbid.log_probability.exp()[forbid.depth.amax(-1) > 1].sum())
    with pytest.raises(ValueError, match=rf"hold {over:.3g} of the mass of sequence 0"):
        StackMixture(log_action, values, on_empty="forbid", capacity=1)


def test_single_precision_is_single_precision_of_the_double_answer():
    mix = mixture(9, 50, D=1)
    short = StackMixture(mix.log_action.float(), mix.values.float(), mix.initial.float())
    evidence = normal(1, 50, 52)
    for a, b in ((short, mix), (short.condition(evidence.float()), mix.condition(evidence))):
        for query in ("log_normalizer", "action_posterior", "top", "depth_distribution"):
            value = getattr(a, query)()
            assert value.dtype == torch.float32
            close(value.double(), getattr(b, query)(), rtol=1e-5, atol=1e-5)
        close(a.superposition(4).double(), b.superposition(4), rtol=1e-5, atol=1e-5)


def test_histories_weigh_what_they_stand_for():
    mix = mixture(3, 4, D=1).condition(normal(5, 4, 6))
    every, drawn, best = mix.enumerate(), mix.sample(8, torch.Generator().manual_seed(0)), mix.viterbi()
    assert torch.equal(every.weight, every.log_probability.exp())
    assert drawn.weight.tolist() == [1 / 8] * 8
    assert best.weight.tolist() == [1.0]
    close((every.weight[:, None, None] * torch.nn.functional.one_hot(every.depth, 6)).sum(0), mix.depth_distribution())


def pictured(axis) -> Tensor:
    return torch.as_tensor(axis.images[0].get_array().data.T.copy())


def labels(axis) -> list[str]:
    return [label.get_text() for label in axis.get_yticklabels()]


def test_plot_shows_actions_with_and_without_evidence_depths_and_elements():
    mix = mixture(1, 5, D=1)
    evidence = normal(2, 5, 7)
    evidence[:, 3] = -torch.inf  # what step 3 pushes is never on top, and is left out
    seen = mix.condition(evidence)
    figure = seen.plot(steps=list("abcde"))
    alone, given, depth, top = figure.axes[:4]
    close(pictured(alone), mix.action_posterior())
    close(pictured(given), seen.action_posterior())
    shown = pictured(depth)
    close(shown, seen.depth_distribution()[:, : shown.shape[1]])
    assert float(seen.depth_distribution()[:, shown.shape[1] :].sum()) < 0.01  # deeper ones are left out
    close(torch.as_tensor(depth.lines[0].get_ydata()), seen.viterbi().depth[0])
    assert labels(top) == ["empty", "initial 0", "a", "b", "c", "e"]
    close(pictured(top), seen.top()[:, [6, 5, 0, 1, 2, 4]])
    assert [label.get_text() for label in top.get_xticklabels()] == list("abcde")
    assert len(mix.plot().axes) == 4  # action, depth, top and the color bar: without evidence there is one action panel
    batch = StackMixture(torch.stack([normal(0, 5, 3), mix.log_action]), mix.values.expand(2, 5, 2))
    close(pictured(batch.plot(1).axes[0]), mix.action_posterior())


def test_plot_of_histories_shows_the_most_probable_stacks():
    mix = mixture(4, 4, D=1)
    every = mix.enumerate()
    totals: dict[tuple[int, ...], float] = {}
    for actions, weight in zip(every.action.tolist(), every.weight.tolist(), strict=True):
        stack = tuple(play(tuple(actions), 1)[2])
        totals[stack] = totals.get(stack, 0.0) + weight
    ranked = sorted(totals.items(), key=lambda item: -item[1])[:5]
    figure = every.plot(step=2, names=list("wxyz"), most=5)
    bars, cells = figure.axes
    close([bar.get_height() for bar in bars.patches], [weight for _, weight in ranked])
    written: list[list[str]] = [[] for _ in ranked]
    for text in sorted(cells.texts, key=lambda text: -text.get_position()[1]):
        written[text.get_position()[0]].append(text.get_text())
    names = [*"wxyz", "initial 0"]
    assert written == [[names[c] for c in stack] or ["empty"] for stack, _ in ranked]
    assert bars.get_title(loc="left") == f"stacks after step 2: 5 of {len(totals)}"


@pytest.mark.parametrize("on_empty", ["noop", "forbid"])
def test_a_batch_of_no_sequences_has_answers_of_its_shape(on_empty):
    mix = StackMixture(torch.zeros(2, 0, 4, 3), torch.zeros(2, 0, 4, 1), on_empty=on_empty, capacity=4)
    for mixed in (mix, mix.condition(torch.zeros(2, 0, 4, 5))):
        assert mixed.log_normalizer().shape == (2, 0)
        assert mixed.action_posterior().shape == (2, 0, 4, 3)
        assert mixed.top().shape == mixed.depth_distribution().shape == (2, 0, 4, 5)
        assert mixed.superposition(2).shape == (2, 0, 4, 2, 1)
        assert mixed.sample(3).action.shape == (3, 2, 0, 4)
        assert mixed.viterbi().cells(2).shape == (1, 2, 0, 4, 2, 1)


def broken(**change):
    T = 3
    given = {"log_action": torch.zeros(T, 3), "values": torch.zeros(T, 2)}
    return lambda: StackMixture(**{**given, **change})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (broken(log_action=torch.zeros(4, 3)), r"log_action: got shape \[4, 3\], expected \[3, 3\]"),
        (broken(log_action=torch.zeros(3, 2)), r"log_action: got shape \[3, 2\], expected \[3, 3\]"),
        (broken(log_action=torch.full((3, 3), torch.nan)), r"log_action: holds NaN at \[0, 0\]"),
        (broken(log_action=torch.full((3, 3), torch.inf)), r"log_action: holds \+inf"),
        (
            broken(log_action=torch.full((3, 3), -torch.inf)),
            r"log_action: all entries are impossible \(-inf\) at step 0",
        ),
        (broken(values=torch.zeros(2)), r"values: got shape \[2\], expected \[\*batch, T, V\]"),
        (broken(initial=torch.zeros(1, 3)), r"initial: got shape \[1, 3\], expected \[D, 2\]|expected \['D', 2\]"),
        (broken(on_empty="ignore"), r"on_empty: got 'ignore', expected one of 'noop', 'forbid'"),
        (broken(initial=torch.zeros(2)), r"initial: got shape \[2\], expected \['D', 2\]"),
        (broken(initial=torch.full((1, 2), torch.nan)), r"initial: holds nan at \[0, 0\]; give finite numbers"),
        (broken(values=torch.full((3, 2), torch.inf)), r"values: holds inf at \[0, 0\]; give finite numbers"),
        (broken(capacity=0), r"capacity: got 0, expected an integer of at least 1"),
        (broken(capacity=1, initial=torch.zeros(2, 2)), r"capacity: got 1, expected at least 2, the cells of the init"),
        (broken(log_evidence=torch.zeros(3, 3)), r"log_evidence: got shape \[3, 3\], expected \[3, 4\]"),
        (broken(log_evidence=torch.full((3, 4), torch.nan)), r"log_evidence: holds NaN at \[0, 0\]"),
        (broken(lengths=[4]), r"lengths: got"),
        (lambda: broken()().condition(torch.zeros(3, 3)), r"log_likelihood: got shape \[3, 3\], expected \[3, 4\]"),
        (lambda: broken()().condition(torch.full((3, 4), -torch.inf)), r"log_likelihood: all entries are impossible"),
        (lambda: broken()().superposition(0), r"depth: got 0, expected an integer of at least 1"),
        (lambda: broken()().sample(0), r"n: got 0, expected an integer of at least 1"),
        (lambda: broken()().viterbi().cells(0), r"depth: got 0, expected an integer of at least 1"),
        (lambda: broken()().plot((0,)), r"sequence: got \[0\], but the batch axes are \[\]"),
        (lambda: broken()().plot(steps=["a"]), r"steps: got 1 names, but there are 3 steps"),
        (lambda: broken()().viterbi().plot(step=3), r"step: got 3, expected an integer from -3 to 2"),
        (lambda: broken()().viterbi().plot(names=["a"]), r"names: got 1 names, but there are 3 steps"),
        (
            lambda: broken()().read_likelihood(torch.zeros(3, 3), 1.0),
            r"reads: got shape \[3, 3\], expected that of",
        ),
        (lambda: broken()().read_likelihood(torch.full((3, 2), torch.inf), 1.0), r"reads: holds inf at \[0, 0\]"),
        (
            lambda: broken()().read_likelihood(torch.zeros(3, 2), 0.0),
            r"scale: got 0.0, expected a finite number greater than 0",
        ),
        (lambda: stack_program(broken()(), scale=-1.0), r"scale: got -1.0, expected a finite number greater than 0"),
        (
            lambda: stack_program(broken()(), torch.zeros(2, 2), scale=1.0),
            r"reads: got shape \[2, 2\], expected that of val",
        ),
        (
            lambda: stack_program(broken()().condition(torch.zeros(3, 4)), scale=1.0),
            r"mixture: holds evidence already",
        ),
        (
            lambda: StackMixture(torch.zeros(11, 3), torch.zeros(11, 1)).enumerate(),
            r"enumerate: 3 actions over T = 11 steps make 3\^11 histories, more than 59049",
        ),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_mixed_precision_is_named():
    message = r"log_action: got torch\.float64 on \S+, but values is torch\.float32 on \S+; convert it"
    with pytest.raises(TypeError, match=message):
        broken(log_action=torch.zeros(3, 3).double())()
    with pytest.raises(TypeError, match=r"log_likelihood: got torch\.float64 on \S+"):
        broken()().condition(torch.zeros(3, 4).double())


def test_evidence_that_leaves_no_history_names_the_step():
    mix = mixture(0, 4, on_empty="forbid")
    evidence = torch.zeros(2, 4, 5, dtype=torch.float64)
    evidence[1, 1, :-1] = evidence[1, 2, -1:] = -torch.inf  # empty after step 1, not empty after step 2 ...
    log_action = mix.log_action.repeat(2, 1, 1)
    log_action[1, 2, 0] = -torch.inf  # ... which cannot push
    batch = StackMixture(log_action, mix.values.repeat(2, 1, 1), on_empty="forbid").condition(evidence)
    for query in (batch.log_normalizer, batch.top, batch.viterbi, batch.depth_distribution):
        with pytest.raises(ValueError, match="every history of sequence 1 has weight 0 from step 2 on"):
            query()
