"""Fits in files, beside their model: values, posterior, diagnostics and labels, and on demand the data.

The description of the model in `model.safetensors` has one more entry, `fit`, a tree of `fitting.trees`. The names of
its tensors begin with `fit.`. A posterior is kept as draws, those of its `refined` form. A fit without its data has the
numbers that `summary` computes from them.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from ..inference.numerics.records import Record
from .data.series import Series
from .data.stored import frame_of, names_alone, series_of, tree_of_frame, tree_of_names, tree_of_series
from .fitting.posterior import DrawnParameters, DrawnPosterior, RefinedPosterior, SampledParameters
from .fitting.result import Result
from .fitting.trees import read, written
from .parameters import Parameters
from .storage import save_model
from .views.estimates import DRAWS, draws_around, error_factors
from .views.summary import states_table

APART = "values", "restarts", "posterior", "paths", "report", "running", "kept"  # fields that are not kept as they are
PLAIN = [kept.name for kept in fields(Result) if kept.name not in APART]
NUMBERS = "loglik", "nobs", "aic", "aicc", "bic", "hqic", "icl"
N_AROUND = 1000  # draws around the estimates of a fit by EM
POSTERIORS: dict[str, Any] = {kind.__name__: kind for kind in (SampledParameters, DrawnPosterior, RefinedPosterior)}


@dataclass(frozen=True, repr=False)
class Kept(Record):
    """What a fit that was saved without its data knows of them.

    Attributes:
        labels: a series without a step, with the names of features, inputs and states.
        counts, numbers: the numbers of sequences and steps, and those of the fit: its log-likelihood and criteria.
        states: the table of states of `summary`; None: the data were too many for it, or not all known.
        factors: of a fit by EM, those of the errors: see `Curvature.error_factors`.
        draws: of a fit by EM, draws around its estimates; None: there are none.
    """

    labels: Series
    counts: dict[str, int] = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)
    states: pd.DataFrame | None = None
    factors: Parameters = field(default_factory=dict)
    draws: Parameters | None = None

    @staticmethod
    def of(fit: Any) -> "Kept":
        """What a fit knows of its data."""
        labels, series = names_alone(fit.series.n_features, tree_of_names(fit.series)), fit.series
        if series.on_disk or not fit.has_all:
            return Kept(labels)
        numbers = {}
        for name in NUMBERS:
            with suppress(TypeError, ValueError):  # those that the fit lacks
                numbers[name] = getattr(fit, name)
        counts, states = (
            {"sequences": series.n_sequences, "observed steps": series.n_observed},
            states_table(fit, series),
        )
        if fit.posterior is not None:
            return Kept(labels, counts, numbers, states)
        return Kept(labels, counts, numbers, states, error_factors(fit, series), draws_around(fit, N_AROUND, 0))


# ---- writing -------------------------------------------------------------------------------------------------------


def save_fit(fit: Any, path: Path, notes: Mapping[str, Any] | None = None, data: bool = False) -> None:
    """Write a fit with its model into a folder, as `save_model`.

    Arguments:
        fit: the fit.
        path: the folder.
        notes: as in `save_model`.
        data: whether to keep the data too.
    """
    tensors: dict[str, Tensor] = {}
    save_model(fit.model, path, notes, (written(_tree(fit, data), tensors), tensors))


def _tree(fit: Any, data: bool) -> dict[str, Any]:
    series: Series | None = fit.series
    if data and series is None:
        raise ValueError("data: got True, but this fit was read from a file without its data; leave it out.")
    kept = None if data else Kept.of(fit) if fit.series is not None else fit.kept
    return {
        **{name: getattr(fit, name) for name in PLAIN},
        "restarts": tree_of_frame(fit.restarts),
        "prior": fit.prior if fit.prior is None or isinstance(fit.prior, str) else "given",
        "posterior": fit.posterior and _tree_of_posterior(fit.posterior),
        "series": tree_of_series(series) if data and series is not None else None,
        "kept": kept
        and {
            "n_features": fit.model.n_features,
            "names": tree_of_names(kept.labels),
            **{name: getattr(kept, name) for name in ("counts", "numbers", "factors", "draws")},
            "states": None if kept.states is None else tree_of_frame(kept.states),
        },
    }


def _tree_of_posterior(posterior: Any) -> dict[str, Any]:
    drawn, kind = posterior.refined, type(posterior.refined).__name__
    if not isinstance(drawn, DrawnParameters):
        draws = {name: table.unsqueeze(0) for name, table in posterior.sample(DRAWS).items()}
        drawn, kind = DrawnPosterior(draws), DrawnPosterior.__name__
    names = ("draws", "diverging", "visits", "pareto_k")
    reads = getattr(posterior, "model", None) is not None
    return {"kind": kind, "reads": reads} | {name: getattr(drawn, name) for name in names if hasattr(drawn, name)}


# ---- reading -------------------------------------------------------------------------------------------------------


def fields_of(plain: Any, tensors: Mapping[str, Tensor], model: Any) -> dict[str, Any]:
    """The fields of a fit except for its model.

    Arguments:
        plain, tensors: the tree in the file.
        model: the model in the file.
    """
    tree = read(plain, tensors, torch.device("cpu"))
    series = None if tree["series"] is None else series_of(tree["series"])
    kept = tree["kept"]
    if kept is not None:
        states = None if kept["states"] is None else frame_of(kept["states"])
        labels = names_alone(kept["n_features"], kept["names"])
        kept = Kept(labels, kept["counts"], kept["numbers"], states, kept["factors"], kept["draws"])
    known = {name: tuple(tree[name]) if isinstance(tree[name], list) else tree[name] for name in PLAIN if name in tree}
    posterior = tree["posterior"]
    if posterior is not None:
        kind, reads = POSTERIORS[posterior.pop("kind")], posterior.pop("reads")
        posterior = kind(**posterior, **({"model": model} if reads else {}))
        posterior = posterior.labelled(model, series if kept is None else kept.labels)
    return known | {
        "values": model.values,
        "restarts": frame_of(tree["restarts"]),
        "prior": model.prior if tree["prior"] == "given" else tree["prior"],
        "posterior": posterior,
        "series": series,
        "kept": kept,
    }
