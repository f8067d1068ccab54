"""The command line: `samplehold fit`, `select`, `forecast`, `sample`, `compare`, `study`.

`python -m samplehold ...` runs the same commands.

Commands import heavy libraries when they run, so `--help` is fast.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from ..switching.data.files import check_file, check_files, check_model
from .results import check_folder, check_new, check_results
from .startup import is_shared, rare_collections
from .studies import check_checkout, modules, question, script

app: typer.Typer = typer.Typer(
    name="samplehold",
    help="Fit switching state-space models to sequences, forecast from them, and draw from them.",
    epilog="Example: [bold]samplehold fit nile.csv --columns volume --states 2 --out results/[/bold], then"
    " [bold]samplehold forecast results/ nile.csv --horizon 10 --out forecast.csv[/bold]",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _choices(title: str, folder: str) -> Any:
    """The classes of a folder, spelled as values of an option. They are read from the public stub, without heavy
    imports."""
    face = (Path(__file__).parents[1] / "__init__.pyi").read_text(encoding="utf-8")
    # files of classes that need more than the columns
    others = "components|contract|conjugate|factor_analysis|gated|generalized|joint|regression|zero_inflated"
    names = re.findall(rf"^from \.switching\.{folder}\.(?!{others})\w+ import (\w+)", face, re.MULTILINE)
    return StrEnum(title, {name: re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower() for name in names})


EmissionName: Any = _choices("EmissionName", "emissions")
DynamicsName: Any = _choices("DynamicsName", "dynamics")
NORMAL, COPY = EmissionName("normal"), DynamicsName("copy")


class MethodName(StrEnum):
    """The method of a fit."""

    EM = "em"
    VMP = "vmp"
    SVI = "svi"
    NUTS = "nuts"
    GIBBS = "gibbs"


def _checked(check: Callable[[Path], None]) -> Callable[[Path], Path]:
    """A callback that checks an argument's path before its command imports heavy libraries."""

    def callback(path: Path) -> Path:
        with one_line_errors():
            check(path)
        return path

    return callback


def _at_least(least: float) -> Callable[[Any, Any, Any], Any]:
    """A callback that checks a number before its command imports heavy libraries."""

    def callback(context: Any, option: Any, value: Any) -> Any:  # typer gives three without types by position
        with one_line_errors():
            if value is not None and value < least:
                raise ValueError(f"{option.opts[0]}: got {value}, expected at least {least}.")
        return value

    return callback


class ScaleName(StrEnum):
    """The size of a study."""

    QUICK = "quick"
    FULL = "full"


class CriterionName(StrEnum):
    """The criterion of a choice."""

    AIC = "aic"
    BIC = "bic"
    ICL = "icl"
    HELDOUT = "heldout"


class PriorName(StrEnum):
    """The prior of a fit."""

    WEAK = "weak"
    NONE = "none"


DATA = Annotated[
    Path,
    typer.Argument(
        callback=_checked(check_file),
        help="CSV file with a header (.tsv: with tabs), or Parquet file; empty cells are missing values.",
    ),
]
MODEL = Annotated[
    Path,
    typer.Argument(
        callback=_checked(check_model), help="Folder written by [bold]samplehold fit[/bold], or the folder model in it."
    ),
]
FILES = Annotated[
    Path,
    typer.Argument(
        callback=_checked(check_files),
        help="CSV file with a header (.tsv: with tabs), or Parquet file; empty cells are missing values. Or a folder of"
        " such files, which need not fit in memory; several processes (torchrun) share its sequences.",
    ),
]
COLUMNS = Annotated[
    str | None,
    typer.Option(
        "--columns", "-c", help="Columns to model, separated by commas; by default all numeric columns except the time."
    ),
]
TIME = Annotated[
    str | None,
    typer.Option(
        help="Column with the time of each row; by default the first column, if it has dates, no name, or a name such"
        " as year or date."
    ),
]
SEQUENCE = Annotated[
    str | None,
    typer.Option(help="Column with the sequence of each row, if the table has several sequences."),
]
INPUTS = Annotated[
    str | None,
    typer.Option(
        help="Columns that change the probability of a redraw (copy) or of the transitions (markov). They are"
        " standardised first."
    ),
]
EMISSION_INPUTS = Annotated[
    str | None,
    typer.Option(
        help="Columns that observations depend on, with coefficients of each state. They are standardised first. Not"
        " with multivariate-normal."
    ),
]
ORDER = Annotated[int, typer.Option(callback=_at_least(1), help="Number of lags of --emission auto-regressive.")]
FORCE = Annotated[bool, typer.Option("--force", "-f", help="Overwrite existing results.")]
SEED = Annotated[int, typer.Option(help="Random seed; equal seeds give equal results.")]
PRIOR = Annotated[
    PriorName, typer.Option(help="weak: weak priors scaled to the data; none: maximum likelihood, by em.")
]
RESTARTS = Annotated[
    int,
    typer.Option(
        callback=_at_least(1),
        help="How hard to search. Each restart tries four starting points for a few steps. The best ones, and perturbed"
        " copies of them, run to convergence.",
    ),
]
DRIVERS = Annotated[
    Path | None,
    typer.Option("--inputs", help="Table with the inputs of future steps, for a model with inputs."),
]
CSV_OUT = Annotated[
    Path | None, typer.Option("--out", "-o", help="CSV file for the result; by default the result is printed.")
]


EMISSION: Any = Annotated[EmissionName, typer.Option(help="Distribution of a row, given its state.")]
DYNAMICS: Any = Annotated[
    DynamicsName,
    typer.Option(help="copy: each step holds the state or draws a new one; markov: a hidden Markov chain."),
]


def _show_version(show: bool) -> bool:
    if show:
        from .. import __version__

        typer.echo(f"samplehold {__version__}")
        raise typer.Exit
    return show


def _list_studies(show: bool) -> bool:
    if show:
        with one_line_errors():
            check_checkout()
        for name, module in modules().items():
            typer.echo(f"{name:{max(map(len, modules()))}}  {question(module)}")
        raise typer.Exit
    return show


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Fit switching state-space models to sequences, forecast from them, and draw from them."""


@app.command(
    epilog="Example: [bold]samplehold fit nile.csv --columns volume --states 2 --emission normal --dynamics copy"
    " --out results/[/bold]"
)
def fit(
    data: FILES,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for model/, posterior.nc, states.csv and plot.png.")],
    columns: COLUMNS = None,
    states: Annotated[int, typer.Option("--states", "-k", callback=_at_least(1), help="Number of hidden states.")] = 2,
    emission: EMISSION = NORMAL,  # pyright: ignore[reportInvalidTypeForm]
    dynamics: DYNAMICS = COPY,  # pyright: ignore[reportInvalidTypeForm]
    time: TIME = None,
    sequence: SEQUENCE = None,
    inputs: INPUTS = None,
    emission_inputs: EMISSION_INPUTS = None,
    order: ORDER = 1,
    method: Annotated[
        MethodName,
        typer.Option(
            help="em: the best parameters. The others give their posterior: vmp by message passing, svi by a normal"
            " distribution, nuts and gibbs by draws."
        ),
    ] = MethodName.EM,
    prior: PRIOR = PriorName.WEAK,
    restarts: RESTARTS = 8,
    max_steps: Annotated[
        int, typer.Option(callback=_at_least(1), help="Maximum number of steps of em, vmp and svi.")
    ] = 500,
    num_samples: Annotated[
        int | None,
        typer.Option(callback=_at_least(1), help="Draws of nuts in each of four chains.", show_default="500"),
    ] = None,
    warmup_steps: Annotated[
        int | None,
        typer.Option(
            callback=_at_least(1), help="First draws of nuts, which are dropped.", show_default="half as many"
        ),
    ] = None,
    tol: Annotated[
        float,
        typer.Option(
            callback=_at_least(0),
            help="Stop when the estimated remaining gain is less than this for each row, in nats.",
        ),
    ] = 1e-6,
    seed: SEED = 0,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            help="File with the state of the fit; if it was killed or interrupted, the same command continues it."
        ),
    ] = None,
    every: Annotated[float, typer.Option(help="Seconds between two writes of --checkpoint.")] = 60.0,
    force: FORCE = False,
) -> None:
    """Fit a model to a table; write the model, its posterior, the states of every row and a plot."""
    with one_line_errors():
        from ..switching.data.tables import numeric_columns, pick_series, read_table

        if prior is PriorName.NONE and method is not MethodName.EM:
            raise ValueError("--prior: none is maximum likelihood, with --method em; the other methods need a prior.")
        options = {
            "method": method.value,
            "restarts": restarts,
            "max_steps": max_steps,
            "num_samples": num_samples,
            "warmup_steps": warmup_steps,
            "tol": tol,
            "seed": seed,
            "prior": "weak" if prior is PriorName.WEAK else None,
            "checkpoint": checkpoint,
            "every": every,
        }
        if data.is_dir() or is_shared():
            from .folders import fit_folder

            specification, named = (states, emission.value, dynamics.value, order), (_split(columns), sequence, time)
            drivers = {"inputs": inputs, "emission-inputs": emission_inputs}
            fit_folder(data, out, specification, named, drivers, force, **options)
            return
        table = read_table(data)
        of_moves, of_emission = _split(inputs) or [], _split(emission_inputs) or []
        numeric_columns(table, of_emission, data, "--emission-inputs")
        series = pick_series(table, data, _split(columns), _each_once(of_moves, of_emission), time, sequence)
        check_results(out, force)
        from . import console  # heavy, so that errors of the table and of the folder come first

        model = console.build(series.observed, states, emission.value, dynamics.value, of_moves, of_emission, order)
        console.fit_and_write(model, series, out, **options)


@app.command(
    epilog="Example: [bold]samplehold select nile.csv --columns volume --states 1-4 --criterion bic"
    " --plot criteria.png[/bold]"
)
def select(
    data: DATA,
    columns: COLUMNS = None,
    states: Annotated[
        str, typer.Option("--states", "-k", help="Numbers of hidden states to try: 1-6, or 1,2,4.")
    ] = "1-4",
    criterion: Annotated[
        CriterionName,
        typer.Option(
            help="aic, bic, icl: information criteria, lower is better; heldout: the log-likelihood of sequences that"
            " are left out, or of later blocks of one series, higher is better."
        ),
    ] = CriterionName.BIC,
    emission: EMISSION = NORMAL,  # pyright: ignore[reportInvalidTypeForm]
    dynamics: DYNAMICS = COPY,  # pyright: ignore[reportInvalidTypeForm]
    time: TIME = None,
    sequence: SEQUENCE = None,
    inputs: INPUTS = None,
    emission_inputs: EMISSION_INPUTS = None,
    order: ORDER = 1,
    prior: PRIOR = PriorName.WEAK,
    restarts: RESTARTS = 8,
    folds: Annotated[int, typer.Option(callback=_at_least(2), help="Folds of --criterion heldout.")] = 5,
    seed: SEED = 0,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="CSV file for the table.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Image to write (.png, .pdf or .svg).")] = None,
    force: FORCE = False,
) -> None:
    """Fit a model for each number of states, and compare them by a criterion."""
    with one_line_errors():
        from ..switching.data.tables import numeric_columns, pick_series, read_table
        from .choosing import numbers_of

        numbers = numbers_of(states)
        of_moves, of_emission = _split(inputs) or [], _split(emission_inputs) or []
        table, drivers = read_table(data), _each_once(of_moves, of_emission)
        numeric_columns(table, of_emission, data, "--emission-inputs")
        series = pick_series(table, data, _split(columns), drivers, time, sequence)
        check_new([path for path in (out, plot) if path is not None], force)
        from . import choosing, console

        chosen = choosing.select_states(
            lambda k: console.build(series.observed, k, emission.value, dynamics.value, of_moves, of_emission, order),
            series,
            numbers,
            criterion.value,
            folds=folds,
            prior="weak" if prior is PriorName.WEAK else None,
            restarts=restarts,
            seed=seed,
        )
        choosing.show(chosen)
        if out is not None:
            console.write_table(chosen.table.set_index("candidate").rename_axis("states"), out)
        if plot is not None:
            console.write_figure(chosen.plot(), plot)


@app.command(
    epilog="Example: [bold]samplehold forecast results/ nile.csv --horizon 10 --out forecast.csv"
    " --plot forecast.png[/bold]"
)
def forecast(
    model: MODEL,
    data: DATA,
    horizon: Annotated[
        int, typer.Option("--horizon", "-n", callback=_at_least(1), help="Number of steps to forecast.")
    ] = 10,
    level: Annotated[float, typer.Option(help="Probability of the interval from lower to upper.")] = 0.9,
    out: CSV_OUT = None,
    plot: Annotated[Path | None, typer.Option(help="Image to write (.png, .pdf or .svg).")] = None,
    columns: COLUMNS = None,
    time: TIME = None,
    sequence: SEQUENCE = None,
    inputs: DRIVERS = None,
    force: FORCE = False,
) -> None:
    """Forecast the steps after the last row of a table: mean, interval, and the probability of each state."""
    with one_line_errors():
        check_new([path for path in (out, plot) if path is not None], force)
        from . import console

        saved = console.load(model)
        series = console.read_series_of(saved, data, _split(columns), time, sequence)
        table, observed = console.forecast_table(saved, series, horizon, level, inputs)
        console.write_table(table, out)
        if plot is not None:
            console.write_figure(saved.model.plot_forecast(observed, horizon, level=level), plot)


@app.command(epilog="Example: [bold]samplehold sample results/ --steps 100 --seed 0 --out sample.csv[/bold]")
def sample(
    model: MODEL,
    steps: Annotated[int, typer.Option("--steps", "-n", callback=_at_least(1), help="Number of steps to draw.")] = 100,
    seed: SEED = 0,
    out: CSV_OUT = None,
    inputs: DRIVERS = None,
    force: FORCE = False,
) -> None:
    """Draw a new series from a model, with its states and redraws."""
    with one_line_errors():
        check_new([] if out is None else [out], force)
        from . import console

        console.write_table(console.sample_table(console.load(model), steps, seed, inputs), out)


@app.command(epilog="Example: [bold]samplehold compare --out comparison/[/bold]")
def compare(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the figures.")],
    seed: SEED = 0,
    force: FORCE = False,
) -> None:
    """Measure when a network's forward pass is a posterior update: a table of claims, and figures."""
    with one_line_errors():
        from rich.console import Console

        claims = script("claims")
        check_folder(out)
        check_new(sorted(out.glob("*.png")), force)
        if not claims.show(out, Console(), seed):
            raise typer.Exit(1)


KNOWN = ", ".join(modules()) or "studies of a checkout"


@app.command(epilog="Example: [bold]samplehold study truncation --out studies/[/bold]")
def study(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help=f"{KNOWN}; or all.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="Folder for the results, one folder for each study: CSV, Markdown, PNG.")
    ],
    scale: Annotated[
        ScaleName,
        typer.Option(
            help="quick: under a minute each, with networks that are hardly trained; full: as in the documentation,"
            " many minutes."
        ),
    ] = ScaleName.QUICK,
    seed: Annotated[
        int, typer.Option(min=0, help="First seed of everything random; the documentation has seed 0.")
    ] = 0,
    list_all: Annotated[
        bool,
        typer.Option("--list", callback=_list_studies, is_eager=True, help="Show the question of each study and exit."),
    ] = False,
    force: FORCE = False,
) -> None:
    """Run studies of the abilities and the memory of recurrent networks: tables and figures."""
    with one_line_errors():
        from rich.console import Console

        studies = script("study")
        chosen = studies.check_studies(names)
        check_folder(out)
        check_new([out / name for name in chosen], force)
        studies.run_studies(chosen, scale.value, seed, out, Console())


def _each_once(*names: list[str]) -> list[str]:
    return list(dict.fromkeys(name for some in names for name in some))


def _split(names: str | None) -> list[str] | None:
    """Names separated by commas."""
    return None if names is None else [name.strip() for name in names.split(",") if name.strip()]


@contextmanager
def one_line_errors() -> Iterator[None]:
    """An error that the user can correct ends the program with status 2 and a one-line message. Other errors show a
    traceback.
    """
    try:
        with rare_collections():
            yield
    except (ValueError, OSError, ModuleNotFoundError) as error:
        if isinstance(error, ModuleNotFoundError) and "samplehold[" not in str(error):
            raise
        typer.echo(f"samplehold: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(2) from None
