r"""Choosing among models: information criteria, and the log-likelihood of data that were left out.

With k free parameters and n observed steps, aic $= 2k - 2 \log p(x)$, bic $= k \log n - 2 \log p(x)$, and icl is bic
plus twice the entropy of the states given x; aicc and hqic are those of `Fit`. Lower is better. The held-out
log-likelihood, in nats, is better if it is higher. With several sequences each fold leaves some out,
$\sum_i \log p(x^{(i)} \mid \hat\theta_{-i})$. In one series each fold is a block of steps after those that were fitted,
$\sum_i \log p(x_{a_i + 1 : a_{i + 1}} \mid x_{1 : a_i}, \hat\theta_{1 : a_i})$.
"""

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch
from jaxtyping import Int
from torch import Tensor
from torch.distributions import constraints

from ...inference.numerics.interrupts import importing, interruptible, may_interrupt
from ...inference.numerics.ranks import Ranks
from ...inference.numerics.scalars import check_choice, check_integer, kind_of
from ..data.series import Series
from ..fitting.agreement import check_equal
from ..problem import Problem
from ..views.tables import html, number
from .criteria import Criteria
from .fits import fitted, is_model, possible, split

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POINT = ("aic", "bic", "icl")
SHORT = ("aicc", "hqic")  # in a table that was asked for them
CRITERIA = (*POINT, *SHORT, "heldout")


@dataclass(frozen=True, repr=False)
class Selection:
    """Fits of several candidates to the same data, and how they compare.

    Attributes:
        criterion: the criterion that chooses: "aic", "bic", "icl", "aicc", "hqic" or "heldout".
        candidates: the arguments of the models, in their order.
        fits: the fit of each to all data.
        table: a row for each candidate: `candidate`, `loglik`, `n_parameters`, the criteria that its fit has (and
            `heldout` if it was asked for), `converged`, `agreeing` and `n_kinds` (see `Fit`).
        interrupted: whether Ctrl-C ended it; then only complete candidates remain.
    """

    criterion: str
    candidates: tuple[Any, ...]
    fits: tuple[Any, ...]
    table: pd.DataFrame
    interrupted: bool = False

    @property
    def place(self) -> int:
        """The number of the best candidate; of the first, if several are equal."""
        column = self.table[self.criterion]
        return int(column.argmax() if self.criterion == "heldout" else column.argmin())

    @property
    def best(self) -> Any:
        """The best candidate."""
        return self.candidates[self.place]

    @property
    def fit(self) -> Any:
        """The fit of the best candidate."""
        return self.fits[self.place]

    def plot(self) -> "Figure":
        """The criteria of all candidates, with the best marked."""
        with importing():
            from ..views.judging_figures import plot_selection

        return plot_selection(self)

    def __repr__(self) -> str:
        lines = self.table.map(number).to_string(index=False).splitlines()
        return "\n".join([*lines, self._line])

    def _repr_html_(self) -> str:
        """The HTML that a notebook shows."""
        return html(self._line, self.table)

    @property
    def _line(self) -> str:
        ended = "; interrupted before the next candidate" if self.interrupted else ""
        return f"Best by {self.criterion}: {self.best!r}{ended}"


@interruptible()
def select(
    make: Callable[[Any], Any],
    x: Any,
    candidates: Iterable[Any],
    criterion: str = "bic",
    *,
    folds: int = 5,
    **options: Any,
) -> Selection:
    """Fit a model for each candidate to the same data, and choose one.

    Arguments:
        make: makes the model of a candidate, e.g. `lambda k: sh.SwitchingSSM(sh.Markov(k), sh.Normal(1))`.
        x: the data, as in `fit`.
        candidates: the arguments of `make`, such as numbers of states.
        criterion: "aic", "bic", "icl", "aicc" or "hqic", of fits by EM, which are the mode under the weak prior unless
            `prior=None`; or "heldout", for every method. See `judging.selection`.
        folds: of "heldout". Several sequences are left out in turn, every `folds`-th at once. One series is fitted to
            its first half and more, and `folds` blocks of the second half are predicted, each after a fit to all
            steps before it.
        options: options of `fit` (`method`, `restarts`, `seed`, `prior`, ...), and data beside x (`inputs`, ...). Each
            model gets the inputs that it reads. `checkpoint` is a folder here, with a file for each fit.

    Ctrl-C ends the search and keeps the candidates that are complete. With a checkpoint the same call then goes on.

    If several processes share the data, each candidate is fitted by all of them, and the table is of all data, the same
    in all. Then held-out data are sequences, of all processes.

    Raises:
        TypeError: `make` makes something else than a model.
        KeyboardInterrupt: Ctrl-C before the first candidate is complete.
        ValueError: no candidate; models that describe different data, whose likelihoods cannot be compared: other
            features, counts and measurements, or other steps whose lags are missing; a criterion that the fits do not
            have; too few sequences or steps for the folds; see `fit`.

    Biernacki, Celeux & Govaert 2000, for "icl".

    See Also:
        `StickyHDP`, which finds the number of states in one fit; `backtest`, for forecasts;
        docs/how_to/number_of_states.md.

    >>> import samplehold as sh
    >>> x = [0.1, -0.2, 0.0, 0.2, -0.1, 5.1, 4.8, 5.0, 5.2, 4.9]
    >>> chosen = sh.select(lambda k: sh.SwitchingSSM(sh.Copy(k), sh.Normal(1)), x, range(1, 4), restarts=2)
    >>> chosen.best, chosen.fit.model.n_states
    (2, 2)
    """
    ranks = Ranks.of(options.get("group"))
    given, options = split(options)

    def prepared() -> tuple[tuple[Any, ...], list[Any], list[Series]]:
        tried = _candidates(candidates)
        _check(criterion, folds, options)
        models = [_model(make, one) for one in tried]
        return tried, models, _same_data(models, tried, x, given)

    tried, models, every_series = ranks.together(prepared)
    named = re.sub(r" at 0x[0-9a-fA-F]+", "", repr(tried))  # addresses of functions, which differ between processes
    arguments = {"candidates": named, "criterion": criterion, "folds": str(folds)}
    check_equal(ranks.gathered(lambda: arguments))
    done: list[tuple[Any, dict[str, Any]]] = []
    with suppress(KeyboardInterrupt):
        for number, (one, model, series) in enumerate(zip(tried, models, every_series, strict=True)):
            with may_interrupt():
                try:
                    fit = fitted(model, series, options, file=str(number))
                    row = _row(fit, criterion, ranks)
                    if criterion == "heldout":
                        row["heldout"] = _heldout(model, series, folds, options, ranks, number)
                except ValueError as error:
                    raise ValueError(f"candidates: {one!r} fails. {error}") from error
                ends = {"converged": fit.converged, "agreeing": fit.agreeing, "n_kinds": fit.n_kinds}
                done.append((fit, {"candidate": one, **row, **ends}))
    if not done:
        raise KeyboardInterrupt
    fits, rows = zip(*done, strict=True)
    return Selection(criterion, tried[: len(done)], fits, pd.DataFrame(list(rows)), len(done) < len(tried))


def _check(criterion: str, folds: int, options: dict[str, Any]) -> None:
    check_choice("criterion", criterion, CRITERIA)
    check_integer("folds", folds, least=2)
    method = options.get("method", "em")
    if criterion != "heldout" and method != "em":
        raise ValueError(
            f'criterion: got {criterion!r}, but a fit by {method!r} is no point estimate; use method="em", or '
            'criterion="heldout".'
        )
    if criterion == "heldout" and options.get("pooled", "complete") != "complete":
        raise ValueError("pooled: parameters by subject say nothing about subjects left out; use another criterion.")


def _candidates(candidates: Any) -> tuple[Any, ...]:
    try:
        tried = tuple(candidates)
    except TypeError:
        raise TypeError(f"candidates: got {candidates!r}, expected several, such as range(1, 5).") from None
    if not tried:
        raise ValueError("candidates: got none; give the arguments of the models, such as range(1, 5).")
    return tried


def _model(make: Any, candidate: Any) -> Any:
    if not callable(make) or is_model(make):  # a model is callable, as a Pyro program
        raise TypeError(
            f"make: got {type(make).__name__}, expected a function that makes the model of a candidate, e.g. "
            "lambda k: sh.SwitchingSSM(sh.Markov(k), sh.Normal())."
        )
    model = make(candidate)
    if not is_model(model):
        raise TypeError(f"make: got {kind_of(model)} for {candidate!r}, expected a model such as a SwitchingSSM.")
    return model


def _same_data(models: list[Any], tried: tuple[Any, ...], x: Any, given: dict[str, Any]) -> list[Series]:
    """The series of each model; ValueError if likelihoods of the models cannot be compared."""

    def same(told: list[Any], text: Callable[[Any], str], cure: str) -> None:
        for one, value in zip(tried, told, strict=True):
            equal = torch.equal(value, told[0]) if isinstance(value, Tensor) else value == told[0]
            if not equal:
                raise ValueError(
                    f"make: got {text(told[0])} for {tried[0]!r} and {text(value)} for {one!r}, so their likelihoods "
                    f"are of different data; {cure}."
                )

    same([model.n_features for model in models], "{} feature(s)".format, "give models of the same features")
    supports = [getattr(getattr(model, "emission", None), "support", constraints.real) for model in models]
    kinds = ["probabilities of whole numbers" if support.is_discrete else "densities" for support in supports]
    same(kinds, str, "compare models of counts with each other, and models of measurements with each other")
    every_series = [model.read(x, **_read_by(model, given, models)).detached() for model in models]
    if not any(model.order for model in models):
        return every_series
    seen = [model.scored(series) for model, series in zip(models, every_series, strict=True)]
    cure = "give the observations before x by before=, enough for the most lags"
    same(seen, lambda table: f"{int(table.any(-1).sum())} step(s) with a density", cure)
    return every_series


def _read_by(model: Any, given: dict[str, Any], models: list[Any]) -> dict[str, Any]:
    """The data beside x for a model, without inputs and lags that only others read."""
    readers = {"inputs": "n_inputs", "input_names": "n_inputs", "before": "order"}
    others = {
        name for name, by in readers.items() if any(getattr(one, by) for one in models) and not getattr(model, by)
    }
    return {name: value for name, value in given.items() if name not in others}


def _row(fit: Any, criterion: str, ranks: Ranks) -> dict[str, Any]:
    """The numbers of a fit that has all data."""
    names: tuple[str, ...] = ()
    if fit.posterior is None:
        names = POINT if isinstance(fit.model.problem(fit.series), Problem) else POINT[:2]
        names += tuple(name for name in SHORT if name == criterion)
    try:
        parts = ranks.gathered(lambda: Criteria.of(fit, {*names, criterion}))
    except TypeError as error:  # with the cure
        raise ValueError(f"criterion: {error}") from None
    total = Criteria.total(parts)
    row = {"loglik": total.loglik, "n_parameters": total.n_parameters}
    return row | {name: getattr(total, name) for name in names}


def _heldout(model: Any, series: Series, folds: int, options: dict[str, Any], ranks: Ranks, candidate: int) -> float:
    """log p of what each fold leaves out, added up."""

    def of_fold(fold: int, kept: Series) -> Any:
        return fitted(model, kept, options, file=f"{candidate}.{fold}").model

    sizes = ranks.gathered(lambda: series.n_sequences)
    if sum(sizes) > 1:
        number_of = torch.arange(series.n_sequences, device="cpu") + sum(sizes[: ranks.rank])
        return _left_out(of_fold, series, number_of, min(folds, sum(sizes)), options, ranks)
    if ranks.n > 1:
        raise ValueError(
            f'criterion: got "heldout" and one sequence, which {ranks.n} processes cannot share; select in one '
            'process, or by criterion="bic".'
        )
    one = series.one(0)
    if one.n_steps < 2 * folds:
        raise ValueError(f"folds: got {folds} for {one.n_steps} step(s); give fewer, or a longer series.")
    ends = [one.n_steps - (folds - i) * (one.n_steps // 2) // folds for i in range(folds + 1)]
    total = 0.0
    for fold, (end, after) in enumerate(pairwise(ends)):
        past, longer = one.cut(0, end), one.cut(0, after)
        past_only = of_fold(fold, past)
        with torch.no_grad(), possible(model, options):
            gain = past_only.log_evidence(longer) - past_only.log_evidence(past)
            total += float(longer.weighed(gain))
    return total


def _left_out(
    of_fold: Callable[[int, Series], Any],
    series: Series,
    number_of: Int[Tensor, "B"],
    folds: int,
    options: dict[str, Any],
    ranks: Ranks,
) -> float:
    """log p of the sequences that each fold leaves out, of all processes; `number_of`: the number of each among all."""
    total = 0.0
    for fold in range(folds):
        left = number_of % folds == fold
        kept = ranks.together(lambda: series.subset((~left).nonzero().flatten()))  # noqa: B023
        others = of_fold(fold, kept)
        total += sum(ranks.gathered(partial(_evidence, others, series, left.nonzero().flatten(), options)))
    return total


@torch.no_grad()
def _evidence(model: Any, series: Series, members: Int[Tensor, "n"], options: dict[str, Any]) -> float:
    """log p of some of the sequences."""
    if not len(members):
        return 0.0
    left = series.subset(members)
    with possible(model, options):
        return float(left.weighed(model.log_evidence(left)).sum())
