"""Series without steps: empty tables, and the state before them."""

import pickle

import pytest
import samplehold as sh
import torch
from samplehold.inference.stacks.automaton import plain
from samplehold.models.networks.stack_network import StackState
from torch.utils._pytree import tree_leaves

NETWORKS = {
    "MinGRU": lambda: sh.MinGRU(2, 4),
    "MinLSTM": lambda: sh.MinLSTM(2, 4),
    "GRU": lambda: sh.GRU(2, 4, num_layers=2, bidirectional=True),
    "LSTM": lambda: sh.LSTM(2, 4),
    "LSTM, time first": lambda: sh.LSTM(2, 4, batch_first=False),
    "Elman": lambda: sh.Elman(2, 4),
    "QRNN": lambda: sh.QRNN(2, 4),
    "PeepholeLSTM": lambda: sh.PeepholeLSTM(2, 4),
    "EvidenceGRU": lambda: sh.EvidenceGRU(2, 4),
    "LogitGRU": lambda: sh.LogitGRU(2, 4),
    "RotatingGRU": lambda: sh.RotatingGRU(2, 4),
    "DoublingLSTM": lambda: sh.DoublingLSTM(2, 4),
    "StateRegularized": lambda: sh.StateRegularized(sh.GRU(2, 4), 3),
    "StateRegularized, hard": lambda: sh.StateRegularized(sh.LSTM(2, 4), 3, mode="hard"),
    "superposition": lambda: sh.stacks.SuperpositionStackRNN(2, 4, value_size=2),
    "stratification": lambda: sh.stacks.StratificationStackRNN(2, 4, value_size=2),
    "nondeterministic": lambda: sh.stacks.NondeterministicStackRNN(2, 4),
}


def tensors(state: object) -> list[torch.Tensor]:
    """Those of a state, in their order."""
    if isinstance(state, StackState):
        return [state.reading, state.raw]
    return [leaf for leaf in tree_leaves(state) if isinstance(leaf, torch.Tensor)]


@pytest.mark.parametrize("name", NETWORKS)
def test_a_series_without_steps_gives_empty_tables_and_keeps_the_state(name):
    torch.manual_seed(0)
    network = NETWORKS[name]()
    first = not name.endswith("time first")
    some, none = ((3, 5, 2), (3, 0, 2)) if first else ((5, 3, 2), (0, 3, 2))
    before, state = network(torch.randn(*some))
    after, same = network(torch.zeros(*none), state)
    assert after.shape == (*none[:-1], before.shape[-1])
    assert all(torch.equal(a, b) for a, b in zip(tensors(state), tensors(same), strict=True))
    _, start = network(torch.zeros(*none))
    assert [t.shape for t in tensors(start)] == [t.shape for t in tensors(state)]
    x = torch.randn(*some)
    assert torch.equal(network(x, start)[0], network(x)[0])
    alone, _ = network(torch.zeros(0, 2))
    assert alone.shape == (0, before.shape[-1])


def test_runs_without_steps_have_empty_tables():
    run = sh.StateRegularized(sh.GRU(2, 4), 3).run(torch.zeros(2, 0, 2), mode="sample", seed=0)
    assert (run.output.shape, run.path.shape) == ((2, 0, 4), (2, 0))
    for name in ("superposition", "stratification", "nondeterministic"):
        layer = NETWORKS[name]()
        assert layer.run(torch.zeros(2, 0, 2)).reading.shape == (2, 0, layer.reading_size)


def test_the_tape_of_an_automaton_is_a_tree_of_tensors_which_an_exporter_can_return():
    half = torch.full((1, 1, 1), 0.5).log()
    _, tape = plain.advance(plain.start(torch.zeros(1, 1), 1), half, half, half)
    assert all(isinstance(leaf, torch.Tensor | bool) for leaf in tree_leaves(tape))


def test_a_stable_network_says_that_its_state_dict_is_saved():
    with pytest.raises(RuntimeError, match="state_dict"):
        pickle.dumps(sh.stable(sh.LSTM(2, 3)))
    assert "cannot be pickled" in " ".join(sh.stable.__doc__.split())
