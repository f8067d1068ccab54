"""What holds of every chain: one contract, one set of records, and stretches that make up the whole."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles.copy_paths import enumerate_paths
from oracles.placement import tolerances
from samplehold.face.chains import CopyChain, FactoredCopyChain, MarkovChain
from samplehold.inference.chains.contract import Chain, Filtered, Marginals, Sampled, Smoothed, Viterbi
from samplehold.inference.numerics.randomness import generator_of
from torch import Tensor
from torch.testing import assert_close

KINDS = (
    "copy", "copy, one column", "copy, from a belief", "copy, factored", "copy, factored by step",
    "markov", "markov, by step",
)  # fmt: skip


def random_chain(
    kind: str, seed: int = 0, steps: int = 7, states: int = 3, lengths=(7, 4, 1), dtype: torch.dtype = torch.float64
) -> Chain:
    generator = torch.Generator().manual_seed(seed)

    def table(*shape: int) -> Tensor:
        return torch.randn(len(lengths), *shape, generator=generator, dtype=torch.float64).to(dtype)

    counts = torch.tensor([min(n, steps) for n in lengths])
    if kind.startswith("markov"):
        moves = (steps - 1, states, states) if "step" in kind else (states, states)
        return MarkovChain(table(states), table(*moves), table(steps, states), counts)
    if "factored" in kind:
        gates = table(2, steps if "step" in kind else 1)
        return FactoredCopyChain(gates[:, 0], gates[:, 1], table(states), table(steps, states), counts)
    held = table(steps, 1 if "column" in kind else states)
    return CopyChain(table(states) if "belief" in kind else None, table(steps, states), held, counts)


each_kind = pytest.mark.parametrize("kind", KINDS)


@each_kind
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


def paths_of(chain: Chain, n: int) -> Tensor:
    return chain.sample(n, torch.Generator().manual_seed(1)).path


@each_kind
def test_the_probability_of_a_change_is_that_of_two_neighbours_that_differ(kind):
    """By the pair marginals: a chain of pairs of states, smoothed."""
    chain = random_chain(kind, states=2)
    change = chain.change_probability()
    n = 200_000
    path = paths_of(chain, n)
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


@each_kind
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


def test_enumeration_knows_the_change_of_a_copy_chain(dtype):
    chain = random_chain("copy, from a belief", lengths=(4,), steps=4, states=2, dtype=dtype)
    found = enumerate_paths(chain.log_fresh, chain.log_held, chain.log_initial, chain.lengths)
    total, expected = sum(found.paths[0].values()), torch.zeros(4, dtype=torch.float64)
    for (path, _), weight in found.paths[0].items():
        for t in range(1, 4):
            expected[t] += weight / total * (path[t] != path[t - 1])
    assert_close(chain.change_probability()[0], expected.to(dtype), **tolerances(dtype))
