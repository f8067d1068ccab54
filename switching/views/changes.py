"""The steps at which the state changed, as a table."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Int

from ..data.series import Series
from .states import states


@torch.no_grad()
def changes(fit: Any, series: Series) -> pd.DataFrame | Any:
    """See `Fit.changes`."""
    model, plain = fit.model, replace(series, frame=None)
    if not model.chain_sizes and not hasattr(model, "segments"):
        raise TypeError(f"changes: a {model.name} has no states; fit.states() has its latent vector.")
    table: Any = states(model, plain, fit.state_names)
    if not model.chain_sizes:
        paths = model.problem(plain).steps(lambda group: {"path": model.viterbi(group.series, ragged=False).path})[
            "path"
        ]
        places = _moves(pd.Series(paths.cpu().numpy()), series)
        found = pd.DataFrame(index=table.index[places])
    elif len(model.chain_sizes) == 1:
        places = _moves(table["state"], series)
        found = _from_to(table["state"], places, series)
    else:
        each = [table[f"state_{d}"] for d in range(1, len(model.chain_sizes) + 1)]
        moves = [_moves(column, series) for column in each]
        parts = [_from_to(column, at, series) for column, at in zip(each, moves, strict=True)]
        parts = [part.assign(chain=d) for d, part in enumerate(parts, start=1)]
        places = np.concatenate(moves)
        order = np.argsort(places, kind="stable")
        found, places = pd.concat(parts).iloc[order], places[order]
    if "change" in table:
        found["probability"] = table["change"].to_numpy()[places]
    return found if series.frame is None else series.frame.rows(places).like(found)


def _before(column: pd.Series, series: Series) -> Any:
    """The entry of the step before in the same sequence; NaN at first steps."""
    n_steps = (series.last + 1).flatten()
    sequence = torch.arange(len(n_steps), device=n_steps.device).repeat_interleave(n_steps)
    return column.groupby(series.in_rows(sequence).cpu().numpy()).shift()


def _moves(column: pd.Series, series: Series) -> Int[np.ndarray, "n"]:
    """The rows whose entry differs from that of the step before."""
    before = _before(column, series)
    return (before.notna() & (before != column)).to_numpy().nonzero()[0]


def _from_to(column: pd.Series, places: Int[np.ndarray, "n"], series: Series) -> pd.DataFrame:
    before = _before(column, series).iloc[places].astype(column.dtype)
    return pd.DataFrame({"from": before, "to": column.iloc[places]})
