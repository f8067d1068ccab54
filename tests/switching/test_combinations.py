"""Every emission under all dynamics, methods, and kinds of series.

Emissions with a background take turns between the two dynamics that redraw states.
"""

import itertools

import pytest
import samplehold as sh
import torch

EMISSIONS = {
    "normal": sh.Normal(2),
    "full": sh.MultivariateNormal(2),
    "poisson": sh.Poisson(2),
    "bernoulli": sh.Bernoulli(2),
    "categorical": sh.Categorical(3),
    "tied": sh.Normal(2, tied={"scale": "all states"}),
    "tied full": sh.MultivariateNormal(2, tied={"covariance": "all states"}),
}
PAIRS = [("normal", "full"), *itertools.combinations(("poisson", "normal", "full"), 2), ("poisson", "bernoulli")]
GATED = {
    f"{one}/{other}": sh.Gated(EMISSIONS[one], EMISSIONS[other])
    for one, other in [*((name, name) for name in EMISSIONS), *PAIRS, *((b, a) for a, b in PAIRS)]
} | {
    f"{one}/{other} by state": sh.Gated(EMISSIONS[one], EMISSIONS[other], by_state=True)
    for one, other in [*((name, name) for name in EMISSIONS), ("normal", "full")]
}
GATED |= {
    "both tied": sh.Gated(sh.Normal(2), sh.Normal(2), tied={"scale": "all states"}),
    "both tied full": sh.Gated(sh.MultivariateNormal(2), sh.MultivariateNormal(2), tied={"covariance": "all states"}),
    "both tied by state": sh.Gated(sh.Normal(2), sh.Normal(2), by_state=True, tied={"scale": "all states"}),
}
CASES = [
    *itertools.product(EMISSIONS, ("copy", "inputs", "two inputs", "markov", "driven markov", "stationary", "forward")),
    *zip(GATED, itertools.cycle(("copy", "inputs"))),
]
DYNAMICS = {
    "copy": sh.Copy(2),
    "inputs": sh.Copy(2, inputs=1),
    "two inputs": sh.Copy(2, inputs=2),
    "markov": sh.Markov(2),
    "driven markov": sh.Markov(2, inputs=2),
    "stationary": sh.Markov(2, initial="stationary"),
    "forward": sh.Markov.left_right(2, initial=[1.0, 0.0]),
}


def observations(emission: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Numbers that every part of the emission can have produced."""
    generator = torch.Generator().manual_seed(3)
    if "categorical" in emission:
        return torch.randint(3, (*shape, 1), generator=generator).to(dtype)
    if "bernoulli" in emission:
        return torch.randint(2, (*shape, 2), generator=generator).to(dtype)
    if "poisson" in emission:
        return torch.randint(6, (*shape, 2), generator=generator).to(dtype)
    return torch.randn(*shape, 2, generator=generator).to(dtype)


@pytest.mark.few(12)
@pytest.mark.parametrize("method", ["em", "vmp"])
@pytest.mark.parametrize(("emission", "dynamics"), CASES)
def test_every_combination_is_fitted(emission, dynamics, method):
    model = sh.SwitchingSSM(DYNAMICS[dynamics], (EMISSIONS | GATED)[emission])
    if method == "vmp" and model.dynamics.not_conjugate:
        method = "svi"
    for shape, dtype, lengths in (
        ((40,), torch.float64, None),
        ((3, 3), torch.float64, [3, 3, 1]),
        ((2,), torch.float32, None),
    ):
        x, given = observations(emission, shape, dtype), {}
        if model.n_inputs:
            drive = torch.randn(*shape, model.n_inputs, generator=torch.Generator().manual_seed(1))
            given = {"inputs": drive.to(dtype)}
        if lengths is not None:
            given["lengths"] = lengths
        fit = model.fit(x, method, restarts=1, max_steps=4, progress=False, **given)
        objective = fit.objective
        assert bool(objective.isfinite().all())
        slack = 1e-9 if dtype is torch.float64 else 1e-4
        assert method == "svi" or float(objective.diff().min()) > -slack * max(1.0, float(objective.abs().max()))
        assert all(bool(value.isfinite().all()) for value in fit.model.values.values())
        assert bool(fit.smooth().state.isfinite().all())
