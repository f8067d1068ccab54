r"""How much the gate must be visible: a linear gate and message passing, from I(x;z) near 0 to I(x;z) = H(z).

The model has two states and two features, and a distance $\mu$ between held and drawn observations:

$$x \mid z{=}0 \sim N(0, I), \qquad x \mid z{=}1, s \sim N((\mu, \pm \tfrac12 \delta), I), \qquad
\pi = (\tfrac12, \tfrac12)$$

Its minGRU has exact candidates, $\text{logit}\, r = \delta x_2$, and the gate $\text{logit}\, \rho + \mu x_1 -
\tfrac12 \mu^2$, which leaves out the last term of

$$\text{logit}\, P(z{=}1 \mid x) = \text{logit}\, \rho + \mu x_1 - \tfrac12 \mu^2 +
\log \textstyle\sum_s \pi(s)\, e^{\pm \frac12 \delta x_2 - \frac18 \delta^2}.$$

The mutual information is an integral over the plane,

$$I(x; z) = \int \sum_z P(z)\, p(x \mid z) \log \frac{p(x \mid z)}{p(x)}\, dx \;\le\; H(z),$$

by the trapezoidal rule, which is exact to rounding for such integrands. As I approaches H(z), x alone determines z, and
the omitted term and the error of the mean field vanish.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor
from torch.special import entr

from ...inference.numerics.checks import check_each
from ...inference.numerics.randomness import Seed
from ...inference.numerics.records import Record
from ...inference.numerics.scalars import check_integer, check_number, check_probability
from ...switching.dynamics.copy import Copy
from ...switching.emissions.gated import Gated
from ...switching.emissions.multivariate_normal import MultivariateNormal
from ...switching.model import SwitchingSSM
from ...switching.seeding import number_of
from ...switching.views.drawing import FAINT, INK, NotebookFigure
from ..bridge.comparison import MESSAGE_PASSING, NETWORK, ONE_SWEEP, compare
from ..bridge.correspondence import as_rnn

SEPARATIONS = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)
REACH, SPACING = 10.0, 0.05  # of the grid, in standard deviations
MOST = 100.0  # standard deviations between means: the integral's grid is as wide
LABELS = {NETWORK: "linear gate (minGRU)", MESSAGE_PASSING: "message passing, converged", ONE_SWEEP: "one sweep"}


@dataclass(frozen=True, repr=False)
class InformationSweep(Record):
    """Distances to the exact filter, by the information of x about the gate; `summary()` and `plot()`.

    Example:
        >>> import samplehold as sh
        >>> sweep = sh.studies.information_sweep((0.0, 3.0), n_sequences=1, n_steps=20)
        >>> [round(share, 2) for share in (sweep.information / sweep.entropy).tolist()]  # of the gate, what x tells
        [0.05, 0.76]
        >>> list(sweep.total_variation)
        ['message passing', 'one sweep', 'network']
    """

    separation: Float[Tensor, "n"]  # mu, in standard deviations
    information: Float[Tensor, "n"]  # I(x; z) of one step, nats
    entropy: float  # H(z), nats
    total_variation: dict[str, Float[Tensor, "n"]]  # "network", "message passing", "one sweep": mean over steps
    gate_error: dict[str, Float[Tensor, "n"]]  # mean of |Q(z_t = 1) - P(z_t = 1 | x_1..t)|

    def summary(self) -> pd.DataFrame:
        """A row for each separation."""
        columns = {"I(x;z), nats": self.information, "I / H(z)": self.information / self.entropy}
        columns |= {f"TV, {LABELS[name]}": table for name, table in self.total_variation.items()}
        index = pd.Index(self.separation.tolist(), name="separation")
        return pd.DataFrame({name: table.tolist() for name, table in columns.items()}, index)

    def plot(self) -> Figure:
        """Mean total variation to the exact filter against the share I / H(z)."""
        figure = NotebookFigure(6.5, 4.0)
        panel = figure.subplots()
        share = (self.information / self.entropy).numpy()
        for (name, table), color in zip(self.total_variation.items(), ("#8c2981", "#de4968", "#1f77b4"), strict=False):
            panel.plot(share, table.numpy(), "o-", color=color, markersize=4, label=LABELS[name])
        panel.axvline(1.0, color=FAINT, linewidth=0.8, linestyle=":", label="the input tells the whole gate")
        panel.set_xlabel("share of the gate that the input tells, I(x; z) / H(z)", color=INK)
        panel.set_ylabel("total variation to the exact filter", color=INK)
        panel.set_ylim(bottom=0)
        panel.legend(frameon=False)
        for side in ("top", "right"):
            panel.spines[side].set_visible(False)
        return figure


def information_sweep(
    separations: Sequence[float] = SEPARATIONS,
    spread: float = 2.0,
    redraw_prob: float = 0.2,
    n_sequences: int = 8,
    n_steps: int = 1000,
    seed: Seed = 0,
) -> InformationSweep:
    """Compare the linear gate and message passing with the exact filter on data from models of rising I(x;z).

    Arguments:
        separations: mu, the distances of drawn from held observations.
        spread: delta, the distance of the two states.
        redraw_prob: rho; the entropy of the gate is that of a coin of rho.
        n_sequences, n_steps: drawn from each model.
        seed: the same for each, so that curves are smooth.

    Raises:
        ValueError: a separation or spread that is negative or above 100, a redraw probability that is not between 0
            and 1.

    Example:
        >>> import samplehold as sh
        >>> sweep = sh.studies.information_sweep((0.0, 6.0), n_sequences=2, n_steps=50, seed=0)
        >>> far = sweep.total_variation["network"]
        >>> bool(far[1] < 0.01 < far[0])  # where x tells the gate, a minGRU is the exact filter
        True
    """
    separations, spread = check_each("separations", separations, most=MOST), check_number("spread", spread, least=0)
    if spread > MOST:
        raise ValueError(f"spread: got {spread:g}, expected a number from 0 to {MOST:g}, in standard deviations.")
    redraw_prob = check_probability("redraw_prob", redraw_prob, proper=True)
    n_sequences, n_steps = check_integer("n_sequences", n_sequences), check_integer("n_steps", n_steps)
    information, distances, gates, number = [], {}, {}, number_of(seed)
    for separation in separations:
        model = gaussian_model(separation, spread, redraw_prob)
        information.append(mutual_information(model, separation, spread))
        x = model.simulate(n_steps, (n_sequences,), seed=number).x
        report = compare(model, as_rnn(model, gate="linear"), x)
        for name, update in report.updates.items():
            distances.setdefault(name, []).append(update.total_variation.mean())
            assert update.gate_error is not None
            gates.setdefault(name, []).append(update.gate_error.mean())
    rho = torch.tensor([redraw_prob, 1 - redraw_prob], dtype=torch.float64, device="cpu")
    return InformationSweep(
        torch.tensor(separations, dtype=torch.float64, device="cpu"),
        torch.stack(information),
        float(entr(rho).sum()),
        {name: torch.stack(table) for name, table in distances.items()},
        {name: torch.stack(table) for name, table in gates.items()},
    )


def gaussian_model(separation: float, spread: float, redraw_prob: float) -> SwitchingSSM:
    """The model of this module's equations."""
    eye = torch.eye(2, dtype=torch.float64, device="cpu")
    return SwitchingSSM(Copy(2), Gated(MultivariateNormal(2), MultivariateNormal(2))).with_values(
        redraw_prob=redraw_prob,
        state_probs=[0.5, 0.5],
        loc=[[separation, -spread / 2], [separation, spread / 2]],
        covariance=eye.expand(2, 2, 2),
        background_loc=[[0.0, 0.0]],
        background_covariance=eye[None],
    )


def mutual_information(model: SwitchingSSM, separation: float, spread: float) -> Tensor:
    """I(x; z) of one step in nats, by the trapezoidal rule on a grid over all that either gate emits."""
    sides = (-REACH, separation + REACH), (-REACH - spread / 2, spread / 2 + REACH)
    axes = [torch.arange(low, high, SPACING, dtype=torch.float64, device="cpu") for low, high in sides]
    x = torch.cartesian_prod(*axes)
    values = model.values
    drawn, held = model.emission.log_likelihood(x, values)
    log_drawn = (values["state_probs"].log() + drawn).logsumexp(-1)
    rho = values["redraw_prob"]
    joint = torch.stack([rho.log() + log_drawn, torch.log1p(-rho) + held[:, 0]], -1)  # log P(z) p(x | z)
    log_prior = torch.stack([rho.log(), torch.log1p(-rho)])
    ratio = joint - log_prior - joint.logsumexp(-1, keepdim=True)
    return (joint.exp() * ratio).sum() * SPACING**2
