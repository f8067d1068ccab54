"""How far is a network of centroids from the Markov chain that it draws, and do its states drift less?

Three parts: the soft pass against the exact distribution (`centroid_distance`), words longer and deeper than those
trained on (`centroid_languages`), and digits read pixel by pixel (`centroid_digits`).
"""

import sys
from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import pandas as pd
from centroid_digits import DigitReader, digit_readers
from centroid_distance import (
    FACTORS,
    half_life,
    latch_distances,
    latch_table,
    random_distances,
    trained_distances,
)
from centroid_languages import Language, Trained, languages, trained
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from study import Findings, Track, note_of, seeds_from, ticks_at, untracked

INK, GREY, BLUE, RED = "#262626", "#8a8a8a", "#1f77b4", "#de4968"
NETWORKS = {  # color, marker, its size
    "plain": (GREY, "s-", 8),
    "centroids, soft": (BLUE, "o-", 5),
    "centroids, hard": (RED, "o-", 3),
    "chain, soft": (BLUE, "+:", 8),
    "chain, hard": (RED, "x:", 6),
}
TRAINED_BY = {"centroids": "soft pass", "chain": "chain"}
CELLS = {"Elman": "#20068f", "GRU": "#b12a90", "MinGRU": "#fca636"}
MEASURED = 50  # words of a test on which a trained network is held against its chain
SHOWN = 10  # centroids, of a set of digits


def study(scale: str, track: Track[Any] = untracked, seed: int = 0) -> Findings:
    """See `Findings`: tables of distances, accuracies and digits; figures of them and of centroids."""
    full = scale == "full"
    seeds = seeds_from(seed, scale)
    cooling = np.geomspace(0.1, 1.6, 25) if full else np.geomspace(0.15, 1.5, 6)
    latches = latch_distances(track([float(t) for t in cooling], "latches"), 4096 if full else 64)
    some = languages(full, seed)
    temperatures = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0) if full else (0.1, 1.0)
    networks = random_distances(temperatures, 20 if full else 2, 256 if full else 16, seed=seed)
    accuracies, chains = [], []
    for one in trained(some, seeds, track):
        accuracies += list(one.accuracies())
        chains += list(_chain_rows(one))
    digits = list(digit_readers(full, seeds, track))
    by_word = pd.DataFrame(accuracies)
    tables = {
        "latch": latch_table(latches),
        "random_networks": networks,
        "trained_networks": pd.DataFrame(chains),
        "languages": by_word,
        "digits": pd.DataFrame([one.row for one in digits]),
    }
    figures = {
        "soft_against_exact": draw_distances(latches, networks, tables["trained_networks"]),
        "accuracy_by_length": draw_accuracies(by_word, some),
        "centroids": draw_centroids(digits),
    }
    return Findings(tables, figures, seeds, note_of(scale))


def _chain_rows(one: Trained) -> Iterator[dict[str, object]]:
    """What a network with centroids and without memory of its own is beside its chain."""
    if one.kind not in TRAINED_BY or one.reader.layer.remembers:
        return
    tests = {name: one.language.table(words[:MEASURED], all_steps=False) for name, words in one.language.tests.items()}
    where: dict[str, object] = {"language": one.language.name, "trained by": TRAINED_BY[one.kind], "seed": one.seed}
    double = deepcopy(one.reader).double()
    yield from trained_distances(double, {name: test.double() for name, test in tests.items()}, where)


def draw_distances(latches: pd.DataFrame, networks: pd.DataFrame, chains: pd.DataFrame) -> Figure:
    """Total variation of the soft pass: of latches by step and temperature, of random networks, of trained ones."""
    figure = Figure(figsize=(13.0, 4.2), layout="constrained")
    left, middle, right = figure.subplots(1, 3, width_ratios=[1.25, 1.0, 1.0])
    steps, cooling = latches.columns.to_numpy(float), latches.index.to_numpy(float)
    picture = left.pcolormesh(steps, cooling, latches.to_numpy(), cmap="magma_r", vmin=0, vmax=0.5, shading="nearest")
    figure.colorbar(picture, ax=left, label="total variation, soft - exact")
    times = np.array([half_life(t) for t in cooling])
    left.plot(times, cooling, color=BLUE, linewidth=2, label="the chain has forgotten a half")
    left.axhline(1.0, color=BLUE, linewidth=2, linestyle="--", label="below, the soft pass never forgets")
    left.set(xscale="log", yscale="log", xlim=(steps[0], steps[-1]), ylim=(cooling[0], cooling[-1]))
    ticks_at(left.yaxis, [t for t in (0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5) if cooling[0] <= t <= cooling[-1]])
    left.xaxis.minorticks_off()
    left.set(xlabel="steps since the bit was set", ylabel="temperature")
    left.legend(fontsize=8, loc="upper right", framealpha=0.9)
    _title(left, "A latch of two centroids")
    last = networks[networks["step"] == networks["step"].max()]
    for cell, rows in last.groupby("cell", sort=False):
        color = CELLS[str(cell)]
        middle.plot(rows["temperature"], rows["TV"], "o-", color=color, markersize=4, label=f"{cell}, soft pass")
        middle.plot(rows["temperature"], rows["TV, one step"], ":", color=color, label=f"{cell}, new at each step")
    middle.set(xscale="log", xlabel="temperature", ylabel="total variation, mean")
    ticks_at(middle.xaxis, sorted(set(networks["temperature"])))
    middle.set_ylim(0, 1.35 * middle.get_ylim()[1])  # room for the legend
    middle.legend(fontsize=6.5, ncols=2, loc="upper center")
    _title(middle, f"Random networks, after {networks['step'].max()} steps")
    at = sorted(set(lengths := chains["words"].str.removeprefix("length ").astype(int)))
    colors = dict(zip(FACTORS, ("#20068f", "#8c2981", "#de4968", "#fca636"), strict=True))
    for way, style in (("soft pass", "o-"), ("chain", "o:")):
        chosen = chains.assign(length=lengths).set_index("trained by").loc[[way]].set_index("temperature")
        for (factor, color), temperature in zip(colors.items(), dict.fromkeys(chosen.index), strict=True):
            means = chosen.loc[[temperature]].groupby("length")["TV"].mean()
            right.plot(at, means, style, color=color, markersize=4, label=f"by {way}, at {factor:g} x $\\tau$")
    right.set(xscale="log", xlabel="length of the word", ylabel="total variation at its end, mean")
    right.set_ylim(0, 1.35 * right.get_ylim()[1])
    ticks_at(right.xaxis, at)
    right.legend(fontsize=6.5, ncols=2, loc="upper center")
    _title(right, r"Trained on Tomita's languages at $\tau$")
    return figure


def draw_accuracies(table: pd.DataFrame, some: Sequence[Language]) -> Figure:
    """Accuracy by length or depth, a panel for each language and cell: means over seeds, and each seed faintly."""
    kinds = [(one.name, recipe.kind.__name__) for one in some for recipe in one.recipes]
    columns = min(3, len(kinds))
    rows = -(-len(kinds) // columns)
    figure = Figure(figsize=(4.2 * columns, 2.6 * rows + 0.4), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flat
    for panel, (language, cell) in zip(panels, kinds, strict=False):
        chosen = table.query("language == @language and cell == @cell")
        names = list(dict.fromkeys(chosen["words"]))
        for network, (color, style, size) in NETWORKS.items():
            if network not in set(chosen["network"]):
                continue
            wide = (
                chosen.query("network == @network").pivot(index="words", columns="seed", values="accuracy").loc[names]
            )
            panel.plot(range(len(names)), wide, color=color, linewidth=0.8, alpha=0.4)
            means = wide.mean(axis=1)
            panel.plot(range(len(names)), means, style, color=color, markersize=size, label=network)
        panel.set_xticks(range(len(names)))
        panel.set_xticklabels([name.removeprefix("length ").replace(", depth ", "\ndepth ") for name in names])
        panel.tick_params(labelsize=8)
        panel.set(ylim=(0.25, 1.03), ylabel="accuracy", xlabel="length")
        panel.axhline(0.5, color=INK, linewidth=0.6, linestyle=":")
        _title(panel, f"{language}, {cell}")
    for panel in list(figure.axes)[len(kinds) :]:
        panel.set_axis_off()
    figure.axes[0].legend(fontsize=8, loc="lower left")
    return figure


def draw_centroids(readers: Sequence[DigitReader]) -> Figure:
    """Mean pictures of the digits that end at each centroid, the most visited first: one row for each network.

    Centroids at which no series ends have no picture.
    """
    shown = [one for one in readers if one.means is not None and one.row["seed"] == readers[0].row["seed"]]
    visited = [
        one.counts.argsort(descending=True, stable=True)[: min(SHOWN, int((one.counts > 0).sum()))]
        for one in shown
        if one.counts is not None
    ]
    columns = max(map(len, visited))
    figure = Figure(figsize=(1.05 * columns + 1.2, 1.35 * len(shown)), layout="constrained")
    panels = figure.subplots(len(shown), columns, squeeze=False)
    for row, one, order in zip(panels, shown, visited, strict=True):
        assert one.means is not None
        assert one.counts is not None
        for panel, k in zip(row, order.tolist(), strict=False):
            panel.set_xticks([])
            panel.set_yticks([])
            panel.imshow(one.means[k].numpy(), cmap="Greys", vmin=0)
            panel.set_title(f"n = {int(one.counts[k])}", fontsize=8, color=INK, pad=2)
        for panel in row[len(order) :]:
            panel.set_axis_off()
        row[0].set_ylabel(f"{one.row['digits']}\n{one.row['order']}", fontsize=8)
    return figure


def _title(panel: Axes, text: str) -> None:
    panel.set_title(text, loc="left", fontsize=10, color=INK)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)


if __name__ == "__main__":
    from samplehold.cli.app import app

    app(["study", "state-regularized", *sys.argv[1:]])
