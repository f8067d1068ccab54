"""`Estimates`: what a fit says of its likelihood and its parameters."""

from typing import TYPE_CHECKING, Any

import torch

from ..inference.numerics.gradients import needs_gradients
from .fitting.result import Result
from .of_model import OfModel
from .peers import explains_options

if TYPE_CHECKING:
    import pandas as pd

    from .views.summary import Summary


class Estimates(Result, OfModel):
    """The likelihood of a fit, its criteria, and tables of its parameters and states."""

    @property
    def loglik(self) -> float:
        """log p(x) of all sequences of `series`, each times its weight, at the fitted values.

        It is computed in float64 for float32 data too, except for data in files and models of several chains.
        """
        if self.kept is not None and "loglik" in self.kept.numbers:
            return self.kept.numbers["loglik"]
        with torch.no_grad():
            series = self._given(None)
            series = series if series.on_disk else series.double()  # float32 rounds the sum over a long sequence
            return float(series.weighed(self._model.log_evidence(series).double()).sum())

    @property
    def n_parameters(self) -> int:
        """The number of free parameters in this fit."""
        return self._model.n_free(self.held or self.fixed)

    @property
    def nobs(self) -> float:
        """The number of steps with a density, each times its weight: the n of `bic`."""
        from .judging.criteria import n_scored

        if self.kept is not None and "nobs" in self.kept.numbers:
            return self.kept.numbers["nobs"]
        n = n_scored(self._model, self._given(None))
        return int(n) if n.is_integer() else n

    @property
    def aic(self) -> float:
        """Akaike's criterion, 2 n_parameters - 2 loglik, for a fit by EM."""
        return self._criterion("aic")

    @property
    def aicc(self) -> float:
        """aic + 2 k (k + 1) / (n - k - 1), with k = n_parameters, for short series fitted by EM (Hurvich & Tsai 1989);
        infinite if n is at most k + 1."""
        return self._criterion("aicc")

    @property
    def bic(self) -> float:
        """Schwarz's criterion, log(n) n_parameters - 2 loglik, for a fit by EM; n is the number of steps with a
        density."""
        return self._criterion("bic")

    @property
    def hqic(self) -> float:
        """The criterion of Hannan & Quinn 1979, 2 log(log(n)) n_parameters - 2 loglik, for a fit by EM."""
        return self._criterion("hqic")

    @property
    def icl(self) -> float:
        """The integrated completed likelihood of a fit by EM of a `SwitchingSSM`.

        It is bic plus twice the entropy of the states given x, so it prefers states that are well separated (Biernacki,
        Celeux & Govaert 2000).
        """
        return self._criterion("icl")

    @explains_options
    @needs_gradients
    def summary(self, level: float = 0.9) -> "Summary":
        """The course of the fit, its parameters with standard errors and intervals, and its states; print it.

        For a fit by EM, standard errors come from the curvature of the objective (see `fitting.curvature`); for others,
        from their posterior. `.statistics`, `.parameters` and `.states` hold the same numbers in pandas.

        Arguments:
            level: probability of the intervals.

        Raises:
            ValueError: level outside (0, 1).
        """
        from .views.summary import summarise

        return summarise(self, self._named, level)

    @explains_options
    @needs_gradients
    def conf_int(self, level: float = 0.9) -> "pd.DataFrame":
        """The intervals of the parameters in `summary`: `lower` and `upper`, a row for each number; NaN without a
        standard error, for a reason that `summary` states.

        Arguments:
            level: probability of the intervals.

        Raises:
            ValueError: level outside (0, 1).
        """
        from .views.estimates import parameters_of

        return parameters_of(self, self._named, level).loc[:, ["lower", "upper"]]

    @needs_gradients
    def cov_params(self) -> "pd.DataFrame":
        """The covariance of the estimates, a row and a column for each number of `summary`; NaN for those without a
        standard error.

        For a fit by EM it is the inverse of the observed information, to first order in the numbers as they are shown,
        such as scales and probabilities; probabilities of a row add up to 1, so it is singular. For other fits it is
        the covariance of posterior draws.
        """
        from .views.estimates import covariance_of

        return covariance_of(self, self._named)

    def changes(self) -> "pd.DataFrame | Any":
        """The steps at which the state changed: where the column `state` of `states` differs from the step before.

        A row for each change, with its label as in `states`: the states `from` and `to`, and, if `states` has it,
        `probability`: P(a change at this step | x). For a model of several chains, `chain` says which. For `Segments`,
        a row for each beginning of a most probable segment but the first.

        Raises:
            TypeError: a model without states.

        >>> import samplehold as sh
        >>> x = [0.1, -0.2, 0.0, 5.1, 4.8, 5.0]
        >>> fit = sh.SwitchingSSM(sh.Markov(2), sh.Normal()).fit(x, progress=False)
        >>> fit.changes()["to"].to_dict()
        {3: 1}
        """
        from .views.changes import changes

        return changes(self, self._given(None))

    @property
    def _named(self) -> Any:
        """The series with the names of the numbers in tables: the fitted one, or that of a fit without its data."""
        kept = self.kept
        return self._given(None) if kept is None or kept.states is None else kept.labels

    def _criterion(self, name: str) -> float:
        from .judging.criteria import Criteria

        self._check_point(name)
        if self.kept is not None and name in self.kept.numbers:
            return self.kept.numbers[name]
        self._given(None)
        return getattr(Criteria.of(self, (name,)), name)

    def _check_point(self, name: str) -> None:
        if self.updates:
            raise ValueError(
                f"{name}: this fit was continued by update and holds only the last batch, but {name} needs the "
                "likelihood of all data; fit all data at once."
            )
        if self.shared:
            raise ValueError(
                f"{name}: several processes shared the data of this fit, but {name} needs the likelihood of all data; "
                "call select with this model as the only candidate, or take the sum of fit.loglik over the processes."
            )
        if self.posterior is not None:
            raise ValueError(
                f'{name}: got a fit by "{self.method}", which is no point estimate; use az.loo(fit.to_arviz()), '
                'or method="em".'
            )
