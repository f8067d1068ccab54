"""The command line: `samplehold fit`, `forecast`, `sample` and `compare`, or `python -m samplehold ...`.

Heavy libraries are imported inside the commands, so that `--help` answers at once.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from ..switching.data.files import check_file, check_model
from .startup import rare_collections

app = typer.Typer(
    name="samplehold",
    help="Fit switching state-space models to sequences, forecast from them, and draw from them.",
    epilog="Example: [bold]samplehold fit nile.csv --columns volume --states 2 --out results/[/bold], then"
    " [bold]samplehold forecast results/ nile.csv --horizon 10 --out forecast.csv[/bold]",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _choices(title: str, room: str) -> Any:
    """The classes of a room as an option spells them, read from the public face so that nothing heavy is imported."""
    face = (Path(__file__).parents[1] / "__init__.pyi").read_text(encoding="utf-8")
    names = re.findall(rf"^from \.switching\.{room}\.(?!contract|gated)\w+ import (\w+)", face, re.MULTILINE)
    return StrEnum(title, {name: re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower() for name in names})


EmissionName = _choices("EmissionName", "emissions")
DynamicsName = _choices("DynamicsName", "dynamics")
NORMAL, COPY = EmissionName("normal"), DynamicsName("copy")


def _checked(check: Callable[[Path], None]) -> Callable[[Path], Path]:
    """What an argument's path goes through before its command loads anything heavy."""

    def callback(path: Path) -> Path:
        with _one_line_errors():
            check(path)
        return path

    return callback


class PriorName(StrEnum):
    """What is maximised besides the likelihood."""

    SCALED = "scaled"
    NONE = "none"


DATA = Annotated[
    Path,
    typer.Argument(
        callback=_checked(check_file), help="CSV file with a header, or Parquet file; empty cells are missing values."
    ),
]
MODEL = Annotated[
    Path,
    typer.Argument(
        callback=_checked(check_model), help="Folder written by [bold]samplehold fit[/bold], or the folder model in it."
    ),
]
COLUMNS = Annotated[
    str | None,
    typer.Option(
        "--columns", "-c", help="Columns to model, separated by commas; by default every numeric one but the time."
    ),
]
TIME = Annotated[
    str | None,
    typer.Option(
        help="Column that labels the rows; by default the first, if it is called year, date, ... and is in order."
    ),
]
SEED = Annotated[int, typer.Option(help="The same seed gives the same result.")]
DRIVERS = Annotated[
    Path | None,
    typer.Option("--covariates", help="Table with the covariates of the steps to come, for a model that has some."),
]
CSV_OUT = Annotated[
    Path | None, typer.Option("--out", "-o", help="CSV file to write; by default the result is printed.")
]


EMISSION: Any = Annotated[EmissionName, typer.Option(help="Distribution of a row, given its state.")]
DYNAMICS: Any = Annotated[
    DynamicsName, typer.Option(help="copy: the state is held or drawn afresh; markov: a hidden Markov chain.")
]


@app.command(
    epilog="Example: [bold]samplehold fit nile.csv --columns volume --states 2 --emission normal --dynamics copy"
    " --out results/[/bold]"
)
def fit(
    data: DATA,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for model/, posterior.nc, states.csv and plot.png.")],
    columns: COLUMNS = None,
    states: Annotated[int, typer.Option("--states", "-k", help="Number of hidden states.")] = 2,
    emission: EMISSION = NORMAL,  # pyright: ignore[reportInvalidTypeForm]
    dynamics: DYNAMICS = COPY,  # pyright: ignore[reportInvalidTypeForm]
    time: TIME = None,
    covariates: Annotated[
        str | None,
        typer.Option(help="Columns, standardised first, that move the redraw probability of copy dynamics."),
    ] = None,
    prior: Annotated[
        PriorName, typer.Option(help="scaled: weak priors scaled to the data; none: maximum likelihood.")
    ] = PriorName.SCALED,
    restarts: Annotated[int, typer.Option(help="Number of starts; the best fit is kept.")] = 8,
    max_steps: Annotated[int, typer.Option(help="EM steps at most.")] = 500,
    seed: SEED = 0,
) -> None:
    """Fit a model to a table; write the model, its posterior, the states of every row and a plot."""
    with _one_line_errors():
        from ..switching.data.tables import pick_series, read_table
        from . import console

        table = read_table(data)
        series = pick_series(table, data, console.split(columns), console.split(covariates) or [], time)
        console.check_folder(out)
        model = console.build(series.observed, states, emission.value, dynamics.value, series.covariates.shape[1])
        chosen = "scaled" if prior is PriorName.SCALED else None
        console.fit_and_write(model, series, out, restarts=restarts, max_steps=max_steps, seed=seed, prior=chosen)


@app.command(
    epilog="Example: [bold]samplehold forecast results/ nile.csv --horizon 10 --out forecast.csv"
    " --plot forecast.png[/bold]"
)
def forecast(
    model: MODEL,
    data: DATA,
    horizon: Annotated[int, typer.Option("--horizon", "-n", help="Number of steps to forecast.")] = 10,
    level: Annotated[float, typer.Option(help="Probability inside the interval from lower to upper.")] = 0.9,
    out: CSV_OUT = None,
    plot: Annotated[Path | None, typer.Option(help="Image to write (.png, .pdf or .svg).")] = None,
    columns: COLUMNS = None,
    time: TIME = None,
    covariates: DRIVERS = None,
) -> None:
    """Forecast the steps after the last row of a table: mean, interval, and the probability of each state."""
    with _one_line_errors():
        from . import console

        saved = console.load(model)
        series = console.read_series_of(saved, data, console.split(columns), time)
        table, observed = console.forecast_table(saved, series, horizon, level, covariates)
        console.write_table(table, out)
        if plot is not None:
            console.write_figure(saved.model.plot_forecast(observed, horizon, level=level), plot)


@app.command(epilog="Example: [bold]samplehold sample results/ --steps 100 --seed 0 --out sample.csv[/bold]")
def sample(
    model: MODEL,
    steps: Annotated[int, typer.Option("--steps", "-n", help="Number of steps to draw.")] = 100,
    seed: SEED = 0,
    out: CSV_OUT = None,
    covariates: DRIVERS = None,
) -> None:
    """Draw a new series from a model, with its states and redraws."""
    with _one_line_errors():
        from . import console

        console.write_table(console.sample_table(console.load(model), steps, seed, covariates), out)


@app.command(epilog="Example: [bold]samplehold compare --out comparison/[/bold]")
def compare(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the figures.")],
    seed: SEED = 0,
) -> None:
    """Measure where a network's forward pass is a posterior update: a table of claims, and the figures beside it."""
    with _one_line_errors():
        from rich.console import Console

        from ..models.studies.claims import show
        from .console import check_folder

        check_folder(out)
        if not show(out, Console(), seed):
            raise typer.Exit(1)


@contextmanager
def _one_line_errors() -> Iterator[None]:
    """What a user can mend ends the program with status 2 and one line; anything else shows where it came from."""
    try:
        with rare_collections():
            yield
    except (ValueError, OSError) as error:
        typer.echo(f"samplehold: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(2) from None
