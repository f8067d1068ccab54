"""Other fits, what a fit tells, and files."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import samplehold as sh
from golden.kinds import CALLS, FRAME, KINDS, KNOWN, MODEL, ONE, OTHERS, PANEL, QUIET, T, call, fit_of, model_of
from safetensors import safe_open

# ---- other fits, and what a fit tells --------------------------------------------------------------------------------


def subjects(**options: Any) -> Any:
    panel = {"ann": PANEL[0], "ben": PANEL[1]}
    return sh.SwitchingSSM(sh.Markov(2), sh.Normal(1)).fit(panel, **QUIET, **options)


@call
def fit_by_svi() -> Any:
    fit = MODEL.fit(ONE, method="svi", **QUIET)
    return {name: (table.shape, str(table.dtype)) for name, table in fit.model.values.items()}, fit.method


@call
def fit_by_nuts() -> Any:
    options = {name: value for name, value in QUIET.items() if name not in ("max_steps", "restarts")}
    fit = MODEL.fit(ONE, method="nuts", num_samples=3, warmup_steps=2, **options)
    return {name: (table.shape, str(table.dtype)) for name, table in fit.model.values.items()}, fit.method


@call
def fit_by_gibbs() -> Any:
    options = {name: value for name, value in QUIET.items() if name not in ("max_steps", "restarts")}
    fit = MODEL.fit(ONE, method="gibbs", num_samples=3, warmup_steps=2, **options)
    return {name: (table.shape, str(table.dtype)) for name, table in fit.model.values.items()}, fit.method


@call
def fit_with_fixed_values_and_a_start() -> Any:
    fit = MODEL.fit(ONE, start=KNOWN, fixed={"loc": [[0.0], [3.0]]}, **QUIET)
    return fit.objective, fit.values, fit.fixed


@call
def fit_without_prior() -> Any:
    return MODEL.fit(ONE, prior=None, **QUIET).values


@call
def fit_of_deviations() -> Any:
    fit = sh.DeviationAR(2, 1).fit(ONE, restarts=1, max_steps=3, seed=0)
    return fit.values, fit.model.log_evidence(ONE)


@call
def fit_of_a_panel() -> Any:
    return MODEL.fit(PANEL, lengths=[T, 15], **QUIET).values


@call
def fit_of_subjects() -> Any:
    return subjects(pooled={"emission": "none"}).describe()


@call
def fit_of_a_population() -> Any:
    fit = subjects(method="vmp", pooled="partial")
    return fit.describe(), fit.model.prior, fit.model.population.values


def of_fit(method: str, *arguments: Any, of: str = "em", **named: Any) -> Callable[[], Any]:
    return lambda: getattr(fit_of("Copy", of), method)(*arguments, **named)


CALLS |= {
    "Fit.summary": lambda: str(fit_of("Copy").summary()).splitlines()[:12],
    "Fit.describe": of_fit("describe"),
    "Fit.conf_int": of_fit("conf_int"),
    "Fit.states": of_fit("states"),
    "Fit.durations": of_fit("durations"),
    "Fit.residuals": lambda: fit_of("Copy").residuals().values,
    "Fit.update": lambda: fit_of("Copy").update(ONE[:6]).values,
    "Fit.restarts": lambda: fit_of("Copy").restarts.drop(columns="seconds", errors="ignore"),
    "Fit.forecast.table": lambda: fit_of("Copy").forecast(horizon=3).table(),
    "Fit of vmp: interval": lambda: fit_of("Copy", "vmp").posterior.interval(0.8, n=20, seed=0, correct=False),
    "Fit of vmp: update": lambda: fit_of("Copy", "vmp").update(ONE[:6]).values,
    "Fit of vmp: posterior.smooth": lambda: fit_of("Copy", "vmp").posterior.smooth(ONE),
    "Fit of a frame": lambda: sh.SwitchingSSM(sh.Markov(2), sh.Normal(2)).fit(FRAME, **QUIET).states(),
    "select": lambda: sh.select(
        lambda k: sh.SwitchingSSM(sh.Copy(k), sh.Normal(1)), ONE, [1, 2], criterion="bic", restarts=1, max_steps=3
    ).table.drop(columns="seconds", errors="ignore"),
    "backtest": lambda: sh.backtest(MODEL, ONE, refit_every=5, horizon=1, first=18, restarts=1, max_steps=3).means,
    "filter_vmp": lambda: sh.filter_vmp(KNOWN, ONE, sweeps=2),
    "read_panel": lambda: sh.read_panel(FRAME.reset_index(), time="year", columns=["a"]).observations,
    "describe": lambda: KNOWN.describe(),
    "prior": lambda: MODEL.prior,
    "scaled_to": lambda: MODEL.scaled_to(ONE).prior,
    "repr": lambda: [repr(model) for model, _, _ in KINDS.values()],
    "known": lambda: {
        name: {key: part.dims for key, part in model.known.items()} for name, (model, _, _) in OTHERS.items()
    },
    "n_parameters": lambda: {
        name: fit_of(name).model.n_parameters for name in ("Copy", "MultivariateNormal", "LinearSSM")
    },
    "stream": lambda: KNOWN.update(KNOWN.update(KNOWN.start(), ONE[0])[0], ONE[1])[1],
    "collapsed": lambda: KNOWN.without_values().fit(ONE, **QUIET).model.collapsed(ONE),
}


# ---- files, ArviZ ----------------------------------------------------------------------------------------------------


def saved(make: Callable[[], Any]) -> Any:
    """Names and shapes in the file, the text beside them, and the values read from it."""
    with tempfile.TemporaryDirectory() as folder:
        made = make()
        made.save(folder)
        found: dict[str, Any] = {}
        for path in sorted(Path(folder).iterdir()):
            with safe_open(path, "pt") as file:
                found[path.name] = {name: file.get_slice(name).get_shape() for name in sorted(file.keys())}
                found["metadata"] = sorted(file.metadata())
        read = sh.load(folder)
        return found, type(read).__name__, read.values


def exported(make: Callable[[], Any]) -> Any:
    data = make()
    groups = data.groups() if callable(data.groups) else data.groups
    tables = {name.strip("/"): data[name] for name in sorted(groups) if name != "/"}
    return {name: {str(key): table[key].shape for key in sorted(table.data_vars)} for name, table in tables.items()}


for name in ("Copy", "SemiMarkov", "LinearSSM", "SwitchingLinearSSM", "FactorialSSM", "Segments"):
    CALLS[f"file of {name}"] = lambda name=name: saved(lambda: model_of(name))
CALLS |= {
    "file of a fit": lambda: saved(lambda: fit_of("Copy")),
    "file of a fit by vmp": lambda: saved(lambda: fit_of("Copy", "vmp")),
    "arviz of a fit": lambda: exported(lambda: fit_of("Copy").to_arviz()),
}
