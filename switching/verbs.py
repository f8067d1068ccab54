"""What all models offer alike: fits, figures, exports, files. These import what stands above where they are called."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from ..inference.numerics.checks import naming
from ..inference.numerics.randomness import Seed
from ..inference.numerics.scalars import check_integer, check_path
from .data.series import Given, Series
from .parameters import Named, count_free

if TYPE_CHECKING:
    import arviz as az
    import pandas as pd
    from matplotlib.figure import Figure

    from .fit import Fit
    from .fitting.options import Options
    from .forecast import Forecast


class Verbs(Named):
    """A model that reads series; the class says how it fits them, and what draws them."""

    known: Any  # what is known of each parameter, by name
    values: Any  # of each, by name
    n_parameters: int
    latents: tuple[str, ...] = ()  # what the entries of a state that is a vector are called
    differentiable: bool = True  # whether its evidence is, in the parameters

    def read(self, x: Any, *, horizon: int = 0, **given: Unpack[Given]) -> Series:
        """The observations, what drives them and their labels as one `Series`, checked against this model."""
        raise TypeError(f"{self.name}: reads no series.")

    def forecast(self, x: Any, horizon: int, **given: Unpack[Given]) -> "Forecast":
        """States and observations at each of the `horizon` steps after the last one of x."""
        raise TypeError(f"{self.name}: makes no forecasts.")

    def n_free(self, fixed: Iterable[str]) -> int:
        """How many numbers a fit chooses that holds some parameters fixed."""
        held = {name: self.known[name] for name in fixed}
        return self.n_parameters - count_free(held, {name: self.values[name] for name in held})

    def _fitted(self, series: Series, options: "Options") -> "Fit":
        raise TypeError(f"{self.name}: has no fits.")

    def _figures(self) -> Any:
        """The module with `plot_fit(model, x, ...)` and `plot_forecast(forecast, level)` for this kind of model."""
        raise TypeError(f"{self.name}: has no figures.")

    def fit(
        self,
        x: Any,
        method: str = "em",
        restarts: int = 8,
        max_steps: int = 500,
        tol: float = 1e-6,
        seed: Seed = 0,
        prior: str | None = "scaled",
        progress: bool = True,
        *,
        factorization: str = "structured",
        batch_size: int | None = None,
        start: Any = None,
        fixed: Any = None,
        **given: Unpack[Given],
    ) -> "Fit":
        """Fit the parameters to sequences.

        Of a model of several chains, the values are not looked at, only its sizes and its kind of emission; it has the
        first two methods, in both of which the chains are independent under q, so that "em" raises a bound.

        Arguments:
            method: "em", expectation-maximisation: the mode of the posterior, or maximum likelihood with `prior=None`.
                "vmp", variational message passing: q(parameters) q(paths), under a bound on the evidence. "svi" and
                "nuts", through Pyro on the collapsed density, from a fit by message passing (an emission without a
                conjugate prior: by EM): a normal guide in each unconstrained parameter, and draws from the posterior.
                These three fill in `Fit.posterior`.
            restarts: four times as many short climbs from starts of several kinds (see `fitting.starts`), of which a
                quarter as many as `restarts`, and those that may still pass them, are taken to the end; and as many
                more from rearrangements of the best (see `fitting.search`). All run as batches, and `Fit.restarts`
                tells of each. 1: a single climb.
            max_steps: steps of EM, VMP (at most) or SVI; draws of each of 4 chains of NUTS, after half as many more.
            tol: a climb has converged when what is left to gain, extrapolated from its last rises, is less than `tol`
                nats for each observed step.
            seed: of the starts; the same seed gives the same fit.
            prior: "scaled" scales the emission's default prior to x: of normals it is worth half an observation, of
                the spread that x has within a state by robust statistics, and lets locations lie anywhere; "own" takes
                `model.prior` as it stands; None: no prior, for "em".
            progress: show a progress bar on a terminal.
            factorization: of q(paths) in VMP: "structured", the exact chain, or "mean_field", every step on its own.
            batch_size: sequences after which VMP updates the parameters, by a step that shrinks as it goes on (see
                `fitting.chunked`); a step of `max_steps` is then a pass through all sequences. None: all sequences.
            start: one of the starts, with `restarts=1` the only one: a model or a fit, values by name (of which some
                may be left out), or a state for every step `[*batch, T]`, -1 where it is not known. States then keep
                their numbers.
            fixed: parameters that are held at these values, by name, e.g. `{"loc": [[0.0], [1.0]]}`. The bound of
                message passing counts no prior density of what is held.

        Returns:
            `Fit`, with `.model` (this model with its values, states in the order of their locations), the objective's
            trace and each restart's end.
            Interrupting it (Ctrl-C) returns the best so far, marked `interrupted`.

        Raises:
            ValueError: see `read`; a feature without any observation; fewer observations than states; a prior without a
                mode.
            TypeError: message passing with an emission that has no conjugate prior.
        """
        from .fitting.options import Options

        options = Options(
            method, restarts, max_steps, tol, seed, prior, progress, factorization, batch_size, start, fixed
        )
        series = self.read(x, **given).detached()
        with naming("x"):
            return replace(self._fitted(series, options), series=series, prior=prior)

    def states(self, x: Any, **given: Unpack[Given]) -> "pd.DataFrame":
        """What the model at its values says of each step, given the whole of its sequence.

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
        """The series, what the model makes of it, and where states were drawn afresh: see `plot_fit` in `views`."""
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

    def _repr_html_(self) -> str:
        """What a notebook shows of it."""
        from .views.pages import model_page

        return model_page(self)

    def save(self, path: str | Path) -> None:
        """Write the model into the folder `path`, all or nothing: one file, `model.safetensors`.

        Raises:
            TypeError, ValueError: no path.
            OSError: it cannot be written; a model that was there is as it was.
        """
        from .storage import save_model

        save_model(self, check_path("path", path))  # type: ignore[arg-type]

    @classmethod
    def load(cls, path: str | Path) -> Any:
        """Read a model of this class that `save` has written.

        Raises:
            ValueError: no such folder, or one that holds no such model, or a damaged one.
        """
        from .storage import load_as

        return load_as(cls, check_path("path", path))
