"""`samplehold fit` of a folder of files, or by several processes that share the data.

The results are `model/`, as of a table, and the states of every row in Parquet: `states.parquet`, or a file of each
process.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from rich.console import Console
from rich.markup import escape

from ..inference.numerics.ranks import Ranks
from ..switching.data.scratch import blocks_of
from ..switching.data.series import Series
from ..switching.data.sources import open_sequences
from ..switching.model import SwitchingSSM
from ..switching.stored_fit import save_fit
from .console import build, check_made
from .printing import show_diagnostics
from .results import MODEL, check_folder, check_new
from .startup import is_shared


def fit_folder(
    data: Path,
    out: Path,
    specification: tuple[int, str, str, int],
    names: tuple[Sequence[str] | None, str | None, str | None],
    inputs: dict[str, str | None],
    force: bool,
    **options: Any,
) -> None:
    """Fit with the options of `SwitchingSSM.fit`, write the model and the states, and print the end of the fit.

    Arguments:
        specification: the number of states, the emission, the dynamics, the order of the emission.
        names: the columns, and those of the sequence and the time.
        inputs: options that name inputs, which a folder does not support.
    """
    for option, named in inputs.items():
        if named:
            raise ValueError(
                f"--{option}: got {named}, but a folder or several processes do not support inputs; give one file, or "
                "call open_sequences and fit in Python."
            )
    if is_shared():
        torch.distributed.init_process_group("gloo")
    ranks = Ranks.of(None)
    try:
        ranks.together(lambda: check_results(out, ranks, force))
        columns, sequence, time = names
        series = open_sequences(data, sequence, time, columns)
        n_states, emission, dynamics, order = specification
        observed = pd.DataFrame(extremes(series, ranks), columns=list(series.features_of()))
        model = build(observed, n_states, emission, dynamics, (), (), order)
        fit = model.fit(series, **options)
        check_made(fit, options["method"])
        ranks.together(lambda: write_states(fit.model, series, out / states_of(ranks)))
        if ranks.rank == 0:
            notes = {"columns": list(observed.columns), "time": time, "inputs": {}}
            save_fit(fit, out / MODEL, notes | ({} if sequence is None else {"sequence": sequence}))
            console = Console(highlight=False)
            console.print(escape(repr(fit.model)), soft_wrap=True)
            show_diagnostics(console, fit)
            console.print(escape(f"Time: {fit.report}."), soft_wrap=True)
            console.print(escape(f"Wrote {MODEL} and {states_of(ranks)} to {out}."), soft_wrap=True)
    finally:
        if is_shared():
            torch.distributed.destroy_process_group()


def states_of(ranks: Ranks) -> str:
    """The name of the file with the states of this process's rows."""
    return "states.parquet" if ranks.n == 1 else f"states-{ranks.rank}-of-{ranks.n}.parquet"


def write_states(model: SwitchingSSM, series: Series, path: Path) -> None:
    """Write the states of this process's rows; without any there is no file."""
    if series.n_sequences:
        model.write(series, path)
    else:
        path.unlink(missing_ok=True)  # of earlier results


def check_results(out: Path, ranks: Ranks, force: bool) -> None:
    """ValueError if a result would overwrite something in the folder without permission."""
    check_folder(out)
    check_new([out / MODEL, out / states_of(ranks)], force)


def extremes(series: Series, ranks: Ranks) -> np.ndarray:
    """The least and the greatest value of each column of all processes `[2, F]`."""

    def here() -> tuple[Any, Any]:
        least, most = (
            torch.full((series.n_features,), sign * torch.inf, dtype=torch.float64, device="cpu") for sign in (1, -1)
        )
        for rows in blocks_of(series.rows):
            if len(rows):
                least = torch.minimum(least, rows.double().nan_to_num(nan=torch.inf).amin(0))
                most = torch.maximum(most, rows.double().nan_to_num(nan=-torch.inf).amax(0))
        return least.numpy(), most.numpy()

    least, most = zip(*ranks.gathered(here), strict=True)
    return np.stack([np.min(least, 0), np.max(most, 0)])
