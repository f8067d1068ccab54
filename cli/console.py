"""The work of the commands: they read tables, and write files and tables of text.

A fit is written to a folder with `model/` (from `SwitchingSSM.save`, with notes of the columns of the fitted table),
`posterior.nc`, `states.csv` and `plot.png`.
"""

import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from rich.console import Console
from rich.markup import escape

from .. import __all__ as public_names  # pyright: ignore[reportAttributeAccessIssue] lazily made
from ..switching.data.files import check_model
from ..switching.data.series import Series
from ..switching.data.tables import TableSeries, numeric_columns, pick_series, read_table
from ..switching.data.timeline import following, label_text, uneven
from ..switching.data.writing import write_output
from ..switching.emissions.autoregression import AutoRegressive
from ..switching.emissions.contract import Emission
from ..switching.emissions.generalized import GeneralizedLinear
from ..switching.emissions.normal import Normal
from ..switching.emissions.regression import LinearRegression
from ..switching.fit import Fit
from ..switching.model import SwitchingSSM
from ..switching.storage import find, read_model
from ..switching.stored_fit import save_fit
from ..switching.views.arviz import estimates, to_groups
from ..switching.views.groups import Groups, netcdf
from .printing import show_diagnostics, show_parameters, show_switches
from .results import MODEL, PLOT, POSTERIOR, RESULTS, STATES, replacing
from .startup import Termination

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 160
ROWS = 100_000  # rows of a table that are written together
FEWEST_DRAWS, MOST_DRAWS = 4, 1000  # in posterior.nc
MAX_REPLICATED = 10**7  # largest size of posterior predictive series, in numbers


@dataclass(frozen=True)
class SavedModel:
    """A model from disk, and the columns of its tables."""

    model: Any  # of one chain, or of several
    columns: list[str]
    time: str | None
    inputs: dict[str, tuple[float, float]]  # mean and standard deviation of each, for standardisation
    sequence: str | None = None


# ---- reading -------------------------------------------------------------------------------------------------------


def build(
    observed: pd.DataFrame,
    n_states: int,
    emission: str,
    dynamics: str,
    inputs: Sequence[str],
    emission_inputs: Sequence[str] = (),
    order: int = 1,
) -> SwitchingSSM:
    """The model for these options; ValueError if the options do not fit together."""
    if n_states < 1:
        raise ValueError(f"--states: got {n_states}, expected at least 1.")
    if order < 1:
        raise ValueError(f"--order: got {order}, expected at least 1.")
    kind = class_of(dynamics)
    if inputs and "inputs" not in kind.__dataclass_fields__:
        raise ValueError(f"--inputs: {kind.name} does not support inputs; use --dynamics copy or markov.")
    moves = kind(n_states, **({"inputs": tuple(inputs)} if inputs else {}))
    try:
        plain = class_of(emission).sized_to(observed.to_numpy())
    except ValueError as error:
        raise ValueError(f"--columns: {str(error).removeprefix('x: ')}") from None
    if isinstance(plain, AutoRegressive):
        return SwitchingSSM(moves, replace(plain, order=order, inputs=tuple(emission_inputs) or 0))
    if order != 1:
        raise ValueError(f"--order: got {order}, but {plain.name} has no lags; use --emission auto-regressive.")
    return SwitchingSSM(moves, reading(plain, tuple(emission_inputs)) if emission_inputs else plain)


def reading(plain: Emission, inputs: tuple[str, ...]) -> Emission:
    """The emission with inputs; ValueError if it supports none."""
    if isinstance(plain, Normal):
        return LinearRegression(plain.n_features, inputs)
    if plain.name not in GeneralizedLinear.links:
        raise ValueError(
            f"--emission-inputs: {plain.name} does not support inputs; use {', '.join(GeneralizedLinear.links)}."
        )
    return GeneralizedLinear(plain, inputs)


def class_of(name: str) -> Any:
    """The public class for the value of an option, e.g. MultivariateNormal for multivariate-normal."""
    joined = name.replace("-", "")
    return find(next(public for public in public_names if public.lower() == joined))


def load(path: Path) -> SavedModel:
    """A model from `fit_and_write` or `SwitchingSSM.save`; ValueError if there is none."""
    check_model(path)
    folder = path / MODEL if (path / MODEL).is_dir() else path
    try:
        stored = read_model(folder)
    except ValueError as error:
        raise ValueError(f"model: {str(error).removeprefix('path: ')}") from None
    model, known = stored.model, stored.notes
    if not model.values:
        raise ValueError(f"model: {folder} holds a model without parameter values; fit it first.")
    if not known:
        return SavedModel(model, [], None, {})
    try:
        inputs = {name: (float(mean), float(scale)) for name, (mean, scale) in known["inputs"].items()}
        names = [str(name) for name in known["columns"]]
        return SavedModel(model, names, known["time"], inputs, known.get("sequence"))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"model: {folder} does not name its columns ({error!r}); fit the model again.") from None


def read_series_of(
    saved: SavedModel, data: Path, columns: Sequence[str] | None, time: str | None, sequence: str | None
) -> TableSeries:
    """The series of a saved model's columns in a table."""
    table = read_table(data)
    time = saved.time if time is None and saved.time in table.columns else time
    sequence = saved.sequence if sequence is None and saved.sequence in table.columns else sequence
    series = pick_series(table, data, columns or saved.columns or None, list(saved.inputs), time, sequence)
    if series.observed.shape[1] != saved.model.n_features:
        raise ValueError(
            f"--columns: got {', '.join(series.observed.columns)}, but the model has "
            f"{saved.model.n_features} feature(s); name this number of columns."
        )
    return series


def standardised(table: pd.DataFrame, scaling: dict[str, tuple[float, float]]) -> pd.DataFrame | None:
    """Each input minus its mean, divided by its standard deviation; None if there are no inputs."""
    if not scaling:
        return None
    return pd.DataFrame({name: (table[name] - mean) / scale for name, (mean, scale) in scaling.items()})


def scaling_of(table: pd.DataFrame) -> dict[str, tuple[float, float]]:
    """Mean and standard deviation of every input; ValueError if one is constant or has empty cells."""
    scaling = {}
    for name in table.columns:
        column = np.asarray(table[name], dtype=np.float64)
        mean, scale = float(column.mean()), float(column.std())
        if np.isnan(column).any():
            raise ValueError(
                f"--inputs: {name} has empty cells, but inputs cannot be missing; fill them or drop the column."
            )
        if not scale > 0:
            raise ValueError(f"--inputs: {name} is constant, so it has no effect; drop it.")
        scaling[str(name)] = (mean, scale)
    return scaling


# ---- fit -----------------------------------------------------------------------------------------------------------


def read_with_inputs(model: SwitchingSSM, series: TableSeries) -> tuple[Series, dict[str, tuple[float, float]]]:
    """The series with its standardised inputs, and the mean and standard deviation of each."""
    scaling = scaling_of(series.inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of unevenly spaced steps
        observed = model.read(series.observed, inputs=standardised(series.inputs, scaling))
    check_order(model, observed)
    return observed, scaling


def check_order(model: SwitchingSSM, observed: Series) -> None:
    """ValueError if a sequence has no row with all lags."""
    shortest = int((observed.last + 1).min())
    if shortest <= model.order:
        raise ValueError(
            f"--order: got {model.order}, but the shortest sequence has {shortest} row(s), so none has all lags; use a "
            "smaller order, or leave the sequence out."
        )


def fit_and_write(model: SwitchingSSM, series: TableSeries, out: Path, **options: Any) -> None:
    """Fit with the options of `SwitchingSSM.fit`, write the four results, and print a summary."""
    observed, scaling = read_with_inputs(model, series)
    notes = {"columns": list(series.observed.columns), "time": series.time, "inputs": scaling}
    notes |= {} if series.sequence is None else {"sequence": series.sequence}
    with Termination() as termination:
        with termination.interrupts():
            fit = model.fit(observed, **options)
        check_made(fit, options["method"])
        posterior, states = draws_of(fit, observed), fit.states(observed)
        with replacing(out) as new:
            save_fit(fit, new / MODEL, notes)
            (new / POSTERIOR).write_bytes(netcdf(posterior))
            with open(new / STATES, "w", encoding="utf-8", newline="") as file:
                for first in range(0, len(states), ROWS):
                    rows = slice(first, first + ROWS)
                    table = beside(series.observed.iloc[rows], states.iloc[rows].round(6))
                    table.to_csv(file, index_label=series.observed.index.names, header=first == 0)
            fit.plot(observed).savefig(new / PLOT, dpi=DPI)
        show(series, observed, fit, states)
        Console(highlight=False).print(escape(f"Wrote {', '.join(RESULTS)} to {out}."), soft_wrap=True)


def check_made(fit: Fit[Any], method: str) -> None:
    """KeyboardInterrupt with a line on stderr if a sampler was stopped before it had a draw: the fit where it starts is
    of another method, and no result of the command."""
    if fit.method != method:
        Console(stderr=True, highlight=False).print(
            f"samplehold: {method} was stopped before its first draw, so nothing was written.", soft_wrap=True
        )
        raise KeyboardInterrupt


def show(series: TableSeries, observed: Series, fit: Fit[Any], states: pd.DataFrame) -> None:
    """Print the parameters, the switches and the end of the fit."""
    console = Console(highlight=False)
    show_parameters(console, estimates(fit.model, observed), states)
    show_switches(console, states)
    show_diagnostics(console, fit)
    if uneven([series.observed.index] if observed.stacked is None else observed.stacked.times) is not None:
        console.print(f"Note: {series.time} is not evenly spaced; its rows were read as consecutive steps.")
    if series.left_out:
        note = f"Note: {', '.join(series.left_out)} left out, as not of numbers."
        console.print(escape(note), soft_wrap=True)
    if observed.sequences is not None and len(observed.sequences) > 1:
        first = f"{PLOT} shows the first of {len(observed.sequences)} sequences, {observed.sequences[0]}."
        console.print(escape(first), soft_wrap=True)


def draws_of(fit: Fit[Any], observed: Series) -> Groups:
    """The fit for ArviZ, with up to 1000 draws.

    If the series is too long for that (`MAX_REPLICATED`), no series are drawn.
    """
    affordable = MAX_REPLICATED // observed.observations.numel()
    draws = min(max(affordable, FEWEST_DRAWS), MOST_DRAWS)
    return to_groups(fit, observed, draws=draws, predictive=affordable >= FEWEST_DRAWS)


def beside(observed: pd.DataFrame, results: pd.DataFrame) -> pd.DataFrame:
    """The results next to the observed columns; an observed column with a result's name is renamed."""
    kept = observed.rename(columns={name: f"{name} (observed)" for name in results.columns})
    return pd.concat([kept, results.set_axis(kept.index)], axis=1)


# ---- forecast and sample -------------------------------------------------------------------------------------------


def forecast_table(
    saved: SavedModel, series: TableSeries, horizon: int, level: float, coming: Path | None
) -> tuple[pd.DataFrame, Series]:
    """A row for each step ahead, and the series with its inputs up to the horizon."""
    if horizon < 1:
        raise ValueError(f"--horizon: got {horizon}, expected at least 1.")
    if not 0 < level < 1:
        raise ValueError(f"--level: got {level}, expected a probability between 0 and 1, such as 0.9.")
    if series.sequence is not None and saved.inputs:
        raise ValueError("--sequence: a model with inputs forecasts one sequence; give a table of one.")
    ahead = coming_inputs(saved, coming, horizon)
    drivers = None
    if ahead is not None:
        past = standardised(series.inputs, saved.inputs)
        assert past is not None
        drivers = np.concatenate([past, ahead])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of unevenly spaced steps; `fit` has said so
        observed = saved.model.read(series.observed, horizon=horizon, inputs=drivers)
    forecast = saved.model.forecast(observed, horizon)
    mean, lower, upper = (table.flatten(0, -2) for table in (forecast.mean, *forecast.interval(level)))
    columns = {}
    for f, name in enumerate(series.observed.columns):
        columns |= {name: mean[:, f], f"{name}_lower": lower[:, f], f"{name}_upper": upper[:, f]}
    states = forecast.state if isinstance(forecast.state, tuple) else (forecast.state,)
    for chain, state in zip(_chains(saved.model), states, strict=True):
        columns |= {f"state{chain}_{k}": state[..., k].flatten() for k in range(state.shape[-1])}
    if saved.model.holds:
        columns |= _by_chain("redraw", forecast.redraw, saved.model)
    index = _ahead(series.observed.index, observed, horizon)
    return pd.DataFrame({name: column.numpy() for name, column in columns.items()}, index=index), observed


def _ahead(index: pd.Index, observed: Series, horizon: int) -> pd.Index:
    """The labels of the future steps of each sequence."""
    if observed.stacked is None:
        return pd.Index([label_text(label) for label in following(index, horizon)], name=index.name)
    assert observed.sequences is not None
    steps = [label_text(label) for times in observed.stacked.times for label in following(times, horizon)]
    return pd.MultiIndex.from_arrays([np.repeat(observed.sequences, horizon), steps], names=index.names)


def sample_table(saved: SavedModel, steps: int, seed: int, coming: Path | None) -> pd.DataFrame:
    """A new series with its states and redraws."""
    if steps < 1:
        raise ValueError(f"--steps: got {steps}, expected at least 1.")
    drivers = coming_inputs(saved, coming, steps)
    drawn = saved.model.simulate(steps, seed=seed, **({} if drivers is None else {"inputs": drivers}))
    n_features = saved.model.n_features
    names = saved.columns or ([f"x_{f}" for f in range(n_features)] if n_features > 1 else ["x"])
    table = pd.DataFrame(drawn.x.numpy(), columns=names, index=pd.RangeIndex(steps, name="step"))
    results = _by_chain("state", drawn.path, saved.model)
    if saved.model.holds:
        results |= _by_chain("redraw", drawn.redraw.int(), saved.model)
    return beside(table, pd.DataFrame({name: column.numpy() for name, column in results.items()}))


def _chains(model: Any) -> list[str]:
    """The suffix of column names for each chain; empty if there is only one."""
    return [f"_{d + 1}" for d in range(len(model.chain_sizes))] if model.chain_name else [""]


def _by_chain(name: str, table: Any, model: Any) -> dict[str, Any]:
    """A column for each chain of a table [*b, T], or [*b, T, D]."""
    chains = _chains(model)
    columns = table.reshape(-1, len(chains)).unbind(-1)
    return {f"{name}{chain}": column for chain, column in zip(chains, columns, strict=True)}


def coming_inputs(saved: SavedModel, path: Path | None, steps: int) -> np.ndarray | None:
    """The standardised inputs of future steps, `[steps, C]`; None for a model without inputs."""
    n_inputs = saved.model.n_inputs
    if not n_inputs:
        if path is not None:
            raise ValueError("--inputs: this model has none; leave the option out.")
        return None
    if len(saved.inputs) != n_inputs:
        raise ValueError(f"model: has {n_inputs} input(s) but does not name them; use it from Python.")
    if path is None:
        raise ValueError(f"--inputs: missing; give a table with {', '.join(saved.inputs)} for the next {steps} steps.")
    table = numeric_columns(read_table(path), list(saved.inputs), path, "--inputs")
    if len(table) < steps:
        raise ValueError(f"--inputs: {path} has {len(table)} row(s), but there are {steps} steps; give a row for each.")
    drivers = standardised(table.iloc[:steps], saved.inputs)
    assert drivers is not None
    return drivers.to_numpy()


# ---- writing -------------------------------------------------------------------------------------------------------


def write_table(table: pd.DataFrame, out: Path | None) -> None:
    """Write CSV to a file, atomically, or to standard output."""
    if out is None:
        table.to_csv(sys.stdout, float_format="%.10g")
        return
    _check_parent(out, "--out")
    write_output(out, table.to_csv(float_format="%.10g").encode())


def write_figure(figure: "Figure", path: Path) -> None:
    """Write an image, atomically; ValueError if its format is unknown or the folder does not exist."""
    _check_parent(path, "--plot")
    image = BytesIO()
    figure.savefig(image, format=path.suffix[1:] or None, dpi=DPI)
    write_output(path, image.getvalue())


def _check_parent(path: Path, option: str) -> None:
    if not path.parent.is_dir():
        raise ValueError(f"{option}: there is no folder {path.parent}; make it first.")
