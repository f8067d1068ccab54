"""`Model`, the base of every model: a frozen specification, values of its parameters, and their prior.

A kind of model defines its specification, its parameters, the `problem` of a series, its Pyro program, and its fit.
This file has all methods that follow from these. Modules above this one are imported when they are called.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, Unpack

import numpy as np
import torch
from torch import Tensor

from ..inference.numerics.checks import naming
from ..inference.numerics.clock import timed
from ..inference.numerics.gradients import needs_gradients
from ..inference.numerics.interrupts import importing, interrupt_together, interruptible
from ..inference.numerics.randomness import Seed
from ..inference.numerics.ranks import Ranks
from ..inference.numerics.records import LINES
from ..inference.numerics.scalars import check_choice, check_integer, check_kind, check_path
from ..inference.numerics.threads import one_thread_if_small
from ..inference.numerics.user_warnings import warn_user
from .data.beside import with_steps_to_come
from .data.design import check_design, with_inputs
from .data.frames import Frame, check_data, plain
from .data.lags import with_lags
from .data.reading import read_series
from .data.series import Given, Scaling, Series
from .data.sources import is_source, open_sequences
from .emissions.contract import Emission
from .inputs import Inputs, count_inputs
from .parameters import (
    HARMLESS,
    Named,
    Parameter,
    Parameters,
    check_parameters,
    count_free,
    described,
    free_entries,
    listed,
    read_table,
    read_tables,
)
from .peers import PIPELINE, missing_member, unknown_option
from .problem import SeriesProblem
from .responses import as_before
from .user_priors import is_distribution, kind_of

if TYPE_CHECKING:
    import arviz as az
    import pandas as pd
    from matplotlib.figure import Figure

    from .fit import Fit
    from .fitting.options import Options
    from .views.panels import Panels

Own = TypeVar("Own", bound="Model")
IN_FILE: ContextVar[int | None] = ContextVar("numbers in the file of the model that is made", default=None)
Probabilities = dict[str, tuple[Tensor, tuple[str, ...]]]
"""Tables `[*r, *b, T, ...]` by name, and the names of their axes after time."""


class Model(Named, ABC):
    """A model of sequences.

    Attributes:
        values: the parameters by name; empty if the model has only a prior.
        prior: hyperparameters by name; empty if the model has none.
        latents: the names of the entries of a latent vector; empty if there is none.
        holds: whether a step may hold its state; then there is a gate.
        inputs: the inputs that it reads, by name or number.
        differentiable: whether the evidence is differentiable in the parameters.
        together: whether sequences share what is hidden, so that none has a result of its own.
        subjects: the names of the subjects whose parameters differ; empty if there are none.
        chain_name: the name of one of several chains of states; empty if there is only one.
        origin: the inputs at which constants are stated, a number of each; None: inputs 0.

    Arguments of methods:
        x: the series and the arguments beside it, as in `read`; or a `Series`.
        values: the parameters by name, `[*r, ...]`.
        chain: the chain of a series: the posterior over its paths.
        n_steps: the number of steps.
        batch_shape: the batch axes: () for one sequence.
        horizon: the number of steps to forecast, at least 1.
        n: the number of draws.
        seed: a number, which makes the draw repeatable; a `torch.Generator`; or None, torch's global generator.
        sequence: the number of the sequence that is drawn.
        level: the probability of the bands.
        state: the memory of the streams, from `start` or from the last `update`.
        x_t: the observations of this step, NaN where missing.
        inputs: of this step, `[*batch, C]`.
    """

    made_of: ClassVar[tuple[str, ...]]  # the attributes that specify the model
    methods: ClassVar[tuple[str, ...]] = ("em", "vmp")
    reading: ClassVar[str] = ""  # a part of such a model that reads inputs, as a cure in errors
    differentiable: ClassVar[bool] = True
    chain_name: ClassVar[str] = ""
    together: bool = False
    subjects: tuple[str, ...] = ()
    in_any_basis: Collection[str] = ()
    """Of a model of a latent vector, the parameters that take distributions as priors."""

    values: Parameters
    prior: Parameters
    origin: Tensor | None
    _chosen: frozenset[str]  # hyperparameters set by `with_prior`; these are not scaled to data

    def __init__(self, **parts: Any) -> None:
        vars(self).update(parts, values={}, prior={}, origin=None, _chosen=frozenset())
        most, n = IN_FILE.get(), sum(math.prod(self._shape(parameter)) for parameter in self.known.values())
        if most is not None and n > max(most, HARMLESS):  # a file may hold a prior alone, of fewer numbers
            raise ValueError(f"the model has {n:,} numbers, but the file has {most:,}.")
        try:
            vars(self).update(prior=self._weak_prior(None))
        except RuntimeError as error:
            if "allocate" not in str(error):
                raise
            raise ValueError(
                f"{self.name}: got {n:,} numbers, for which there is no memory; make it smaller."
            ) from None

    def __setattr__(self, name: str, value: Any) -> None:
        pipeline = f" In a pipeline, use {PIPELINE}." if name.startswith("_") else ""
        raise AttributeError(
            f"{name}: a {self.name} cannot be changed; use with_values(...) or with_prior(...).{pipeline}"
        )

    def __getattr__(self, name: str) -> Tensor:
        """A parameter's value under its name, e.g. `model.loc`."""
        if name in vars(self).get("values", {}):
            return self.values[name]
        from .fit import Fit

        elsewhere = f"fit.{name}, where fit = model.fit(x)" if hasattr(Fit, name) else ""
        raise missing_member(self, name, "model", elsewhere)

    def __dir__(self) -> list[str]:
        """Its members, and the names of parameters that have values."""
        return [*super().__dir__(), *vars(self).get("values", ())]

    def _shape(self, parameter: Parameter) -> list[int]:
        """The shape of a parameter; an axis without a length, as of what all states share, has length one."""
        return [self.sizes.get(dim, 1) for dim in parameter.dims]

    # ---- what a kind of model says -----------------------------------------------------------------------------------

    @property
    @abstractmethod
    def known(self) -> Mapping[str, Parameter]:
        """The axes, support and displayed form of each parameter."""

    @property
    @abstractmethod
    def sizes(self) -> dict[str, int]:
        """The lengths of the parameters' axes."""

    @property
    @abstractmethod
    def n_features(self) -> int:
        """F, the length of one observation."""

    @property
    def inputs(self) -> Inputs:
        """The inputs that the model reads, by name or number: the columns of its design."""
        return 0

    @property
    def inputs_of(self) -> dict[str, Inputs]:
        """The inputs along each axis of parameters, by the name of the axis."""
        return {"input": self.inputs}

    @property
    def order(self) -> int:
        """The number of earlier observations that an observation depends on, beside the state."""
        return 0

    def scored(self, series: Series) -> Tensor:
        """The observed values `[*b, T, F]` whose density the model gives.

        Arguments:
            series: what `read` returned.
        """
        return ~torch.isnan(series.observations)

    @cached_property
    def n_inputs(self) -> int:
        """C, the number of inputs of the model."""
        return count_inputs(self.inputs)

    @property
    def holds(self) -> bool:
        """Whether a step may hold its state; then there is a gate."""
        return False

    @property
    def latents(self) -> tuple[str, ...]:
        """The names of the entries of a latent vector."""
        return ()

    @property
    def chain_sizes(self) -> tuple[int, ...]:
        """The number of states of each chain of states."""
        return ()

    @abstractmethod
    def problem(self, x: Any, **given: Unpack[Given]) -> SeriesProblem:
        """The model's parts and the series x, as one input for inference."""

    @abstractmethod
    def forward(self, x: Any = None, *, n_steps: int | None = None, batch_shape: tuple[int, ...] = ()) -> Tensor:
        """Run the Pyro program, conditioned on x if it is given, and return the observations.

        Arguments:
            x: observations to condition on, as in `read`; None: they are drawn.
            n_steps: the number of steps that are drawn if there is no x.
        """

    @abstractmethod
    def probabilities(self, chain: Any, values: Parameters) -> Probabilities:
        """The tables of a whole series for `states` and `to_arviz`: `[*r, *b, T, ...]` by name, with the names of their
        axes after time.
        """

    @abstractmethod
    def forecast(self, x: Any, horizon: int, **given: Unpack[Given]) -> Any:
        """States and observations at each of the `horizon` steps after the end of x."""

    def _figures(self) -> Any:
        with importing():
            from .views import figures

        return figures

    @abstractmethod
    def _panels(self, full_data: Series, sequence: int, level: float) -> "Panels":
        """The panels of the figure of one sequence."""

    @abstractmethod
    def _panels_ahead(self, forecast: Any, level: float) -> "Panels":
        """The panels of the figure of a forecast of one sequence; below the features, with the steps before it."""

    @abstractmethod
    def _made(self) -> str:
        """The Python call that makes this model, as text."""

    def product_of(self, values: Parameters) -> Parameters:
        """The parameters of the chain in `problem`."""
        return values

    def of_product(self, path: Tensor) -> Tensor:
        """The states of the model, from a path of the chain in `problem`.

        Arguments:
            path: states of the chain in `problem`.
        """
        return path

    def _checked(self, values: Parameters) -> Parameters:
        """The parameters under their names; ValueError if they are not valid."""
        return check_parameters(self.known, values, self.sizes, self.name)

    def _weak_prior(self, series: Series | None) -> Parameters:
        """Weak hyperparameters, scaled to a series."""
        return {}

    def _check_prior(self, prior: Parameters) -> None:
        """ValueError if hyperparameters of the right names and shapes are not valid."""

    def _check_observations(self, series: Series) -> None:
        """ValueError if the model cannot have produced these observations."""

    def _check_knowledge(self, series: Series, with_states: bool = True) -> Series:
        """The series, if known states and weights fit the model; ValueError otherwise.

        Arguments:
            with_states: whether `states` were given; if all are unknown, the series has none.
        """
        series.check_plain(f"a {self.name}")
        return series

    def _check_drive(self, series: Series, n_steps: int) -> None:
        """ValueError if gaps of `n_steps` steps do not fit the model."""
        if series.gaps is not None:
            raise ValueError(f"dt: was given, but a {self.name} does not use gaps; leave it out.")

    def _check_drives(self, series: Series, n_steps: int) -> None:
        """ValueError if inputs or gaps of `n_steps` steps do not fit the model."""
        if self.n_inputs or series.inputs is not None:
            check_design(series.design, (*series.batch_shape, n_steps, self.n_inputs), self.inputs, self.reading)
        self._check_drive(series, n_steps)

    # ---- specification, values, prior --------------------------------------------------------------------------------

    def with_values(self: Own, values: Mapping[str, Any] | None = None, /, **named: Any) -> Own:
        """The same model with these parameter values, by name. Pass names with a dot in a dictionary.

        Arguments:
            values: numbers in any form by name, in the form of `known` or in a displayed form.
            named: the same as keywords.

        Raises:
            ValueError: a parameter is missing, unknown, of another shape, or outside its space.
        """
        inputs = {**(check_kind("values", values, Mapping, "numbers by name") if values is not None else {}), **named}
        forms = {parameter.shown.name for parameter in self.known.values() if parameter.shown}
        unknown = sorted(set(inputs) - set(self.known) - forms)
        if unknown:
            raise ValueError(f"values: got unknown parameter(s) {unknown}; this model has {list(self.known)}.")
        checked = self._checked(read_tables(inputs) if inputs else {})
        return self._copy({name: checked[name] for name in self.known})

    def without_values(self: Own) -> Own:
        """The same model with its prior and without values."""
        return self._copy({})

    def at_ends(self) -> list[str]:
        """A sentence about each value that is at an end of its range, where it has no standard error."""
        return []

    def with_prior(self: Own, prior: Mapping[str, Any]) -> Own:
        """The same model with other hyperparameters, with names and shapes as in `model.prior`. A fit keeps these, and
        scales the others to the data.

        Arguments:
            prior: hyperparameters, or distributions of Pyro, by name; those left out keep their values.

        Raises:
            ValueError: other names or shapes; numbers that are not finite or not valid hyperparameters.
        """
        expected = {name: tuple(table.shape) for name, table in self.prior.items()}
        tables = {}
        for name, value in check_kind("prior", prior, Mapping, "hyperparameters by name").items():
            if is_distribution(value):
                raise TypeError(
                    f"prior[{name!r}]: got {kind_of(value)}, but a {self.name} accepts hyperparameters: "
                    f"{', '.join(expected) or 'none'}; and distributions of {', '.join(self.in_any_basis)}. Its other "
                    "parameters depend on the basis of the latent vector, so a density of one has no meaning by itself."
                )
            table = read_table(value, f"prior[{name!r}]")
            if not bool(table.isfinite().all()):
                raise ValueError(f"prior[{name!r}]: got numbers that are not finite; give finite hyperparameters.")
            if name not in expected:
                raise ValueError(
                    f"prior: got {name!r}, expected hyperparameters of a {self.name}: {', '.join(expected) or 'none'}; "
                    "or give a distribution of a parameter."
                )
            if expected[name] != tuple(table.shape):
                raise ValueError(f"prior: got {name} of shape {tuple(table.shape)}, expected {expected[name]}.")
            tables[name] = table.detach().to(self.prior[name].device)
        complete = self.prior | tables
        try:
            self._check_prior(complete)
        except (ValueError, RuntimeError) as error:
            reason = " ".join(str(error).split())
            raise ValueError(f"prior: got {sorted(prior)}, which do not form a prior: {reason}") from None
        model = self._copy(self.values, complete)
        vars(model).update(_chosen=self._chosen | set(tables))
        return model

    def scaled_to(self: Own, x: Any, **given: Unpack[Given]) -> Own:
        """The same model with its weak prior scaled to the observations x, as in `fit`. Hyperparameters of `with_prior`
        stay. Inputs and gaps are optional.

        Raises:
            ValueError: a feature of x without any observed value.
        """
        series = self._series(x, given)
        series.check(self._check_observations)
        for feature in torch.isnan(series.rows).all(0).nonzero()[:1].flatten().tolist():
            raise ValueError(
                f"x: feature {feature} ({series.features_of()[feature]}) has no observed value, so its prior cannot be "
                "scaled; give data with observed values of it."
            )
        return self._copy(self.values, self._weak_prior(series) | {name: self.prior[name] for name in self._chosen})

    def _copy(self: Own, values: Parameters, prior: Parameters | None = None) -> Own:
        """The same model with these values, which must be valid, and with this prior if it is given."""
        model, prior = object.__new__(type(self)), self.prior if prior is None else prior
        parts = {name: vars(self)[name] for name in (*self.made_of, "origin", "_chosen")}
        tables = {name: table.detach() for name, table in prior.items()}
        vars(model).update(parts, values=dict(values), prior=tables)
        return model

    @property
    def _like(self) -> Tensor:
        """A tensor whose dtype and device the model uses if no data are given."""
        tables = self.values or self.prior
        return next(iter(tables.values())) if tables else torch.zeros((), dtype=torch.float64, device="cpu")

    @property
    def _values(self) -> Parameters:
        """The values; ValueError if there are none."""
        if not self.values:
            raise ValueError("model: has no parameter values yet; use model.fit(x).model, or model.with_values(...).")
        return self.values

    def values_like(self, x: Tensor) -> Parameters:
        """The values in the dtype and on the device of x.

        Arguments:
            x: a tensor with the dtype and the device.
        """
        return {name: value.to(x) for name, value in self._values.items()}

    @property
    def n_parameters(self) -> int:
        """The number of free parameters in a fit."""
        return self.n_free(())

    def n_free(self, fixed: Iterable[str]) -> int:
        """The number of free parameters in a fit that keeps some parameters fixed; a dictionary has their tables, with
        NaN where an entry is free.

        Arguments:
            fixed: the names of the parameters that the fit keeps; or their tables by name, with NaN where an entry is
                free.
        """
        return count_free(self.known, free_entries(self._values, fixed), self._values)

    def describe(self) -> Parameters:
        """The parameter values in their displayed forms: scales and covariances instead of precisions.

        If constants are stated at other inputs than 0, these are `inputs_origin`.
        """
        return described(self.known, self.values) | ({} if self.origin is None else {"inputs_origin": self.origin})

    @property
    def stated_at(self) -> str:
        """The inputs at which constants are stated, in words; empty if these are 0."""
        if self.origin is None:
            return ""
        names = [f"input {i}" for i in range(self.n_inputs)] if isinstance(self.inputs, int) else self.inputs
        return ", ".join(f"{name} = {number:.6g}" for name, number in zip(names, self.origin.tolist(), strict=True))

    def __repr__(self) -> str:
        """The specification, and the values."""
        stated = [f"  constants at inputs {self.stated_at}"] if self.stated_at else []
        lines = [self._made(), *stated, *listed(self.known, self.values).splitlines()]
        return "\n".join(lines if len(lines) <= LINES else [*lines[: LINES - 1], "  ..."])

    def _repr_html_(self) -> str:
        """The values as a table for a notebook."""
        from .views.pages import model_page

        return model_page(self)

    def __call__(self, *args: Any, **keywords: Any) -> Tensor:
        """See `forward`."""
        return self.forward(*args, **keywords)

    # ---- files -------------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write the model into the folder `path` as one file, `model.safetensors`. The file is written completely or
        not at all.

        Arguments:
            path: the folder; it is made if it does not exist.

        Raises:
            TypeError, ValueError: `path` is not a path.
            OSError: the file cannot be written; an existing model stays unchanged.
        """
        from .storage import save_model

        save_model(self, check_path("path", path))

    def fit_of(self, plain: Any, tensors: Mapping[str, Tensor]) -> "Fit[Any]":
        """The fit that was saved with this model.

        Arguments:
            plain, tensors: its description and its tensors in the file.
        """
        from .stored_fit import fields_of

        fields = fields_of(plain, tensors, self)
        return self._kind_of_fit(fields["posterior"] is not None)(model=self, **fields)

    def _kind_of_fit(self, has_posterior: bool) -> type["Fit[Any]"]:
        """The class of its fits."""
        from .fit import Fit

        return Fit

    @classmethod
    def load(cls: type[Own], path: str | Path) -> Own:
        """Read a model of this class that was written by `save`.

        Arguments:
            path: the folder that `save` has written.

        Raises:
            ValueError: no such folder, no model of this class in it, or a damaged file.
        """
        from .storage import load_as

        return load_as(cls, check_path("path", path))

    def to_parts(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The specification, part by part, and the tensors by name, as stored in files."""
        tensors = {f"value.{name}": value for name, value in self.values.items()}
        for name, table in self.prior.items():
            tensors[f"{'prior' if name in self._chosen else 'weak'}.{name}"] = table
        tensors |= {} if self.origin is None else {"inputs.origin": self.origin}
        return {name: getattr(self, name) for name in self.made_of}, tensors

    @classmethod
    def from_parts(cls: type[Own], parts: dict[str, Any], tensors: dict[str, Tensor]) -> Own:
        """The model with the parts and tensors of `to_parts`.

        Arguments:
            parts: the specification by name.
            tensors: values and hyperparameters by name.
        """
        token = IN_FILE.set(sum(table.numel() for table in tensors.values()))
        try:
            model, tables = cls._from_specification(parts), {}
        finally:
            IN_FILE.reset(token)
        for prefix in ("value.", "prior.", "weak."):
            tables[prefix] = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
        prior = tables["weak."] | tables["prior."]
        prior = as_before(prior, model.prior) | prior
        if set(prior) != set(model.prior):
            raise ValueError(f"prior: got {sorted(prior)}, but the model has {sorted(model.prior)}.")
        model = model.with_prior(prior)
        vars(model).update(_chosen=frozenset(tables["prior."]), origin=tensors.get("inputs.origin"))
        return model.with_values(tables["value."]) if tables["value."] else model

    @classmethod
    def _from_specification(cls: type[Own], parts: dict[str, Any]) -> Own:
        """The model with these parts, without values."""
        return cls(**parts)

    # ---- series ------------------------------------------------------------------------------------------------------

    def read(self, x: Any, *, horizon: int = 0, **given: Unpack[Given]) -> Series:
        """The observations, their inputs, gaps and labels as one `Series`, checked against this model.

        Arguments:
            x, lengths, inputs, input_names, dt, time, states, weights, noise, before: as in every method. A Series is
                checked and returned unchanged.
            horizon: number of future steps. Inputs and gaps then cover them too: `[*batch, T + horizon, ...]`. A Series
                already has its own, so pass only future ones: `[*batch, horizon, ...]`.

        Raises:
            ValueError: see `data.reading.read_series`; values that the model cannot have produced; inputs or gaps
                that do not fit the model or the series.
        """
        for name in given:
            if name not in Given.__annotations__:
                raise unknown_option("read", name, Given.__annotations__)
        with_states = given.get("states") is not None or (isinstance(x, Series) and x.checked is not None)
        if isinstance(x, Series) and horizon:
            if given.get("time") is not None:
                raise ValueError(
                    "time: was given, but a Series has gaps, not times; give dt, the gaps before the future steps."
                )
            beside = (given.pop(name, None) for name in ("inputs", "input_names", "dt"))
            x = with_steps_to_come(x, horizon, *beside)
        series, parts = self._series(x, given), tuple(vars(self)[name] for name in self.made_of)
        if series.checked is not None and all(a is b for a, b in zip(series.checked, parts, strict=False)):
            return series
        series.check(self._check_observations)
        series = self._check_knowledge(series, with_states)
        n_steps = max(series.n_steps, series.n_driven) if isinstance(x, Series) else series.n_steps + horizon
        if given.get("time") is not None and series.dt is not None and series.dt.shape[-1] != n_steps:
            ahead = f", {horizon} of them to come" if horizon else ""
            expected, got = (*series.batch_shape, n_steps), tuple(series.dt.shape)
            raise ValueError(f"time: got shape {got}, expected {expected}: the time of each step{ahead}.")
        if series.packed and not any(isinstance(table, Tensor) for table in (series.inputs, series.dt)):
            series.check(lambda part: self._check_drives(part, part.n_steps))
        else:
            self._check_drives(series, n_steps)
        return series.checked_by(parts)

    def _series(self, x: Any, given: Given) -> Series:
        """The series before most checks; only the number of features is checked."""
        frame = None
        if not isinstance(x, Tensor | Series) and type(x) is not np.ndarray:
            check_data(x)
            frame, x = Frame.of(x), open_sequences(x, progress=False) if is_source(x) else plain(x, "x")
        series, before = self._arranged(x), None
        if isinstance(series, Series):
            for name in (name for name, value in given.items() if value is not None):
                raise ValueError(f"{name}: the Series has its own; leave {name} out.")
            if series.n_features != self.n_features:
                raise ValueError(f"x: got {series.n_features} feature(s), but the model has {self.n_features}.")
        else:
            known: Any = {name: plain(table, name) for name, table in given.items()} if given else {}
            before = known.pop("before", None)
            series = read_series(series, self.n_features, **known)
            series = series if frame is None else replace(series, frame=frame)
        series = with_lags(with_inputs(series, self.inputs), self.order, before)
        return series if self.origin is None and series.scaling is None else self._about_origin(series)

    def _about_origin(self, series: Series) -> Series:
        """The series with inputs about the origin of this model."""
        if self.origin is None:
            return series if series.scaling is None else replace(series, scaling=None)
        origin = self.origin.double()
        return replace(series, scaling=Scaling(origin, torch.ones_like(origin)))

    def _arranged(self, x: Any) -> Any:
        """The data, with the columns of frames in the order of the features."""
        return x

    @needs_gradients
    @interruptible()
    def _fit(self, x: Any, given: Given, options: "Options") -> "Fit[Any]":
        """The fit of a series by `_fitted`, under the prior in the options."""
        check_choice("method", options.method, self.methods)
        if given.get("subjects") is not None and options.pooled == "complete":
            warn_user(
                'subjects: has no effect, because with pooled="complete", the default, all subjects have the same '
                'parameters; give pooled="partial" or "none", or leave subjects out.'
            )
        with timed() as clock:
            fit = self._read_and_fitted(x, given, options)
        return fit.reported(clock)

    def _read_and_fitted(self, x: Any, given: Given, options: "Options") -> "Fit[Any]":
        """The fit of data that are read here."""
        ranks = Ranks.of(options.group)
        if not ranks.alone:
            interrupt_together()
        series = ranks.together(lambda: self.read(x, **given).detached())
        if not ranks.alone:
            from .fitting.agreement import check_alike

            check_alike(ranks, self, options, series)
            if options.seed is None and options.checkpoint is None:  # any number will do, so it is that of the first
                options = replace(options, seed=ranks.gathered(lambda: options.number)[0])
        for doubt in self._doubts(series):
            warn_user(doubt)
        model = self.with_prior(options.prior) if isinstance(options.prior, Mapping) else self
        with naming("x"), one_thread_if_small(options.restarts * series.like.numel()):
            if options.checkpoint is None:
                fit = model._fitted(series, options)
            else:
                from .resuming import resumable

                with resumable(model, series, options) as resumed:
                    fit = model._fitted(series, resumed)
            series = fit.model._about_origin(series)
            fit = replace(fit, series=series, prior=options.prior, shared=ranks.n > 1)
            posterior = None if fit.posterior is None else fit.posterior.labelled(fit.model, series)
            return replace(fit, posterior=posterior)

    def _doubts(self, series: Series) -> Iterator[str]:
        """Sentences about data that a fit takes, but that hardly have the form that the user thinks of."""
        n, n_features = series.n_sequences, series.n_features
        if n > 1 and series.n_steps == 1 and self.chain_sizes != (1,):
            yield (
                f"x: got {n} sequences of one step each, so the fit learns nothing about how one step follows another; "
                f"for one sequence of {n} steps give x of shape {(n, n_features)}."
            )
        emission = vars(self).get("emission")
        if isinstance(emission, Emission) and not series.on_disk:
            yield from emission.doubts(series.rows, series.features_of())

    @abstractmethod
    def _fitted(self, series: Series, options: "Options") -> "Fit[Any]":
        """The fit of a series; without a prior if `options.prior` is None."""

    def states(self, x: Any, **given: Unpack[Given]) -> "pd.DataFrame | Any":
        """The states at each step given the whole sequence, at the model's values.

        Returns:
            A row for each step, as a frame of pandas. A panel or a table of several sequences keeps its index and the
            order of its rows. For other sequences, the index is the sequence and the time. Data in a frame of polars or
            pyarrow give a frame of the same library, with the key columns of the data in place of the index. Columns:
            `state`, the most probable one; `state_0`, `state_1`, ..., P(s_t | x). If known states have labels, these
            stand in place of the numbers; `redraw`, P(z_t = 1 | x), for copy dynamics; `change`, P(s_t != s_t-1 | x), 0
            at the first step. For a linear model, `latent_mean_level`, `latent_sd_level`, ...: mean and standard
            deviation of each latent. For a model of several chains, these for each chain, counted from 1, without
            `change`: `state_1`, `state_1_0`, ..., `redraw_1`, ...
        """
        from .views.states import states

        return states(self, x, **given)

    def write(
        self,
        x: Any,
        path: str | Path,
        result: str = "states",
        *,
        horizon: int = 1,
        seed: Seed = 0,
        **given: Unpack[Given],
    ) -> None:
        """Write a result with a row for each row of the data to a file, which is complete or unchanged.

        A path that ends in `.csv` gives text. Any other gives a Parquet file, for which pyarrow is needed.

        If the series is on disk (`open_sequences`), memory holds a part at a time. The states of a longer sequence are
        computed in stretches, exactly. Its other results, and all results of models with real-valued states, are
        computed in memory.

        Arguments:
            path: the file.
            result: "states": the columns of `states`. "viterbi": the most probable path, `state`, and `redraw` if the
                model has gates. "forecast": the mean and the standard deviation of each feature (`level`, `level_sd`)
                and the beliefs about states, a row for each sequence and horizon 1, 2, ... "draws": new sequences from
                the model, with the lengths, inputs and gaps of the data.
            horizon: the number of steps of a forecast.
            seed: of draws.

        Rows have the column `sequence`, if x has several, and the time, or `step` if times have no name.

        Raises:
            ValueError: another result; a folder that does not exist; a column of times with the name of a result.
            TypeError: "viterbi" of a model without discrete states.
            ModuleNotFoundError: the file is no CSV file, and pyarrow is not installed.
        """
        from .views.written import write

        write(self, x, path, result, horizon, seed, **given)

    def plot(self, x: Any, *, sequence: int = 0, level: float = 0.9, **given: Unpack[Given]) -> "Figure":
        """Plot the series, the model's bands, its states, and the redraws: see `plot_fit` in `views`."""
        return self._figures().plot_fit(self, x, sequence=sequence, level=level, **given)

    def plot_forecast(
        self, x: Any, horizon: int, *, sequence: int = 0, level: float = 0.9, **given: Unpack[Given]
    ) -> "Figure":
        """Plot the end of one sequence and its forecast: `forecast(x, horizon, ...).plot(...)`."""
        horizon = check_integer("horizon", horizon)
        one = self.read(x, horizon=horizon, **given).one(sequence)
        return self.forecast(one, horizon).plot(level=level)

    def to_arviz(
        self, x: Any, *, draws: int | None = None, seed: Seed = 0, **given: Unpack[Given]
    ) -> "az.InferenceData":
        """The model at its values and the series x as ArviZ `InferenceData`: see `views.arviz.to_arviz`.

        Arguments:
            draws: the number of draws, each with a path; None: the default of `views.arviz.to_arviz`.
            seed: of the draws.
        """
        with importing():
            from .views.arviz import to_arviz

        return to_arviz(self, x, draws=draws, seed=seed, **given)
