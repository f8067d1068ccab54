r"""A fit as ArviZ knows it: every group of an `InferenceData`, computed over draws of the parameters at once.

With parameters $\theta_1, \ldots, \theta_n$ (a point estimate is one of them, repeated):

    posterior             theta_i, in the form in which people read parameters (scales, covariances)
    log_likelihood        log p(x_t | x_1..t-1, theta_i), one number a step
    posterior_predictive  x_t ~ p(x | s_t, z_t, theta_i) along a path (z, s) ~ p(z, s | x, theta_i)
    smoothed              P(s_t | x, theta_i), P(z_t = 1 | x, theta_i), P(s_t != s_t-1 | x, theta_i), averaged over i
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import arviz as az
import numpy as np
import pandas as pd
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from ...inference.chains.contract import Chain
from ..data.series import Sequences
from ..data.timeline import storable, time_index
from ..dynamics import Drive
from ..emissions import Categorical, Emission, Gated
from ..emissions.gated import PREFIX
from ..parameters import Parameters

if TYPE_CHECKING:
    from ..fitting.fit import Fit
    from ..model import SwitchingSSM

TABLE_SIZE = 2**24  # numbers in one likelihood table: draws beyond it are taken in turns

DYNAMICS_DIMS: dict[str, tuple[str, ...]] = {
    "redraw_prob": (),
    "redraw_intercept": (),
    "redraw_weights": ("covariate",),
    "state_probs": ("state",),
    "initial_probs": ("state",),
    "transition_probs": ("state", "state_new"),
}
EMISSION_DIMS: dict[str, tuple[str, ...]] = {  # after the state
    "loc": ("feature",),
    "scale": ("feature",),
    "covariance": ("feature", "feature_new"),
    "rate": ("feature",),
    "probs": ("feature",),
}


def to_arviz(
    fit: "Fit",
    x: Any,
    *,
    lengths: Any = None,
    covariates: Any = None,
    dt: Any = None,
    draws: int = 100,
    seed: int = 0,
) -> az.InferenceData:
    """The fit and the series x as ArviZ `InferenceData`.

    A fit with a posterior enters by `draws` independent draws from it. A fit by EM is a point. It enters `posterior` as
    one chain of `draws` equal draws, the plainest form that ArviZ's functions take, and they then mean this.
    `az.summary` shows the point with a standard deviation of 0, and its convergence columns say nothing. `az.loo` gives
    the log evidence at the point, the sum of one-step-ahead plug-in densities, with p_loo = 0: it does not know that
    the parameters were fitted to the same data, and it warns that Pareto's k is infinite, as equal draws have no tail.

    Groups (`sequence` only where x is a batch):
        posterior: the parameters, with dims among `state`, `state_new` (columns of transitions), `feature`, `category`
            and `covariate`. The background of a gated emission has no state.
        log_likelihood: `x (chain, draw, sequence, time)`, log p(x_t | x_1..t-1, parameters). Times at which nothing was
            observed are left out; where only some sequences have an observation, the others' value is 0.
        posterior_predictive: `x (chain, draw, sequence, time, feature)`: for each draw a path of states and gates from
            its posterior given all of x, and new observations along that path. So missing steps are filled in, and
            every step has seen itself; for a check that has not, use `log_likelihood`, and for series of the model's
            own `model.simulate`. NaN beyond a sequence's end.
        observed_data: `x (sequence, time, feature)`, NaN where missing.
        sample_stats: `objective (step)`, the log posterior, the ELBO or what else the fit raised, step by step.
        smoothed, averaged over draws, NaN beyond a sequence's end:
            `state_probability (sequence, time, state)`, P(s_t | x);
            `redraw_probability (sequence, time)`, P(z_t = 1 | x), for copy dynamics, whose first step is a redraw;
            `change_probability (sequence, time)`, P(s_t != s_t-1 | x): less, as a redraw may land on the old state.

    Arguments:
        x, lengths, covariates, dt: as in every method of the model; index and columns of pandas objects become the
            coordinates `time`, `feature` and `covariate`.
        draws: from the posterior, or how often a point is repeated; each has a series of its own in
            `posterior_predictive`.
        seed: of the predictive draws.

    Raises:
        ValueError: as `model.smooth`; fewer than 2 draws, which `az.loo` does not take.
    """
    if isinstance(draws, bool) or not isinstance(draws, int) or draws < 2:
        raise ValueError(f"draws: got {draws!r}, expected an integer of at least 2, the least that az.loo takes.")
    model = fit.model
    series = model.read(x, lengths)
    names = getattr(covariates, "columns", None)
    drive = model._drive(numbers(covariates), numbers(dt), series.values, series.batch_shape, series.values.shape[-2])
    if fit.posterior is None:
        values = {name: value.unsqueeze(0) for name, value in model.values_like(series.values).items()}
    else:
        values = {name: value.to(series.values) for name, value in fit.posterior.sample(draws, seed).items()}
    attributes = {
        "inference_library": "samplehold",
        "method": fit.method,
        "objective": float(fit.objective[-1]),
        "converged": int(fit.converged),
        "steps": fit.steps,
    }
    data = inference_data(model, values, (1, draws), series, drive, names, attributes, seed)
    trace = {"objective": (("step",), fit.objective.cpu().numpy())}
    data.add_groups(sample_stats=_dataset(trace, {"step": np.arange(1, len(fit.objective) + 1)}))
    return data


def inference_data(
    model: "SwitchingSSM",
    values: Parameters,
    shape: tuple[int, int],
    series: Sequences,
    drive: Drive,
    covariate_names: Any = None,
    attributes: dict[str, Any] | None = None,
    seed: int = 0,
) -> az.InferenceData:
    """All groups from parameter draws `[n, ...]`, where n is chains times draws = `shape`, or 1: a point repeated."""
    coords = coordinates(model, series, covariate_names)
    step = (*(name for name in coords if name.startswith("sequence")), "time")
    found = summarize(model, values, shape[0] * shape[1], series, drive, seed)
    seen = (~torch.isnan(series.values)).any(-1).reshape(-1, series.values.shape[-2]).any(0).cpu()
    parameters = {
        name: (("chain", "draw", *parameter_dims(name, model.emission)), _drawn(value, shape))
        for name, value in described(model, values).items()
    }
    smoothed = {
        name: ((*step, "state") if name == "state_probability" else step, probability.cpu().numpy())
        for name, probability in found.smoothed.items()
    }
    likelihood = {"x": (("chain", "draw", *step), _drawn(found.log_increment[..., seen], shape))}
    replicates = {"x": (("chain", "draw", *step, "feature"), _drawn(found.replicates, shape))}
    sampled = coords | {"chain": np.arange(shape[0]), "draw": np.arange(shape[1])}
    return az.InferenceData(
        attrs=attributes,
        posterior=_dataset(parameters, sampled),
        posterior_predictive=_dataset(replicates, sampled),
        log_likelihood=_dataset(likelihood, sampled | {"time": coords["time"][seen.numpy()]}),
        observed_data=_dataset({"x": ((*step, "feature"), series.values.cpu().numpy())}, coords),
        smoothed=_dataset(smoothed, coords),
    )


# ---- the numbers ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Summary:
    """What parameter draws `[n, ...]` say of a series."""

    log_increment: Float[Tensor, "n *b T"]  # log p(x_t | x_1..t-1), 0 where nothing was observed
    replicates: Float[Tensor, "total *b T F"]
    smoothed: dict[str, Tensor]  # means over draws, [*b, T, K] for states and [*b, T] for gates


def summarize(
    model: "SwitchingSSM", values: Parameters, total: int, series: Sequences, drive: Drive, seed: int
) -> Summary:
    """Filter, smooth and replicate the series under every draw; `total` replicates are shared out among the draws."""
    n = next(iter(values.values())).shape[0]
    at_once = max(1, TABLE_SIZE // (series.values.shape[:-1].numel() * model.n_states))
    increments, replicates, smoothed = [], [], {}
    generator = torch.Generator(series.values.device).manual_seed(seed)
    with torch.no_grad(), torch.random.fork_rng(devices=[series.values.device] if series.values.is_cuda else []):
        torch.random.manual_seed(seed)  # observations come from torch's global generator, which is put back afterwards
        for start in range(0, n, at_once):
            some = {name: value[start : start + at_once] for name, value in values.items()}
            chain = chain_of(model, some, series, drive)
            increments.append(chain.filter().log_increment.where(series.inside, 0.0))
            replicates.append(_replicates(model.emission, some, chain, total // n, generator))
            for name, probability in _smoothed(chain).items():
                smoothed[name] = smoothed.get(name, 0.0) + probability.sum(0) / n
    outside = ~series.inside.unsqueeze(-1)
    return Summary(
        log_increment=torch.cat(increments),
        replicates=torch.cat(replicates).masked_fill(outside, torch.nan),
        smoothed={
            name: p.masked_fill(outside if p.ndim > outside.ndim - 1 else outside[..., 0], torch.nan)
            for name, p in smoothed.items()
        },
    )


def _smoothed(chain: Chain) -> dict[str, Tensor]:
    """The probabilities of the group `smoothed`, for each draw."""
    smoothed = chain.smooth()
    redraw = {} if smoothed.redraw is None else {"redraw_probability": smoothed.redraw}
    return {"state_probability": smoothed.state} | redraw | {"change_probability": chain.change_probability()}


def chain_of(model: "SwitchingSSM", values: Parameters, series: Sequences, drive: Drive) -> Chain:
    """The chain over paths under parameters with leading axes `[*r, ...]`."""
    likelihood = model.emission.log_likelihood(series.values, values)
    return model.dynamics.chain(values, likelihood, drive, series.lengths)


def _replicates(emission: Emission, values: Parameters, chain: Chain, each: int, generator: torch.Generator) -> Tensor:
    """`each` new series along posterior paths of every draw: `[n * each, *b, T, F]`."""
    drawn = chain.sample(each, generator)
    redraw = torch.ones_like(drawn.path) if drawn.redraw is None else drawn.redraw
    n = drawn.path.shape[1]
    series = [
        emission.sample_at({name: value[i] for name, value in values.items()}, drawn.path[:, i], redraw[:, i])
        for i in range(n)
    ]
    return torch.cat(series)


def described(model: "SwitchingSSM", values: Parameters) -> Parameters:
    """Parameters `[n, ...]` as a reader knows them, the state axis of a background left out."""
    emitted = model.emission.event_dims
    moved = {name: value for name, value in values.items() if name not in emitted}
    shown = model.dynamics.describe(moved) | model.emission.describe(values)
    return {name: value.squeeze(1) if name.startswith(PREFIX) else value for name, value in shown.items()}


# ---- their names ---------------------------------------------------------------------------------------------------


def parameter_dims(name: str, emission: Emission) -> tuple[str, ...]:
    """The dims of a parameter in a reader's form; those of a gated emission's background have no state."""
    if name in DYNAMICS_DIMS:
        return DYNAMICS_DIMS[name]
    plain = name.removeprefix(PREFIX)
    part = emission
    if isinstance(emission, Gated):
        part = emission.emission if plain == name else emission.background
    own = ("category",) if isinstance(part, Categorical) else EMISSION_DIMS[plain]
    return ("state", *own) if plain == name else own


def coordinates(model: "SwitchingSSM", series: Sequences, covariate_names: Any) -> dict[str, Any]:
    """The labels of every axis but chain and draw; those of the sequences come first, in order."""
    batch, emission = series.batch_shape, model.emission
    names = ["sequence"] if len(batch) == 1 else [f"sequence_{i}" for i in range(len(batch))]
    coords: dict[str, Any] = {name: np.arange(n) for name, n in zip(names, batch, strict=True)}
    coords |= {"state": np.arange(model.n_states), "state_new": np.arange(model.n_states)}
    features = list(range(emission.n_features)) if series.features is None else list(series.features)
    coords |= {"feature": features, "feature_new": features, "time": storable(time_index(series)).to_numpy()}
    n_covariates = model.dynamics.n_covariates
    coords["covariate"] = list(range(n_covariates)) if covariate_names is None else [str(c) for c in covariate_names]
    for part in (emission.emission, emission.background) if isinstance(emission, Gated) else (emission,):
        if isinstance(part, Categorical):
            coords["category"] = np.arange(part.n_categories)
    return coords


def _dataset(variables: dict[str, Any], coords: dict[str, Any]) -> xr.Dataset:
    """A dataset with those coordinates that its variables use."""
    used = {dim for dims, _ in variables.values() for dim in dims}
    return xr.Dataset(variables, coords={name: (name, labels) for name, labels in coords.items() if name in used})


def _drawn(draws: Tensor, shape: tuple[int, int]) -> np.ndarray:
    """Draws `[n, ...]` as `[chains, draws, ...]`; a single one is repeated, without a copy."""
    array = draws.cpu().numpy()
    if array.shape[0] == 1:
        return np.broadcast_to(array[0], (*shape, *array.shape[1:]))
    return array.reshape(*shape, *array.shape[1:])


def numbers(table: Any) -> Any:
    """A pandas object as an array of numbers of its own; anything else as it is."""
    return np.array(table, dtype=np.float64) if isinstance(table, pd.DataFrame | pd.Series) else table
