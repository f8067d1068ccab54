r"""Which machines are in networks trained on the seven grammars of Tomita, by three ways to extract them?

Networks of 10 units are trained to separate the words of a grammar from others. There are 40 words of every length from
0 to 15, half of them in the language if there are both kinds. Training uses binary cross-entropy and Adam at 0.01 on
batches of 64, until the running mean of the loss is below 0.01, or for 2000 batches. A state-regularised GRU has 10
centroids, similarity "l2", and a temperature that falls from 1 to 0.1 over the first 600 batches. Then each method of
`extract_automaton` extracts a machine from each network, and two distances are measured: from machine to network
(faithfulness), and from machine to grammar.
"""

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure
from samplehold.models.automata.acceptor import Acceptor
from samplehold.models.automata.distances import distance, faithfulness
from samplehold.models.automata.drawing import plot_automaton
from samplehold.models.automata.extraction import Extraction, extract_automaton
from samplehold.models.automata.tomita import labelled_words, tomita
from samplehold.models.networks.minimal import MinGRU
from samplehold.models.networks.state_regularized import StateRegularized
from samplehold.models.networks.wrapped import GRU, LSTM
from samplehold.switching.seeding import seeded
from study import Findings, Track, seeds_from
from torch import nn

UNITS, CENTROIDS, CLUSTERS = 10, 10, 16
LENGTHS, EACH = range(16), 40  # of words to learn from
BATCH, RATE, MOST_STEPS, ENOUGH = 64, 0.01, 2000, 0.01
COOLING, COOL = 600, 0.1  # batches over which the temperature falls, and its final value
FAR = 100  # symbols of the longest random words
NETWORKS: dict[str, Callable[[int], nn.Module]] = {
    "GRU": lambda inputs: GRU(inputs, UNITS),
    "LSTM": lambda inputs: LSTM(inputs, UNITS),
    "minGRU, 2 layers": lambda inputs: MinGRU(inputs, UNITS, num_layers=2),
    "state-regularised GRU": lambda inputs: StateRegularized(GRU(inputs, UNITS), CENTROIDS, similarity="l2"),
}
GRAMMARS = tuple(range(1, 8))
QUICK = [("GRU", 2), ("GRU", 4), ("GRU", 7), ("state-regularised GRU", 7)]


def study(scale: str, track: Track[Any], seed: int = 0) -> Findings:
    """Tables of networks and of machines, and a figure of the machines of L*."""
    quick = scale == "quick"
    seeds, max_queries = seeds_from(seed, scale), 3000 if quick else 20_000
    runs = QUICK if quick else [(kind, grammar) for kind in NETWORKS for grammar in GRAMMARS]
    networks, machines, shown = [], [], {}
    for one, kind, grammar in track([(one, *run) for one in seeds for run in runs], "networks"):
        began = time.perf_counter()
        network, loss, steps = trained(kind, grammar, one)
        seconds = time.perf_counter() - began
        agreement = faithfulness(tomita(grammar), network, seed=one)
        named = {"network": kind, "grammar": grammar, "seed": one}
        accuracy = {"words to 11": agreement.agreeing / agreement.words, f"words of {FAR}": float(agreement.share[-1])}
        networks.append(named | {"steps": steps, "loss": loss} | accuracy | {"seconds": seconds})
        for method in methods(network):
            began = time.perf_counter()
            extraction = extract_automaton(
                network, method=method, n_clusters=CLUSTERS, max_queries=max_queries, seed=one
            )
            row = summary(extraction, grammar) | {"seconds": time.perf_counter() - began}
            machines.append(named | {"method": method} | row)
            if method == "lstar" and extraction.complete:
                shown.setdefault(grammar, (kind, extraction))
    tables = {"networks": pd.DataFrame(networks), "machines": pd.DataFrame(machines)}
    return Findings(tables, {"machines": figure(shown)}, seeds)


def trained(kind: str, grammar: int, seed: int) -> tuple[Acceptor, float, int]:
    """A network of a kind that was trained on a grammar, the mean loss at the end, and the number of batches."""
    words, labels = zip(*labelled_words(tomita(grammar), LENGTHS, EACH, seed), strict=True)
    targets = torch.tensor(labels, dtype=torch.float32)
    with seeded(seed, targets):
        network = Acceptor(NETWORKS[kind](2), nn.Linear(UNITS, 1), "01")
    draw = torch.Generator().manual_seed(seed)
    optimizer, mean, steps = torch.optim.Adam(network.parameters(), RATE), 1.0, 0
    cooling = COOLING if isinstance(network.layer, StateRegularized) else 0
    while steps < MOST_STEPS and (mean >= ENOUGH or steps < cooling):
        if isinstance(network.layer, StateRegularized):
            network.layer.temperature = COOL ** min(1.0, steps / cooling)
        some = torch.randint(len(words), (BATCH,), generator=draw)
        log_odds = network([words[i] for i in some.tolist()])
        loss = nn.functional.binary_cross_entropy_with_logits(log_odds, targets[some])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        mean, steps = 0.97 * mean + 0.03 * float(loss.detach()), steps + 1
    return network.requires_grad_(False), mean, steps


def methods(network: Acceptor) -> Iterator[str]:
    """The methods that apply to a network."""
    yield from ("lstar", "clusters")
    if isinstance(network.layer, StateRegularized):
        yield "centroids"


def summary(extraction: Extraction, grammar: int) -> dict[str, Any]:
    """A machine's sizes, its distance to the grammar, and its faithfulness to the network."""
    target = tomita(grammar)
    apart, faithful = distance(extraction.automaton, target), extraction.faithfulness
    return {
        "least states": len(target.states),
        "states": extraction.states,
        "found": extraction.found,
        "is the grammar": apart.equal,
        "counterexample": "" if apart.counterexample is None else f"`{apart.counterexample}`",  # no number
        "faithful to 11": faithful.agreeing / faithful.words,
        f"faithful at {FAR}": float(faithful.share[-1]),
        "at least": float(faithful.lower[-1]),
        "queries": extraction.queries,
        "complete": extraction.complete,
    }


def figure(shown: dict[int, tuple[str, Extraction]]) -> Figure:
    """The first machine for which L* finished, for each grammar."""
    columns = max(1, min(3, len(shown)))
    rows = max(1, -(-len(shown) // columns))
    drawn = Figure(figsize=(4.5 * columns, 3.6 * rows), layout="constrained", facecolor="white")
    panels = drawn.subplots(rows, columns, squeeze=False).ravel()
    for panel in panels:
        panel.axis("off")
    for panel, (grammar, (kind, extraction)) in zip(panels, sorted(shown.items()), strict=False):
        panel.set_title(f"Tomita {grammar}: L* on a {kind}", fontsize=10)
        if extraction.states <= 12:
            plot_automaton(extraction.automaton, panel)
        else:
            panel.text(0.5, 0.5, f"{extraction.states} states", ha="center", va="center", transform=panel.transAxes)
    return drawn


if __name__ == "__main__":
    from samplehold.cli.app import app

    app(["study", "automata", *sys.argv[1:]])
