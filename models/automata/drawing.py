"""Figures of machines: circles (doubled for accepting states), and arrows labelled with their symbols.

A label with more than four symbols shows the first two and their number. Several layouts of networkx place the states,
and the figure with the fewest arrows that cross each other, pass over states, or hide labels is chosen. A state from
which no word can be accepted is grey.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ...inference.numerics.scalars import check_kind
from .distances import check_machine

if TYPE_CHECKING:
    from automata.fa.dfa import DFA
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RADIUS, APART = 0.26, 1.25  # of a state, and from one centre to the nearest other, in units of the figure
INCHES, LETTERS = 0.85, 7  # of a unit, and of the longest label that fits it
BEND, LOOP = 0.2, 0.62  # of one of two arrows between the same states; how far a loop reaches from the centre
MOST_STATES = 40
FEW = 4  # the most letters that are all written on an arrow
SEEDS = 12  # of layouts
POINTS = 17  # of a line
INK, FAINT, PAPER = "#262626", "#8c8c8c", "#eef3f8"


@dataclass(frozen=True)
class _Arrow:
    start: int
    end: int
    label: str
    bend: float = 0.0


def plot_automaton(machine: "DFA", ax: "Axes | None" = None) -> "Figure":
    """A figure of a machine; readable up to some 12 states.

    Arguments:
        machine: a machine of at most 40 states.
        ax: the axes to draw in; None: a new figure.

    Raises:
        TypeError: `machine` is not an `automata.fa.dfa.DFA`, or `ax` is not axes of matplotlib.
        ValueError: a machine with more states.

    See Also:
        `extract_automaton`, which makes a machine of a network; `distance`, between two machines;
        docs/background/automata.md.

    Example:
        >>> import samplehold as sh
        >>> from samplehold.models.automata.tomita import tomita
        >>> figure = sh.automata.plot_automaton(tomita(3))
        >>> sorted(text.get_text() for text in figure.axes[0].texts)  # states, and symbols on arrows
        ['0', '0', '0', '0', '0', '0, 1', '1', '1', '1', '1', '1', '2', '3', '4']
    """
    from matplotlib.axes import Axes

    machine = check_machine("machine", machine)
    if len(machine.states) > MOST_STATES:
        raise ValueError(
            f"machine: has {len(machine.states)} states, expected at most {MOST_STATES}: no picture shows more."
        )
    names = sorted(machine.states, key=lambda name: (name != machine.initial_state, len(str(name)), str(name)))
    arrows = _arrows(machine, names)
    layouts = _layouts(len(names), arrows)
    pairs = {(arrow.start, arrow.end) for arrow in arrows}
    drawn = [[_bent(arrow, at, pairs) for arrow in arrows] for at in layouts]
    best = min(range(len(layouts)), key=lambda i: _disorder(layouts[i], drawn[i]))
    at, arrows = layouts[best], drawn[best]
    low, high = at.min(0) - 1.0, at.max(0) + 1.0
    if ax is None:
        from ...switching.views.drawing import NotebookFigure

        unit = INCHES * max([1.0, *(len(arrow.label) / LETTERS for arrow in arrows)])
        ax = NotebookFigure(*(unit * (high - low))).subplots()
    else:
        check_kind("ax", ax, Axes, "the axes of a figure of matplotlib, or None")
    _draw(ax, machine, names, at, arrows)
    ax.set_xlim(low[0], high[0])
    ax.set_ylim(low[1], high[1])
    ax.set_aspect("equal")
    ax.axis("off")
    figure: Any = ax.figure
    return figure


def _arrows(machine: "DFA", names: list[Any]) -> list[_Arrow]:
    number = {name: i for i, name in enumerate(names)}
    symbols: dict[tuple[int, int], list[str]] = {}
    for name in names:
        for symbol, later in sorted(machine.transitions[name].items()):
            symbols.setdefault((number[name], number[later]), []).append(symbol)
    return [_Arrow(start, end, _label(letters)) for (start, end), letters in sorted(symbols.items())]


def _label(letters: list[str]) -> str:
    """All letters, or the first two and their number."""
    return ", ".join(letters) if len(letters) <= FEW else f"{letters[0]}, {letters[1]}, … ({len(letters)})"


def _layouts(n: int, arrows: list[_Arrow]) -> list[np.ndarray]:
    """Places [n, 2] of the states, with the start to the left of the others' middle."""
    import networkx as nx

    graph = nx.Graph((arrow.start, arrow.end) for arrow in arrows if arrow.start != arrow.end)
    graph.add_nodes_from(range(n))
    if n <= 2:
        return [np.array([[APART * 1.2 * i, 0.0] for i in range(n)])]
    layouts = [nx.circular_layout(graph), nx.kamada_kawai_layout(graph)]
    if nx.check_planarity(graph)[0]:
        planar = nx.planar_layout(graph)
        layouts += [planar, nx.kamada_kawai_layout(graph, pos=planar)]
    layouts += [nx.spring_layout(graph, seed=seed, iterations=150) for seed in range(SEEDS)]
    draw = np.random.default_rng(0)
    rings = [draw.permutation(n) for _ in range(SEEDS)]
    circle = np.stack([np.cos(2 * np.pi * np.arange(n) / n), np.sin(2 * np.pi * np.arange(n) / n)], 1)
    layouts += [dict(enumerate(circle[np.argsort(ring)])) for ring in rings]
    return [_turned(np.array([places[i] for i in range(n)])) for places in layouts]


def _turned(at: np.ndarray) -> np.ndarray:
    """Spread so that no two states are too close, and turned so that the figure is broad, with the start on the
    left."""
    at = at - at.mean(0)
    gaps = np.linalg.norm(at[:, None] - at[None], axis=-1) + 1e9 * np.eye(len(at))
    at = at * APART / max(float(gaps.min()), 1e-3)
    extent = np.linalg.norm(at, axis=1).max()
    at = at * min(1.0, 0.55 * APART * len(at) / extent)  # if states coincide, the figure does not grow
    _, _, axes = np.linalg.svd(at, full_matrices=False)
    at = at @ axes.T
    return at * np.where(at[0] > 0, -1.0, 1.0)


def _bent(arrow: _Arrow, at: np.ndarray, pairs: set[tuple[int, int]]) -> _Arrow:
    """Bend an arrow if there is an arrow back, or if a state is in the way."""
    if arrow.start == arrow.end:
        return arrow
    two_ways = (arrow.end, arrow.start) in pairs
    tries = [BEND, 0.35, 0.5] if two_ways else [0.0, BEND, -BEND, 0.35, -0.35]
    clear = [min(_clearance(_curve(arrow, at, bend), at, arrow), 1.7 * RADIUS) - 1e-3 * abs(bend) for bend in tries]
    return _Arrow(arrow.start, arrow.end, arrow.label, tries[int(np.argmax(clear))])


def _curve(arrow: _Arrow, at: np.ndarray, bend: float | None = None) -> np.ndarray:
    """Points [POINTS, 2] of an arrow between two states, from centre to centre, as in matplotlib's arc3."""
    bend = arrow.bend if bend is None else bend
    one, other = at[arrow.start], at[arrow.end]
    along = other - one
    control = (one + other) / 2 + bend * np.array([along[1], -along[0]])
    t = np.linspace(0, 1, POINTS)[:, None]
    return (1 - t) ** 2 * one + 2 * t * (1 - t) * control + t**2 * other


def _lines(at: np.ndarray, arrows: list[_Arrow]) -> np.ndarray:
    """Points [E, POINTS, 2] of all arrows except loops."""
    curves = [_curve(arrow, at) for arrow in arrows if arrow.start != arrow.end]
    return np.stack(curves) if curves else np.zeros((0, POINTS, 2))


def _marks(lines: np.ndarray) -> np.ndarray:
    """The positions of the labels of arrows, [E, 2]: near their middles, as far as possible from other arrows."""
    n, middle = len(lines), POINTS // 2
    near = lines[:, middle - 2 : middle + 3]
    gaps = np.linalg.norm(near[:, :, None, None] - lines[None, None], axis=-1).min(-1)  # [E, 5, E]
    gaps[np.arange(n), :, np.arange(n)] = np.inf
    distance = gaps.min(-1, initial=0.3) - 0.02 * np.abs(np.arange(-2, 3))
    return near[np.arange(n), distance.argmax(1)]


def _clearance(points: np.ndarray, at: np.ndarray, arrow: _Arrow) -> float:
    """The distance of an arrow from the centres of all other states."""
    others = np.array([i not in (arrow.start, arrow.end) for i in range(len(at))])
    if not others.any():
        return np.inf
    return float(np.linalg.norm(points[:, None] - at[others][None], axis=-1).min())


def _disorder(at: np.ndarray, arrows: list[_Arrow]) -> float:
    """The penalty of a figure: crossings, arrows over states, hidden labels, long arrows, and size."""
    straight = [arrow for arrow in arrows if arrow.start != arrow.end]
    lines = _lines(at, arrows)
    loops = [
        at[arrow.start] + 0.9 * _aside(arrow.start, at, lines, arrows) for arrow in arrows if arrow not in straight
    ]
    marks = np.concatenate([_marks(lines), np.array(loops).reshape(-1, 2)])
    clear = np.array([_clearance(line, at, arrow) for arrow, line in zip(straight, lines, strict=True)])
    cost = 8 * np.maximum(0.0, 1.7 * RADIUS - clear).sum() / RADIUS + sum(0.5 * abs(arrow.bend) for arrow in straight)
    cost += 0.25 * np.linalg.norm(lines[:, -1] - lines[:, 0], axis=-1).sum() / APART + 2.0 * _crossings(lines)
    over = np.linalg.norm(marks[:, None, None] - lines[None, :, 2:-2], axis=-1).min(-1, initial=1.0)  # [marks, E]
    over[np.arange(len(lines)), np.arange(len(lines))] = 1.0
    cost += 4 * np.maximum(0.0, 0.22 - over).sum()
    among = np.linalg.norm(marks[:, None] - np.concatenate([marks, at])[None], axis=-1)
    among[np.arange(len(marks)), np.arange(len(marks))] = 1.0
    cost += 6 * np.maximum(0.0, 0.42 - among).sum()
    return float(cost + 0.05 * np.prod(np.ptp(at, axis=0) + APART) / APART**2)


def _crossings(lines: np.ndarray) -> int:
    """The number of pairs of lines that cross, except at their ends."""
    n = len(lines)
    starts, ends = lines[:, :-2:2].reshape(-1, 2), lines[:, 2::2].reshape(-1, 2)

    def side(p: np.ndarray, q: np.ndarray, r: np.ndarray) -> np.ndarray:
        return (q[..., 0] - p[..., 0]) * (r[..., 1] - p[..., 1]) - (q[..., 1] - p[..., 1]) * (r[..., 0] - p[..., 0])

    a, b, c, d = starts[:, None], ends[:, None], starts[None], ends[None]
    met = (side(a, b, c) * side(a, b, d) < -1e-12) & (side(c, d, a) * side(c, d, b) < -1e-12)
    pairs = met.reshape(n, len(starts) // max(n, 1), n, -1).any((1, 3)) if n else np.zeros((0, 0), bool)
    return int(np.triu(pairs, 1).sum())


def _aside(state: int, at: np.ndarray, lines: np.ndarray, arrows: list[_Arrow]) -> np.ndarray:
    """The direction from a state with the most free room between its arrows and the nearest states."""
    angles = [np.pi] if state == 0 else []
    straight = (arrow for arrow in arrows if arrow.start != arrow.end)
    for arrow, line in zip(straight, lines, strict=True):
        if state in (arrow.start, arrow.end):
            angles.append(_angle(line[3 if arrow.start == state else -4] - at[state]))
    for other in range(len(at)):
        if other != state and np.linalg.norm(at[other] - at[state]) < 1.7 * APART:
            angles.append(_angle(at[other] - at[state]))
    if not angles:
        return np.array([0.0, 1.0])
    ordered = np.sort(np.mod(angles, 2 * np.pi))
    gaps = np.diff(np.append(ordered, ordered[0] + 2 * np.pi))
    middles = ordered + gaps / 2
    upward = 0.05 * np.sin(middles)  # of equal gaps, prefer the upper one
    middle = middles[int(np.argmax(gaps + upward))]
    return np.array([np.cos(middle), np.sin(middle)])


def _angle(way: np.ndarray) -> float:
    return float(np.arctan2(way[1], way[0]))


def _draw(ax: "Axes", machine: "DFA", names: list[Any], at: np.ndarray, arrows: list[_Arrow]) -> None:
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.path import Path

    alive = _alive(machine)
    style: dict[str, Any] = {"arrowstyle": "-|>", "mutation_scale": 11, "linewidth": 1.1, "zorder": 2}
    discs = _draw_states(ax, machine, names, at, alive)

    def label(place: np.ndarray, text: str, color: str) -> None:
        halo = {"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.9}
        x, y = place.tolist()
        ax.text(x, y, text, ha="center", va="center", fontsize=9, color=color, bbox=halo, zorder=6)

    lines = _lines(at, arrows)
    marks = iter(_marks(lines))
    for arrow in arrows:
        color = INK if names[arrow.end] in alive else FAINT
        if arrow.start == arrow.end:
            way = _aside(arrow.start, at, lines, arrows)
            across = np.array([-way[1], way[0]])
            ends = [at[arrow.start] + RADIUS * (0.86 * way + side * 0.5 * across) for side in (1, -1)]
            turns = [at[arrow.start] + LOOP * 1.35 * way + side * 0.42 * across for side in (1, -1)]
            path = Path([ends[0], turns[0], turns[1], ends[1]], [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4])
            ax.add_patch(FancyArrowPatch(path=path, color=color, shrinkA=0, shrinkB=0, **style))
            label(at[arrow.start] + (LOOP + 0.16) * way, arrow.label, color)
            continue
        ax.add_patch(
            FancyArrowPatch(
                tuple(at[arrow.start]),
                tuple(at[arrow.end]),
                patchA=discs[arrow.start],
                patchB=discs[arrow.end],
                connectionstyle=f"arc3,rad={arrow.bend}",
                color=color,
                shrinkA=0,
                shrinkB=0,
                **style,
            )
        )
        label(next(marks), arrow.label, color)
    way = np.array([-1.0, 0.0])
    ax.add_patch(
        FancyArrowPatch(
            tuple(at[0] + 0.75 * way), tuple(at[0] + RADIUS * way), color=INK, shrinkA=0, shrinkB=1, **style
        )
    )


def _alive(machine: "DFA") -> set[Any]:
    """The states from which some word is accepted."""
    alive = set(machine.final_states)
    while True:
        more = {name for name in machine.states if alive & set(machine.transitions[name].values())} - alive
        if not more:
            return alive
        alive |= more


def _draw_states(ax: "Axes", machine: "DFA", names: list[Any], at: np.ndarray, alive: set[Any]) -> list[Any]:
    """A disc for each state: double if it accepts, faint if no continuation is accepted; in their order."""
    from matplotlib.patches import Circle

    discs = []
    for name, (x, y) in zip(names, at.tolist(), strict=True):
        color = INK if name in alive else FAINT
        disc = Circle((x, y), RADIUS, facecolor=PAPER, edgecolor=color, linewidth=1.3, zorder=3)
        discs.append(ax.add_patch(disc))
        if name in machine.final_states:
            ax.add_patch(Circle((x, y), 0.8 * RADIUS, fill=False, edgecolor=color, linewidth=1.1, zorder=4))
        size = 10 if len(str(name)) <= 2 else 24 / len(str(name))
        ax.text(x, y, str(name), ha="center", va="center", fontsize=size, color=color, zorder=5)
    return discs
