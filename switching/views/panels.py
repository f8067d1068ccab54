"""What the figure of a series shows besides its observations: a model states it, and `figures.py` draws it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray
from scipy.special import ndtri
from torch import Tensor
from torch.distributions import constraints

from ..emissions.contract import Emission
from ..emissions.lagged import Lagged
from ..fitting.alignment import only_scales, state_levels
from ..mixture import StateMixture
from ..parameters import Parameters
from .colors import state_colors
from .drawing import CURVE, GATE, INK, PANEL, STRIP

MOST_CURVES = 12  # of latents or parameters
TWO_COLORS = state_colors(np.arange(2.0))  # of segments, in turn
Ends = tuple[Tensor, Tensor, Tensor]  # means, and the lower and the upper ends of their bands
Strip = tuple[Float[Tensor, "T K"], Sequence[str]]  # probabilities of states, and the colour of each


@dataclass(frozen=True)
class Curve:
    """A quantity at each step: its mean and the ends of its band, or the probabilities of its categories.

    Attributes:
        best: the number of the colour of each step; None: the first colour, over a grey band.
        angular: whether a band goes on at the other end.
        joined: whether a line joins the observations over it.
        labels: the height and the text of each colour.
    """

    mean: Float[Tensor, "T"] | None = None
    lower: Float[Tensor, "T"] | None = None
    upper: Float[Tensor, "T"] | None = None
    probs: Float[Tensor, "T C"] | None = None
    best: Int[Tensor, "T"] | None = None
    colors: Sequence[str] = (INK,)
    angular: bool = False
    joined: bool = True
    labels: tuple[ndarray, list[str]] | None = None

    def at(self, steps: slice) -> "Curve":
        """The curve at some steps."""
        tables = {name: table[steps] for name, table in vars(self).items() if isinstance(table, Tensor)}
        return replace(self, **tables)  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True)
class Panels:
    """The panels of a figure, from the top.

    Attributes:
        about: what stands behind the observations, in the title.
        features: for each feature of the series.
        states: of each chain, by the name of its panel.
        curves: of latents, or of parameters, by name.
        gates: the probability of a redraw or a change, by name.
        begins: the steps at which segments begin.
    """

    about: str
    features: Sequence[Curve]
    states: Mapping[str, Strip] = field(default_factory=dict)
    curves: Mapping[str, Curve] = field(default_factory=dict)
    gates: Mapping[str, Float[Tensor, "T"]] = field(default_factory=dict)
    begins: Sequence[int] = ()

    @property
    def heights(self) -> list[float]:
        """In inches."""
        others = [STRIP] * len(self.states) + [CURVE] * len(self.curves) + [GATE] * len(self.gates)
        return [PANEL] * len(self.features) + others

    def at(self, steps: slice) -> "Panels":
        """The panels below those of the features, at some steps."""
        states = {name: (state[steps], colors) for name, (state, colors) in self.states.items()}
        curves = {name: curve.at(steps) for name, curve in self.curves.items()}
        gates = {name: gate[steps] for name, gate in self.gates.items()}
        return replace(self, states=states, curves=curves, gates=gates)

    def thinned(self, every: int) -> "Panels":
        """Every n-th step, with the most probable gate of each n."""
        steps, gates = slice(None, None, every), {}
        for name, gate in self.gates.items():
            missing = gate.new_zeros(-len(gate) % every)
            gates[name] = torch.cat([gate, missing]).reshape(-1, every).amax(-1)
        return replace(self.at(steps), features=[curve.at(steps) for curve in self.features], gates=gates)


def ends_of(mean: Float[Tensor, "T *F"], sd: Float[Tensor, "T *F"], level: float) -> Ends:
    """The means, and these plus and minus normal quantiles times the standard deviations."""
    reach = float(ndtri((1 + level) / 2)) * sd
    return mean, mean - reach, mean + reach


def within_support(emission: Emission, ends: Ends) -> Ends:
    """The bands, limited to the support of the emission."""
    mean, lower, upper = ends
    least, most = (getattr(emission.support, f"{end}_bound", None) for end in ("lower", "upper"))
    lower = lower if least is None else lower.maximum(torch.as_tensor(least).to(lower))
    return mean, lower, upper if most is None else upper.minimum(torch.as_tensor(most).to(upper))


def curves_of(ends: Ends, **look: Any) -> list[Curve]:
    """A band for each column."""
    return [Curve(*columns, **look) for columns in zip(*(table.unbind(-1) for table in ends), strict=True)]


def strip(*states: Float[Tensor, "_ K"]) -> Strip:
    """The probabilities of states at steps that follow each other, with colours in the order of their numbers."""
    return torch.cat(states), state_colors(np.arange(states[0].shape[-1]))


def given_all(mean: Float[Tensor, "T F"], sd: Float[Tensor, "T F"], level: float, **below: Any) -> Panels:
    """The panels of a series, with the band of an observation given the whole series."""
    about = f", with the mean and {100 * level:g}% band of an observation given all of it"
    return Panels(about, curves_of(ends_of(mean, sd, level)), **below)


def ahead(forecast: Any, level: float, **below: Any) -> Panels:
    """The panels of a forecast, with a grey band for each feature."""
    ends = forecast.mean, *forecast.interval(level)
    return Panels(f"the mean and {100 * level:g}% interval", curves_of(ends), **below)


# ---- observations in the colours of states -------------------------------------------------------------------------


def emitted(
    emission: Emission,
    values: Parameters,
    mixture: StateMixture,
    ends: Ends,
    arc: Callable[[], Float[Tensor, "T F"]],
    state: Float[Tensor, "T K"],
    names: Sequence[str] | None = None,
) -> list[Curve]:
    """The curve of each feature, in the colours of the most probable states.

    Arguments:
        mixture: the distribution of the observations.
        ends: of the bands.
        arc: half the bands of angles.
        state: probabilities of states.
        names: of the states.
    """
    colors, best, curves = level_colors(emission, values), state.argmax(-1), []
    for feature in range(emission.n_features):
        part, (mean, lower, upper) = emission.of_feature(feature, values)[0], (end[:, feature] for end in ends)
        probs, binary = mixture.category_probs(feature) if _categorical(part) else None, _binary(part)
        if part.angular:
            lower, upper = mean - arc()[:, feature], mean + arc()[:, feature]
        bounds = (mean, mean, mean) if binary else (mean, lower, upper)
        joined = not (binary or part.angular or probs is not None)
        labels = _state_labels(emission, values, feature, names)
        curves.append(Curve(*bounds, probs, best, colors, part.angular, joined, labels))
    return curves


def level_colors(emission: Emission, values: Parameters) -> list[str]:
    """The colours of states, from dark to light by their level."""
    return state_colors(state_levels(emission, values).numpy())


def described(emission: Emission, spread: str) -> str:
    """The quantities that the figure shows of observations, in words."""
    if _categorical(emission):
        return "the probability of each category"
    return "the probability of a 1" if _binary(emission) else f"the mean and {spread}"


def _state_labels(
    emission: Emission, values: Parameters, feature: int, names: Sequence[str] | None
) -> tuple[ndarray, list[str]]:
    """The position of each state in a feature's panel, and its text there: its number or its name, and its level, or
    its scale if all states have the same level."""

    def texts(kind: str, of_states: ndarray, form: str) -> list[str]:
        labels = range(len(of_states)) if names is None else names
        return [f"state {k}: {kind}{format(at, form)}" for k, at in zip(labels, of_states, strict=True)]

    part, own, _ = emission.of_feature(feature, values)
    if _categorical(part):
        where = own["probs"].argmax(-1).double().numpy()
        return where, texts("mostly ", where, ".0f")
    mean, scale = (
        table.redrawn[:, feature].double().numpy() for table in (emission.mean(values), emission.variance(values))
    )
    scale = scale**0.5
    if isinstance(emission, Lagged):
        mean = emission.fixed_point(values)[:, feature].double().numpy()
    if bool(only_scales(emission, values)[feature]):
        return mean + scale, texts("sd ", scale, ".3g")
    return mean, texts("", mean, ".4g")


def _binary(emission: Emission) -> bool:
    """Whether observations are only 0 and 1; a band is then meaningless, and a joining line hides them."""
    return emission.support is constraints.boolean


def _categorical(emission: Emission) -> bool:
    return "category" in emission.sizes
