"""What holds of every chain: one contract, one set of records, and stretches that make up the whole."""

import pytest
import samplehold as sh
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles.copy_paths import enumerate_paths
from oracles.placement import tolerances
from samplehold.face.chains import CopyChain, FactoredCopyChain, MarkovChain, SemiMarkovChain
from samplehold.inference.chains.contract import Chain, Filtered, Marginals, Sampled, Smoothed, Viterbi
from samplehold.inference.numerics.randomness import generator_of
from torch import Tensor
from torch.testing import assert_close

KINDS = (
    "copy", "copy, one column", "copy, from a belief", "copy, factored", "copy, factored by step",
    "markov", "markov, by step",
)  # fmt: skip
EVERY = (*KINDS, "semi-markov")
VERBS = "log_normalizer", "filter", "smooth", "marginals", "viterbi", "entropy", "change_probability"


def random_chain(
    kind: str, seed: int = 0, steps: int = 7, states: int = 3, lengths=(7, 4, 1), dtype: torch.dtype = torch.float64
) -> Chain:
    generator, counts = torch.Generator().manual_seed(seed), torch.as_tensor(lengths).clamp_max(steps)

    def table(*shape: int) -> Tensor:
        return torch.randn(*counts.shape, *shape, generator=generator, dtype=torch.float64).to(dtype)

    if kind == "semi-markov":
        moves = table(states, states).masked_fill(torch.eye(states, dtype=torch.bool), -torch.inf)
        return SemiMarkovChain(table(states), moves, table(states, steps), table(steps, states), counts)
    if kind.startswith("markov"):
        moves = (steps - 1, states, states) if "step" in kind else (states, states)
        return MarkovChain(table(states), table(*moves), table(steps, states), counts)
    if "factored" in kind:
        gates = table(2, steps if "step" in kind else 1).unbind(-2)
        return FactoredCopyChain(*gates, table(states), table(steps, states), counts)
    held = table(steps, 1 if "column" in kind else states)
    return CopyChain(table(states) if "belief" in kind else None, table(steps, states), held, counts)


def tables_of(chain: Chain) -> dict[str, Tensor | None]:
    return {name: table for name, table in vars(chain).items() if name.startswith("log_")}


def remade(chain: Chain, **tables: Tensor) -> Chain:
    """With some other tables."""
    return type(chain)(**(tables_of(chain) | tables), lengths=chain.lengths)


def of_steps(chain: Chain) -> tuple[str, ...]:
    """The tables with a row for each observation."""
    return ("log_fresh", "log_held") if isinstance(chain, CopyChain) else ("log_likelihood",)


each_kind = pytest.mark.parametrize("kind", KINDS)
every_kind = pytest.mark.parametrize("kind", EVERY)


@every_kind
def test_every_chain_keeps_the_contract_and_has_the_same_records(kind):
    chain = random_chain(kind)
    assert isinstance(chain, Chain)
    gated = kind.startswith("copy")
    for record, found in (
        (Filtered, chain.filter()),
        (Smoothed, chain.smooth()),
        (Viterbi, chain.viterbi()),
        (Sampled, chain.sample(4, 0)),
    ):
        assert type(found) is record
        assert (found.redraw is not None) == gated
    marginals = chain.marginals()
    assert type(marginals) is Marginals
    assert (marginals.held is not None or marginals.gates is not None) == gated
    assert (marginals.transition is None) == gated


@each_kind
def test_marginals_sum_to_the_smoothed_states(kind, dtype):
    chain = random_chain(kind, dtype=dtype)
    marginals, smoothed = chain.marginals(), chain.smooth()
    held = torch.zeros_like(marginals.fresh) if marginals.held is None else marginals.held
    assert_close(marginals.fresh.sum(-1) + held.sum(-1), smoothed.state.sum(-1), **tolerances(dtype))
    if held.shape == smoothed.state.shape:
        assert_close(marginals.fresh + held, smoothed.state, **tolerances(dtype))


@each_kind
@pytest.mark.parametrize("cut", [1, 3, 5])
def test_two_stretches_make_up_the_whole(kind, cut, dtype):
    """The belief at the cut goes forward, the weight of what comes after goes back; both halves smooth as the whole."""
    whole = random_chain(kind, lengths=(7, 7), dtype=dtype)
    smoothed, filtered = whole.smooth().state, whole.filter()
    log_belief = filtered.state[..., cut, :].log()
    log_after = smoothed[..., cut, :].log() - log_belief

    def part(steps: slice, moves: slice) -> Chain:
        if isinstance(whole, FactoredCopyChain):
            gates = (gate if gate.shape[-1] == 1 else gate[..., steps] for gate in (whole.log_redraw, whole.log_hold))
            return FactoredCopyChain(*gates, whole.log_state, whole.log_likelihood[..., steps, :])
        if isinstance(whole, MarkovChain):
            table = whole.log_transition[..., moves, :, :] if whole.varies else whole.log_transition
            return MarkovChain(whole.log_initial, table, whole.log_likelihood[..., steps, :])
        return CopyChain(whole.log_initial, whole.log_fresh[..., steps, :], whole.log_held[..., steps, :])

    first = part(slice(0, cut + 1), slice(0, cut)).between(None, log_after)
    last = part(slice(cut, None), slice(cut, None)).between(log_belief, None)
    assert_close(first.smooth().state, smoothed[..., : cut + 1, :], **tolerances(dtype))
    assert_close(last.smooth().state, smoothed[..., cut:, :], **tolerances(dtype))
    before = filtered.log_increment[..., : cut + 1].sum(-1)
    assert_close(last.log_normalizer() + before, whole.log_normalizer(), **tolerances(dtype))


@each_kind
def test_a_stretch_leaves_the_tables_it_was_cut_from_alone(kind):
    chain = random_chain(kind)
    tables = {name: table.clone() for name, table in vars(chain).items() if isinstance(table, Tensor)}
    weight = torch.randn(3, 3, dtype=torch.float64)
    chain.between(weight.log_softmax(-1), weight)
    for name, table in tables.items():
        assert torch.equal(getattr(chain, name), table)


@each_kind
def test_a_stretch_weighs_the_last_step_of_each_sequence(kind, dtype):
    chain, after = random_chain(kind, dtype=dtype), torch.randn(3, 3, dtype=dtype)
    found = chain.between(None, after)
    last = (chain.lengths - 1).reshape(3, 1, 1).expand(3, 1, 3)
    belief = chain.filter().state.gather(1, last).squeeze(1)
    assert_close(
        found.log_normalizer(), chain.log_normalizer() + (belief * after.exp()).sum(-1).log(), **tolerances(dtype)
    )


@every_kind
def test_the_probability_of_a_change_is_that_of_two_neighbours_that_differ(kind):
    chain = random_chain(kind, states=2)
    change = chain.change_probability()
    n = 200_000
    path = chain.sample(n, seed=1).path
    differ = (path[..., 1:] != path[..., :-1]) & (path[..., 1:] >= 0)
    frequency = differ.double().mean(0)
    assert_close(change[:, 1:], frequency, rtol=0, atol=5 * 0.5 / n**0.5)
    assert (change[:, 0] == 0).all()
    outside = torch.arange(chain.n_steps) >= chain.lengths.unsqueeze(-1)
    assert (change[outside] == 0).all()


@given(seed=st.integers(0, 10_000), states=st.integers(1, 3), steps=st.integers(1, 5), by_step=st.booleans())
def test_changes_of_a_markov_chain_are_one_less_its_pairs_on_the_diagonal(seed, states, steps, by_step):
    chain = random_chain("markov, by step" if by_step else "markov", seed, steps, states, lengths=(steps,))
    by_step_chain = MarkovChain(
        chain.log_initial,
        chain.log_transition if by_step else chain.log_transition.unsqueeze(-3).expand(-1, steps - 1, -1, -1),
        chain.log_likelihood,
    )
    pairs = by_step_chain.marginals().transition
    expected = 1 - pairs.diagonal(dim1=-2, dim2=-1).sum(-1)
    assert_close(chain.change_probability()[:, 1:], expected, rtol=1e-12, atol=1e-12)


def test_changes_of_a_copy_chain_are_those_of_the_markov_chain_that_it_is(dtype):
    chain = random_chain("copy", lengths=(6,), steps=6, dtype=dtype)
    fresh, held = chain.log_fresh.exp(), chain.log_held.exp()
    moves = (fresh[:, 1:].unsqueeze(-2) + torch.diag_embed(held[:, 1:])).log()
    markov = MarkovChain(chain.log_fresh[:, 0], moves, torch.zeros_like(fresh))
    assert_close(chain.log_normalizer(), markov.log_normalizer(), **tolerances(dtype))
    assert_close(chain.change_probability(), markov.change_probability(), **tolerances(dtype))


@each_kind
def test_the_exact_filter_predicts_with_its_own_increments(kind, dtype):
    chain = random_chain(kind, lengths=(7, 7), dtype=dtype)
    assert_close(chain.predictive(chain.filter().state), chain.filter().log_increment, **tolerances(dtype))


@each_kind
def test_independent_steps_bound_the_evidence_and_rise_with_every_sweep(kind, dtype):
    chain = random_chain(kind, dtype=dtype)
    found, bounds, rounding = chain.mean_field(sweeps=0), [], tolerances(dtype, 10.0)["atol"]
    for _ in range(6):
        found = chain.mean_field(found.fresh if found.held is None else found.fresh + found.held, sweeps=1)
        bounds.append(found.log_normalizer)
        assert bool((found.log_normalizer <= chain.log_normalizer() + rounding).all())
    assert float(torch.stack(bounds).diff(dim=0).min()) > -rounding
    short = random_chain(kind, steps=1, lengths=(1, 1), dtype=dtype)
    assert_close(short.mean_field().log_normalizer, short.log_normalizer(), **tolerances(dtype))


def test_independent_steps_name_a_weight_that_is_not_finite():
    chain = MarkovChain(torch.zeros(2), torch.tensor([[0.0, -torch.inf], [0.0, 0.0]]), torch.zeros(4, 2))
    with pytest.raises(ValueError, match="log_transition: holds weights that are not finite"):
        chain.mean_field()


@every_kind
def test_seeds_numbers_generators_and_nothing(kind):
    chain = random_chain(kind)
    generator = torch.Generator().manual_seed(3)
    assert torch.equal(chain.sample(5, 3).path, chain.sample(5, generator).path)
    assert not torch.equal(chain.sample(50, 4).path, chain.sample(50, 3).path)
    torch.manual_seed(0)
    once = chain.sample(5).path
    torch.manual_seed(0)
    assert torch.equal(chain.sample(5).path, once)
    with pytest.raises(TypeError, match="seed: got 'x', expected an integer"):
        generator_of("x")


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
@every_kind
def test_results_have_the_batch_axes_of_the_tables(kind, shape):
    chain = random_chain(kind, lengths=torch.full(shape, 6))
    assert chain.log_normalizer().shape == chain.entropy().shape == shape
    assert chain.filter().state.shape == chain.smooth().state.shape == (*shape, 7, 3)
    assert chain.filter().log_increment.shape == chain.viterbi().path.shape == (*shape, 7)
    assert chain.change_probability().shape == (*shape, 7)
    assert chain.sample(5).path.shape == (5, *shape, 7)
    for table in (chain.smooth().redraw, chain.marginals().initial):
        assert table is None or table.shape[: len(shape)] == shape


@every_kind
def test_what_lies_beyond_the_end_of_a_sequence_is_ignored(kind):
    clean = random_chain(kind)
    outside, names = torch.arange(7) >= clean.lengths.unsqueeze(-1), of_steps(clean)
    dirty = {name: getattr(clean, name).masked_fill(outside.unsqueeze(-1), torch.nan) for name in names}
    leaves = [table.clone().requires_grad_() for table in dirty.values()]
    followed = remade(clean, **dict(zip(names, leaves, strict=True)))
    for chain in (remade(clean, **dirty), followed):
        for verb in VERBS:
            found, expected = getattr(chain, verb)(), getattr(clean, verb)()
            pair = (found, expected) if isinstance(found, Tensor) else (vars(found), vars(expected))
            assert_close(*pair, rtol=1e-10, atol=1e-14)
        assert not any(table[outside].any() for table in (chain.filter().state, chain.smooth().state))
    for result in (followed.log_normalizer(), followed.filter().state, followed.smooth().state, followed.entropy()):
        for gradient in torch.autograd.grad(result.square().sum(), leaves):
            assert gradient.isfinite().all()
            assert not gradient[outside].any()


def assert_refused(chain: Chain, message: str) -> None:
    """By every verb, also if gradients are wanted."""
    leaves = {name: table.clone().requires_grad_() for name, table in tables_of(chain).items() if table is not None}
    for wrong in (chain, remade(chain, **leaves)):
        for ask in (*(getattr(wrong, verb) for verb in VERBS), lambda wrong=wrong: wrong.sample(1)):
            with pytest.raises(ValueError, match=message):
                ask()


PLACES = [
    ((2, 2), (1, 0, 3), r"step 3 of sequence \(1, 0\)"),
    ((3,), (1, 3), "step 3 of sequence 1"),
    ((), (3,), "step 3"),
]


@pytest.mark.parametrize("mode", ["native", "plain"])
@pytest.mark.parametrize(("shape", "index", "place"), PLACES)
@every_kind
def test_an_impossible_observation_and_what_is_no_weight_are_named(kind, shape, index, place, mode, dtype):
    chain = random_chain(kind, lengths=torch.full(shape, 7), dtype=dtype)

    def spoiled(value: float, *names: str) -> Chain:
        tables = {name: getattr(chain, name).clone() for name in names}
        for table in tables.values():
            table[index] = value
        return remade(chain, **tables)

    with sh.kernels(mode):
        assert_refused(spoiled(-torch.inf, *of_steps(chain)), f": the observation at {place} is impossible")
        for name in of_steps(chain):  # a chain that multiplies its tables out names the entry
            assert_refused(spoiled(torch.nan, name), rf"{name}: (holds NaN at {place};|got nan at \[)")
            assert_refused(spoiled(torch.inf, name), rf"{name}: (holds \+inf at {place};|got inf at \[)")


@every_kind
def test_float32_tables_lose_nothing_but_their_own_rounding(kind):
    single = random_chain(kind, steps=300, lengths=(300, 177), dtype=torch.float32)
    double = remade(single, **{name: table.double() for name, table in tables_of(single).items() if table is not None})
    found, expected = single.smooth(), double.smooth()
    assert single.log_normalizer().dtype == found.state.dtype == torch.float32
    assert_close(single.log_normalizer().double(), double.log_normalizer(), rtol=1.2e-7, atol=0)
    assert_close(found.state.double(), expected.state, rtol=0, atol=1e-6)


def test_enumeration_knows_the_change_of_a_copy_chain(dtype):
    chain = random_chain("copy, from a belief", lengths=(4,), steps=4, states=2, dtype=dtype)
    found = enumerate_paths(chain.log_fresh, chain.log_held, chain.log_initial, chain.lengths)
    total, expected = sum(found.paths[0].values()), torch.zeros(4, dtype=torch.float64)
    for (path, _), weight in found.paths[0].items():
        for t in range(1, 4):
            expected[t] += weight / total * (path[t] != path[t - 1])
    assert_close(chain.change_probability()[0], expected.to(dtype), **tolerances(dtype))
