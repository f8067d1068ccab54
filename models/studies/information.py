r"""When may the state be ignored in the update of the gate?

Updates of minGRUs and message passing are compared with the exact filter of a model of two states and two features. The
first feature tells the gate, at a distance $\mu$. The second tells the state, at a distance $\delta$:

$$x \mid z, s \sim N((\mu z, \pm \tfrac12 \delta\, e_z), I), \qquad \pi = (\tfrac12, \tfrac12),$$

with $e_1 = 1$. If held steps are silent, $e_0 = 0$, as in a `Gated` emission. If they emit, $e_0 = 1$. The mutual
information of x and z is an integral over the plane,

$$I(x; z) = \int \sum_z P(z)\, p(x \mid z) \log \frac{p(x \mid z)}{p(x)}\, dx \;\le\; H(z),$$

by the trapezoidal rule, which is exact to rounding for such integrands. For each $\mu$, data are drawn from the model,
and these updates are compared with the exact filter:

    probabilities           a minGRU on probabilities with the gate P(z | x)
    linear gate             the same with a gate that is linear in x, `as_rnn(model, gate="linear")`; silent steps only
    logits                  a minGRU on logits with the gate P(z | x)
    logits, held evidence   the same with log p(x | s, z = 0) at held steps, `as_rnn(model, space="logit")`
    message passing         the gate inferred with the state, `filter_vmp(model, x)`, converged

`samplehold.models.bridge.input_gate` has the equations and a bound for the fourth.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor
from torch.special import entr

from ...inference.numerics.checks import check_each
from ...inference.numerics.randomness import Seed
from ...inference.numerics.records import Record
from ...inference.numerics.scalars import check_integer, check_number, check_probability
from ...switching.dynamics.copy import Copy
from ...switching.emissions.gated import Gated
from ...switching.emissions.normal import Normal
from ...switching.filter_vmp import filter_vmp
from ...switching.model import SwitchingSSM
from ...switching.seeding import number_of
from ...switching.views.drawing import FAINT, INK, NotebookFigure
from ..bridge.comparison import CONVERGED, MESSAGE_PASSING, measure
from ..bridge.correspondence import as_rnn
from ..bridge.input_gate import HELD_EVIDENCE, LOGITS, PROBABILITIES, input_gate_bound, input_gate_updates
from ..bridge.tokens import redrawn_start

SEPARATIONS = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)
REACH, SPACING = 10.0, (0.05, 0.1)  # of the grid, in standard deviations
MOST = 100.0  # standard deviations between means: the integral's grid is as wide
LINEAR_GATE = "linear gate"
SILENT, EMITTING = "silent", "emitting"
COLORS = {
    PROBABILITIES: "#8c2981",
    LINEAR_GATE: "#c994c7",
    LOGITS: "#fd8d3c",
    HELD_EVIDENCE: "#de4968",
    MESSAGE_PASSING: "#1f77b4",
}
EMITTING_UPDATES = PROBABILITIES, LOGITS, HELD_EVIDENCE, MESSAGE_PASSING
NOTES = {PROBABILITIES: " (exact if silent)", LINEAR_GATE: " (silent only)"}


@dataclass(frozen=True, repr=False)
class InformationSweep(Record):
    """Distances of updates to the exact filter, by the information of x about the gate; `summary()` and `plot()`.

    Attributes:
        table: a row for each kind of held steps, separation and update: I(x; z) and H(z) in nats, and means over steps
            of the total variation, the nats lost in predicting x, the error of the gate, and the bound on the total
            variation (of minGRUs on logits with held evidence).

    See Also:
        `information_sweep`, which makes it; docs/background/input_gate.md, with results.

    Example:
        >>> import samplehold as sh
        >>> sweep = sh.studies.information_sweep((0.0, 3.0), n_sequences=1, n_steps=20)
        >>> sweep.summary().shape
        (4, 6)
        >>> list(sweep.of("emitting", "logits").columns)[:3]
        ['held steps', 'separation', 'I(x;z), nats']
    """

    table: pd.DataFrame

    def of(self, held_steps: str, update: str) -> pd.DataFrame:
        """The rows of one curve, by rising separation.

        Arguments:
            held_steps, update: the values of these columns.
        """
        kept = (self.table["held steps"] == held_steps) & (self.table["update"] == update)
        return self.table.loc[kept, :].reset_index(drop=True)

    def summary(self) -> pd.DataFrame:
        """The total variation of each update: a row for each kind of held steps and separation."""
        keys = ["held steps", "separation", "I / H(z)"]
        return self.table.pivot_table("TV", keys, "update", sort=False).reset_index("I / H(z)")

    def plot(self) -> Figure:
        """Total variation against the share I / H(z), for silent and emitting held steps, and nats lost for emitting
        ones."""
        figure = NotebookFigure(10.0, 3.9)
        silent, emitting, lost = figure.subplots(1, 3, sharex=True)
        self._draw(silent, SILENT, "TV", (LINEAR_GATE, HELD_EVIDENCE, MESSAGE_PASSING))
        self._draw(emitting, EMITTING, "TV", EMITTING_UPDATES)
        self._draw(lost, EMITTING, "nats lost", EMITTING_UPDATES)
        silent.axhline(0, color=COLORS[PROBABILITIES], linewidth=3, label=PROBABILITIES, zorder=0)
        for panel, title, label in (
            (silent, "held steps are silent", "total variation"),
            (emitting, "held steps emit", "total variation"),
            (lost, "held steps emit", "nats lost a step"),
        ):
            panel.set_title(title, color=INK)
            panel.set_ylabel(label, color=INK)
        emitting.set_ylim(silent.get_ylim())
        emitting.set_xlabel("share of the gate that x tells, I(x; z) / H(z)", color=INK)
        lines = {str(line.get_label()): line for line in [*emitting.lines, *silent.lines]}
        lines = {f"{name}{NOTES.get(name, '')}": lines[name] for name in COLORS}
        figure.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=3, frameon=False)
        return figure

    def _draw(self, panel: Axes, held_steps: str, quantity: str, updates: Sequence[str]) -> None:
        for update in updates:
            rows = self.of(held_steps, update)
            panel.plot(
                rows["I / H(z)"], rows[quantity], "o-", color=COLORS[update], markersize=3, label=update, clip_on=False
            )
        panel.axvline(1.0, color=FAINT, linewidth=0.8, linestyle=":")
        panel.set_ylim(bottom=0)
        for side in ("top", "right"):
            panel.spines[side].set_visible(False)


def information_sweep(
    separations: Sequence[float] = SEPARATIONS,
    spread: float = 2.0,
    redraw_prob: float = 0.2,
    n_sequences: int = 8,
    n_steps: int = 1000,
    seed: Seed = 0,
) -> InformationSweep:
    """Compare updates with the exact filter on models of increasing information I(x;z) about the gate. Held steps are
    silent or emit.

    Arguments:
        separations: mu, the distances of drawn from held observations.
        spread: delta, the distance of the two states.
        redraw_prob: rho; the gate has the entropy of a coin with this probability.
        n_sequences, n_steps: drawn from each model.
        seed: the same for each, so that curves are smooth.

    Raises:
        ValueError: a separation or spread that is negative or above 100, a redraw probability that is not between 0
            and 1.

    See Also:
        `input_gate_bound`, the bound on one model; `compare`, for any network; docs/background/input_gate.md.

    Example:
        >>> import samplehold as sh
        >>> sweep = sh.studies.information_sweep((0.0, 8.0), n_sequences=2, n_steps=50, seed=0)
        >>> tv = sweep.of("emitting", "logits, held evidence")["TV"]
        >>> bool(tv[1] < 0.01 < tv[0])  # where x tells the gate, a minGRU on logits is the exact filter
        True
    """
    separations, spread = check_each("separations", separations, most=MOST), check_number("spread", spread, least=0)
    if spread > MOST:
        raise ValueError(f"spread: got {spread:g}, expected a number from 0 to {MOST:g}, in standard deviations.")
    redraw_prob = check_probability("redraw_prob", redraw_prob, proper=True)
    n_sequences, n_steps = check_integer("n_sequences", n_sequences), check_integer("n_steps", n_steps)
    number, rows = number_of(seed), []
    entropy = float(entr(torch.tensor([redraw_prob, 1 - redraw_prob], dtype=torch.float64, device="cpu")).sum())
    for held_steps, separation in product((SILENT, EMITTING), separations):
        model = gaussian_model(separation, spread, redraw_prob, held_steps == EMITTING)
        information = float(mutual_information(model, separation, spread))
        known = {"held steps": held_steps, "separation": separation, "I(x;z), nats": information}
        known |= {"H(z), nats": entropy, "I / H(z)": information / entropy}
        x = model.simulate(n_steps, (n_sequences,), seed=number).x
        rows += [known | row for row in _distances(model, x)]
    return InformationSweep(pd.DataFrame(rows))


def _distances(model: SwitchingSSM, x: Tensor) -> Iterator[dict[str, Any]]:
    """A row for each update."""
    chain, inside = model.chain(x), torch.ones(x.shape[:-1], dtype=torch.bool, device=x.device)
    exact, bound = chain.filter(), input_gate_bound(model, x)
    passed = filter_vmp(model, x, sweeps=CONVERGED)
    beliefs = {name: (state, bound.gate) for name, state in input_gate_updates(model, x).items()}
    if model.emission.parts[-1].alike:
        layer = as_rnn(model, gate="linear")
        with torch.no_grad():
            beliefs[LINEAR_GATE] = layer(x, redrawn_start(layer, x))[0], layer.activations(x).draw.mean(-1)
    beliefs[MESSAGE_PASSING] = passed.state, passed.redraw
    for name, (state, gate) in beliefs.items():
        update = measure(chain, exact, state, gate, inside)
        assert update.gate_error is not None
        yield {
            "update": name,
            "TV": float(update.total_variation.mean()),
            "nats lost": float(update.evidence_lost.mean()),
            "gate error": float(update.gate_error.mean()),
            "bound on TV": float(bound.total_variation.mean()) if name == HELD_EVIDENCE else torch.nan,
        }


def gaussian_model(separation: float, spread: float, redraw_prob: float, emitting: bool = False) -> SwitchingSSM:
    """The model of this module's equations."""
    half = spread / 2
    held = [[0.0, -half], [0.0, half]] if emitting else [[0.0, 0.0]]
    one = torch.ones(2, 2, dtype=torch.float64, device="cpu")
    return SwitchingSSM(Copy(2), Gated(Normal(2), Normal(2), by_state=emitting)).with_values(
        redraw_prob=redraw_prob,
        state_probs=[0.5, 0.5],
        loc=[[separation, -half], [separation, half]],
        scale=one,
        background_loc=held,
        background_scale=one[: len(held)],
    )


def mutual_information(model: SwitchingSSM, separation: float, spread: float) -> Tensor:
    """I(x; z) of one step in nats, by the trapezoidal rule on a grid over all that either gate emits."""
    sides = (-REACH, separation + REACH), (-REACH - spread / 2, spread / 2 + REACH)
    axes = [
        torch.arange(*side, spacing, dtype=torch.float64, device="cpu")
        for side, spacing in zip(sides, SPACING, strict=True)
    ]
    x = torch.cartesian_prod(*axes)
    rho, log_state = model.values["redraw_prob"], model.values["state_probs"].log()
    log_prior = torch.stack([rho.log(), torch.log1p(-rho)])
    by_gate = [(log_state + table).logsumexp(-1) for table in model.emission.log_likelihood(x, model.values)]
    joint = torch.stack(by_gate, -1) + log_prior  # log P(z) p(x | z)
    ratio = joint - log_prior - joint.logsumexp(-1, keepdim=True)
    return (joint.exp() * ratio).sum() * SPACING[0] * SPACING[1]
