"""The methods of a model that its fits have too: one table, `OfModel`."""

from collections.abc import Callable
from functools import cache, wraps
from inspect import Parameter, Signature, signature
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, overload

from ..inference.numerics.randomness import Seed
from .data.frames import plain
from .data.knowledge import coded
from .data.series import Series

if TYPE_CHECKING:
    import pandas as pd


class Verb:
    """A method of the model, as a method of its fit. A fit has it if its model has it.

    Arguments:
        says: its docstring.
        reads: whether it reads a series: by default the fitted one.
        count: the name of its argument that a single number in place of x stands for; empty: none.
    """

    reads: bool
    count: str
    name: str

    def __init__(self, says: str, reads: bool = True, count: str = "") -> None:
        self.__doc__, self.reads, self.count, self.name = says, reads, count, ""

    def __set_name__(self, kind: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, fit: None, kind: Any = None) -> Any: ...

    @overload
    def __get__(self, fit: "OfModel", kind: Any = None) -> Callable[..., Any]: ...

    def __get__(self, fit: "OfModel | None", kind: Any = None) -> Any:
        if fit is None:
            return self._shown()
        method = getattr(fit._model, self.name)
        if not self.reads:
            return method

        @wraps(method)
        def of_fit(x: Any = None, *others: Any, **given: Any) -> Any:
            if self.count and isinstance(x, Integral) and not isinstance(x, bool):
                if others or self.count in given:
                    number = given.get(self.count, *others[:1])
                    raise ValueError(f"x: got {x}, a single number, and {self.count}={number}; give one of the two.")
                x, given = None, {self.count: int(x), **given}
            if self.count and not others:
                given = {self.count: 1, **given}
            return method(fit._given(x), *others, **fit._numbered(given))

        vars(of_fit)["__signature__"] = _without_series(getattr(method, "__func__", method))
        return of_fit

    def _shown(self) -> Callable[..., Any]:
        """A function with the docstring, for the class."""

        def method(fit: "OfModel", *arguments: Any, **given: Any) -> Any:
            return self.__get__(fit)(*arguments, **given)

        name = method.__name__ = self.name
        method.__doc__, method.__qualname__ = self.__doc__, f"Fit.{name}"
        defaults = {"x": None} if self.reads else {}
        defaults |= {self.count: 1} if self.count else {}
        named = [Parameter(one, Parameter.POSITIONAL_OR_KEYWORD, default=value) for one, value in defaults.items()]
        first, others = Parameter("self", Parameter.POSITIONAL_OR_KEYWORD), Parameter("given", Parameter.VAR_KEYWORD)
        vars(method)["__signature__"] = Signature([first, *named, others])
        return method


@cache
def _without_series(method: Callable[..., Any]) -> Signature:
    """The signature of a bound method, of which x and what must follow it may be left out."""
    named = Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY
    shown = [
        one.replace(default=None) if one.kind in named and one.default is Parameter.empty else one
        for one in list(signature(method).parameters.values())[1:]
    ]
    return signature(method).replace(parameters=shown)


class OfModel:
    """The model's methods at the fitted values. A fit has a method if its model has it.

    Without x they read the fitted series: `fit.smooth()`. For another series they accept all arguments of the model's
    method: `fit.smooth(x, lengths=[40, 60])`.
    """

    log_evidence: ClassVar[Verb] = Verb("The log evidence at the fitted values: see `SwitchingSSM.log_evidence`.")
    filter: ClassVar[Verb] = Verb("The beliefs given the data up to each step: see `SwitchingSSM.filter`.")
    smooth: ClassVar[Verb] = Verb("The beliefs given the whole series: see `SwitchingSSM.smooth`.")
    viterbi: ClassVar[Verb] = Verb("The most probable path: see `SwitchingSSM.viterbi`.")
    sample_posterior: ClassVar[Verb] = Verb(
        """Paths drawn from their posterior: see `SwitchingSSM.sample_posterior`.

        `fit.sample_posterior(100)` draws 100 paths of the fitted series; one path if there is no number.
        """,
        count="n",
    )
    forecast: ClassVar[Verb] = Verb(
        """A forecast at the fitted values: see `SwitchingSSM.forecast`; print it, or see its `Forecast.table`.

        `fit.forecast(12)` forecasts the fitted series, as does `fit.forecast(horizon=12)`; one step if there is no
        number. Inputs and gaps are then those of the steps to come, `[*batch, horizon, ...]`.
        """,
        count="horizon",
    )
    durations: ClassVar[Verb] = Verb("The expected number of steps in each state: see `SwitchingSSM.durations`.")
    chain: ClassVar[Verb] = Verb("The chain over the paths, with every exact algorithm: see `SwitchingSSM.chain`.")
    infer: ClassVar[Verb] = Verb("The marginals of each chain under q: see `FactorialSSM.infer`.")
    plot: ClassVar[Verb] = Verb(
        """The series with state means and bands, the smoothed states and redraws: see `SwitchingSSM.plot`."""
    )
    plot_forecast: ClassVar[Verb] = Verb(
        """The end of the series and its forecast: see `SwitchingSSM.plot_forecast`; `fit.plot_forecast(12)`.""",
        count="horizon",
    )
    plot_flow: ClassVar[Verb] = Verb(
        "The flow of the latent vector in each regime: see `SwitchingLinearSSM.plot_flow`."
    )
    describe: ClassVar[Verb] = Verb(
        "The values in displayed forms, such as scales: see `SwitchingSSM.describe`.", reads=False
    )
    transition_table: ClassVar[Verb] = Verb(
        "P(state some time later | state), of `ContinuousMarkov`: see `SwitchingSSM.transition_table`.", reads=False
    )

    model: Any
    series: Series | None
    state_names: tuple[str, ...] | None

    def states(self, x: Any = None, **given: Any) -> "pd.DataFrame | Any":
        """A table of the states at each step, at the fitted values: see `model.states`.

        Arguments:
            x: another series, as in `model.read`; None: the fitted series.
        """
        if self.state_names is None:
            return self._model.states(self._given(x), **given)
        from .views.states import states

        return states(self._model, self._given(x), self.state_names, **self._numbered(given))

    def write(
        self,
        path: str | Path,
        result: str = "states",
        x: Any = None,
        *,
        horizon: int = 1,
        seed: Seed = 0,
        **given: Any,
    ) -> None:
        """Write states, forecasts or draws to a Parquet or CSV file: see `model.write`.

        Arguments:
            path: the file; `.csv` at its end gives text.
            result: "states", "viterbi", "forecast" or "draws".
            x: another series; None: the fitted series.
            horizon: the number of steps of a forecast.
            seed: of draws.
        """
        from .views.written import write

        write(self._model, self._given(x), path, result, horizon, seed, self.state_names, **self._numbered(given))

    def simulate(
        self, n_steps: int | None = None, batch_shape: tuple[int, ...] = (), *, seed: Seed = None, **given: Any
    ) -> Any:
        """Draw sequences from the model at the fitted values: see `SwitchingSSM.simulate`.

        Without a number of steps, the draw has the sequences, inputs and gaps of the fitted series, and as many steps
        as its longest sequence.

        Arguments:
            n_steps: the number of steps; None: those of the fitted series.
            batch_shape: the batch axes: () for one sequence.
            seed: a number, which makes the draw repeatable; a `torch.Generator`; or None, torch's global generator.
        """
        if n_steps is not None or batch_shape:
            steps = self._given(None).n_steps if n_steps is None else n_steps
            return self._model.simulate(steps, batch_shape, seed=seed, **given)
        from .views.written import drawn_like

        return drawn_like(self._model, self._given(None), seed, **given)

    def _given(self, x: Any) -> Any:
        """x if it is given, otherwise the fitted series."""
        if x is None and self.series is None:
            raise ValueError(
                "x: got None, but this fit was saved without its data; give x, or save it by fit.save(path, data=True)."
            )
        return self.series if x is None else x

    def _numbered(self, given: dict[str, Any]) -> dict[str, Any]:
        """Arguments beside x, with labels of states as the numbers that they have in this fit."""
        if self.state_names is None or given.get("states") is None:
            return given
        return given | {"states": coded(plain(given["states"], "states"), self.state_names)[0]}

    @property
    def _model(self) -> Any:
        return self.model
