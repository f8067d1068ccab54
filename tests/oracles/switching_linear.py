"""Switching linear models of every kind at random parameters, small enough to enumerate."""

import samplehold as sh
import torch
from samplehold.switching.parameters import Parameters
from samplehold.switching.slds.layout import LinearRegimes

KINDS = {
    "chains": LinearRegimes(2, 1, 1),
    "vector chains": LinearRegimes(2, 2, 3, full_noise=True),
    "one chain": LinearRegimes(2, 2, 3, one_chain=True),
    "common emission": LinearRegimes(3, 1, 2, one_chain=True, common_emission=True),
    "recurrent": LinearRegimes(3, 2, 2, one_chain=True, common_emission=True, recurrent=True),
    "full noise": LinearRegimes(2, 1, 2, one_chain=True, full_noise=True),
}
ENUMERABLE = {name: layout for name, layout in KINDS.items() if not layout.recurrent}


def values_of(layout: LinearRegimes, seed: int = 0) -> Parameters:
    """Parameters that do not depend on each other."""
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for name, parameter in layout.known.items():
        shape = tuple(layout.sizes[dim] for dim in parameter.dims)
        draw = torch.randn(shape, generator=generator, dtype=torch.float64)
        support = str(parameter.support)
        if "Simplex" in support:
            draw = (draw + 2 * torch.eye(*shape)).softmax(-1) if len(shape) == 2 else draw.softmax(-1)
        elif "Semidefinite" in support:
            draw = draw @ draw.mT / 4 + 0.3 * torch.eye(shape[-1], dtype=draw.dtype)
        elif "GreaterThan" in support:
            draw = 0.2 + draw.abs() / 2
        elif name == "transition":
            draw = 0.6 * torch.eye(shape[-1], dtype=draw.dtype) + 0.2 * draw
        found[name] = draw
    return found


def model_of(layout: LinearRegimes) -> sh.SwitchingLinearSSM:
    """At random parameters."""
    model = sh.SwitchingLinearSSM(
        layout.n_regimes,
        layout.n_latent,
        layout.n_features,
        "one chain" if layout.one_chain else "chain per regime",
        recurrent=layout.recurrent,
        common_emission=layout.common_emission,
        observation_noise="full" if layout.full_noise else "diagonal",
    )
    return model.with_values(values_of(layout))
