"""`Model`, the base of every model: a frozen specification, values of its parameters, and their prior.

A kind of model says what it is made of, its parameters, the `problem` that it makes of a series, its Pyro program, and
how it is fitted. What follows from that is written here, once. What stands on higher floors is imported where it is
called.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, Unpack

import torch
from torch import Tensor

from ..inference.numerics.checks import naming
from ..inference.numerics.randomness import Seed
from ..inference.numerics.records import LINES
from ..inference.numerics.scalars import check_choice, check_integer, check_kind, check_path
from ..inference.numerics.threads import one_thread_if_small
from .data.reading import read_series
from .data.series import Given, Series
from .parameters import (
    Named,
    Parameter,
    Parameters,
    check_parameters,
    count_free,
    described,
    listed,
    read_table,
    read_tables,
)
from .problem import SeriesProblem

if TYPE_CHECKING:
    import arviz as az
    import pandas as pd
    from matplotlib.figure import Figure

    from .fit import Fit
    from .fitting.options import Options

Own = TypeVar("Own", bound="Model")
Probabilities = dict[str, tuple[Tensor, tuple[str, ...]]]
"""Tables `[*r, *b, T, ...]` by name, and the names of their axes after time."""


class Model(Named, ABC):
    """A model of sequences.

    Attributes:
        values: the parameters by name; empty while the model has only a prior.
        prior: hyperparameters by name; empty where the model has no choice of them.
        latents: what the entries of a latent vector are called, where there is one.
        holds: whether a step may hold its state, so that there is a gate.
        n_covariates: how many covariates drive it.
        differentiable: whether its evidence is, in the parameters.
        chain_name: what one of several chains of states is called; empty where there is only one.
    """

    made_of: ClassVar[tuple[str, ...]]  # the attributes that specify the model
    methods: ClassVar[tuple[str, ...]] = ("em", "vmp")
    differentiable: ClassVar[bool] = True
    chain_name: ClassVar[str] = ""

    values: Parameters
    prior: Parameters
    _chosen: frozenset[str]  # hyperparameters that `with_prior` has set, which are not scaled to data

    def __init__(self, **parts: Any) -> None:
        vars(self).update(parts, values={}, prior={}, _chosen=frozenset())
        vars(self).update(prior=self._weak_prior(None))

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{name}: a {self.name} cannot be changed; use with_values(...) or with_prior(...).")

    def __getattr__(self, name: str) -> Tensor:
        """A parameter's value under its name, e.g. `model.loc`."""
        if name in vars(self).get("values", {}):
            return self.values[name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    # ---- what a kind of model says -----------------------------------------------------------------------------------

    @property
    @abstractmethod
    def known(self) -> Mapping[str, Parameter]:
        """Each parameter's axes, support, and the form in which people give it."""

    @property
    @abstractmethod
    def sizes(self) -> dict[str, int]:
        """The lengths of the parameters' axes."""

    @property
    @abstractmethod
    def n_features(self) -> int:
        """F, the length of one observation."""

    @property
    def n_covariates(self) -> int:
        """C, the number of covariates that drive it."""
        return 0

    @property
    def holds(self) -> bool:
        """Whether a step may hold its state, so that there is a gate."""
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
        """The model's parts and the series x: what every kind of inference takes."""

    @abstractmethod
    def forward(self, x: Any = None, *, n_steps: int | None = None, batch_shape: tuple[int, ...] = ()) -> Tensor:
        """The Pyro program, conditioned on x where it is given. Returns the observations."""

    @abstractmethod
    def probabilities(self, chain: Any, values: Parameters) -> Probabilities:
        """What `states` and `to_arviz` show of the whole series: tables `[*r, *b, T, ...]` by name, and the names of
        their axes after time."""

    @abstractmethod
    def forecast(self, x: Any, horizon: int, **given: Unpack[Given]) -> Any:
        """States and observations at each of the `horizon` steps after the last one of x."""

    @abstractmethod
    def _figures(self) -> Any:
        """The module with `plot_fit(model, x, ...)` and `plot_forecast(forecast, level)` for this kind of model."""

    @abstractmethod
    def _made(self) -> str:
        """The call that makes it, in words."""

    def product_of(self, values: Parameters) -> Parameters:
        """Parameters as those of the chain in `problem`."""
        return values

    def _checked(self, values: Parameters) -> Parameters:
        """The parameters under their own names; ValueError where they are not valid."""
        return check_parameters(self.known, values, self.sizes, self.name)

    def _weak_prior(self, series: Series | None) -> Parameters:
        """Hyperparameters of little weight, scaled to a series."""
        return {}

    def _check_prior(self, prior: Parameters) -> None:
        """ValueError where hyperparameters of the right names and shapes are not valid."""

    def _check_observations(self, series: Series) -> None:
        """ValueError where the model cannot have made such numbers."""

    def _check_drive(self, series: Series, n_steps: int) -> None:
        """ValueError where covariates or gaps of so many steps do not fit the model."""
        for name, table in (("covariates", series.covariates), ("dt", series.gaps)):
            if table is not None:
                raise ValueError(f"{name}: got some, but nothing drives a {self.name}; leave it out.")

    # ---- specification, values, prior --------------------------------------------------------------------------------

    def with_values(self: Own, values: Mapping[str, Any] | None = None, /, **named: Any) -> Own:
        """The same model with these parameter values, by name; names with a dot come in a dictionary.

        Raises:
            ValueError: a parameter is missing, unknown, of another shape, or outside its space.
        """
        given = {**(check_kind("values", values, Mapping, "numbers by name") if values is not None else {}), **named}
        forms = {parameter.shown.name for parameter in self.known.values() if parameter.shown}
        unknown = sorted(set(given) - set(self.known) - forms)
        if unknown:
            raise ValueError(f"values: got unknown parameter(s) {unknown}; this model has {list(self.known)}.")
        checked = self._checked(read_tables(given) if given else {})
        return self._copy({name: checked[name] for name in self.known})

    def without_values(self: Own) -> Own:
        """The same model with only its prior."""
        return self._copy({})

    def with_prior(self: Own, prior: Mapping[str, Any]) -> Own:
        """The same model with other hyperparameters, named and shaped as in `model.prior`; a fit keeps them as they
        are, and scales the others to the data.

        Raises:
            ValueError: other names or shapes; numbers that are not finite, or of which there is no prior.
        """
        expected = {name: tuple(table.shape) for name, table in self.prior.items()}
        tables = {}
        for name, value in check_kind("prior", prior, Mapping, "hyperparameters by name").items():
            table = read_table(value, f"prior[{name!r}]")
            if not bool(table.isfinite().all()):
                raise ValueError(f"prior[{name!r}]: got numbers that are not finite; give finite hyperparameters.")
            if expected.get(name) != tuple(table.shape):
                raise ValueError(f"prior: got {name} of shape {tuple(table.shape)}, expected {expected}.")
            tables[name] = table.detach().to(self.prior[name].device)
        whole = self.prior | tables
        try:
            self._check_prior(whole)
        except (ValueError, RuntimeError) as error:
            said = " ".join(str(error).split())
            raise ValueError(f"prior: got {sorted(prior)} of which there is no prior: {said}") from None
        model = self._copy(self.values, whole)
        vars(model).update(_chosen=self._chosen | set(tables))
        return model

    def scaled_to(self: Own, x: Any, **given: Unpack[Given]) -> Own:
        """The same model with its weak prior scaled to the observations x, as `fit` does; hyperparameters of
        `with_prior` stay, and what drives the model may be left out."""
        series = self._series(x, given)
        self._check_observations(series)
        for feature in torch.isnan(series.rows).all(0).nonzero()[:1].flatten().tolist():
            raise ValueError(
                f"x: feature {feature} ({series.features_of()[feature]}) has no observed value, to which a prior could "
                "be scaled; give data that has some."
            )
        return self._copy(self.values, self._weak_prior(series) | {name: self.prior[name] for name in self._chosen})

    def _copy(self: Own, values: Parameters, prior: Parameters | None = None) -> Own:
        """The same model with these values, which are known to be valid, and this prior, where one is given."""
        model, prior = object.__new__(type(self)), self.prior if prior is None else prior
        parts = {name: vars(self)[name] for name in (*self.made_of, "_chosen")}
        own = {name: table.detach() for name, table in prior.items()}
        vars(model).update(parts, values=dict(values), prior=own)
        return model

    @property
    def _like(self) -> Tensor:
        """A tensor of the dtype and device in which the model computes where it is given none."""
        tables = self.values or self.prior
        return next(iter(tables.values())) if tables else torch.zeros((), dtype=torch.float64, device="cpu")

    @property
    def _values(self) -> Parameters:
        """The values; ValueError where there are none."""
        if not self.values:
            raise ValueError("model: has no parameter values yet; use model.fit(x).model, or model.with_values(...).")
        return self.values

    def values_like(self, x: Tensor) -> Parameters:
        """The values in the dtype and on the device of x."""
        return {name: value.to(x) for name, value in self._values.items()}

    @property
    def n_parameters(self) -> int:
        """How many numbers a fit chooses freely."""
        return self.n_free(())

    def n_free(self, fixed: Iterable[str]) -> int:
        """How many numbers a fit chooses that holds some parameters fixed."""
        fixed = set(fixed)
        return count_free(self.known, {name: value for name, value in self._values.items() if name not in fixed})

    def describe(self) -> Parameters:
        """The parameter values as a reader knows them: scales and covariances rather than precisions."""
        return described(self.known, self.values)

    def __repr__(self) -> str:
        """What it is made of, and its values."""
        lines = [self._made(), *listed(self.known, self.values).splitlines()]
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
        """Write the model into the folder `path`, all or nothing: one file, `model.safetensors`.

        Raises:
            TypeError, ValueError: no path.
            OSError: it cannot be written; a model that was there is as it was.
        """
        from .storage import save_model

        save_model(self, check_path("path", path))

    @classmethod
    def load(cls: type[Own], path: str | Path) -> Own:
        """Read a model of this class that `save` has written.

        Raises:
            ValueError: no such folder, or one that holds no such model, or a damaged one.
        """
        from .storage import load_as

        return load_as(cls, check_path("path", path))

    def to_parts(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The specification, part by part, and tensors by name: what files hold."""
        tensors = {f"value.{name}": value for name, value in self.values.items()}
        for name, table in self.prior.items():
            tensors[f"{'prior' if name in self._chosen else 'weak'}.{name}"] = table
        return {name: getattr(self, name) for name in self.made_of}, tensors

    @classmethod
    def from_parts(cls: type[Own], parts: dict[str, Any], tensors: dict[str, Tensor]) -> Own:
        """The model that `to_parts` has taken apart."""
        model, tables = cls._from_specification(parts), {}
        for prefix in ("value.", "prior.", "weak."):
            tables[prefix] = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
        prior = tables["weak."] | tables["prior."]
        if set(prior) != set(model.prior):
            raise ValueError(f"prior: got {sorted(prior)}, but the model has {sorted(model.prior)}.")
        model = model.with_prior(prior)
        vars(model).update(_chosen=frozenset(tables["prior."]))
        return model.with_values(tables["value."]) if tables["value."] else model

    @classmethod
    def _from_specification(cls: type[Own], parts: dict[str, Any]) -> Own:
        """The model without values that has these parts."""
        return cls(**parts)

    # ---- series ------------------------------------------------------------------------------------------------------

    def read(self, x: Any, *, horizon: int = 0, **given: Unpack[Given]) -> Series:
        """The observations, what drives them and their labels as one `Series`, checked against this model.

        Arguments:
            x, lengths, covariates, dt: as in every method. A Series comes back as it is, once it has been checked.
            horizon: number of steps to come, for which covariates and gaps are given too: `[*batch, T + horizon, ...]`.

        Raises:
            ValueError: see `data.reading.read_series`; values that the model cannot have made; covariates or gaps that
                do not fit the model or the series.
        """
        series, parts = self._series(x, given), tuple(vars(self)[name] for name in self.made_of)
        if series.checked is not None and all(a is b for a, b in zip(series.checked, parts, strict=False)):
            return series
        self._check_observations(series)
        n_steps = max(series.n_steps, series.n_driven) if isinstance(x, Series) else series.n_steps + horizon
        self._check_drive(series, n_steps)
        return replace(series, checked=parts)

    def _series(self, x: Any, given: Given) -> Series:
        """The same before it is checked, but for the number of features."""
        if not isinstance(x, Series):
            return read_series(x, self.n_features, **given)
        for name in (name for name, value in given.items() if value is not None):
            raise ValueError(f"{name}: got some besides a Series, which has its own; leave it out.")
        if x.observations.shape[-1] != self.n_features:
            raise ValueError(f"x: got {x.observations.shape[-1]} feature(s), but the model has {self.n_features}.")
        return x

    def _fit(self, x: Any, given: Given, options: "Options") -> "Fit[Any]":
        """The fit that `_fitted` makes of a series, under a prior that may come with the options."""
        check_choice("method", options.method, self.methods)
        series = self.read(x, **given).detached()
        model = self.with_prior(options.prior) if isinstance(options.prior, Mapping) else self
        with naming("x"), one_thread_if_small(options.restarts * series.observations.numel()):
            return replace(model._fitted(series, options), series=series, prior=options.prior)

    @abstractmethod
    def _fitted(self, series: Series, options: "Options") -> "Fit[Any]":
        """The fit of a series; without a prior where `options.prior` is None."""

    def states(self, x: Any, **given: Unpack[Given]) -> "pd.DataFrame":
        """The states at each step given the whole of its sequence, under the model's values.

        Returns:
            A row for each step, on the index that x came with: of a panel or of rows below each other that of the
            table, in its order; of other sequences that of sequence and time. Columns:
            `state`, the most probable one; `state_0`, `state_1`, ..., P(s_t | x);
            `redraw`, P(z_t = 1 | x), for copy dynamics; `change`, P(s_t != s_t-1 | x), 0 at the first step.
            Of a linear model `latent_mean_level`, `latent_sd_level`, ..., mean and standard deviation of each latent.
            A model of several chains has these for each, counted from 1, and no `change`: `state_1`, `state_1_0`, ...,
            `redraw_1`, ...
        """
        from .views.states import states

        return states(self, x, **given)

    def plot(self, x: Any, *, sequence: int = 0, level: float = 0.9, **given: Unpack[Given]) -> "Figure":
        """The series, the model's bands, its states, and where they were redrawn: see `plot_fit` in `views`."""
        return self._figures().plot_fit(self, x, sequence=sequence, level=level, **given)

    def plot_forecast(
        self, x: Any, horizon: int, *, sequence: int = 0, level: float = 0.9, **given: Unpack[Given]
    ) -> "Figure":
        """The end of the series and the forecast after it: `forecast(x, horizon, ...).plot(...)` of one sequence."""
        horizon = check_integer("horizon", horizon)
        one = self.read(x, horizon=horizon, **given).one(sequence)
        return self.forecast(one, horizon).plot(level=level)

    def to_arviz(self, x: Any, *, draws: int = 100, seed: Seed = 0, **given: Unpack[Given]) -> "az.InferenceData":
        """The model at its values and the series x as ArviZ `InferenceData`: see `views.arviz.to_arviz`."""
        from .views.arviz import to_arviz

        return to_arviz(self, x, draws=draws, seed=seed, **given)
