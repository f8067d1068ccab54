"""Models of several chains from tables in order, chain by chain."""

from collections.abc import Mapping, Sequence

from samplehold import FactorialSSM, LayeredSSM, MultivariateNormal, Poisson
from samplehold.switching.emissions.contract import Emission
from torch import Tensor


def factorial_of(
    redraw_prob: Tensor, state_probs: Sequence[Tensor], loc: Sequence[Tensor], precision: Tensor | None = None
) -> FactorialSSM:
    """A factorial model; counts without a precision."""
    n_features = loc[0].shape[-1]
    emission = Poisson(n_features) if precision is None else MultivariateNormal(n_features)
    values = {"redraw_prob": redraw_prob} | ({} if precision is None else {"precision": precision})
    for d, (probs, part) in enumerate(zip(state_probs, loc, strict=True), start=1):
        values |= {f"state_probs_{d}": probs, f"loc_{d}": part}
    return FactorialSSM([len(probs) for probs in state_probs], emission).with_values(values)


def layered_of(
    emission: Emission,
    values: Mapping[str, Tensor],
    redraw_prob: Tensor,
    tables: Sequence[Tensor],
    state_probs: Tensor,
) -> LayeredSSM:
    """A layered model, whose emission has these values."""
    sizes = [*(table.shape[-1] for table in tables), len(state_probs)]
    between = {f"table_{layer}": table for layer, table in enumerate(tables, start=1)}
    return LayeredSSM(sizes, emission).with_values(values | between, redraw_prob=redraw_prob, state_probs=state_probs)
