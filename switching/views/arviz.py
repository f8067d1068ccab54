r"""A fit in ArviZ's form: every group of an `InferenceData`, computed over draws of the parameters at once.

The groups are datasets of xarray. ArviZ, which is slow to import, is needed only for the `InferenceData` of them. From
version 1 on ArviZ takes an `xarray.DataTree` instead, and so `to_arviz` gives one: see `groups.wrapped`.

For draws $\theta_1, \ldots, \theta_n$ of the parameters:

    posterior             theta_i, in the displayed form of parameters (scales, covariances)
    log_likelihood        log p(x_t | x_1..t-1, theta_i), one number per step
    posterior_predictive  x_t ~ p(x_t | x_1..t-1, theta_i)
    replicated            x_t ~ p(x | s_t, z_t, theta_i) along a path (z, s) ~ p(z, s | x, theta_i)
    smoothed              P(s_t | x, theta_i), P(z_t = 1 | x, theta_i), P(s_t != s_t-1 | x, theta_i), averaged over i
"""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from ...inference.numerics.checks import naming
from ...inference.numerics.randomness import Seed
from ...inference.numerics.scalars import check_flag, check_integer
from ..data.series import Given, Series
from ..fitting.posterior import EXPORTED
from ..parameters import SINGLE, Parameters, described
from ..seeding import number_of, seeded
from .estimates import draws_around
from .groups import Groups, wrapped
from .tables import coordinates

if TYPE_CHECKING:
    import arviz as az

DRAWN = "draws of the posterior of the parameters"
AROUND = "draws of a normal around the estimates, with the curvature of the {} in free coordinates"
AT_END = "; entries at the boundary of their range are the same in all draws: {}"
OF_POINT = {"posterior": "estimates", "log_likelihood": "log_density"}  # names of groups
POINT = (
    "left out: the parameters are point estimates without a definite curvature at a maximum; "
    'method="vmp" or "nuts" has a posterior'
)


def to_arviz(
    source: Any,
    x: Any,
    *,
    draws: int | None = None,
    seed: Seed = 0,
    predictive: bool = True,
    **given: Unpack[Given],
) -> "az.InferenceData":
    """A fit, or a model at its values, and the series x as ArviZ `InferenceData`.

    `Segments` have the hazard and the hyperparameters as parameters, no states, and as `change_probability` that of a
    new segment; the parameters of segments are integrated out. Models of several chains have one `state_probability_d`
    for each chain, and a column of `redraw_probability`.

    A fit with a posterior enters by independent draws from it. Chains of NUTS stay separate, with all their draws; if
    `draws` is given, each is thinned evenly, so that there are `draws` draws together. A fit by EM enters by draws of a
    normal around its estimates, with the curvature from which `summary` has standard errors: see `fitting.curvature`.
    The attribute `posterior` of the result says where the draws come from.

    A fit by EM without such draws, and a model without a fit, are points. They have the groups `estimates` and
    `log_density` in place of `posterior` and `log_likelihood`. Copies of a point would make `az.loo` too good, because
    they ignore that the parameters were fitted to the same data. Probabilities that end at 0 or 1, as `initial_probs`
    often do, are the same in all draws; the attribute names their parameters. There are no draws if another number has
    no standard error in `summary`; if the fit has not reached a maximum; or if the curvature is unknown. Then use
    method="vmp" or "nuts".

    Groups (`sequence` only if x is a batch):
        posterior, or estimates of a point, without the dims of draws: the parameters (for a variational fit, its
            `refined` draws), with dims among `state`, `state_new` (columns of transitions), `feature`, `category` and
            `input`. The background of a gated emission has no state, and neither has a scale that all states share.
        observed_data: `x (sequence, time, feature)`, at the times with observations (and their lags, if the model
        reads some), NaN where a feature lacks these; without `feature` if there is only one. If sequences were observed
        at different times, `x (observation, feature)`, with the coordinates `of_sequence` and `of_time`.
        log_likelihood, or log_density of a point, without the dims of draws: `x`, log p(x_t | x_1..t-1, parameters),
            one number per time, with the same axes except `feature`; of `Segments` whose sequences change together,
            that of all sequences, without their axis.
        posterior_predictive: `x`, draws from that density, with the axes of `observed_data`; `az.plot_loo_pit` and
        `az.plot_ppc` compare them with it. With several features, `az.plot_loo_pit` takes one at a time, as arrays. For
        a `SwitchingLinearSSM` these draws are coarser: before each step the filter's densities of the states, one
        normal for each regime, are merged into one with their mean and covariance. `log_likelihood` keeps them apart.
        If the states influence the next regime, the merged mean chooses it.
        replicated: `x (chain, draw, sequence, time, feature)`: for each draw, a path of states and gates from its
        posterior given all of x, and new observations along that path. Missing steps are filled in, and the path of
        every step depends on its own observation. NaN after a sequence's end.
        sample_stats: `objective (step)`, the log posterior, the ELBO or another objective of the fit, by step; for NUTS
        also `diverging (chain, draw)`.
        smoothed, averaged over draws, NaN after a sequence's end:
            `state_probability (sequence, time, state)`, P(s_t | x);
            `redraw_probability (sequence, time)`, P(z_t = 1 | x), for copy dynamics, whose first step is a redraw;
            `change_probability (sequence, time)`, P(s_t != s_t-1 | x): this is smaller, as a redraw may draw the old
            state.

    Arguments:
        source: the fit or the model.
        x, lengths, inputs, dt: as in every method of the model; index and columns of pandas objects become the
            coordinates `time`, `feature` and `input`.
        draws: the number of draws of the parameters, or of series at a point; each has its own series in
            `posterior_predictive`. None: all draws of NUTS, otherwise 100.
        seed: of the draws.
        predictive: whether to draw series, for `posterior_predictive` and `replicated`.

    Raises:
        ValueError: as `model.smooth`; fewer than 2 draws, which `az.loo` rejects.
    """
    return wrapped(to_groups(source, x, draws=draws, seed=seed, predictive=predictive, **given))


def to_groups(
    source: Any, x: Any, *, draws: int | None = None, seed: Seed = 0, predictive: bool = True, **given: Unpack[Given]
) -> Groups:
    """The groups of `to_arviz`."""
    draws = None if draws is None else check_integer("draws", draws, least=2)
    predictive = check_flag("predictive", predictive)
    fit = source if hasattr(source, "posterior") else _point(source)
    model, series = fit.model, fit.model.read(x, **given).detached().as_table("export")
    values, shape, origin = _draws(fit, draws, seed)
    at_point, values = values is None, model.values_like(series.like) if values is None else values
    values = {name: value.to(series.like) for name, value in values.items()}
    values = {name: value.unsqueeze(0) for name, value in values.items()} if at_point else values
    attributes = {
        "inference_library": "samplehold",
        "method": fit.method,
        "posterior": origin,
        "objective": float(fit.objective[-1]) if len(fit.objective) else float("nan"),
        "converged": int(fit.converged),
        "steps": fit.steps,
    }
    with naming("x"):
        groups = groups_of(model, values, shape, series, number_of(seed), predictive)
    if at_point:
        groups = {OF_POINT.get(name, name): group for name, group in groups.items()}
        groups |= {name: groups[name].isel(chain=0, draw=0, drop=True) for name in OF_POINT.values()}
    trace: dict[str, Any] = {"objective": (("step",), fit.objective.cpu().numpy())}
    diverging, posterior = getattr(fit.posterior, "diverging", None), fit.posterior
    if posterior is not None and diverging is not None:
        diverging = diverging[:, posterior.spaced(draws)]
        trace["diverging"] = (("chain", "draw"), diverging.cpu().numpy())
    groups["sample_stats"] = _dataset(trace, {"step": np.arange(1, len(fit.objective) + 1)})
    return Groups(groups, attributes)


def _point(model: Any) -> Any:
    """A model's values as a fit without steps."""
    nothing = torch.empty(0, device="cpu")
    return SimpleNamespace(
        model=model, method="none", objective=nothing, converged=True, steps=0, posterior=None, series=None, kept=None
    )


def _draws(fit: Any, n: int | None, seed: Seed) -> tuple[Parameters | None, tuple[int, int], str]:
    """Draws of the parameters, one chain after another; the number of chains and of draws in each; where the draws come
    from. Without draws the fit is a point."""
    if fit.posterior is not None:
        return *fit.posterior.refined.chains(n, seed), DRAWN
    n = EXPORTED if n is None else n
    drawn = None if fit.series is None and fit.kept is None else draws_around(fit, n, seed)
    if drawn is None:
        return None, (1, n), POINT
    around = AROUND.format("log-likelihood" if fit.prior is None else "log posterior")
    ends = [name for name, table in drawn.items() if name not in fit.fixed and _has_constants(table)]
    return drawn, (1, n), around + (AT_END.format(", ".join(ends)) if ends else "")


def _has_constants(draws: Tensor) -> bool:
    """Whether some entry is the same in all draws `[n, ...]`."""
    return bool((draws == draws[:1]).all(0).any())


def groups_of(
    model: Any, values: Parameters, shape: tuple[int, int], series: Series, seed: int = 0, predictive: bool = True
) -> dict[str, xr.Dataset]:
    """All groups from parameter draws `[n, ...]`, where n is chains times draws = `shape`, or 1: a point repeated."""
    coords = coordinates(series, model)
    step = (*(name for name in coords if name.startswith("sequence")), "time")
    summary = generated_quantities(model, values, shape[0] * shape[1] if predictive else 0, series, seed)
    scored = model.scored(series)
    seen = scored.any(-1).cpu()
    smoothed = {name: ((*step, *axes), p.cpu().numpy()) for name, (p, axes) in summary.smoothed.items()}
    sampled = coords | {"chain": np.arange(shape[0]), "draw": np.arange(shape[1])}
    at = _observed(seen, coords, step)
    feature = ("feature",) if model.n_features > 1 else ()

    def observed(table: Tensor) -> Tensor:
        return at.take(table) if feature else at.take(table).squeeze(-1)

    groups: dict[str, Any] = {"posterior": _dataset(_parameters(model, values, shape), sampled)}
    if summary.ahead is not None:
        ahead = (("chain", "draw", *at.axes, *feature), _drawn(observed(summary.ahead), shape))
        groups["posterior_predictive"] = _dataset({"x": ahead}, sampled | at.coords)
    together = summary.log_increment.ndim <= seen.ndim
    scored_at = _observed(seen.reshape(-1, seen.shape[-1]).any(0), coords, ("time",)) if together else at
    log_likelihood = (("chain", "draw", *scored_at.axes), _drawn(scored_at.take(summary.log_increment), shape))
    groups["log_likelihood"] = _dataset({"x": log_likelihood}, sampled | scored_at.coords)
    seen_x = (
        (*at.axes, *feature),
        observed(torch.where(scored, series.observations, torch.nan).unsqueeze(0))[0].cpu().numpy(),
    )
    groups["observed_data"] = _dataset({"x": seen_x}, coords | at.coords)
    if summary.replicates is not None:
        replicated = (("chain", "draw", *step, "feature"), _drawn(summary.replicates, shape))
        groups["replicated"] = _dataset({"x": replicated}, sampled)
    return groups | {"smoothed": _dataset(smoothed, coords)}


def estimates(model: Any, series: Series) -> xr.Dataset:
    """A model's values in their displayed forms."""
    values = {name: value.unsqueeze(0) for name, value in model.values.items()}
    coords = coordinates(series, model) | {"chain": np.arange(1), "draw": np.arange(1)}
    return _dataset(_parameters(model, values, (1, 1)), coords).isel(chain=0, draw=0, drop=True)


def _parameters(model: Any, values: Parameters, shape: tuple[int, int]) -> dict[str, Any]:
    """Draws of the parameters in their displayed forms, with the names of their axes."""
    dims = {p.shown.name if p.shown else name: p.dims for name, p in model.known.items()}
    parameters = {}
    for name, value in described(model.known, values).items():
        single = tuple(axis for axis, dim in enumerate(dims[name], start=1) if dim in SINGLE)
        axes = (dim for dim in dims[name] if dim not in SINGLE)
        parameters[name] = (("chain", "draw", *axes), _drawn(value.squeeze(single), shape))
    return parameters


@dataclass(frozen=True)
class Observed:
    """The steps with observations: the names of their axes, their labels, and an index."""

    axes: tuple[str, ...]
    coords: dict[str, Any]
    index: tuple[Any, ...]

    def take(self, table: Float[Tensor, "n *bT"]) -> Tensor:
        """The entries of a table at these steps."""
        return table[(slice(None), *self.index)]


def _observed(seen: Tensor, coords: dict[str, Any], step: tuple[str, ...]) -> Observed:
    """The steps `[*b, T]` with observations: some times of all sequences, or else single steps."""
    times = seen.reshape(-1, seen.shape[-1])
    first = times[0] if len(times) else torch.ones(seen.shape[-1], dtype=torch.bool, device="cpu")
    if bool((times == first).all()):
        each = tuple(slice(None) for _ in range(seen.ndim - 1))
        return Observed(step, {"time": coords["time"][first.numpy()]}, (*each, first))
    of = dict(zip((f"of_{name}" for name in step), seen.nonzero().numpy().T, strict=True))
    labels = {name: ("observation", np.asarray(coords[name[3:]])[index]) for name, index in of.items()}
    return Observed(("observation",), {"observation": np.arange(int(seen.sum())), **labels}, (seen,))


# ---- the numbers ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GeneratedQuantities:
    """The results of parameter draws `[n, ...]` for a series."""

    log_increment: Float[Tensor, "n *together T"]  # log p(x_t | x_1..t-1), 0 without an observation
    ahead: Float[Tensor, "total *b T F"] | None  # draws of the same density
    replicates: Float[Tensor, "total *b T F"] | None
    smoothed: dict[str, tuple[Tensor, tuple[str, ...]]]  # means over draws [*b, T, ...], and their axes after time


def generated_quantities(model: Any, values: Parameters, total: int, series: Series, seed: int) -> GeneratedQuantities:
    """Filter, smooth and replicate the series under every draw; the `total` replicates (or none) are divided among
    draws."""
    n, problem = len(next(iter(values.values()))), model.problem(series)
    increments, ahead, replicates, smoothed = [], [], [], {}
    generator = torch.Generator(series.like.device).manual_seed(seed)
    with torch.no_grad(), seeded(seed, series.like):
        for some in problem.in_turns(values):
            product = model.product_of(some)
            chain = problem.chain(product)
            filtered = chain.filter()
            increments.append(_ended(filtered.log_increment, series))
            if total:
                ahead.append(problem.draws_ahead(product, filtered, total // n))
                replicates.append(problem.draws_along(product, chain.sample(total // n, generator)))
            for name, (probability, axes) in model.probabilities(chain, some).items():
                probability = _of_each(probability, series, len(axes))
                before = smoothed[name][0] if name in smoothed else 0.0
                smoothed[name] = before + probability.sum(0) / n, axes
    outside = ~series.inside

    def ended(table: Tensor) -> Tensor:
        return table.masked_fill(outside.reshape(*outside.shape, *[1] * (table.ndim - outside.ndim)), torch.nan)

    means = {name: (ended(p), axes) for name, (p, axes) in smoothed.items()}
    if not total:
        return GeneratedQuantities(torch.cat(increments), None, None, means)
    replicated = torch.cat(replicates).masked_fill(outside.unsqueeze(-1), torch.nan)
    return GeneratedQuantities(torch.cat(increments), torch.cat(ahead), replicated, means)


def _ended(increment: Float[Tensor, "n *b T"], series: Series) -> Float[Tensor, "n *b T"]:
    """Increments of log p(x), 0 after the end of a sequence. Those of sequences that change together are of all."""
    together = increment.ndim <= series.inside.ndim
    return increment.to(series.like) if together else increment.to(series.like).where(series.inside, 0.0)


def _of_each(table: Tensor, series: Series, n_axes: int) -> Tensor:
    """A table `[n, *b, T, ...]`; one of sequences that change together, `[n, T, ...]`, is repeated for each."""
    batch = series.batch_shape
    if table.ndim - n_axes == 2 + len(batch):
        return table
    return table.reshape(len(table), *[1] * len(batch), *table.shape[1:]).expand(-1, *batch, *table.shape[1:])


# ---- their names ---------------------------------------------------------------------------------------------------


def _dataset(variables: dict[str, Any], coords: dict[str, Any]) -> xr.Dataset:
    """A dataset with the coordinates that its variables use."""
    used = {dim for dims, _ in variables.values() for dim in dims}
    along = {name: labels if isinstance(labels, tuple) else (name, labels) for name, labels in coords.items()}
    return xr.Dataset(variables, coords={name: labels for name, labels in along.items() if labels[0] in used})


def _drawn(draws: Tensor, shape: tuple[int, int]) -> np.ndarray:
    """Draws `[n, ...]` as `[chains, draws, ...]`; a single draw is repeated without a copy."""
    array = draws.cpu().numpy()
    if array.shape[0] == 1:
        return np.broadcast_to(array[0], (*shape, *array.shape[1:]))
    return array.reshape(*shape, *array.shape[1:])
