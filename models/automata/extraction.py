r"""Finite automata from recurrent networks, and their faithfulness.

"lstar"     Angluin's algorithm with the network as its teacher: see `models.automata.teaching`. For any network.
"clusters"  k-means of the states after short and random words. The transition of a cluster is the network's step from
its
            centre, which can differ from the steps of its members. It accepts if most of its members do.
"centroids" for `StateRegularized` layers: states are centroids, and transitions are the network's hard step,
            $j = \arg\max_j sim(cell(S_i, x), S_j)$, without reading a word. In mode "hard" the machine *is* the
            network; in mode "soft", faithfulness measures how near the network is to its machine.

Machines have only reachable states, and are minimal for their language.
"""

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...inference.numerics.extras import needs
from ...inference.numerics.randomness import Seed
from ...inference.numerics.records import Record
from ...inference.numerics.scalars import check_choice, check_integer
from ...switching.seeding import number_of
from ..networks.state_regularized import StateRegularized
from .acceptor import Acceptor
from .distances import Faithfulness, check_network, faithfulness
from .teaching import Comparison, Teacher, clusters, learned, trial_words
from .words import check_alphabet

if TYPE_CHECKING:
    from automata.fa.dfa import DFA

METHODS = ("centroids", "lstar", "clusters")


@dataclass(frozen=True, repr=False)
class Extraction(Record):
    """A machine extracted from a network.

    Arguments:
        automaton: the minimal automaton of its language, an `automata.fa.dfa.DFA`, with states numbered in the order of
            the shortest words that reach them.
        states: the number of its states.
        found: the number of reachable states of the method, before equivalent states were merged.
        queries: the number of distinct words that the network was asked about; 0 if the method steps states.
        counterexamples: "lstar": words on which earlier machines and the network disagreed, in their order.
        cells: "lstar": the number of cells of states that agreed with the machine at the end; 0 if cells were not used.
        complete: whether the method finished; if not, the machine is the last before `max_queries`.
        faithfulness: the agreement of the machine and the network.
    """

    automaton: "DFA"
    states: int
    found: int
    queries: int
    counterexamples: tuple[str, ...]
    cells: int
    complete: bool
    faithfulness: Faithfulness


def extract_automaton(
    network: Acceptor,
    alphabet: str | Sequence[str] | None = None,
    method: str = "lstar",
    n_clusters: int = 16,
    max_queries: int = 20_000,
    seed: Seed = 0,
) -> Extraction:
    """Extract the finite automaton that a network is, or approximates.

    Arguments:
        network: an `Acceptor`, trained or set by hand.
        alphabet: the symbols of words; None: all symbols of the network.
        method: "lstar", "clusters" or "centroids"; see `samplehold.models.automata.extraction`.
        n_clusters: "clusters": the number of clusters; "lstar": the number of cells of states at the start.
        max_queries: "lstar": the most words that the network is asked about.
        seed: of random words and of k-means.

    Raises:
        TypeError: a network of another kind, symbols that are not letters, numbers that are not integers.
        ValueError: a symbol that the network does not have; an unknown method; "centroids" for a network without
            centroids, or
            whose cell has more memory than its centroid; "clusters" for a network whose states grow; a network that
            draws at
            random; too few queries for a first machine.

    Weiss, Goldberg & Yahav 2018, *Extracting automata from recurrent neural networks using queries and
    counterexamples*; Wang & Niepert 2019, *State-regularized recurrent neural networks*; Omlin & Giles 1996 and Wang et
    al. 2018 for clusters.

    See Also:
        `faithfulness`, which judges the result; `plot_automaton`, which draws it; docs/background/automata.md, with
        results.

    Example:
        >>> import torch, samplehold as sh
        >>> layer, readout = sh.MinGRU(2, 1), torch.nn.Linear(1, 1)
        >>> _ = layer.requires_grad_(False).weight_l0.copy_(torch.tensor([[-99.0, 99.0], [0.0, 1.0]]))
        >>> _ = layer.bias_l0.zero_(), readout.requires_grad_(False).weight.fill_(2.0), readout.bias.fill_(-1.0)
        >>> extraction = sh.automata.extract_automaton(sh.automata.Acceptor(layer, readout, "ab"))  # there is a "b"
        >>> extraction.states, extraction.automaton.accepts_input("aabaa"), extraction.faithfulness.exact
        (2, True, True)
    """
    network = check_network(network)
    check_choice("method", method, METHODS)
    symbols = network.alphabet if alphabet is None else check_alphabet(alphabet)
    foreign = [symbol for symbol in symbols if symbol not in network.alphabet]
    if foreign:
        raise ValueError(
            f"alphabet: got {''.join(symbols)!r}, but {foreign[0]!r} is not one of the letters "
            f"{''.join(network.alphabet)!r} that the network reads; give some of these, or None."
        )
    n_clusters, max_queries = check_integer("n_clusters", n_clusters), check_integer("max_queries", max_queries)
    number = number_of(seed)
    queries, counterexamples, cells, complete = 0, (), 0, True
    if method == "lstar":
        teacher = Teacher(network, max_queries)
        comparison = Comparison(teacher, symbols, n_clusters, number)
        machine, complete = learned(teacher, comparison)
        queries, counterexamples, cells = len(teacher.answers), tuple(comparison.counterexamples), comparison.cells
    elif method == "clusters":
        machine, queries = _of_clusters(network, symbols, n_clusters, number)
    else:
        machine = _of_centroids(network, symbols)
    machine = _numbered(machine, symbols)
    least = _numbered(machine.minify(retain_names=False), symbols)
    faithful = faithfulness(least, network, seed=number)
    sizes = len(least.states), len(machine.states)
    return Extraction(least, *sizes, queries, counterexamples, cells, complete, faithful)


@torch.no_grad()
def _of_clusters(network: Acceptor, alphabet: Sequence[str], n_clusters: int, seed: int) -> "tuple[DFA, int]":
    words = trial_words(alphabet, 4 * n_clusters, random.Random(seed))
    states = network.states(words)
    fitted = clusters(states, n_clusters, seed)
    accepted, members = network.accepts(words), torch.from_numpy(fitted.labels_).long()
    n = len(fitted.cluster_centers_)
    votes = torch.zeros(n, device="cpu").index_add_(0, members, accepted.float() - 0.5)
    centres = torch.from_numpy(fitted.cluster_centers_).to(states)
    leads = [fitted.predict(network.advance(centres, symbol).cpu().double().numpy()) for symbol in alphabet]
    table = {symbol: torch.from_numpy(lead) for symbol, lead in zip(alphabet, leads, strict=True)}
    return _machine(table, (votes > 0), int(members[0])), len(words)


def _machine(table: dict[str, Tensor], accepts: Tensor, start: int) -> "DFA":
    """The machine with these transitions (by symbol and state) and accepting states."""
    with needs("automata-lib", "machines"):
        from automata.fa.dfa import DFA

    return DFA(
        states=set(range(len(accepts))),
        input_symbols=set(table),
        transitions={k: {symbol: int(leads[k]) for symbol, leads in table.items()} for k in range(len(accepts))},
        initial_state=start,
        final_states={k for k, accepted in enumerate(accepts.tolist()) if accepted},
    )


def _numbered(machine: "DFA", alphabet: Sequence[str]) -> "DFA":
    """The reachable states, numbered in the order of the shortest words that reach them."""
    with needs("automata-lib", "machines"):
        from automata.fa.dfa import DFA

    order = {machine.initial_state: 0}
    front = deque(order)
    while front:
        leads = machine.transitions[front.popleft()]
        for later in (leads[symbol] for symbol in alphabet):
            if later not in order:
                order[later] = len(order)
                front.append(later)
    return DFA(
        states=set(order.values()),
        input_symbols=set(alphabet),
        transitions={
            number: {symbol: order[machine.transitions[state][symbol]] for symbol in alphabet}
            for state, number in order.items()
        },
        initial_state=0,
        final_states={number for state, number in order.items() if state in machine.final_states},
    )


@torch.no_grad()
def _of_centroids(network: Acceptor, alphabet: Sequence[str]) -> "DFA":
    """A machine whose states are the centroids in their order, and last the state before the first symbol."""
    layer = network.layer
    if not isinstance(layer, StateRegularized):
        raise ValueError(
            f'method: got "centroids", but the network is a {type(layer).__name__}, which has none; give a '
            "StateRegularized layer, or another method."
        )
    if layer.remembers:
        raise ValueError(
            f'method: got "centroids", but the cell is a {type(layer.cell).__name__}, which has more memory than its '
            "centroid, so centroids have no transitions; give another cell, or another method."
        )
    rows = torch.eye(layer.input_size).to(layer.centroids)

    def leads(start: Tensor, row: Tensor) -> Tensor:
        x = row.expand(len(start), 1, -1)
        path = layer.run(x if layer.batch_first else x.transpose(0, 1), start[None], mode="hard").path
        assert path is not None
        return path.flatten()

    first = layer.initial_state(1)[0]
    if network.has_start:
        first = layer.centroids[leads(first, rows[-1])]
    states = torch.cat([layer.centroids, first])
    table = {symbol: leads(states, rows[network.alphabet.index(symbol)]) for symbol in alphabet}
    return _machine(table, network.readout(states).squeeze(-1) > 0, len(layer.centroids))
